"""Intervals of senders and coverage of blocks from imported history.

A sender's history runs from its first start to its last stop, or for as long as its source watched; the watched time
that one import states holds for all senders of the source, whichever file names them. So several imports give the same
result as one of all files. Between its intervals a sender has the state that the interval before states for gaps;
before the first interval, and after a time in which the source did not watch, it has the state that the next interval
states. In unwatched time, which includes the time before the first ``watched_from`` and after the last ``watched_to``,
a sender has only the states of its own intervals: one episode ends, and another begins. The same holds for an interval
in which it is absent, until its next interval. An import that does not state when watching began (ended) leaves no
unwatched time before (after) it.

A block is covered while its source watched, and during any interval of its senders. Intervals that overlap have one
state and become one. An interval of no length adds no time; neighbours of the same state become one. Time after
``known_through`` is kept and does not count yet: known time ends there for all.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.window import WindowSpec

from aggregator.lakehouse.derive.intervals.episodes import BLOCK, DOWN, SENDER, UP, site_bucket, with_whole_days
from aggregator.lakehouse.tables.causes import Cause
from aggregator.lakehouse.tables.imports import ABSENT

GAP, END = "import_gap", "import_end"
_NEVER = (1 << 63) - 1


def pieces(imports: DataFrame) -> DataFrame:
    """Return imported intervals and the gaps between them: (sender, ``groups``, ``state``, start, end, ``is_gap``).

    ``started_at`` and ``ended_at`` are microseconds.
    """
    timed = imports.select(
        *SENDER,
        "groups",
        "state",
        "gaps",
        f.unix_micros("started_at").alias("started_at"),
        f.unix_micros("ended_at").alias("ended_at"),
    )
    in_time = _in_time()
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    placed = (
        _joined(timed)
        .withColumn("reached", f.max("ended_at").over(so_far))
        .withColumn("next", f.lead("started_at").over(in_time))
        .withColumn("next_gaps", f.lead("gaps").over(in_time))
        .withColumn("is_first", f.lag("started_at").over(in_time).isNull())
        .join(f.broadcast(_watched_times(imports)), "block")
    )
    is_absent = f.col("state") == ABSENT
    own = _piece(f.col("state"), f.col("started_at"), f.col("ended_at"), is_gap=False)
    before = _gaps(f.when(f.col("is_first"), f.col("watched_from")), f.col("started_at"), f.col("gaps"), f.col("gaps"))
    # A gap ends at the next interval; after the last interval, watching may have continued.
    sooner, later = (
        f.when(is_absent, ABSENT).otherwise(gaps) for gaps in (f.col("gaps"), f.coalesce("next_gaps", "gaps"))
    )
    after = _gaps(f.col("reached"), f.coalesce("next", "watched_to"), sooner, later)
    parts = placed.select(*SENDER, "groups", f.inline(f.concat(before, f.array(own), after)))
    return parts.where(f.col("state") != ABSENT)


def imported_intervals(imports: DataFrame, known_through: int) -> DataFrame:
    """Return rows of the table ``sender_intervals``; ``known_through`` is in microseconds."""
    in_time = Window.partitionBy(*SENDER).orderBy("started_at", "ended_at")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    changes = (
        pieces(imports)
        .where("started_at < ended_at")
        .withColumn("was_unwatched", f.coalesce(f.lag("ended_at").over(in_time) < f.col("started_at"), f.lit(False)))
        .withColumn("changed", f.col("was_unwatched") | ~f.col("state").eqNullSafe(f.lag("state").over(in_time)))
        .withColumn("episode_number", f.count_if("was_unwatched").over(so_far))
        .withColumn("run", f.count_if("changed").over(so_far))
    )
    merged = (
        changes.groupBy(*SENDER, "episode_number", "run")
        .agg(
            f.first("state").alias("state"),
            f.min("started_at").alias("started_at"),
            f.max("ended_at").alias("ended_at"),
        )
        .withColumn("born_at", f.min("started_at").over(Window.partitionBy(*SENDER, "episode_number")))
    )
    following = f.lead("state").over(Window.partitionBy(*SENDER, "episode_number").orderBy("run"))
    end_reason = (
        f.when(following.isNull(), END)
        .when(following == UP, "recovered")
        .when(following == DOWN, "stale")
        .otherwise(GAP)
    )
    is_open = f.col("ended_at") > known_through
    intervals = merged.select(
        *SENDER,
        f.md5(f.to_json(f.array(*SENDER, f.col("born_at").cast("string")))).alias("episode"),
        f.timestamp_micros("born_at").alias("episode_started_at"),
        "state",
        f.timestamp_micros("started_at").alias("started_at"),
        f.when(~is_open, f.timestamp_micros("ended_at")).alias("ended_at"),
        f.when(~is_open, end_reason).alias("ended_by"),
        f.timestamp_micros("started_at").alias("advisory_at"),
        f.lit(None).cast("string").alias("advisory_kind"),
        f.lit(None).cast("string").alias("advisory_id"),
        f.lit(None).cast("string").alias("basis"),
    )
    return with_whole_days(intervals.where(f.unix_micros("started_at") < known_through), known_through)


def imported_coverage(imports: DataFrame, known_through: int) -> DataFrame:
    """Return rows of the table ``site_coverage``: a block from its first start to its last stop, or as watched.

    Time in which a single sender is unknown shows in its own intervals.
    """
    timed = imports.select(
        *BLOCK,
        "state",
        f.unix_micros("started_at").alias("started_at"),
        f.unix_micros("ended_at").alias("ended_at"),
    )
    watches = _watched_times(imports)
    first, last = f.min("started_at").alias("first"), f.max("ended_at").alias("last")
    whole = timed.groupBy(*BLOCK).agg(first, last).join(f.broadcast(watches), "block")
    nothing = f.lit(None).cast("string")
    # As with intervals: the watched time of one import holds for sites that another import names.
    begins, ends = f.least("first", "watched_from"), f.greatest("last", "watched_to")
    watched = whole.select(*BLOCK, f.inline(_gaps(begins, ends, nothing, nothing))).select(
        *BLOCK, "started_at", "ended_at"
    )
    beyond = (
        timed.where(f.col("state") != ABSENT)
        .join(f.broadcast(watches), "block")
        .where(f.exists("unwatched", _overlaps(f.col("started_at"), f.col("ended_at"))))
        .select(*BLOCK, "started_at", "ended_at")
    )
    in_time = Window.partitionBy(*BLOCK).orderBy("started_at")
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known = (
        watched.unionByName(beyond)
        .where("started_at < ended_at")
        .withColumn("begins", f.col("started_at") > f.max("ended_at").over(before))
        .withColumn("run", f.count_if("begins").over(so_far))
        .groupBy(*BLOCK, "run")
        .agg(f.min("started_at").alias("started_at"), f.max("ended_at").alias("ended_at"))
        .withColumn("known_before", f.lag("ended_at").over(in_time))
    )
    spans = f.array(
        _span(f.col("started_at"), f.col("ended_at"), Cause.IMPORTED),
        _span(f.col("known_before"), f.col("started_at"), Cause.UNWATCHED),
    )
    return (
        known.select(*BLOCK, f.inline(spans))
        .withColumn("ended_at", f.least("ended_at", f.lit(known_through)))
        .where("started_at < ended_at")
        .select(
            *BLOCK,
            f.timestamp_micros("started_at").alias("started_at"),
            f.timestamp_micros("ended_at").alias("ended_at"),
            (f.col("cause") == Cause.IMPORTED).alias("known"),
            "cause",
            site_bucket().alias("site_bucket"),
        )
    )


def reached_by_row() -> Column:
    """Return the latest instant that a row of ``imports`` covers."""
    return f.greatest("ended_at", "watched_to")


def _joined(timed: DataFrame) -> DataFrame:
    """Join the intervals of a sender that overlap; an interval of no length stays separate."""
    in_time = _in_time()
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    has_length = f.col("started_at") < f.col("ended_at")
    reached = f.max(f.when(has_length, f.col("ended_at"))).over(before)
    begins = f.col("reached_before").isNull() | (f.col("started_at") >= f.col("reached_before"))
    return (
        timed.withColumn("reached_before", reached)
        .withColumn("run", f.count_if(has_length & begins).over(so_far))
        .withColumn("alone", f.when(~has_length, f.row_number().over(in_time)))
        .groupBy(*SENDER, "run", "alone")
        .agg(
            f.min_by("groups", "started_at").alias("groups"),
            f.first("state").alias("state"),
            f.max_by("gaps", "ended_at").alias("gaps"),
            f.min("started_at").alias("started_at"),
            f.max("ended_at").alias("ended_at"),
        )
    )


def _in_time() -> WindowSpec:
    """Order a sender's intervals; of those at one instant, the one in which it is absent comes last."""
    return Window.partitionBy(*SENDER).orderBy("started_at", "ended_at", f.col("state") == ABSENT, "state")


def _watched_times(imports: DataFrame) -> DataFrame:
    """Return when each source watched: from, to, and the times in between in which it did not.

    ``watched_from`` and ``watched_to`` are null if no import states them. ``unwatched`` is an array of (started_at,
    ended_at) in order that do not touch; it begins (ends) at an infinite instant if no import leaves that open. All are
    microseconds.
    """
    watched = (f.unix_micros(name).alias(name) for name in ("watched_from", "watched_to"))
    spans = imports.select("block", *watched).distinct()
    in_time = Window.partitionBy("block").orderBy(f.col("watched_from").asc_nulls_first())
    ends = f.coalesce("watched_to", f.lit(_NEVER))
    before = f.max(ends).over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    after = f.struct(f.max(ends).alias("started_at"), f.lit(_NEVER).alias("ended_at"))
    unwatched = f.struct(f.col("ended_before").alias("started_at"), f.col("watched_from").alias("ended_at"))
    return (
        spans.withColumn("ended_before", f.coalesce(before, f.lit(-_NEVER)))
        .groupBy("block")
        .agg(
            f.min("watched_from").alias("watched_from"),
            f.max("watched_to").alias("watched_to"),
            f.concat(
                f.sort_array(f.collect_list(f.when(f.col("ended_before") < f.col("watched_from"), unwatched))),
                f.array(after),
            ).alias("unwatched"),
        )
    )


def _gaps(started_at: Column, ended_at: Column, sooner: Column, later: Column) -> Column:
    """Return the watched gaps between both instants: the first has the state ``sooner``, later ones ``later``."""
    within = f.filter("unwatched", _overlaps(started_at, ended_at))
    begins = f.concat(f.array(started_at), f.transform(within, lambda span: span["ended_at"]))
    ends = f.concat(f.transform(within, lambda span: span["started_at"]), f.array(ended_at))

    def piece(begin: Column, end: Column) -> Column:
        return _piece(f.when(begin == started_at, sooner).otherwise(later), begin, end, is_gap=True)

    return f.filter(f.zip_with(begins, ends, piece), lambda gap: gap["started_at"] < gap["ended_at"])


def _piece(state: Column, started_at: Column, ended_at: Column, *, is_gap: bool) -> Column:
    return f.struct(
        state.alias("state"),
        started_at.alias("started_at"),
        ended_at.alias("ended_at"),
        f.lit(is_gap).alias("is_gap"),
    )


def _overlaps(started_at: Column, ended_at: Column) -> Callable[[Column], Column]:
    """Return the condition that a span overlaps the time between both instants."""
    return lambda span: (span["started_at"] < ended_at) & (span["ended_at"] > started_at)


def _span(started_at: Column, ended_at: Column, cause: Cause) -> Column:
    return f.struct(started_at.alias("started_at"), ended_at.alias("ended_at"), f.lit(cause).alias("cause"))
