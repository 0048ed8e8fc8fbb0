"""The history that benchmarks compute with is one that the tables and DuckDB's rival computation still take."""

from pathlib import Path

from pyspark.sql import SparkSession

from aggregator.lakehouse.tables.schemas import BRONZE
from aggregator.lakehouse.warehouse import commits
from tests.bench.fleet_history import Fleet, write_history
from tests.bench.warehouses import Warehouse, derive_in_duckdb


def test_a_made_history_fills_every_table_that_a_rollup_reads_and_duckdb_derives_from_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Fleet(senders=8, sites=4, days=2, outages=2)
    history = write_history(fleet, tmp_path / "history")
    warehouse = Warehouse(tmp_path / "lake", history)
    warehouse.take(fleet.end)
    stands = commits.positions(warehouse.spark, BRONZE)
    assert {position.known_through for position in stands.values()} == {fleet.end}
    assert stands.keys() == {table.name for table in BRONZE}
    assert warehouse.spark.table("muster.advisories").count() == fleet.advisory_count
    derive_in_duckdb(history, fleet.end, tmp_path / "derived")
    assert list((tmp_path / "derived").glob("*.parquet"))
