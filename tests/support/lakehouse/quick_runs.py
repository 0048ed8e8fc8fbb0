"""Let years of rollups pass in minutes: real commits of real files into real tables, but nothing is computed.

What a rollup commits depends on the table. To bronze tables it adds a file of the day that runs, or moves their
position alone where nothing came. In derived tables it puts partitions in the place of others: all, those of the day
that runs, or those of what goes on, beside what ended. The same is committed here, with one row in each file, written
by pyarrow: that is all that the number of files depends on.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import (
    BRONZE,
    POLICY,
    QUARANTINE,
    REGISTRATIONS,
    SENDER_INTERVALS,
    SENDER_MAINTENANCE_DAYS,
    SITE_BUCKETS,
    SITE_COVERAGE_DAILY,
    TABLES,
    Table,
)
from aggregator.lakehouse.warehouse import commits, layout
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from shared.instants import SECOND

APPENDED, REPLACED = REGISTRATIONS, SITE_COVERAGE_DAILY
FIRST = date(2026, 1, 1)
_WITHOUT_ROWS = (POLICY, QUARANTINE, SENDER_MAINTENANCE_DAYS)
_NO_YEAR = "__HIVE_DEFAULT_PARTITION__"


class FileCounts(NamedTuple):
    """Files of a table on the disk, whether a snapshot knows them or not."""

    data: int
    manifests: int
    metadata: int
    others: int


class QuickRuns:
    """A warehouse whose ``tables`` are written by one run after the other, for sites in so many ``partitions``."""

    def __init__(
        self, spark: SparkSession, warehouse: Path, tables: Sequence[Table] = (APPENDED, REPLACED), partitions: int = 1
    ) -> None:
        self.spark = spark
        self._warehouse, self._tables, self._width = warehouse, tables, SITE_BUCKETS // partitions
        layout.divide(spark, partitions**2)
        self._packages: Any = spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
        self._iceberg = Iceberg(spark)
        self._fields: dict[str, dict[str, pa.Field]] = {}
        self.run_count = 0
        self._noon = datetime(FIRST.year, FIRST.month, FIRST.day, 12, tzinfo=UTC)

    def run(self, day: int) -> None:
        """Commit what a run on a day (counted from ``FIRST``) commits."""
        self.run_count += 1
        today = FIRST + timedelta(days=day)
        self._noon = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
        for table in self._tables:
            if table in _WITHOUT_ROWS:
                commits.advance(self.spark, table, self.position)
            elif table in BRONZE:
                self._append(table)
            else:
                self._replace(table)

    @property
    def position(self) -> HubPosition:
        """Say what the tables stand for now."""
        return HubPosition("ARCHIVE", 1, self.run_count, int(self._noon.timestamp()) * SECOND)

    def stand_there(self) -> bool:
        """Tell whether the tables say themselves that they stand for that."""
        return commits.positions(self.spark, self._tables) == {table.name: self.position for table in self._tables}

    def record(self, others: Mapping[str, HubPosition] = MappingProxyType({})) -> None:
        """End a whole run; ``others`` says by name where tables stand that runs do not write."""
        reached = {table.name: self.position for table in self._tables} | dict(others)
        began = commits.last_whole_run(self.spark)
        here = commits.snapshots(self.spark, TABLES)
        commits.record(self.spark, reached, "recipe", msgspec.structs.replace(began, snapshots=here))

    def files(self, table: Table) -> FileCounts:
        """Count a table's files."""
        top = self._warehouse / "muster" / table.name
        names = [name for _, _, found in os.walk(top) for name in found]
        data, manifests, metadata = (
            sum(name.endswith(end) for name in names) for end in (".parquet", ".avro", ".metadata.json")
        )
        return FileCounts(data, manifests, metadata, len(names) - data - manifests - metadata)

    def files_in_use(self, table: Table) -> int:
        """Count the data files that a table's newest snapshot has."""
        return int(self._iceberg.load(table).currentSnapshot().summary().get("total-data-files"))

    def _append(self, table: Table) -> None:
        column = table.dated_by
        path = self._write(table, {column: self._noon}, f"{column}_day={self._noon.date()}")
        seen = commits.snapshots(self.spark, (table,)).get(table.name)
        commits.add_files(self.spark, table, [(f"file://{path}", str(self._noon.date()))], self.position, seen)

    def _replace(self, table: Table) -> None:
        loaded = self._iceberg.load(table)
        commit = loaded.newOverwrite().overwriteByRowFilter(self._replaced(table))
        metrics = self._packages.MetricsConfig.forTable(loaded)
        for row, partition in self._partitions(table):
            written = loaded.io().newInputFile(f"file://{self._write(table, row, partition)}")
            file = self._packages.DataFiles.builder(loaded.spec()).withInputFile(written).withFormat("parquet")
            # Which days a file has, its metrics say.
            file = file.withMetrics(self._packages.parquet.ParquetUtil.fileMetrics(written, metrics))
            commit.addFile((file.withPartitionPath(partition) if partition else file).build())
        for name, value in commits.properties(self.spark, self.position).items():
            commit.set(name, value)
        commit.commit()

    def _replaced(self, table: Table) -> Any:
        of_rows = self._packages.expressions.Expressions
        if table is SENDER_INTERVALS:
            return of_rows.isNull("ended_at")
        if table.follows == "day":
            return of_rows.greaterThanOrEqual("day", str(self._noon.date()))
        return of_rows.alwaysTrue()

    def _partitions(self, table: Table) -> Iterator[tuple[dict[str, object], str]]:
        """Give a row for each partition that a run writes, and the partition's path."""
        if not table.partitioned_by:
            yield {}, ""
            return
        today = self._noon.date()
        *_, field = self._iceberg.load(table).spec().fields()
        for bucket in range(0, SITE_BUCKETS, self._width):
            within = f"{field.name()}={bucket}"
            of: dict[str, object] = {"site_bucket": bucket}
            if table is SENDER_INTERVALS:
                yield of, f"ended_at_year={_NO_YEAR}/{within}"
                yield of | {"ended_at": self._noon}, f"ended_at_year={today.year - 1970}/{within}"
            else:
                yield of, within

    def _write(self, table: Table, row: dict[str, object], partition: str) -> Path:
        path = self._warehouse / "muster" / table.name / "data" / partition / f"{uuid4()}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        count, today = self.run_count, self._noon.date()
        known = {"table_name": table.name, "site": "dub1", "sender_id": f"n{count}", "window_us": count, "day": today}
        known |= row
        fields = self._fields.setdefault(table.name, {})
        for name in table.column_names:
            if name in known and name not in fields:
                fields[name] = _field(name, known[name], self._iceberg.load(table).schema().findField(name))
        wanted = [fields[name] for name in table.column_names if name in known]
        rows = pa.table([pa.array([known[field.name]], field.type) for field in wanted], pa.schema(wanted))
        pq.write_table(rows, path)
        return path


def _field(name: str, value: object, found: Any) -> pa.Field:
    """Make a column that carries Iceberg's identifier, as every engine's files do."""
    types = {str: pa.string(), int: pa.int32(), date: pa.date32(), datetime: pa.timestamp("us", "UTC")}
    kind = pa.int64() if str(found.type()) == "long" else types[type(value)]
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(found.fieldId())})
