"""Cut the time of each block of each site by what is known of it, and why the rest is not.

Rules. Where spans overlap, the cause that ranks first holds. Watermarks vouch as ``watermark_coverage.py`` says, but
for time in which two agents spoke at once (``contests.py``). Plain Choria advisories have no watermarks: between the
first and the last of a block, coverage is assumed. What a reader had to give up as lost is unknown for all, and so is
the time around a step back of the hub's clock. Known time ends at ``known_through``: a watermark of a clock ahead of
ours vouches up to there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.episodes import BLOCK, site_bucket
from aggregator.lakehouse.tables.causes import Cause
from aggregator.lakehouse.warehouse.windows import DAY_US, begin_of_bucket, floor_to, window_length

_LAYERS = (
    Cause.LOST, Cause.HUB_CLOCK, Cause.CONTESTED, Cause.OBSERVED, Cause.ASSUMED, Cause.PUT_BACK,
    Cause.ADVISORIES_MISSING,
)  # fmt: skip


class KnownDays(NamedTuple):
    """Rows of ``coverage_windows`` by day; how many there are, and spans in all of them, and at most in one of them."""

    rows: DataFrame
    day_count: int
    span_count: int
    most_known: int
    most_planned: int

    @classmethod
    def of(cls, rows: DataFrame) -> Self:
        """Look at ``rows``, which are computed already."""
        known, planned = f.size("known_spans"), f.size("maintenance_spans")
        found = rows.agg(f.count(f.lit(1)), f.sum(known + planned), f.max(known), f.max(planned)).first()
        assert found is not None
        return cls(rows, *(each or 0 for each in found))


class Unknown(NamedTuple):
    """A span, in microseconds, that is unknown for all blocks."""

    started_at: int
    ended_at: int
    cause: Cause


def site_coverage(spans: DataFrame, unknown: Sequence[Unknown], known_through: int) -> DataFrame:
    """Give the rows of the table ``site_coverage``, but for those of imports.

    ``spans`` is all that is said of any block: (region, site, block, ``started_at``, ``ended_at``: microseconds,
    ``cause``). ``unknown`` is so for all of them. Every block has its time cut without gaps, from its first word to
    ``known_through`` (microseconds).
    """
    return _timeline(spans.unionByName(_of_all(spans, unknown)) if unknown else spans, known_through)


def said_before(coverage: DataFrame) -> DataFrame:
    """Give the spans that rows of the table ``site_coverage`` stand for, to be added to."""
    return coverage.select(
        *BLOCK, f.unix_micros("started_at").alias("started_at"), f.unix_micros("ended_at").alias("ended_at"), "cause"
    )


def since(spans: DataFrame, begins: Mapping[int, int]) -> DataFrame:
    """Cut off what of ``spans``, as of ``site_coverage``, lies before ``begins``: microseconds by bucket of sites."""
    begin_at = begin_of_bucket(begins)
    return (
        spans.withColumn("site_bucket", site_bucket())
        .where(f.col("ended_at") >= begin_at)
        .withColumn("started_at", f.greatest("started_at", begin_at))
        .drop("site_bucket")
    )


def coverage_windows(coverage: DataFrame, unit: int, begins: Mapping[int, int], known_through: int) -> DataFrame:
    """Cut the coverage into windows of ``unit`` microseconds, one row for each block and window that any of it touches.

    ``coverage`` is cut at maintenance already. ``begins`` gives, for each bucket of sites that is wanted, the midnight
    (microseconds) to begin at.
    Columns: region, site, block, ``window_at``, ``window_us``, ``known_us``, ``assumed_us``, ``maintenance_us``, and
    ``known_spans`` and ``maintenance_spans``, arrays of spans (``started_at``, ``ended_at``). All in microseconds.
    """
    begin_at = begin_of_bucket(begins)
    started_at, ended_at = f.greatest(f.unix_micros("started_at"), begin_at), f.unix_micros("ended_at")
    first, last = floor_to(started_at, unit), floor_to(ended_at - 1, unit)
    window_at = f.col("window_at")
    cut = (
        coverage.where(ended_at > begin_at)
        .select(
            *BLOCK,
            "known",
            "cause",
            started_at.alias("span_started_at"),
            ended_at.alias("span_ended_at"),
            f.explode(f.sequence(first, last, f.lit(unit))).alias("window_at"),
        )
        .select(
            *BLOCK,
            "window_at",
            "known",
            "cause",
            f.greatest("span_started_at", window_at).alias("started_at"),
            f.least("span_ended_at", window_at + unit).alias("ended_at"),
        )
    )
    length, in_maintenance = f.col("ended_at") - f.col("started_at"), f.col("cause") == Cause.MAINTENANCE
    return cut.groupBy(*BLOCK, "window_at").agg(
        f.first(window_length(window_at, unit, known_through)).alias("window_us"),
        f.sum(f.when(f.col("known"), length).otherwise(0)).alias("known_us"),
        f.sum(f.when(f.col("cause") == Cause.ASSUMED, length).otherwise(0)).alias("assumed_us"),
        f.sum(f.when(in_maintenance, length).otherwise(0)).alias("maintenance_us"),
        f.collect_list(f.when(f.col("known"), f.struct("started_at", "ended_at"))).alias("known_spans"),
        f.collect_list(f.when(in_maintenance, f.struct("started_at", "ended_at"))).alias("maintenance_spans"),
    )


def site_coverage_daily(coverage_by_day: DataFrame) -> DataFrame:
    """Give the rows of the table ``site_coverage_daily`` out of ``coverage_windows(..., DAY_US, ...)``."""
    return coverage_by_day.select(
        f.to_date(f.timestamp_micros("window_at")).alias("day"),
        *BLOCK,
        "window_us",
        "known_us",
        "maintenance_us",
        "assumed_us",
        (f.col("window_us") == DAY_US).alias("complete"),
        site_bucket().alias("site_bucket"),
    )


def _of_all(spans: DataFrame, unknown: Sequence[Unknown]) -> DataFrame:
    columns = ([f.lit(value).alias(name) for name, value in each._asdict().items()] for each in unknown)
    all_ = f.array(*(f.struct(*each) for each in columns))
    # It does not make a block older than its first word.
    return (
        spans.groupBy(*BLOCK)
        .agg(f.min("started_at").alias("first"))
        .select(*BLOCK, "first", f.inline(all_))
        .where("ended_at > first")
        .select(*BLOCK, f.greatest("started_at", "first").alias("started_at"), "ended_at", "cause")
    )


def _timeline(spans: DataFrame, known_through: int) -> DataFrame:
    """Cut each block's time where any span starts or ends, and let the cause that ranks first hold in each piece."""
    end = f.lit(known_through)
    starts = f.least("started_at", end)
    ends = f.greatest(starts, f.least("ended_at", end))
    edges = spans.select(*BLOCK, f.inline(f.array(_edge(starts, 1), _edge(ends, -1), _edge(end, 0))))
    summed = edges.groupBy(*BLOCK, "at").agg(*(f.sum(_step(layer)).alias(layer) for layer in _LAYERS))
    in_time = Window.partitionBy(*BLOCK).orderBy("at")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    pieces = summed.select(
        *BLOCK,
        f.col("at").alias("started_at"),
        f.lead("at").over(in_time).alias("ended_at"),
        f.coalesce(*(f.when(f.sum(layer).over(so_far) > 0, layer) for layer in _LAYERS), f.lit(Cause.UNOBSERVED)).alias(
            "cause"
        ),
    ).where("ended_at IS NOT NULL")
    in_pieces = Window.partitionBy(*BLOCK).orderBy("started_at")
    changes = pieces.withColumn("changed", ~f.col("cause").eqNullSafe(f.lag("cause").over(in_pieces)))
    merged = changes.withColumn(
        "run",
        f.sum(f.col("changed").cast("int")).over(in_pieces.rowsBetween(Window.unboundedPreceding, Window.currentRow)),
    )
    return (
        merged.groupBy(*BLOCK, "run")
        .agg(
            f.min("started_at").alias("started_at"),
            f.max("ended_at").alias("ended_at"),
            f.first("cause").alias("cause"),
        )
        .select(
            *BLOCK,
            f.timestamp_micros("started_at").alias("started_at"),
            f.timestamp_micros("ended_at").alias("ended_at"),
            f.col("cause").isin(Cause.OBSERVED, Cause.ASSUMED).alias("known"),
            "cause",
            site_bucket().alias("site_bucket"),
        )
    )


def _edge(at: Column, step: int) -> Column:
    return f.struct(at.alias("at"), f.lit(step).alias("step"), f.col("cause").alias("layer"))


def _step(layer: Cause) -> Column:
    return f.when(f.col("layer") == layer, f.col("step")).otherwise(0)
