"""Keep rows of many days in few files, and still put others in the place of the last days alone.

Rules. Derived tables are partitioned by ranges of buckets of sites and not by day: files hold as many days as their
bytes allow. There are as many ranges as the square root of the number of sites, so that what each run writes and what
late history of one site takes grow alike. Tables are divided once more as the fleet grows: what is written from then on
has the new ranges, and what is there has those it was written in. Rows of the day in which known time ends, which every
run writes anew, have files of their own. Iceberg replaces whole files: what a run replaces, where it begins within a
file of more days or of more buckets, is all of that file, and what is not to change is taken over.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.schemas import DERIVED, SITE_BUCKETS, SITE_COVERAGE
from aggregator.lakehouse.warehouse.iceberg import Iceberg, parsed
from aggregator.lakehouse.warehouse.jvm import java_class
from aggregator.lakehouse.warehouse.windows import DAY_US

FOR_EVER = 1 << 20
"""Stands for the day after the last."""
_MONTH = 30


class Days(NamedTuple):
    """Days of the buckets of sites from ``low`` to the one before ``high``: of days the same, counted from 1970."""

    low: int
    high: int
    first: int
    end: int


def divide(spark: SparkSession, site_count: int, *, only_finer: bool = False) -> None:
    """Have derived tables partitioned as suits as many sites, in what is written from now on."""
    partitions = 1
    while partitions < SITE_BUCKETS and partitions**2 < site_count:
        partitions *= 2
    iceberg, width = Iceberg(spark), SITE_BUCKETS // partitions
    expressions = java_class(spark, "org.apache.iceberg.expressions.Expressions")
    for table in DERIVED:
        loaded = iceberg.load(table)
        for field in loaded.spec().fields():
            found = _width(field)
            if found is not None and (width < found if only_finer else width != found):
                change = loaded.updateSpec().removeField(field.name())
                change.addField(f"site_bucket_{width}", expressions.truncate("site_bucket", width)).commit()


def divide_more(spark: SparkSession) -> None:
    """Have derived tables partitioned as suits the sites that there are by now, if these are more than before."""
    coverage = spark.table(SITE_COVERAGE.identifier)
    divide(spark, coverage.select("region", "site").distinct().count(), only_finer=True)


def whole_files(spark: SparkSession, table: Table, wanted: Collection[Days]) -> list[Days]:
    """Widen ``wanted`` until no file of the table has rows both in it and beside it.

    All of a file are in one of those, for Iceberg does not look for it in several.
    """
    found = _joined(wanted)
    while found:
        files = set(_files(spark, table, min(each.first for each in found)))
        wider = _joined([*found, *(file for file in files if any(_meet(file, each) for each in found))])
        if wider == found:
            break
        found = wider
    return found


def days_since(begins: Mapping[int, int]) -> list[Days]:
    """Give all days from the midnights ``begins`` (microseconds) on, by bucket of sites."""
    return [Days(bucket, bucket + 1, midnight // DAY_US, FOR_EVER) for bucket, midnight in begins.items()]


def selected(days: Collection[Days], table: Table) -> Column:
    """Select the rows on ``days``, in a form by which Iceberg leaves others unread."""
    column, bucket = f.col(_dated(table)), f.col("site_bucket")
    found = f.lit(False)
    for low, high, first, end in _joined(days):
        within = column >= _midnight(first, table)
        within = within if end == FOR_EVER else within & (column < _midnight(end, table))
        found |= within if (low, high) == (0, SITE_BUCKETS) else within & (bucket >= low) & (bucket < high)
    return found


def laid_out(rows: DataFrame, table: Table, times: tuple[int, int] | None = None) -> DataFrame:
    """Bring the rows of each file together, in the table's order.

    ``times`` are two days, counted from 1970: where the rows begin, most of them, and in which known time ends. None:
    all are of one day.
    """
    if not table.partitioned_by:
        return rows.sortWithinPartitions(*table.sorted_by) if table.sorted_by else rows
    width = _width_of(rows.sparkSession, table)
    parts = [_partition(transform, width) for transform in table.partitioned_by]
    if table.dated_by:
        # No day is in two files: days are what is put in the place of others.
        placed = rows.repartitionByRange(*parts)
    elif table.follows is None:
        placed = rows.repartition(*parts)
    else:
        place, tasks = _place(table, times or (0, 0), _pieces(rows.sparkSession), width)
        placed = rows.repartitionById(tasks, place)
    return placed.sortWithinPartitions(*parts, *table.sorted_by)


def _place(table: Table, times: tuple[int, int], pieces: int, width: int) -> tuple[Column, int]:
    """Give the task of a row, and how many there are: each has some ranges, of the last day or of a month or more."""
    since, today = times
    day = f.coalesce(f.unix_date(f.to_date(_dated(table))), f.lit(FOR_EVER))
    abreast = min(pieces, SITE_BUCKETS // width)
    spread = f.pmod(f.floor(f.col("site_bucket") / width).cast("int"), f.lit(abreast))
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
                yield Days(bound(lower, bucket), bound(upper, bucket) + 1, first, last + 1)
    finally:
        files.close()


def _joined(days: Collection[Days]) -> list[Days]:
    """Make one of those that are so together: one behind the other, beside each other, or one within the other."""
    found, before = sorted(days), list[Days]()
    while found != before:
        before = found
        in_time = _merged(found, lambda one, other: one[:2] == other[:2] and other.first <= one.end)
        by_time = sorted(in_time, key=lambda each: (each.first, each.end, each.low))
        beside = _merged(by_time, lambda one, other: one[2:] == other[2:] and other.low <= one.high)
        found = sorted(each for each in beside if not any(_is_within(each, other) for other in beside))
    return found


def _merged(days: Iterable[Days], are_one: Callable[[Days, Days], bool]) -> list[Days]:
    found: list[Days] = []
    for each in days:
        if found and are_one(found[-1], each):
            low, high, first, end = found[-1]
            found[-1] = Days(low, max(high, each.high), first, max(end, each.end))
        else:
            found.append(each)
    return found


def _is_within(some: Days, others: Days) -> bool:
    is_wider = others.low <= some.low and some.high <= others.high
    return some != others and is_wider and others.first <= some.first and some.end <= others.end


def _meet(some: Days, others: Days) -> bool:
    of_same_sites = some.low < others.high and others.low < some.high
    return of_same_sites and some.first < others.end and others.first < some.end


def _width_of(spark: SparkSession, table: Table) -> int:
    """Say how many buckets the table has in a partition."""
    widths = (_width(field) for field in Iceberg(spark).load(table).spec().fields())
    return next((width for width in widths if width is not None), SITE_BUCKETS)


def _width(field: Any) -> int | None:
    """Read how many values a field of a partition spec puts together; None where it does not."""
    kind, _, width = str(field.transform()).removesuffix("]").partition("[")
    return int(width) if kind == "truncate" else None


def _dated(table: Table) -> str:
    assert table.follows is not None
    return table.follows


def _midnight(day: int, table: Table) -> Column:
    """Give the start of a day, as the table has it."""
    instant = f.timestamp_micros(f.lit(day * DAY_US))
    is_day = any((column.name, column.type) == (table.follows, "DATE") for column in table.columns)
    return instant.cast("date") if is_day else instant


def _partition(transform: str, width: int) -> Column:
    kind, name = parsed(transform)
    if kind == "truncate":
        return f.col(name) - f.pmod(f.col(name), f.lit(width))
    return {"months": f.to_date, "years": f.year, "": f.col}[kind](name)
