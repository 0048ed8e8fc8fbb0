"""Warehouses for measures: bronze tables out of a made history, and the job's own way from there to derived tables."""

import resource
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import duckdb
from pyspark import SparkContext
from pyspark.sql import functions as f

from aggregator.config import AggregatorSettings, LakehouseSettings
from aggregator.lakehouse import rollup
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, BRONZE, WATERMARKS
from aggregator.lakehouse.warehouse import commits, provision
from shared.nats.connection import ConnectionSettings
from shared.settings import FilePath
from tests.bench.children import processor_seconds
from tests.bench.fleet_history import START, sequence_at

MASTER = "local[2]"
THREADS = 2
"""Of Spark and of DuckDB."""
NOBODY = ConnectionSettings(servers=("nats://127.0.0.1:1",))
_SQL = Path(__file__).with_name("duckdb_rollup.sql")


def settings_for(
    directory: Path, hub: ConnectionSettings = NOBODY, master: str = MASTER, spark: Mapping[str, str] | None = None
) -> AggregatorSettings:
    """Give settings for tables in ``directory``; ``spark``: properties of Spark's own."""
    lakehouse = LakehouseSettings(path=FilePath(directory), spark_master=master, spark=dict(spark or {}))
    return AggregatorSettings(hub=hub, lakehouse=lakehouse)


def say(line: str) -> None:
    """Show progress."""
    print(f"    {line}", file=sys.stderr, flush=True)


class Cost(NamedTuple):
    """What something took, in seconds: until it was done, and of all processors together."""

    seconds: float
    processor_seconds: float


def measured(work: Callable[[], object], used: Callable[[], float] | None = None) -> Cost:
    """Give what ``work`` costs; ``used`` tells of processor time, of this process and its Java where it is left out."""
    used = used or _seconds_with_java
    began, used_before = time.perf_counter(), used()
    work()
    return Cost(time.perf_counter() - began, used() - used_before)


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _seconds_with_java() -> float:
    gateway: Any = SparkContext._gateway
    return _own_seconds() + (processor_seconds(gateway.proc.pid) if gateway else 0)


class Warehouse:
    """Tables in a directory of their own, filled from the files of a history up to an instant, and then further."""

    def __init__(self, directory: Path, history: tuple[Path, Path]) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.directory, self._history = directory, history
        self._settings = settings_for(directory)
        self.spark = rollup.start_session(self._settings, say)
        provision.prepare(self.spark)
        self._through = START

    def take(self, through: int) -> Cost:
        """Write what happened until ``through`` (microseconds) into the bronze tables."""
        return measured(lambda: self._take(through))

    def derive(self, *, full: bool = False) -> Cost:
        """Bring the derived tables to where the bronze tables are."""
        return measured(
            lambda: rollup.bring_up_to_date(self.spark, self._settings, self._position, full=full, progress=say)
        )

    def _take(self, through: int) -> None:
        first, last = sequence_at(self._through), sequence_at(through)
        self._through = through
        for table, file in zip((ADVISORIES, WATERMARKS), self._history, strict=True):
            rows = self.spark.read.parquet(f"file://{file}")
            # The first message has the sequence 0 here.
            beyond = f.col("hub_sequence") > first if first else f.lit(True)
            commits.append(rows.where(beyond & (f.col("hub_sequence") <= last)), table, self._position)
        for table in BRONZE:
            if table not in (ADVISORIES, WATERMARKS):
                commits.advance(self.spark, table, self._position)

    @property
    def _position(self) -> HubPosition:
        return HubPosition("ARCHIVE", 1, sequence_at(self._through), self._through)


def derive_in_duckdb(history: tuple[Path, Path], through: int, directory: Path) -> Cost:
    """Compute the same with DuckDB, into Parquet files in ``directory``."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    advisories, watermarks = history
    known = f"hub_sequence <= {sequence_at(through)}"
    text = Template(_SQL.read_text()).substitute(
        advisories=f"(SELECT * FROM '{advisories}' WHERE {known})",
        watermarks=f"(SELECT * FROM '{watermarks}' WHERE {known})",
        known_through=through,
        bound=2 * LakehouseSettings(path=FilePath("-")).registration_interval,
        directory=directory,
    )
    # In memory: in a file of its own it would take half as long again.
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {THREADS}")
        connection.execute(f"SET temp_directory = '{directory}/spill'")
        connection.execute("SET TimeZone = 'UTC'")
        return measured(lambda: connection.execute(text), _own_seconds)
