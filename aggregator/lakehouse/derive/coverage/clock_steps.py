"""Keep the steps back of the hub's clock (``archive/hub_clock.py``): the time around each is unknown for all blocks."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from aggregator.archive.hub_clock import ClockStep
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import CLOCK_STEPS
from aggregator.lakehouse.warehouse.iceberg import Iceberg


def read(spark: SparkSession, position: HubPosition) -> list[ClockStep]:
    """Return the steps up to ``position`` in their order; the last one may not have ended by then.

    What a killed run read beyond ``position`` is read again.
    """
    past = position.stream, position.created_at
    steps = (ClockStep(*row[2:]) for row in _rows(spark) if row[:2] == past and row[2] <= position.sequence)
    return sorted(step if step.resumed_sequence <= position.sequence else step.before_its_end for step in steps)


def record(spark: SparkSession, steps: Iterable[ClockStep], position: HubPosition) -> None:
    """Note steps of the archive of ``position``, or how they ended. Doing it again, after a kill, changes nothing."""
    kept = {row[:3]: row[3:] for row in _rows(spark)}
    for step in steps:
        first_sequence, *rest = msgspec.structs.astuple(step)
        kept[position.stream, position.created_at, first_sequence] = tuple(rest)
    types = ", ".join(f"{column.name} {column.type.replace('TIMESTAMP', 'BIGINT')}" for column in CLOCK_STEPS.columns)
    rows = spark.createDataFrame([(*key, *(value or None for value in kept[key])) for key in sorted(kept)], types)
    instants = {column.name for column in CLOCK_STEPS.columns if column.type == "TIMESTAMP"}
    columns = (
        (f.timestamp_micros(name) if name in instants else f.col(name)).alias(name) for name in CLOCK_STEPS.column_names
    )
    rows.coalesce(1).select(*columns).writeTo(CLOCK_STEPS.identifier).overwrite(f.lit(True))


def is_under(steps: Sequence[ClockStep]) -> Column:
    """Select the rows of records that were stored while the hub's clock was behind."""
    sequence, found = f.col("hub_sequence"), f.lit(False)
    for step in steps:
        end = f.lit(True) if not step.resumed_sequence else sequence < step.resumed_sequence
        found |= (sequence >= step.first_sequence) & end
    return found


def _rows(spark: SparkSession) -> list[tuple[Any, ...]]:
    iceberg = Iceberg(spark)
    loaded = iceberg.load(CLOCK_STEPS)
    found = [] if loaded.currentSnapshot() is None else iceberg.rows(loaded, CLOCK_STEPS.column_names)
    return [tuple(value or 0 for value in row) for row in found]
