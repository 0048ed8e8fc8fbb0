"""Write Iceberg tables without Spark, as a rollup would leave them, out of a history given sender by sender."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from aggregator.lakehouse.tables.imports import IMPORTS
from aggregator.lakehouse.tables.schemas import (
    ADVISORIES,
    FLEET_AVAILABILITY_DAILY,
    POSITIONS,
    REGION_AVAILABILITY_DAILY,
    SENDER_DAY_EXCEPTIONS,
    SENDER_INTERVALS,
    SITE_AVAILABILITY_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_COVERAGE,
    SITE_COVERAGE_DAILY,
    TABLES,
    WATERMARKS,
    Table,
)
from shared.instants import DAY, HOUR
from tests.support.lakehouse.small_rollup import (
    REGISTRATION_INTERVAL,
    STALE_AFTER,
    START,
    Coverage,
    Interval,
    advisory_rows,
    coverage_day_rows,
    coverage_row,
    interval_row,
    is_imported,
    sender_rows,
    summed_rows,
    watermark_rows,
    windows,
)

_PLAIN = {
    "STRING": StringType(),
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "DOUBLE": DoubleType(),
    "BOOLEAN": BooleanType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestamptzType(),
    "BINARY": BinaryType(),
}


class SmallLakehouse:
    """Tables in ``warehouse``, and the catalog that names them."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        warehouse.mkdir(parents=True, exist_ok=True)
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
        self.catalog.create_namespace("muster")
        for table in TABLES:
            self._create(table)

    def append(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; columns that a row leaves out are null."""
        loaded = self.catalog.load_table(table.identifier)
        loaded.append(_arrow(list(rows), loaded.schema().as_arrow()))

    def record_positions(self, known_through: int, *, of_hub: bool = True) -> None:
        """End a run: write through where every table stands, with the snapshots that belong together.

        Where nothing is of a hub, only ``imports`` says how far.
        """
        position = {"stream": "REPORT", "stream_created_at": START, "sequence": 4711, "known_through": known_through}
        nowhere = {"stream": "", "stream_created_at": 0, "sequence": 0, "known_through": 0}
        of_imports = position | {"stream": "imports", "stream_created_at": 0, "sequence": 1}
        snapshots = {
            table.name: self.catalog.load_table(table.identifier).current_snapshot()
            for table in TABLES
            if table is not POSITIONS
        }
        rows = [
            {
                "table_name": name,
                "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
                **(position if of_hub else of_imports if name == IMPORTS.name else nowhere),
            }
            for name, snapshot in snapshots.items()
        ]
        loaded = self.catalog.load_table(POSITIONS.identifier)
        write = loaded.overwrite if loaded.current_snapshot() else loaded.append
        write(_arrow(rows, loaded.schema().as_arrow()))

    def roll_up(
        self,
        intervals: Sequence[Interval],
        coverage: Sequence[Coverage],
        known_through: int,
        *,
        stale_after: int = STALE_AFTER,
        registration_interval: int = REGISTRATION_INTERVAL,
        accounted: Sequence[Coverage] | None = None,
    ) -> None:
        """Write a whole history and what follows from it; ``accounted`` is coverage outside declared maintenance."""
        accounted = coverage if accounted is None else accounted
        bound = 2 * registration_interval
        self.append(SENDER_INTERVALS, (interval_row(each, coverage, known_through, stale_after) for each in intervals))
        self.append(SITE_COVERAGE, map(coverage_row, coverage))
        self.append(WATERMARKS, watermark_rows(coverage, stale_after))
        self.append(ADVISORIES, advisory_rows(intervals, coverage, known_through, stale_after))
        days = windows(intervals, accounted, known_through, DAY)
        hours = windows(intervals, accounted, known_through, HOUR)
        self.append(SENDER_DAY_EXCEPTIONS, sender_rows(days, intervals, known_through, bound))
        self.append(SITE_COVERAGE_DAILY, coverage_day_rows(accounted, known_through))
        site = ("region", "site")
        self.append(SITE_AVAILABILITY_HOURLY, summed_rows(hours, known_through, HOUR, site, bound))
        self.append(SITE_AVAILABILITY_DAILY, summed_rows(days, known_through, DAY, site, bound))
        self.append(REGION_AVAILABILITY_DAILY, summed_rows(days, known_through, DAY, ("region",), bound))
        self.append(FLEET_AVAILABILITY_DAILY, summed_rows(days, known_through, DAY, (), bound))
        self.record_positions(known_through, of_hub=not all(is_imported(each.block) for each in coverage))

    def _create(self, table: Table) -> None:
        fields = [
            NestedField(number, column.name, _iceberg_type(column.type, number * 100), required=False)
            for number, column in enumerate(table.columns, start=1)
        ]
        bucket = [field for field in fields if field.name == "site_bucket"]
        spec = PartitionSpec(
            *(PartitionField(field.field_id, 1000, IdentityTransform(), field.name) for field in bucket)
        )
        self.catalog.create_table(table.identifier, Schema(*fields), partition_spec=spec)


def _arrow(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    return pa.table([pa.array([row.get(field.name) for row in rows], field.type) for field in schema], schema)


def _iceberg_type(text: str, first_id: int) -> IcebergType:
    """Read a type as ``schemas.py`` writes it."""
    if decimal := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", text):
        return DecimalType(int(decimal[1]), int(decimal[2]))
    if listed := re.fullmatch(r"ARRAY<(\w+)>", text):
        return ListType(first_id + 1, _PLAIN[listed[1]], element_required=False)
    if nested := re.fullmatch(r"MAP<(\w+), (.+)>", text):
        value = _iceberg_type(nested[2], first_id + 10)
        return MapType(first_id + 1, _PLAIN[nested[1]], first_id + 2, value, value_required=False)
    return _PLAIN[text]
