"""Watermarks whose time the next ones vouch for may go: what is made of those that stay is what was made of all.

None that went is taken for new when it comes again.
"""

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.bronze import writer
from aggregator.lakehouse.bronze.writer import Arrivals, ReadCounts
from aggregator.lakehouse.derive import derivation
from aggregator.lakehouse.derive.coverage import folded_watermarks
from aggregator.lakehouse.derive.coverage.folded_watermarks import fold
from aggregator.lakehouse.tables.schemas import WATERMARKS
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from shared.instants import DAY, HOUR, MINUTE
from tests.lakehouse.derive.test_incremental import records_of
from tests.lakehouse.scripted_archive import START, Archive
from tests.support.lakehouse.random_fleet import BlockHistory, Mark, draw_block

END = START + 3 * DAY
KNOWN = END + 2 * DAY


def draw_dense(draw: random.Random, number: int) -> BlockHistory:
    """Draw a block that vouches several times between any two of the instants that are drawn, now and then ahead."""
    block = draw_block(draw, f"site{number // 2}", f"b{number}", START, END)
    marks: list[Mark] = []
    for mark in block.marks:
        marks += [mark._replace(through=mark.through + step * MINUTE) for step in range(draw.randrange(4, 8))]
        if draw.random() < 0.05:
            marks.append(mark._replace(through=mark.through + 9 * DAY, archived_at=mark.through + HOUR))
    return block._replace(marks=marks)


def arrive(archive: Archive, rows: DataFrame) -> ReadCounts:
    """Take watermarks that the archive holds once more."""
    days = {day for (day,) in rows.select(f.to_date("observed_through")).distinct().collect()}
    return writer._take_table(archive.spark, Arrivals(rows, rows.count(), days), WATERMARKS, archive.position)


def test_what_is_made_of_folded_watermarks_is_what_is_made_of_all(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    draw = random.Random(random.getrandbits(32))
    blocks = [draw_dense(draw, number) for number in range(12)]
    records = records_of(draw, blocks, [], draw.choice((0, 0.05)))
    archive = Archive(tmp_path / "lake", records)
    archive.take(len(records), KNOWN)
    with monkeypatch.context() as unfolded:
        unfolded.setattr(derivation, "folded", lambda watermarks, _known_through: watermarks)
        archive.derive()
    monkeypatch.setattr(folded_watermarks, "_DAYS_AT_ONCE", 2)
    wanted, held = archive.tables(), Iceberg(archive.spark).row_count(WATERMARKS)
    delivered = archive.spark.table(WATERMARKS.identifier).localCheckpoint()
    archive.maintain()
    # How many go depends on what is drawn.
    assert Iceberg(archive.spark).row_count(WATERMARKS) < held * 9 / 10
    # Which folds by itself what the table still has of a run.
    archive.derive(full=True)
    assert archive.tables() == wanted
    before = commits.snapshots(archive.spark, [WATERMARKS])
    assert fold(archive.spark, KNOWN - DAY, archive.position) == 0
    assert commits.snapshots(archive.spark, [WATERMARKS]) == before
    # What is delivered again is a duplicate, also where it was folded; what says more is new.
    again = delivered.withColumns(
        {"hub_sequence": f.col("hub_sequence") + held, "archived_at": f.timestamp_micros(f.lit(KNOWN))}
    )
    counts = arrive(archive, again)
    assert (counts.written, counts.duplicates) == (0, held)
    more = (
        again.where("advisory_ordinal > 0")
        .limit(1)
        .withColumns({"advisory_ordinal": f.col("advisory_ordinal") + 100, "boot_id": f.lit("another")})
    )
    assert arrive(archive, more) == ReadCounts(read=1, written=1)
