"""Give records that an older release wrote the hub's time, where they have the stamps of a clock that was set back.

This is done once for a warehouse, and all is derived from its records again. Falls of less than a second stay.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.archive.hub_clock import HubClock
from aggregator.lakehouse.archive.hub_time import ClockReport, SliceClock, settled
from aggregator.lakehouse.derive.coverage import clock_steps
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, POLICY, WATERMARKS
from aggregator.lakehouse.warehouse.iceberg import Iceberg

_RECORDS = (ADVISORIES, WATERMARKS, POLICY)
_REPAIRED = "muster.hub-time"
"""Property of the table of advisories: what its rows say of when they were stored is the hub's time."""
_ROWS_AT_ONCE = 1_000_000


class _Range(NamedTuple):
    """Records of ``sequences``, both ends included, and what they did to the hub's clock."""

    sequences: tuple[int, int]
    clock: ClockReport


def repair(spark: SparkSession, position: HubPosition, progress: Callable[[str], None]) -> bool:
    """Repair the records up to ``position``, unless that was done; return True if there was anything to repair.

    Killed at any point, the next call does the rest.
    """
    iceberg = Iceberg(spark)
    if _REPAIRED in iceberg.load(ADVISORIES).properties():
        return False
    count = sum(iceberg.row_count(table) for table in _RECORDS)
    is_repaired = count > 0 and _repair(spark, position, 1 + count // _ROWS_AT_ONCE, progress)
    iceberg.load(ADVISORIES).updateProperties().set(_REPAIRED, "true").commit()
    return is_repaired


def _repair(spark: SparkSession, position: HubPosition, parts: int, progress: Callable[[str], None]) -> bool:
    stamps = reduce(DataFrame.unionAll, (_stamps(spark, table.identifier) for table in _RECORDS))
    stamps = stamps.where(f.col("hub_sequence") <= position.sequence)
    in_order = stamps.repartitionByRange(parts, "hub_sequence").sortWithinPartitions("hub_sequence")
    rows = in_order.mapInArrow(_reports, "first BIGINT, last BIGINT, report STRING").collect()
    ranges = [_Range((first, last), ClockReport.parse(told)) for first, last, told in sorted(rows)]

    def read_again(read: _Range, clock: HubClock) -> _Range:
        of_range = stamps.where(f.col("hub_sequence").between(*read.sequences)).sort("hub_sequence").collect()
        return read._replace(clock=_report(np.array(of_range, np.int64), clock))

    _, clock, ended = settled(HubClock(), ranges, read_again)
    steps = [*ended, *([clock.step] if clock.step is not None else [])]
    if not steps:
        return False
    progress(f"repairing what was stored while the hub's clock was behind, {len(steps):,} times")
    clock_steps.record(spark, steps, position)
    for table in _RECORDS:
        for step in steps:
            end = f"AND hub_sequence < {step.resumed_sequence}" if step.resumed_sequence else ""
            spark.sql(
                f"UPDATE {table.identifier} SET archived_at = timestamp_micros({step.stepped_at})"  # noqa: S608 - our own
                f" WHERE hub_sequence >= {step.first_sequence} {end} AND archived_at <"
                f" timestamp_micros({step.stepped_at})"
            )
    return True


def _stamps(spark: SparkSession, table: str) -> DataFrame:
    return spark.table(table).select("hub_sequence", f.unix_micros("archived_at").alias("stamp"))


def _reports(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Report, in one row, what the records of a partition, which are in order, do to a clock."""
    found = pa.Table.from_batches(batches)
    if found.num_rows:
        rows = np.column_stack([column.to_numpy() for column in found.columns])
        told = str(_report(rows, HubClock()))
        yield pa.RecordBatch.from_pydict({"first": [rows[0, 0]], "last": [rows[-1, 0]], "report": [told]})


def _report(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]], before: HubClock) -> ClockReport:
    clock = SliceClock(before, "")
    clock.read_stamps(rows[:, 0], rows[:, 1], lambda _place: True)
    return clock.report
