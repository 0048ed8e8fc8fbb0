"""Files follow data: a long thin history is few of them, and tables of an older version come to be so by themselves."""

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from aggregator.lakehouse.imports import writer
from aggregator.lakehouse.imports.staging import stage
from aggregator.lakehouse.tables.imports import IMPORTS
from aggregator.lakehouse.tables.position import NOWHERE
from aggregator.lakehouse.tables.schemas import DERIVED, SENDER_INTERVALS, SITE_COVERAGE, TABLES
from aggregator.lakehouse.warehouse import commits, provision
from shared.instants import DAY, HOUR
from tests.lakehouse.conftest import say
from tests.lakehouse.scripted_archive import START, Archive, Interrupted
from tests.lakehouse.scripted_weeks import week_of
from tests.support.lakehouse.long_trace import MAPPING, write_trace

WERE_BY_DAY = [table for table in DERIVED if table.follows is not None and table is not SITE_COVERAGE]


def file_counts(archive: Archive) -> dict[str, int]:
    return {table.name: len(archive.files(table)) for table in WERE_BY_DAY}


def test_a_long_thin_history_is_a_few_files(spark: SparkSession, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.csv", seed=1, intervals=120, nodes=12, sites=2, days=900)
    archive = Archive(tmp_path / "lake", [])
    # No hub has said anything: known time ends with the import.
    archive.position = NOWHERE
    staged = stage(tmp_path / "trace.csv", MAPPING, tmp_path / "staged", START, say)
    writer.take(archive.spark, [staged], MAPPING, commits.positions(archive.spark, (IMPORTS,)).get(IMPORTS.name))
    archive.derive()
    assert archive.spark.table("muster.site_availability_daily").count() > 900
    # Two of a bucket, what is of the last day and what was before; of lives, one for each year, and what goes on.
    assert max(file_counts(archive).values()) <= 2 * 5


def test_tables_of_an_older_layout_are_brought_over_though_a_run_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    told = [record for number in range(3) for record in week_of(f"site{number}")]
    archive = Archive(
        tmp_path,
        [(table, {"archived_at": START + 365 * DAY, "agent": "a", "boot_id": "b"} | row | {"hub_sequence": n})
         for n, (table, row) in enumerate(told, 1)],
    )  # fmt: skip
    archive.take(len(told), START + 7 * DAY - HOUR)
    archive.derive()
    wanted = archive.tables()
    lay_out_by_day(archive)
    by_day = file_counts(archive)
    assert archive.tables() == wanted
    provision.prepare(archive.spark)
    with pytest.raises(Interrupted):
        archive.derive(commits=4)
    archive.derive()
    assert archive.tables() == wanted
    assert {name: count for name, count in file_counts(archive).items() if count > by_day[name] / 2} == {}


def lay_out_by_day(archive: Archive) -> None:
    """Have the tables as older versions made them: a partition for each day and bucket."""
    for table in WERE_BY_DAY:
        by_day = "days(ended_at)" if table is SENDER_INTERVALS else "day"
        if table is SENDER_INTERVALS:
            archive.spark.sql(f"ALTER TABLE {table.identifier} DROP PARTITION FIELD years(ended_at)")
        archive.spark.sql(f"ALTER TABLE {table.identifier} ADD PARTITION FIELD {by_day}")
        archive.spark.sql(
            f"CALL lake.system.rewrite_data_files(table => '{table.identifier}', options => map('rewrite-all', 'true'))"
        )
    archive.spark.sql("ALTER TABLE muster.positions UNSET TBLPROPERTIES ('muster.tables')")
    run = msgspec.structs.replace(
        commits.last_whole_run(archive.spark), snapshots=commits.snapshots(archive.spark, TABLES)
    )
    commits.record(archive.spark, run.positions, "an older recipe", run)
