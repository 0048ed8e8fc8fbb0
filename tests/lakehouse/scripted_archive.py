"""An archive whose records come in the order that a test says, and the tables that are made of it step by step."""

import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse import rollup
from aggregator.lakehouse.imports import writer
from aggregator.lakehouse.imports.staging import stage
from aggregator.lakehouse.spark import effort
from aggregator.lakehouse.tables.imports import BLOCK_PREFIX, IMPORTS
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import BRONZE, DERIVED, Table
from aggregator.lakehouse.warehouse import commits as catalog
from aggregator.lakehouse.warehouse import provision
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.upkeep import maintain
from shared.instants import DAY, SECOND
from shared.nats.connection import ConnectionSettings
from shared.settings import Duration
from tests.lakehouse.conftest import say, settings_for
from tests.lakehouse.dying_rollup import MAPPING
from tests.support.lakehouse.random_fleet import Times

FIRST_DAY = date(2026, 2, 27)
START = int(datetime(FIRST_DAY.year, FIRST_DAY.month, FIRST_DAY.day, tzinfo=UTC).timestamp()) * SECOND
NOBODY = ConnectionSettings(servers=("nats://127.0.0.1:1",))
Row = dict[str, Any]
Rows = list[tuple[object, ...]]


class Interrupted(Exception):
    """Ends a run between two commits."""


class Archive:
    """Records in the order in which the hub archived them, of which a run takes what a position covers."""

    def __init__(self, warehouse: Path, records: Sequence[tuple[Table, Row]]) -> None:
        self.settings = settings_for(NOBODY, warehouse)
        self.spark = rollup.start_session(self.settings, say)
        provision.prepare(self.spark)
        effort.fit(self.spark, (), 0, {})
        self.records = records
        self.taken = 0
        self.position = HubPosition("ARCHIVE", 1, 0, 0)

    def take(self, count: int, known_through: int) -> None:
        """Write the next records into the bronze tables."""
        rows = self.records[self.taken : self.taken + count]
        self.taken += len(rows)
        self.position = HubPosition("ARCHIVE", 1, self.taken, known_through)
        for table in BRONZE:
            mine = [row for target, row in rows if target is table]
            if mine:
                catalog.append(self.frame(table, mine), table, self.position)
            else:
                catalog.advance(self.spark, table, self.position)

    def derive(self, *, full: bool = False, commits: int = 99) -> None:
        """Derive; be interrupted after some commits, where there are as many."""
        left = commits

        def count(line: str) -> None:
            nonlocal left
            left -= line.startswith("  ")
            if not left:
                raise Interrupted

        rollup.bring_up_to_date(self.spark, self.settings, self.position, full=full, progress=count)

    def maintain(self) -> None:
        """Make one of any two files, fold watermarks, and let go of every snapshot that no run goes on from."""
        behind = {"keep_snapshots": Duration(0), "fold_watermarks_after": Duration(1)}
        kept_up = msgspec.structs.replace(self.settings.lakehouse, **behind)
        maintain(self.spark, kept_up, time.time_ns() // 1_000, say)

    def import_history(self, directory: Path, text: str) -> None:
        """Take the rows of a file; the next run derives what follows from them."""
        directory.mkdir()
        (directory / "file.csv").write_text(text)
        staged = stage(directory / "file.csv", MAPPING, directory / "staged", START + 365 * DAY, say)
        writer.take(self.spark, [staged], MAPPING, catalog.positions(self.spark, (IMPORTS,)).get(IMPORTS.name))

    def tables(self) -> dict[str, Rows]:
        return {
            table.name: sorted(map(tuple, self.spark.table(table.identifier).collect()), key=repr) for table in DERIVED
        }

    def stands(self) -> dict[str, int]:
        """Give the snapshot of each derived table that has rows."""
        iceberg, found = Iceberg(self.spark), catalog.snapshots(self.spark, DERIVED)
        return {table.name: found[table.name] for table in DERIVED if iceberg.row_count(table)}

    def sender_days(self) -> dict[tuple[object, ...], Times]:
        """Give by (site, block, sender, midnight) what analysts are told, but for what was imported."""
        days = self.spark.table("muster.sender_availability_daily").where(~f.startswith("block", f.lit(BLOCK_PREFIX)))
        rows = days.select(
            "site", "block", "sender_id", f.unix_micros(f.col("day").cast("timestamp")), "up_us", "down_us",
            "unknown_us", "maintenance_us", "absent_us", "outage_count",
        ).collect()  # fmt: skip
        return {tuple(row[:4]): Times(*row[4:]) for row in rows}

    def files(self, table: Table) -> dict[str, tuple[int, set[int], int]]:
        """Give first day (counted from START; the last one for what goes on), buckets and bytes of a table's files."""
        first = f"readable_metrics.{table.follows}.lower_bound"
        rows = self.spark.table(f"{table.identifier}.files").selectExpr(
            "file_path",
            f"coalesce(CAST({first} AS DATE), DATE '9999-12-31') AS day",
            "readable_metrics.site_bucket.lower_bound",
            "readable_metrics.site_bucket.upper_bound",
            "file_size_in_bytes",
        )
        return {
            path: ((day - FIRST_DAY).days, {*range(low, high + 1)}, size)
            for path, day, low, high, size in rows.collect()
        }

    def frame(self, table: Table, rows: Sequence[Row]) -> DataFrame:
        """Make rows of a table; instants are microseconds, and what a row does not have is null."""
        types = {column.name: column.type.replace("TIMESTAMP", "BIGINT") for column in table.columns}
        schema = ", ".join(f"{name} {type_}" for name, type_ in types.items())
        made = self.spark.createDataFrame([tuple(row.get(name) for name in types) for row in rows], schema)
        instants = {column.name for column in table.columns if column.type == "TIMESTAMP"}
        return made.select(
            *(f.timestamp_micros(name).alias(name) if name in instants else f.col(name) for name in types)
        )
