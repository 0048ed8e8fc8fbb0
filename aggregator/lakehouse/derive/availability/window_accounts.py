"""Account of every sender and window: up + down + unknown + maintenance + absent = the window, to the microsecond.

Of the states that hold at an instant, the first in this order counts: absent (outside every interval), maintenance
(declared, for the block or for the sender), unknown (not observed, or a store was lost), down, up. An outage is counted
in each window in which any part of it lies outside maintenance.

Most windows lie wholly inside one interval of a sender, and all those of a block share one coverage: they are counted
and not listed. The others are listed, at most two for each interval, so that the cost is proportional to events.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.coverage.known_time import KnownDays
from aggregator.lakehouse.derive.intervals.episodes import BLOCK, DOWN, MAINTENANCE, SENDER, UNKNOWN, UP, site_bucket
from aggregator.lakehouse.tables.imports import BLOCK_PREFIX
from aggregator.lakehouse.tables.schemas import SITE_AVAILABILITY_DAILY
from aggregator.lakehouse.warehouse.windows import (
    DAY_US,
    HOUR_US,
    begin_of_bucket,
    day_of,
    floor_to,
    partial_pieces,
    whole_window_counts,
    whole_windows,
    window_length,
)

_SUM = "decimal(38,0)"
"""The type of published sums. A window of one site fits into a BIGINT for a hundred million senders and is summed as
one: decimals take many times as long."""
_FEW_SPANS = 4
"""The most spans of a day whose overlaps are written out one by one; nearly all days have one or two."""
_KNOWN_TIMES = ("up_us", "down_us", "unknown_us", "maintenance_us")
_TIMES = (*_KNOWN_TIMES, "absent_us")


def spans_since(intervals: DataFrame, begins: Mapping[int, int], known_through: int) -> DataFrame:
    """Return the parts of intervals in known time: (sender, ``state``, ``started_at``, ``ended_at``; microseconds).

    ``begins`` maps each bucket of sites to the midnight (microseconds) to begin at. ``ended_at`` is null if an interval
    is open. No span is empty, because no interval is: an imported interval of no length adds no time.
    """
    started_at, ended_at = f.unix_micros("started_at"), f.unix_micros("ended_at")
    begin_at = begin_of_bucket(begins)
    # This prunes the files of days before all midnights.
    reaches = f.col("ended_at") > f.timestamp_micros(f.lit(min(begins.values())))
    return (
        intervals.where(f.col("ended_at").isNull() | reaches)
        .where((started_at < known_through) & (ended_at.isNull() | (ended_at > begin_at)))
        .select(*SENDER, "state", f.greatest(started_at, begin_at).alias("started_at"), ended_at.alias("ended_at"))
    )


def sender_day_exceptions(
    spans: DataFrame, known_days: KnownDays, known_through: int, registration_interval: int
) -> DataFrame:
    """Return the rows of the table ``sender_day_exceptions``: days that no up interval of the sender fills.

    ``spans`` are the rows of ``spans_since``, cut at maintenance by ``DeclaredMaintenance.cut_spans``;
    ``registration_interval`` is in microseconds.
    """
    first, last = whole_windows(f.col("started_at"), f.col("ended_at"), DAY_US, known_through)
    spans = spans.withColumn("outlasts", _outlasts(known_through))
    whole = (
        spans.where(f.col("state") != UP)
        .select(*SENDER, "state", "outlasts", first.alias("first"), last.alias("last"))
        .where("first <= last")
        .select(*SENDER, "state", "outlasts", f.explode(f.sequence("first", "last", f.lit(DAY_US))).alias("window_at"))
        .select(
            *SENDER,
            "state",
            "outlasts",
            "window_at",
            f.col("window_at").alias("started_at"),
            (f.col("window_at") + window_length(f.col("window_at"), DAY_US, known_through)).alias("ended_at"),
            f.lit(None).cast("bigint").alias("before_at"),
        )
    )

    def observed(pieces: DataFrame) -> DataFrame:
        return _observed(pieces.withColumn("cut_hours", _cut_hours(known_through)), known_days, DAY_US, "cut_hours")

    partial = observed(partial_pieces(spans, DAY_US, known_through))
    summed = partial.groupBy(*SENDER, "window_at").agg(*_sums(), f.bit_or("cut_hours").alias("cut_hours"))
    # An interval that fills a day needs no sum with others: a sender that is gone for years has many such days.
    times = summed.unionByName(observed(whole).select(*SENDER, "window_at", *_sums(_alone), "cut_hours"))
    window_us = window_length(f.col("window_at"), DAY_US, known_through)
    return times.select(
        f.date_from_unix_date(day_of(f.col("window_at"))).alias("day"),
        *SENDER,
        window_us.alias("window_us"),
        "up_us",
        "down_us",
        "unknown_us",
        "maintenance_us",
        (window_us - f.col("lived_us")).alias("absent_us"),
        "outage_count",
        (window_us == DAY_US).alias("complete"),
        (2 * f.lit(registration_interval) * f.col("noticed_count")).cast("bigint").alias("error_bound_us"),
        "cut_hours",
        site_bucket().alias("site_bucket"),
    )


def site_availability_hourly(
    spans: DataFrame,
    exceptions: DataFrame,
    known_days: KnownDays,
    known_through: int,
    interval: int,
) -> DataFrame:
    """Return the rows of the table ``site_availability_hourly``.

    ``exceptions`` has the rows of ``sender_day_exceptions``; ``interval`` is the registrations', in microseconds.
    """
    whole = _whole_windows(spans, known_days, HOUR_US, known_through)
    pieces = _observed(partial_pieces(spans, HOUR_US, known_through), known_days, HOUR_US)
    partial = pieces.groupBy("region", "site", "window_at").agg(*_sums())
    together = whole.unionByName(partial, allowMissingColumns=True).unionByName(
        _senders_of_cut_hours(exceptions), allowMissingColumns=True
    )
    hours = together.groupBy("region", "site", "window_at").agg(_senders(), *_resummed())
    return _published(
        hours.withColumn("day", f.to_date(f.timestamp_micros("window_at"))), HOUR_US, known_through, interval
    )


def site_availability_daily(
    spans: DataFrame, exceptions: DataFrame, known_days: KnownDays, known_through: int, interval: int
) -> DataFrame:
    """Return the rows of the table ``site_availability_daily``: the exceptions, and the days that up intervals fill."""
    whole = _whole_windows(spans.where(f.col("state") == UP), known_days, DAY_US, known_through)
    others = exceptions.groupBy("region", "site", (f.unix_date("day") * f.lit(DAY_US)).alias("window_at")).agg(
        f.count(f.lit(1)).alias("sender_count"),
        *(f.sum(name).alias(name) for name in _KNOWN_TIMES),
        f.sum(f.col("window_us") - f.col("absent_us")).alias("lived_us"),
        f.sum("outage_count").alias("outage_count"),
        f.sum(f.when(_is_imported(), 0).otherwise(f.col("outage_count"))).alias("noticed_count"),
    )
    days = whole.unionByName(others).groupBy("region", "site", "window_at").agg(_senders(), *_resummed())
    return _published(days, DAY_US, known_through, interval)


def over_sites(site_days: DataFrame, *keys: str) -> DataFrame:
    """Sum ``site_availability_daily`` by day and ``keys``: ("region",) for regions, none for the fleet."""
    summed = ("sender_count", *_TIMES, "outage_count", "error_bound_us")
    types = dict(site_days.dtypes)
    return (
        site_days.groupBy("day", *keys)
        .agg(
            *(f.sum(name).cast(types[name]).alias(name) for name in summed),
            f.first("window_us").alias("window_us"),
            f.every("complete").alias("complete"),
        )
        .select("*", *_ratios())
    )


def _outlasts(known_through: int) -> Column:
    """Return True if a span outlasts the hour in which known time ends, so that it fills the known part of it."""
    final = known_through - 1 - (known_through - 1) % HOUR_US
    return f.col("ended_at").isNull() | (floor_to(f.col("ended_at"), HOUR_US) > final)


def _cut_hours(known_through: int) -> Column:
    """Return a bit mask of the hours of its day that a piece does not fill: where it starts and where it ends."""
    started_at, ended_at = f.col("started_at"), f.col("ended_at")

    def bit(instant: Column) -> Column:
        hour = f.floor(f.pmod(instant, f.lit(DAY_US)) / HOUR_US).cast("int")
        return f.call_function("shiftleft", f.lit(1), hour)

    starts_within = f.pmod(started_at, f.lit(HOUR_US)) != 0
    fills_the_last = (ended_at == known_through) & f.col("outlasts")
    ends_within = (f.pmod(ended_at, f.lit(HOUR_US)) != 0) & ~fills_the_last
    return (
        f.when(starts_within, bit(started_at))
        .otherwise(0)
        .bitwiseOR(f.when(ends_within, bit(ended_at - 1)).otherwise(0))
    )


def _senders_of_cut_hours(exceptions: DataFrame) -> DataFrame:
    """Count the senders of several states by hour: (region, site, ``window_at``, ``sender_count``).

    The bits of ``cut_hours`` are counted by day: a join of the pieces of every sender's every hour would take as long
    as all the rest.
    """
    counts = (f.sum(f.getbit("cut_hours", f.lit(hour))).alias(f"hour_{hour}") for hour in range(24))
    day_at = f.unix_date("day") * f.lit(DAY_US)
    hours = f.array(
        *(
            f.struct((f.col("day_at") + hour * HOUR_US).alias("window_at"), f.col(f"hour_{hour}").alias("sender_count"))
            for hour in range(24)
        )
    )
    by_day = exceptions.groupBy("region", "site", day_at.alias("day_at")).agg(*counts)
    return by_day.select("region", "site", f.inline(hours)).where("sender_count > 0")


def _whole_windows(spans: DataFrame, known_days: KnownDays, unit: int, known_through: int) -> DataFrame:
    """Sum the windows that intervals fill: senders in each state, times the observed part of the window."""
    window_at, count = f.col("window_at"), f.col("whole_count")
    counts = whole_window_counts(spans, (*BLOCK, "state"), unit, known_through).select(
        *BLOCK,
        "state",
        "window_at",
        "whole_count",
        window_at.alias("started_at"),
        (window_at + window_length(window_at, unit, known_through)).alias("ended_at"),
    )
    windows = _with_coverage(counts, known_days, unit)
    length = f.col("ended_at") - f.col("started_at")
    known_us, planned_us = (
        _observed_and_planned(length, known_days) if unit != DAY_US else (f.col("known_us"), f.col("maintenance_us"))
    )
    timed = windows.select(
        *BLOCK,
        "state",
        "window_at",
        "whole_count",
        length.alias("length"),
        f.coalesce(known_us, f.lit(0)).alias("each_known_us"),
        f.coalesce(planned_us, f.lit(0)).alias("each_planned_us"),
    )
    state, lived, planned_us = f.col("state"), count * f.col("length"), f.col("each_planned_us")
    observed = f.when(state.isin(UNKNOWN, MAINTENANCE), 0).otherwise(count * f.col("each_known_us"))
    planned = f.when(state == MAINTENANCE, lived).otherwise(count * planned_us)
    return timed.groupBy("region", "site", "window_at").agg(
        f.sum("whole_count").alias("sender_count"),
        *_states(observed, planned, lived),
        *_outages(count, planned_us < f.col("length")),
    )


def _observed(pieces: DataFrame, known_days: KnownDays, unit: int, *kept: str) -> DataFrame:
    """Add to each piece ``observed_us`` and ``planned_us``, its observed part and its part in maintenance.

    Its length is ``piece_us``; ``is_first`` is true if no part of the same span that lies in the window precedes it.
    The columns ``kept`` stay.
    """
    length, state = f.col("ended_at") - f.col("started_at"), f.col("state")
    known_us, planned_us = _observed_and_planned(length, known_days)
    observed = f.when(state.isin(UNKNOWN, MAINTENANCE), 0).otherwise(known_us)
    planned = f.when(state == MAINTENANCE, length).otherwise(planned_us)
    is_first = f.coalesce(f.col("before_at") <= f.col("window_at"), f.lit(True))
    return _with_coverage(pieces, known_days, unit).select(
        *SENDER,
        "state",
        "window_at",
        observed.alias("observed_us"),
        planned.alias("planned_us"),
        length.alias("piece_us"),
        is_first.alias("is_first"),
        *kept,
    )


def _with_coverage(pieces: DataFrame, known_days: KnownDays, unit: int) -> DataFrame:
    """Add the coverage and maintenance of its day to each piece."""
    day_at = floor_to(f.col("window_at"), DAY_US) if unit != DAY_US else f.col("window_at")
    sums = ("window_us", "known_us", "known_spans", "maintenance_us", "maintenance_spans")
    known = known_days.rows.select(*BLOCK, f.col("window_at").alias("day_at"), *sums)
    return pieces.withColumn("day_at", day_at).join(known, [*BLOCK, "day_at"], "left")


def _observed_and_planned(length: Column, known_days: KnownDays) -> tuple[Column, Column]:
    """Return how much of a piece of this length was observed, and how much of it lies in maintenance."""
    return (
        _overlap("known_us", "known_spans", known_days.most_known, length),
        _overlap("maintenance_us", "maintenance_spans", known_days.most_planned, length),
    )


def _overlap(total: str, spans: str, most: int, length: Column) -> Column:
    """Return how much of a piece lies in the day's ``spans``, at most ``most``, whose sum is the column ``total``."""

    def overlap(span: Column) -> Column:
        ends, starts = f.least(span["ended_at"], f.col("ended_at")), f.greatest(span["started_at"], f.col("started_at"))
        return f.greatest(ends - starts, f.lit(0))

    if most <= _FEW_SPANS:
        # Spark leaves its compiled code, for all pieces, to iterate over an array.
        count = f.size(spans)
        each = (f.when(count > number, overlap(f.get(spans, f.lit(number)))).otherwise(0) for number in range(most))
        overlaps = reduce(add, each, f.lit(0).cast("bigint"))
    else:
        overlaps = f.aggregate(f.transform(spans, overlap), f.lit(0).cast("bigint"), add)
    # A day that the spans fill, or do not touch, needs no sum of overlaps.
    return (
        f.when(f.coalesce(f.col(total) == 0, f.lit(True)), 0)
        .when(f.col(total) == f.col("window_us"), length)
        .otherwise(overlaps)
    )


def _alone(amount: Column) -> Column:
    """Return the sum of a row that is summed with no other."""
    return amount.cast("bigint")


def _sums(summed: Callable[[Column], Column] = f.sum) -> list[Column]:
    outside = f.col("is_first") & (f.col("planned_us") < f.col("piece_us"))
    times = _states(f.col("observed_us"), f.col("planned_us"), f.col("piece_us"), summed)
    return [*times, *_outages(f.lit(1), outside, summed)]


def _outages(count: Column, counts: Column, summed: Callable[[Column], Column] = f.sum) -> list[Column]:
    """Sum outages where they count, and those of them that an agent noticed by silence.

    The others are as exact as their source.
    """
    down = (f.col("state") == DOWN) & counts
    return [
        summed(f.when(down, count).otherwise(0)).alias("outage_count"),
        summed(f.when(down & ~_is_imported(), count).otherwise(0)).alias("noticed_count"),
    ]


def _is_imported() -> Column:
    return f.startswith("block", f.lit(BLOCK_PREFIX))


def _states(
    observed: Column, planned: Column, lived: Column, summed: Callable[[Column], Column] = f.sum
) -> list[Column]:
    """Sum observed time by state, maintenance, and the rest as unknown."""
    return [
        summed(f.when(f.col("state") == UP, observed).otherwise(0)).alias("up_us"),
        summed(f.when(f.col("state") == DOWN, observed).otherwise(0)).alias("down_us"),
        summed(lived - observed - planned).alias("unknown_us"),
        summed(planned).alias("maintenance_us"),
        summed(lived).alias("lived_us"),
    ]


def _resummed() -> list[Column]:
    return [f.sum(name).alias(name) for name in (*_KNOWN_TIMES, "lived_us", "outage_count", "noticed_count")]


def _senders() -> Column:
    return f.sum("sender_count").alias("sender_count")


def _published(windows: DataFrame, unit: int, known_through: int, interval: int) -> DataFrame:
    """Complete the sums of sites to the columns of their table."""
    window_us = window_length(f.col("window_at"), unit, known_through)
    day = f.to_date(f.timestamp_micros("window_at"))
    complete = windows.select(
        f.timestamp_micros("window_at").alias("hour"),
        day.alias("day"),
        "region",
        "site",
        "sender_count",
        window_us.alias("window_us"),
        *(f.col(name).cast(_SUM).alias(name) for name in _KNOWN_TIMES),
        (f.col("sender_count") * window_us - f.col("lived_us")).cast(_SUM).alias("absent_us"),
        "outage_count",
        (window_us == unit).alias("complete"),
        (f.lit(2 * interval).cast("bigint") * f.col("noticed_count")).cast(_SUM).alias("error_bound_us"),
        site_bucket().alias("site_bucket"),
    )
    published = complete.select("*", *_ratios())
    return published if unit == HOUR_US else published.select(*SITE_AVAILABILITY_DAILY.column_names)


def _ratios() -> list[Column]:
    up, known = f.col("up_us").cast("double"), (f.col("up_us") + f.col("down_us")).cast("double")
    total = (f.col("up_us") + f.col("down_us") + f.col("unknown_us")).cast("double")
    return [
        f.try_divide(up, known).alias("availability_known"),
        f.try_divide(up, total).alias("availability_total"),
        f.try_divide(known, total).alias("coverage"),
    ]
