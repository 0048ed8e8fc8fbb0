"""Let years of rollups pass in minutes: real commits of real files into real tables, but nothing is computed.

A rollup appends to the day that runs (bronze tables, intervals that ended) or replaces it (daily and hourly tables).
Here one row for each table and run does so, written by pyarrow and committed by Iceberg, which is all that the number
of files depends on.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from aggregator.lakehouse import catalog
from aggregator.lakehouse.catalog import HubPosition
from aggregator.lakehouse.iceberg import Iceberg
from aggregator.lakehouse.schemas import REGISTRATIONS, SITE_COVERAGE_DAILY, TABLES, Table
from shared.instants import SECOND

APPENDED, REPLACED = REGISTRATIONS, SITE_COVERAGE_DAILY
FIRST = date(2026, 1, 1)


class FileCounts(NamedTuple):
    """Files of a table on the disk, whether a snapshot knows them or not."""

    data: int
    manifests: int
    metadata: int


class QuickRuns:
    """A warehouse whose tables ``APPENDED`` and ``REPLACED`` are written by one run after the other."""

    def __init__(self, spark: SparkSession, warehouse: Path) -> None:
        self.spark = spark
        self._warehouse = warehouse
        self._packages: Any = spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
        self._iceberg = Iceberg(spark)
        self.run_count = 0
        self._noon = datetime(FIRST.year, FIRST.month, FIRST.day, 12, tzinfo=UTC)

    def run(self, day: int) -> None:
        """Commit what a run on a day (counted from ``FIRST``) commits."""
        self.run_count += 1
        today = FIRST + timedelta(days=day)
        self._noon = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
        registration = {"site": "dub1", "sender_id": f"n{self.run_count}", "stored_at": self._noon}
        self._commit(APPENDED, registration, f"stored_at_day={today}", replaces=False)
        row = {"day": today, "site": "dub1", "window_us": self.run_count, "site_bucket": 0}
        self._commit(REPLACED, row, f"day={today}/site_bucket=0", replaces=True)

    @property
    def position(self) -> HubPosition:
        """Say what the tables stand for now."""
        return HubPosition("ARCHIVE", 1, self.run_count, int(self._noon.timestamp()) * SECOND)

    def stand_there(self) -> bool:
        """Tell whether the tables say themselves that they stand for that."""
        tables = (APPENDED, REPLACED)
        return catalog.positions(self.spark, tables) == {table.name: self.position for table in tables}

    def record(self) -> None:
        """End a whole run."""
        reached = {table.name: self.position for table in (APPENDED, REPLACED)}
        began = catalog.last_whole_run(self.spark)
        here = catalog.snapshots(self.spark, TABLES)
        catalog.record(self.spark, reached, "recipe", msgspec.structs.replace(began, snapshots=here))

    def files(self, table: Table) -> FileCounts:
        """Count a table's files."""
        found = [path for path in (self._warehouse / "muster" / table.name).rglob("*") if path.is_file()]
        metadata = sum(path.name.endswith(".metadata.json") for path in found)
        data = sum(path.suffix == ".parquet" for path in found)
        return FileCounts(data, sum(path.suffix == ".avro" for path in found), metadata)

    def _commit(self, table: Table, row: dict[str, object], partition: str, *, replaces: bool) -> None:
        loaded = self._iceberg.load(table)
        path = self._warehouse / "muster" / table.name / "data" / partition / f"{uuid4()}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_arrow(row, loaded), path)
        file = (
            self._packages.DataFiles.builder(loaded.spec())
            .withPath(f"file://{path}")
            .withFormat("parquet")
            .withFileSizeInBytes(path.stat().st_size)
            .withRecordCount(1)
            .withPartitionPath(partition)
            .build()
        )
        commit = loaded.newReplacePartitions().addFile(file) if replaces else loaded.newAppend().appendFile(file)
        for name, value in catalog.properties(self.spark, self.position).items():
            commit.set(name, value)
        commit.commit()


def _arrow(row: dict[str, object], loaded: Any) -> pa.Table:
    """Make a row whose columns carry Iceberg's identifiers, as every engine's files do."""
    types = {str: pa.string(), int: pa.int32(), date: pa.date32(), datetime: pa.timestamp("us", "UTC")}
    schema = loaded.schema()

    def fields() -> Iterator[pa.Field]:
        for name, value in row.items():
            found = schema.findField(name)
            kind = pa.int64() if str(found.type()) == "long" else types[type(value)]
            yield pa.field(name, kind, metadata={"PARQUET:field_id": str(found.fieldId())})

    wanted = pa.schema(list(fields()))
    return pa.table([pa.array([row[field.name]], field.type) for field in wanted], wanted)
