"""Derive episodes of senders, and coverage of blocks, from imported intervals.

The pieces of a sender's time are those of ``import_views.PIECES``. A time in which its source did not watch, or in
which it is absent, ends one episode, and another begins. Pieces of no length are left out; neighbours of the same state
are one interval. A block is covered while its source watched, and in every interval of any of its senders. Known time
ends at ``known_through`` for all: what lies after it stays in ``imports`` until known time gets there.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.episodes import BLOCK, DOWN, SENDER, UP, site_bucket, with_whole_days
from aggregator.lakehouse.tables.import_views import COVERAGE_QUERY, PIECES_QUERY
from aggregator.lakehouse.tables.view_sql import spark_sql

GAP, END = "import_gap", "import_end"


def pieces(imports: DataFrame) -> DataFrame:
    """Return the pieces of each sender's time that rows of the table ``imports`` make."""
    return _ask(PIECES_QUERY, imports)


def imported_intervals(imports: DataFrame, known_through: int) -> DataFrame:
    """Return the rows of the table ``sender_intervals``; ``known_through`` is in microseconds."""
    in_time = Window.partitionBy(*SENDER).orderBy("started_us", "ended_us")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    changes = (
        pieces(imports)
        .where("started_us < ended_us")
        .withColumn("was_unwatched", f.coalesce(f.lag("ended_us").over(in_time) < f.col("started_us"), f.lit(False)))
        .withColumn("changed", f.col("was_unwatched") | ~f.col("state").eqNullSafe(f.lag("state").over(in_time)))
        .withColumn("life", f.count_if("was_unwatched").over(so_far))
        .withColumn("run", f.count_if("changed").over(so_far))
    )
    merged = (
        changes.groupBy(*SENDER, "life", "run")
        .agg(
            f.first("state").alias("state"),
            f.min("started_us").alias("started_at"),
            f.max("ended_us").alias("ended_at"),
        )
        .withColumn("born_at", f.min("started_at").over(Window.partitionBy(*SENDER, "life")))
    )
    following = f.lead("state").over(Window.partitionBy(*SENDER, "life").orderBy("run"))
    word = (
        f.when(following.isNull(), END)
        .when(following == UP, "recovered")
        .when(following == DOWN, "stale")
        .otherwise(GAP)
    )
    goes_on = f.col("ended_at") > known_through
    lives = merged.select(
        *SENDER,
        f.md5(f.to_json(f.array(*SENDER, f.col("born_at").cast("string")))).alias("episode"),
        f.timestamp_micros("born_at").alias("episode_started_at"),
        "state",
        f.timestamp_micros("started_at").alias("started_at"),
        f.when(~goes_on, f.timestamp_micros("ended_at")).alias("ended_at"),
        f.when(~goes_on, word).alias("ended_by"),
        f.timestamp_micros("started_at").alias("advisory_at"),
        f.lit(None).cast("string").alias("advisory_kind"),
        f.lit(None).cast("string").alias("advisory_id"),
        f.lit(None).cast("string").alias("basis"),
    )
    return with_whole_days(lives.where(f.unix_micros("started_at") < known_through), known_through)


def imported_coverage(imports: DataFrame, known_through: int) -> DataFrame:
    """Return the rows of ``site_coverage``: a block's time from its first start to its last stop, or as watched.

    Which part of it is unknown of one sender, its own intervals say.
    """
    return (
        _ask(COVERAGE_QUERY, imports)
        .where(f.col("started_us") < known_through)
        .select(
            *BLOCK,
            f.timestamp_micros("started_us").alias("started_at"),
            f.timestamp_micros(f.least("ended_us", f.lit(known_through))).alias("ended_at"),
            "known",
            "cause",
            site_bucket().alias("site_bucket"),
        )
    )


def reached_by_row() -> Column:
    """Return the instant up to which a row of ``imports`` says something."""
    return f.greatest("ended_at", "watched_to")


def _ask(query: str, imports: DataFrame) -> DataFrame:
    return imports.sparkSession.sql(spark_sql(query, imports="{imports}"), imports=imports)
