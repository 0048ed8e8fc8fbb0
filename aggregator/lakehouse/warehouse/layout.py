"""Keep rows of many days in few files, and still put others in the place of the last days alone.

Rules. Derived tables are partitioned by bucket of sites and not by day: files hold as many days as their bytes allow.
Rows of the day in which known time ends, which every run writes anew, have files of their own. Iceberg replaces whole
files: what a run replaces, where it begins within a file of more days, begins with that file, and what was there before
is taken over.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.schemas import SITE_BUCKETS
from aggregator.lakehouse.warehouse.iceberg import Iceberg, parsed
from aggregator.lakehouse.warehouse.jvm import java_class
from aggregator.lakehouse.warehouse.windows import DAY_US

FOR_EVER = 1 << 20
"""Stands for the day after the last."""
_MONTH = 30


class Days(NamedTuple):
    """Days of a bucket of sites, counted from 1970: from ``first`` to the one before ``end``."""

    bucket: int
    first: int
    end: int


def whole_files(spark: SparkSession, table: Table, wanted: Collection[Days]) -> list[Days]:
    """Widen ``wanted`` until no file of the table has rows both in it and beside it."""
    found = _joined(wanted)
    while found:
        files = _files(spark, table, min(each.first for each in found))
        wider = _joined([*found, *(file for file in files if any(_meet(file, each) for each in found))])
        if wider == found:
            break
        found = wider
    return found


def selected(days: Collection[Days], table: Table) -> Column:
    """Select the rows on ``days``, in a form by which Iceberg leaves others unread."""
    column = f.col(_dated(table))
    found = f.lit(False)
    for bucket, first, end in days:
        within = (f.col("site_bucket") == bucket) & (column >= _midnight(first, table))
        found |= within if end == FOR_EVER else within & (column < _midnight(end, table))
    return found


def laid_out(rows: DataFrame, table: Table, times: tuple[int, int] | None = None) -> DataFrame:
    """Bring the rows of each file together, in the table's order.

    ``times`` are two days, counted from 1970: where the rows begin, most of them, and in which known time ends. None:
    all are of one day.
    """
    parts = [_partition(transform) for transform in table.partitioned_by]
    if not parts:
        return rows.sortWithinPartitions(*table.sorted_by) if table.sorted_by else rows
    if table.follows is None:
        placed = rows.repartition(*parts)
    else:
        place, tasks = _place(table, times or (0, 0), _pieces(rows.sparkSession))
        placed = rows.repartitionById(tasks, place)
    return placed.sortWithinPartitions(*parts, *table.sorted_by)


def _place(table: Table, times: tuple[int, int], pieces: int) -> tuple[Column, int]:
    """Give the task of a row, and how many there are: each has some buckets, of the last day or of a month or more."""
    since, today = times
    day = f.coalesce(f.unix_date(f.to_date(_dated(table))), f.lit(FOR_EVER))
    abreast = min(pieces, SITE_BUCKETS)
    spread = f.pmod(f.col("site_bucket"), f.lit(abreast))
    lasts = today - since
    if lasts <= 0:
        return spread, abreast
    parts = min(max(1, pieces // abreast), lasts // _MONTH + 1)
    part = f.greatest(f.lit(0), f.floor((day - since) * parts / lasts)).cast("int")
    return f.when(day >= today, parts).otherwise(part) * abreast + spread, (parts + 1) * abreast


def _pieces(spark: SparkSession) -> int:
    shuffled = spark.conf.get("spark.sql.shuffle.partitions")
    if spark.conf.get("spark.sql.adaptive.enabled") == "true":
        shuffled = spark.conf.get("spark.sql.adaptive.coalescePartitions.initialPartitionNum", shuffled)
    return int(shuffled or 1)


def _files(spark: SparkSession, table: Table, since: int) -> Iterator[Days]:
    """Give the days of each data file that has any from ``since`` on."""
    loaded = Iceberg(spark).load(table)
    expressions = java_class(spark, "org.apache.iceberg.expressions.Expressions")
    from_bytes = java_class(spark, "org.apache.iceberg.types.Conversions").fromByteBuffer
    column = loaded.schema().findField(_dated(table))
    bucket = loaded.schema().findField("site_bucket")
    unit = 1 if str(column.type()) == "date" else DAY_US
    scan = loaded.newScan().includeColumnStats([column.name(), bucket.name()])
    files = scan.filter(expressions.greaterThanOrEqual(column.name(), since * unit)).planFiles()

    def bound(bounds: Any, field: Any) -> int:
        return int(from_bytes(field.type(), bounds.get(field.fieldId())))

    try:
        tasks = files.iterator()
        while tasks.hasNext():
            file = tasks.next().file()
            lower, upper = file.lowerBounds(), file.upperBounds()
            if lower is not None and lower.get(column.fieldId()) is not None:
                first, last = bound(lower, column) // unit, bound(upper, column) // unit
                yield Days(bound(lower, bucket), first, last + 1)
    finally:
        files.close()


def _joined(days: Collection[Days]) -> list[Days]:
    """Make one of those that meet."""
    found: list[Days] = []
    for each in sorted(days):
        if found and found[-1].bucket == each.bucket and each.first <= found[-1].end:
            found[-1] = found[-1]._replace(end=max(found[-1].end, each.end))
        else:
            found.append(each)
    return found


def _meet(some: Days, others: Days) -> bool:
    return some.bucket == others.bucket and some.first < others.end and others.first < some.end


def _dated(table: Table) -> str:
    assert table.follows is not None
    return table.follows


def _midnight(day: int, table: Table) -> Column:
    """Give the start of a day, as the table has it."""
    instant = f.timestamp_micros(f.lit(day * DAY_US))
    is_day = any((column.name, column.type) == (table.follows, "DATE") for column in table.columns)
    return instant.cast("date") if is_day else instant


def _partition(transform: str) -> Column:
    kind, name = parsed(transform)
    return {"days": f.to_date, "years": f.year, "": f.col}[kind](name)
