"""Keep what was given up: messages that no stream held any more when they were to be read."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.archive.reading_plan import Span
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import LOSSES
from aggregator.lakehouse.warehouse import commits


def record(spark: SparkSession, lost: Span, before: HubPosition, resumed_at: int) -> None:
    """Note that ``lost`` was given up. Doing it again, after a kill, changes nothing.

    ``before`` is where the tables stood, ``resumed_at`` (microseconds) the hub's time of the first message after.
    """
    row = spark.range(1).select(
        f.lit(before.stream).alias("stream"),
        f.timestamp_micros(f.lit(before.created_at)).alias("stream_created_at"),
        f.lit(lost.first).cast("bigint").alias("first_sequence"),
        f.lit(lost.last).cast("bigint").alias("last_sequence"),
        f.timestamp_micros(f.lit(before.known_through)).alias("lost_from"),
        f.timestamp_micros(f.lit(resumed_at)).alias("lost_to"),
    )
    known = spark.table(LOSSES.identifier).select(*LOSSES.identity)
    row.join(known, list(LOSSES.identity), "left_anti").select(*LOSSES.column_names).writeTo(LOSSES.identifier).append()


def spans(spark: SparkSession, position: HubPosition) -> list[tuple[int, int]]:
    """Give the time (microseconds, from and to) that everything given up of this stream stood for."""
    if not commits.snapshots(spark, (LOSSES,)):
        return []
    given_up = spark.table(LOSSES.identifier).where(f.unix_micros("stream_created_at") == position.created_at)
    rows = given_up.select(f.unix_micros("lost_from"), f.unix_micros("lost_to")).collect()
    return [(begin, end) for begin, end in rows]
