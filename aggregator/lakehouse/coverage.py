"""Say what was observed at each block of each site, and why the rest was not.

Rules. A watermark vouches for the time since the watermark before it (or since the end of its blind span, where that is
later), if the hub holds every advisory that was issued meanwhile: their ordinals count them, without holes. So neither
an advisory on its way nor one that was lost makes silence look like life. Plain Choria advisories have no watermarks:
between the first and the last of a block, coverage is assumed. What a reader had to give up as lost is unknown for all.
Known time ends at ``known_through``: a watermark of a clock ahead of ours vouches up to there.
"""

from collections.abc import Sequence
from enum import StrEnum

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.intervals import BLOCK, site_bucket
from aggregator.lakehouse.windows import DAY_US, floor_to, window_length
from shared.identifiers import AdvisoryKind

LIFE = (*BLOCK, "incarnation")


class Cause(StrEnum):
    """Why time is known or unknown; what stands first outranks what follows."""

    LOST = "lost"
    OBSERVED = "observed"
    ASSUMED = "assumed"
    IMPORTED = "imported"
    ADVISORIES_MISSING = "advisories_missing"
    UNOBSERVED = "unobserved"


_LAYERS = (Cause.LOST, Cause.OBSERVED, Cause.ASSUMED, Cause.ADVISORIES_MISSING)


def site_coverage(
    watermarks: DataFrame, advisories: DataFrame, losses: Sequence[tuple[int, int]], known_through: int
) -> DataFrame:
    """Give the rows of the table ``site_coverage``.

    ``losses`` are spans (microseconds) whose messages were given up. Every block that any record speaks of has its
    time cut without gaps, from its first word to ``known_through`` (microseconds).
    """
    spans = _vouched(watermarks, advisories).unionByName(_assumed(advisories)).unionByName(_first_words(advisories))
    spans = spans.unionByName(_lost(spans, losses)) if losses else spans
    return _timeline(spans, known_through)


def coverage_windows(coverage: DataFrame, unit: int, known_through: int) -> DataFrame:
    """Cut the coverage into windows of ``unit`` microseconds, one row for each block and window that any of it touches.

    Columns: region, site, block, ``window_at``, ``window_us``, ``known_us``, ``assumed_us``, and ``known_spans``, an
    array of the spans (``started_at``, ``ended_at``) that are known. All in microseconds.
    """
    started_at, ended_at = f.unix_micros("started_at"), f.unix_micros("ended_at")
    first, last = floor_to(started_at, unit), floor_to(ended_at - 1, unit)
    window_at = f.col("window_at")
    cut = coverage.select(
        *BLOCK,
        "known",
        "cause",
        started_at.alias("span_started_at"),
        ended_at.alias("span_ended_at"),
        f.explode(f.sequence(first, last, f.lit(unit))).alias("window_at"),
    ).select(
        *BLOCK,
        "window_at",
        "known",
        "cause",
        f.greatest("span_started_at", window_at).alias("started_at"),
        f.least("span_ended_at", window_at + unit).alias("ended_at"),
    )
    length = f.col("ended_at") - f.col("started_at")
    return cut.groupBy(*BLOCK, "window_at").agg(
        f.first(window_length(window_at, unit, known_through)).alias("window_us"),
        f.sum(f.when(f.col("known"), length).otherwise(0)).alias("known_us"),
        f.sum(f.when(f.col("cause") == Cause.ASSUMED, length).otherwise(0)).alias("assumed_us"),
        f.collect_list(f.when(f.col("known"), f.struct("started_at", "ended_at"))).alias("known_spans"),
    )


def site_coverage_daily(coverage_by_day: DataFrame) -> DataFrame:
    """Give the rows of the table ``site_coverage_daily`` out of ``coverage_windows(..., DAY_US, ...)``."""
    return coverage_by_day.select(
        f.to_date(f.timestamp_micros("window_at")).alias("day"),
        *BLOCK,
        "window_us",
        "known_us",
        "assumed_us",
        (f.col("window_us") == DAY_US).alias("complete"),
        site_bucket().alias("site_bucket"),
    )


def _vouched(watermarks: DataFrame, advisories: DataFrame) -> DataFrame:
    """Give the span that each watermark speaks for: observed, or with advisories missing."""
    held = (
        advisories.where("ordinal IS NOT NULL")
        .select(*LIFE, f.col("ordinal").alias("reached"))
        .distinct()
        .withColumn("is_watermark", f.lit(0))
    )
    marks = watermarks.select(
        *LIFE,
        f.col("advisory_ordinal").alias("reached"),
        f.lit(1).alias("is_watermark"),
        f.unix_micros("observed_since").alias("since"),
        f.unix_micros("observed_through").alias("through"),
    )
    by_ordinal = Window.partitionBy(*LIFE).orderBy("reached", "is_watermark")
    held_count = f.sum(1 - f.col("is_watermark")).over(
        by_ordinal.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    in_time = Window.partitionBy(*LIFE).orderBy("through", "reached")
    counted = (
        marks.unionByName(held, allowMissingColumns=True)
        .withColumn("held_count", held_count)
        .where("is_watermark = 1")
        .withColumn("issued_meanwhile", f.col("reached") - f.lag("reached", 1, 0).over(in_time))
        .withColumn("held_meanwhile", f.col("held_count") - f.lag("held_count", 1, 0).over(in_time))
        .withColumn("vouched_before", f.lag("through").over(in_time))
    )
    whole = (f.col("issued_meanwhile") >= 0) & (f.col("issued_meanwhile") == f.col("held_meanwhile"))
    return counted.select(
        *BLOCK,
        f.greatest("since", "vouched_before").alias("started_at"),
        f.col("through").alias("ended_at"),
        f.when(whole, Cause.OBSERVED).otherwise(Cause.ADVISORIES_MISSING).alias("cause"),
    )


def _assumed(advisories: DataFrame) -> DataFrame:
    return (
        advisories.where("assumed")
        .groupBy(*BLOCK)
        .agg(
            f.min(f.unix_micros("occurred_at")).alias("started_at"),
            f.max(f.unix_micros("occurred_at")).alias("ended_at"),
        )
        .withColumn("cause", f.lit(Cause.ASSUMED))
    )


def _first_words(advisories: DataFrame) -> DataFrame:
    """Begin every block's time with the first sighting that any advisory speaks of: an empty span."""
    stale = f.col("kind") == AdvisoryKind.STALE
    word = f.unix_micros(f.when(stale, f.col("last_seen_at")).otherwise(f.col("occurred_at")))
    return (
        advisories.groupBy(*BLOCK)
        .agg(f.min(word).alias("started_at"))
        .select(*BLOCK, "started_at", f.col("started_at").alias("ended_at"), f.lit(Cause.UNOBSERVED).alias("cause"))
    )


def _lost(spans: DataFrame, losses: Sequence[tuple[int, int]]) -> DataFrame:
    lost = f.array(*(f.struct(f.lit(begin).alias("started_at"), f.lit(end).alias("ended_at")) for begin, end in losses))
    # A loss does not make a block older than its first word.
    return (
        spans.groupBy(*BLOCK)
        .agg(f.min("started_at").alias("first"))
        .select(*BLOCK, "first", f.inline(lost))
        .where("ended_at > first")
        .select(
            *BLOCK, f.greatest("started_at", "first").alias("started_at"), "ended_at", f.lit(Cause.LOST).alias("cause")
        )
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
