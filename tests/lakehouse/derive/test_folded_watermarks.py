"""Watermarks whose time the next ones vouch for may go: what is made of those that stay is what was made of all."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aggregator.lakehouse.derive import derivation, folded_watermarks
from aggregator.lakehouse.derive.folded_watermarks import fold
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
    archive.maintain()
    assert Iceberg(archive.spark).row_count(WATERMARKS) < held * 3 / 4
    # Which folds by itself what the table still has of a run.
    archive.derive(full=True)
    assert archive.tables() == wanted
    before = commits.snapshots(archive.spark, [WATERMARKS])
    assert fold(archive.spark, KNOWN - DAY, archive.position) == 0
    assert commits.snapshots(archive.spark, [WATERMARKS]) == before
