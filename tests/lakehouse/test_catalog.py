"""A table knows how far it has come, also when its snapshots are gone, and one job at a time writes it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse import catalog, provision
from aggregator.lakehouse.catalog import HubPosition
from aggregator.lakehouse.job import start_session
from aggregator.lakehouse.job_lock import AlreadyRunning, alone
from aggregator.lakehouse.schemas import LOSSES, SITE_COVERAGE_DAILY
from shared.nats_connection import ConnectionSettings
from tests.lakehouse.conftest import say, settings_for


@pytest.fixture
def prepared(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = start_session(settings_for(ConnectionSettings(servers=("nats://127.0.0.1:1",)), tmp_path), say)
    provision.prepare(session)
    return session


def test_a_position_outlives_the_snapshot_that_carried_it(prepared: SparkSession) -> None:
    table, position = SITE_COVERAGE_DAILY, HubPosition("ARCHIVE", 17, 4711, 1_700_000_000_000_007)
    rows = prepared.table(table.identifier).limit(0)
    assert catalog.positions(prepared, [table]) == {}
    catalog.advance(prepared, table, position)
    assert catalog.positions(prepared, [table]) == {table.name: position}

    # Maintenance commits a snapshot without a position, then expires the one that carried it.
    values = "DATE '2026-02-03', 'r', 's', 'b', 1, 1, 0, 0, false, 0"
    prepared.sql(f"INSERT INTO {table.identifier} VALUES ({values})")
    assert catalog.positions(prepared, [table]) == {table.name: position}
    catalog.record(prepared, {table.name: position}, "recipe")
    prepared.sql(
        f"CALL lake.system.expire_snapshots(table => '{table.identifier}',"
        " older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    assert catalog.positions(prepared, [table, LOSSES]) == {table.name: position}

    # A replacement takes what matches, and the table is further on, also where nothing did.
    further = HubPosition("ARCHIVE", 17, 4800, 1_700_000_000_000_008)
    catalog.replace(rows, table, f.expr("day = DATE '2026-02-03' AND site_bucket = 1"), further)
    assert prepared.table(table.identifier).count() == 1
    catalog.replace(rows, table, f.expr("day = DATE '2026-02-03' AND site_bucket = 0"), further)
    assert catalog.positions(prepared, [table]) == {table.name: further}
    assert prepared.table(table.identifier).count() == 0


def test_tables_explain_themselves_and_are_made_once(prepared: SparkSession) -> None:
    provision.prepare(prepared)
    described = {row.col_name: row.comment for row in prepared.sql("DESCRIBE muster.sender_intervals").collect()}
    assert described["started_at"] == "down starts at the last word of the sender"
    outages = {row.col_name: row.comment for row in prepared.sql("DESCRIBE muster.outages").collect()}
    assert outages["noticed_at"] == "when it became stale"


def test_one_job_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    said: list[str] = []
    with (
        alone(spark, tmp_path, 0, said.append),
        pytest.raises(AlreadyRunning, match=r"another job holds .*rollup\.lock"),
        alone(spark, tmp_path, 0.3, said.append),
    ):
        pass
    assert said == ["another job is at work on these tables: waiting for it"]
    with alone(spark, tmp_path, 0, said.append):
        pass
