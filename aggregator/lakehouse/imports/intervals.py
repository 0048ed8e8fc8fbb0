"""Turn what was imported into the lives of senders, and into what is known of each block.

Rules. A sender lives, in one episode, from its first start to its last stop, or for as long as its source says that it
watched. Where none of its intervals lies in between, it is what the interval before says of gaps, or, before the first,
what that one says. Intervals that overlap are of one state, and are one. An interval of no length adds no time;
neighbours of the same state are one. What lies after ``known_through`` is kept, and waits: known time ends there for
all.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.causes import Cause
from aggregator.lakehouse.intervals import BLOCK, DOWN, SENDER, UP, site_bucket, with_whole_days

GAP, END = "import_gap", "import_end"


def pieces(imports: DataFrame) -> DataFrame:
    """Give the imported intervals and the gaps between them: (sender, ``groups``, ``state``, start, end, ``is_gap``).

    ``started_at`` and ``ended_at`` are microseconds.
    """
    timed = imports.select(
        *SENDER,
        "groups",
        "state",
        "gaps",
        f.unix_micros("started_at").alias("started_at"),
        f.unix_micros("ended_at").alias("ended_at"),
        f.unix_micros("watched_from").alias("watched_from"),
        f.unix_micros("watched_to").alias("watched_to"),
    )
    of_sender = Window.partitionBy(*SENDER)
    in_time = of_sender.orderBy("started_at", "ended_at", "state")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    placed = (
        _joined(timed)
        .withColumn("reached", f.max("ended_at").over(so_far))
        .withColumn("next", f.lead("started_at").over(in_time))
        .withColumn("is_first", f.lag("started_at").over(in_time).isNull())
        .withColumn("watched_from", f.min("watched_from").over(of_sender))
        .withColumn("watched_to", f.max("watched_to").over(of_sender))
    )
    own = _piece(f.col("state"), f.col("started_at"), f.col("ended_at"), is_gap=False)
    # One that is not the last ends at the next; behind the last, watching may have gone on.
    until = f.coalesce("next", "watched_to")
    gap = f.when(until > f.col("reached"), _piece(f.col("gaps"), f.col("reached"), until, is_gap=True))
    before = f.when(
        f.col("is_first") & (f.col("watched_from") < f.col("started_at")),
        _piece(f.col("gaps"), f.col("watched_from"), f.col("started_at"), is_gap=True),
    )
    pieces_of_row = f.filter(f.array(before, own, gap), lambda piece: piece.isNotNull())
    return placed.select(*SENDER, "groups", f.inline(pieces_of_row))


def imported_intervals(imports: DataFrame, known_through: int) -> DataFrame:
    """Give rows of the table ``sender_intervals``; ``known_through`` is in microseconds."""
    in_time = Window.partitionBy(*SENDER).orderBy("started_at", "ended_at")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    changes = (
        pieces(imports)
        .where("started_at < ended_at")
        .withColumn("changed", ~f.col("state").eqNullSafe(f.lag("state").over(in_time)))
        .withColumn("run", f.sum(f.col("changed").cast("int")).over(so_far))
    )
    merged = changes.groupBy(*SENDER, "run").agg(
        f.first("state").alias("state"), f.min("started_at").alias("started_at"), f.max("ended_at").alias("ended_at")
    )
    by_run = Window.partitionBy(*SENDER).orderBy("run")
    following = f.lead("state").over(by_run)
    word = (
        f.when(following.isNull(), END)
        .when(following == UP, "recovered")
        .when(following == DOWN, "stale")
        .otherwise(GAP)
    )
    goes_on = f.col("ended_at") > known_through
    born_at = f.min("started_at").over(Window.partitionBy(*SENDER))
    lives = merged.select(
        *SENDER,
        f.md5(f.to_json(f.array(*SENDER))).alias("episode"),
        f.timestamp_micros(born_at).alias("episode_started_at"),
        "state",
        f.timestamp_micros("started_at").alias("started_at"),
        f.when(~goes_on, f.timestamp_micros("ended_at")).alias("ended_at"),
        f.when(~goes_on, word).alias("ended_by"),
        f.timestamp_micros("started_at").alias("advisory_at"),
        f.lit(None).cast("string").alias("advisory_kind"),
        f.lit(None).cast("string").alias("advisory_id"),
    )
    return with_whole_days(lives.where(f.unix_micros("started_at") < known_through), known_through)


def imported_coverage(imports: DataFrame, known_through: int) -> DataFrame:
    """Give rows of the table ``site_coverage``: all of a block's time, from its first start to its last stop.

    What is not known of one sender meanwhile, its own intervals say.
    """
    blocks = imports.groupBy(*BLOCK).agg(
        f.min(f.unix_micros(f.least("started_at", "watched_from"))).alias("started_at"),
        f.max(f.unix_micros(reached_by_row())).alias("ended_at"),
    )
    return (
        blocks.withColumn("ended_at", f.least("ended_at", f.lit(known_through)))
        .where("started_at < ended_at")
        .select(
            *BLOCK,
            f.timestamp_micros("started_at").alias("started_at"),
            f.timestamp_micros("ended_at").alias("ended_at"),
            f.lit(True).alias("known"),
            f.lit(Cause.IMPORTED).alias("cause"),
            site_bucket().alias("site_bucket"),
        )
    )


def reached_by_row() -> Column:
    """Give the instant up to which a row of ``imports`` says something."""
    return f.greatest("ended_at", "watched_to")


def _joined(timed: DataFrame) -> DataFrame:
    """Make one interval of those of a sender that share some time; what has no length stays by itself."""
    in_time = Window.partitionBy(*SENDER).orderBy("started_at", "ended_at", "state")
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
            f.min("watched_from").alias("watched_from"),
            f.max("watched_to").alias("watched_to"),
        )
    )


def _piece(state: Column, started_at: Column, ended_at: Column, *, is_gap: bool) -> Column:
    return f.struct(
        state.alias("state"),
        started_at.alias("started_at"),
        ended_at.alias("ended_at"),
        f.lit(is_gap).alias("is_gap"),
    )
