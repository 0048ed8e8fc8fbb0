"""Cut intervals at the borders of hours and days: which windows lie wholly inside, and what lies in the others.

Instants are whole microseconds since the epoch, in UTC, so every hour and every day is a multiple of its length. The
window in which known time ends is as long as it is known, and counts as whole where an interval fills that.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from shared.instants import DAY as DAY_US
from shared.instants import HOUR as HOUR_US

__all__ = [
    "DAY_US",
    "HOUR_US",
    "begin_of_bucket",
    "day_of",
    "day_ranges",
    "floor_to",
    "partial_pieces",
    "whole_window_counts",
    "whole_windows",
    "window_length",
    "within",
]

_MOST_RANGES = 64


def floor_to(instant: Column, unit: int) -> Column:
    """Give the start of the window that ``instant`` lies in."""
    return instant - f.pmod(instant, f.lit(unit))


def day_of(instant: Column) -> Column:
    """Give the day that ``instant`` (microseconds) lies in, counted from 1970: a fraction of what a calendar takes."""
    return f.call_function("div", floor_to(instant, DAY_US), f.lit(DAY_US)).cast("int")


def window_length(start: Column, unit: int, known_through: int) -> Column:
    """Say how much of the window is known time."""
    return f.least(start + unit, f.lit(known_through)) - start


def whole_windows(started_at: Column, ended_at: Column, unit: int, known_through: int) -> tuple[Column, Column]:
    """Give the starts of the first and the last window wholly inside ``[started_at, ended_at)``; null: goes on.

    There is none where the first lies after the last. No window starts at or after ``known_through``.
    """
    final = known_through - 1 - (known_through - 1) % unit
    first = floor_to(started_at + (unit - 1), unit)
    last = f.least(floor_to(ended_at, unit) - unit, f.lit(final))
    return first, f.coalesce(f.when(ended_at.isNotNull(), last), f.lit(final))


def begin_of_bucket(begins: Mapping[int, int]) -> Column:
    """Give the instant to begin at, in microseconds, for the row's bucket of sites: mostly one for all."""
    ((usual, _),) = Counter(begins.values()).most_common(1)
    others = [f.lit(number) for pair in begins.items() if pair[1] != usual for number in pair]
    begin = f.lit(usual).cast("bigint")
    return f.coalesce(f.try_element_at(f.create_map(*others), f.col("site_bucket")), begin) if others else begin


def partial_pieces(intervals: DataFrame, unit: int, known_through: int) -> DataFrame:
    """Give the parts of intervals in windows that they do not fill, as far as known time goes.

    ``started_at`` and ``ended_at`` are microseconds, the latter null where an interval goes on. Each row keeps its
    other columns; its interval becomes the part, beside ``window_at``. An interval has two parts at most.
    """
    started_at = f.col("started_at")
    ended_at = f.least(f.coalesce("ended_at", f.lit(known_through)), f.lit(known_through))
    first, last = whole_windows(started_at, f.col("ended_at"), unit, known_through)
    kept = [name for name in intervals.columns if name not in ("started_at", "ended_at")]
    placed = intervals.select(
        *kept,
        started_at.alias("span_started_at"),
        ended_at.alias("span_ended_at"),
        first.alias("first"),
        last.alias("last"),
        floor_to(started_at, unit).alias("head"),
        floor_to(ended_at - 1, unit).alias("tail"),
    )
    head, tail = f.col("head"), f.col("tail")
    has_head = head < f.col("first")
    has_tail = (tail > f.col("last")) & (~has_head | (tail > head))
    # Which parts there are, and not the parts themselves: those would be put into an array for every row.
    is_tail = (
        f.when(has_head & has_tail, f.array(f.lit(False), f.lit(True)))
        .when(has_head, f.array(f.lit(False)))
        .when(has_tail, f.array(f.lit(True)))
    )
    window_at, started_at, ended_at = f.col("window_at"), f.col("span_started_at"), f.col("span_ended_at")
    return (
        placed.withColumn("is_tail", f.explode(is_tail))
        .withColumn("window_at", f.when(f.col("is_tail"), tail).otherwise(head))
        .select(
            *kept,
            "window_at",
            f.greatest(window_at, started_at).alias("started_at"),
            f.least(window_at + unit, ended_at).alias("ended_at"),
        )
    )


def whole_window_counts(intervals: DataFrame, keys: tuple[str, ...], unit: int, known_through: int) -> DataFrame:
    """Count, per ``keys`` and window, the intervals that fill the window: (keys, ``window_at``, ``whole_count``).

    The cost is that of the intervals and of the rows given, not of intervals times windows: a step up at the first
    window, a step down after the last, and a running sum.
    """
    first, last = whole_windows(f.col("started_at"), f.col("ended_at"), unit, known_through)
    steps = (
        intervals.select(*keys, first.alias("first"), last.alias("last"))
        .where("first <= last")
        .select(*keys, "first", "last", f.explode(f.array(f.lit(1), f.lit(-1))).alias("step"))
        .withColumn("window_at", f.when(f.col("step") > 0, f.col("first")).otherwise(f.col("last") + unit))
        .groupBy(*keys, "window_at")
        .agg(f.sum("step").alias("step"))
    )
    in_order = Window.partitionBy(*keys).orderBy("window_at")
    runs = steps.select(
        *keys,
        "window_at",
        f.sum("step").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)).alias("whole_count"),
        (f.lead("window_at").over(in_order) - unit).alias("through"),
    ).where("whole_count > 0")
    return runs.select(
        *keys, f.explode(f.sequence("window_at", "through", f.lit(unit))).alias("window_at"), "whole_count"
    )


def day_ranges(days: Collection[date]) -> list[tuple[date, date]]:
    """Put ``days`` together in few ranges, each with the day after its last; where they would be many, in one.

    >>> day_ranges([date(2026, 2, 28), date(2026, 3, 1), date(2026, 3, 9)])
    [(datetime.date(2026, 2, 28), datetime.date(2026, 3, 2)), (datetime.date(2026, 3, 9), datetime.date(2026, 3, 10))]
    """
    ranges: list[tuple[date, date]] = []
    for day in sorted(days):
        if ranges and ranges[-1][1] == day:
            ranges[-1] = (ranges[-1][0], day + timedelta(days=1))
        else:
            ranges.append((day, day + timedelta(days=1)))
    return [(ranges[0][0], ranges[-1][1])] if len(ranges) > _MOST_RANGES else ranges


def within(days: Collection[date], column: str) -> Column:
    """Select the rows whose instant lies on one of ``days``, in a form by which Iceberg leaves other days unread."""
    selected = f.lit(False)
    for begin, end in day_ranges(days):
        selected |= (f.col(column) >= _midnight(begin)) & (f.col(column) < _midnight(end))
    return selected


def _midnight(day: date) -> Column:
    return f.lit(day.isoformat()).cast("timestamp")
