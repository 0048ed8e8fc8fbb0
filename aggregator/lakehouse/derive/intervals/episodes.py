"""Rows of the table ``sender_intervals``, out of advisories: the fold is ``records/episode.py``."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.interval_batches import ADVISED, INTERVAL_TYPES, intervals
from aggregator.lakehouse.tables.schemas import SITE_BUCKETS
from aggregator.lakehouse.warehouse.windows import DAY_US, day_of, floor_to
from aggregator.records.episode import AT_ONCE_RANK, Report
from aggregator.records.judge import UNSUPPORTED
from shared.identifiers import AdvisoryKind
from shared.instants import LATEST

BLOCK = ("region", "site", "block")
SENDER = (*BLOCK, "sender_id")

UP, DOWN, UNKNOWN, MAINTENANCE = "up", "down", "unknown", "maintenance"
AHEAD = "ahead"
"""The basis of a state whose advisory claims an instant later than the hub stored it."""

_RANKS = AT_ONCE_RANK + 1
"""The distance of ranks: an advisory that is ahead (``believed_times.py``) ranks lower by it for each later one that is
ahead too; an advisory that claims a later instant than the one that counts ranks higher by it for each microsecond."""
NO_INCARNATION = ""
"""The incarnation of plain Choria advisories."""


def reports(advisories: DataFrame) -> DataFrame:
    """Return the rows to fold of rows of ``believed_advisories``."""
    beyond = f.unix_micros("claimed_at") - f.unix_micros("occurred_at")
    place = f.when(f.col("is_ahead"), f.col("ahead_place")).otherwise(beyond)
    return advisories.select(
        *SENDER,
        "occurred_at",
        "last_seen_at",
        "event_id",
        f.when(_report() == Report.UNHEARD.value, f.col("unheard_until")).alias("unheard_until"),
        f.lit(None).cast("string").alias("opened_by"),
        f.lit(None).cast("timestamp").alias("opened_at"),
        _report().alias("report"),
        (rank() + place * _RANKS).alias("rank"),
        f.when(f.col("is_ahead"), AHEAD).alias("basis"),
        f.coalesce("incarnation", f.lit(NO_INCARNATION)).alias("incarnation"),
    )


def open_reports(open_intervals: DataFrame) -> DataFrame:
    """Return the rows to fold of open intervals: the advisory that each rests on, with its episode.

    Earlier advisories do not matter to later ones, unless a store was lost (``state`` unknown).
    """
    return open_intervals.select(
        *SENDER,
        f.col("advisory_at").alias("occurred_at"),
        f.col("started_at").alias("last_seen_at"),
        f.col("advisory_id").alias("event_id"),
        f.lit(None).cast("timestamp").alias("unheard_until"),
        f.col("episode").alias("opened_by"),
        f.col("episode_started_at").alias("opened_at"),
        _kind_rank(f.col("advisory_kind")).alias("report"),
        _kind_rank(f.col("advisory_kind")).cast("bigint").alias("rank"),
        "basis",
        f.lit(None).cast("string").alias("incarnation"),
    )


def place() -> Column:
    """Return the place of a row of ``believed_advisories`` among those of its sender, as a struct that sorts."""
    return f.struct("occurred_at", "claimed_at", rank().alias("rank"), "event_id")


def rank() -> Column:
    """Return the rank of a row of the table ``advisories`` among those of its instant."""
    is_of_one_sighting = f.col("sequence") == f.col("opening_sequence")
    at_once = (f.col("kind") == AdvisoryKind.RETIRED) & (f.col("last_seen_at") == f.col("occurred_at"))
    return f.when(at_once & is_of_one_sighting, AT_ONCE_RANK).otherwise(_kind_rank(f.col("kind")))


def sender_intervals(advised: DataFrame, stores: DataFrame | None, known_through: int) -> DataFrame:
    """Return the rows of the table ``sender_intervals`` for the senders of ``advised``, as of ``reports``.

    ``stores`` is the order of the stores of blocks for which several have spoken (``coverage/stores.py``); None if
    there is no such block. ``known_through`` (microseconds) cuts the last day, for ``last_whole_day`` only.
    """
    columns = [*ADVISED]
    if stores is not None:
        named = advised.join(f.broadcast(stores), [*BLOCK, "incarnation"], "left")
        # The advisory that an open interval rests on is the last store's, unless the interval is unknown.
        advised = named.withColumn("store_end", f.coalesce("store_end", f.lit(LATEST)))
        columns.append("store_end")
    # The hash decides nearly every comparison of the sort: names are long and alike.
    hashed = advised.withColumn("sender_hash", f.xxhash64(*SENDER)).repartition("sender_hash")
    in_order = hashed.sortWithinPartitions("sender_hash", *SENDER, "occurred_at", "rank", "event_id").select(*columns)
    return with_whole_days(in_order.mapInArrow(intervals, INTERVAL_TYPES), known_through)


def supported(last_seen_at: Column, occurred_at: Column) -> Column:
    """Return the instant from which a sender's first advisory reports on it: no other advisory shows an earlier one."""
    return f.greatest(last_seen_at, f.timestamp_micros(f.unix_micros(occurred_at) - UNSUPPORTED))


def with_whole_days(intervals: DataFrame, known_through: int) -> DataFrame:
    """Add, or renew, the days that lie wholly in each interval, and the bucket of the site."""
    started_at, ended_at = f.unix_micros("started_at"), f.unix_micros("ended_at")
    first = floor_to(started_at + (DAY_US - 1), DAY_US)
    # The days of a closed interval are fixed: every run rewrites open intervals only.
    last = f.coalesce(floor_to(ended_at, DAY_US) - DAY_US, floor_to(f.lit(known_through - 1), DAY_US))
    return intervals.select(
        *SENDER,
        "episode",
        "episode_started_at",
        "state",
        "started_at",
        "ended_at",
        "ended_by",
        "advisory_at",
        "advisory_kind",
        "advisory_id",
        f.when(first <= last, _day(first)).alias("first_whole_day"),
        f.when(first <= last, _day(last)).alias("last_whole_day"),
        "basis",
        site_bucket().alias("site_bucket"),
    )


def site_bucket() -> Column:
    """Spread sites over the buckets by which derived tables are partitioned."""
    return f.pmod(f.crc32("site"), f.lit(SITE_BUCKETS)).cast("int")


def _report() -> Column:
    """Return the ``Report`` of a row of the table ``advisories``."""
    is_retired = f.col("kind") == AdvisoryKind.RETIRED
    is_rebuilt = (f.col("kind") == AdvisoryKind.NEW) & f.col("rebuilt")
    return (
        f.when(is_retired & f.col("by_operator"), Report.REMOVED.value)
        .when(is_retired & f.col("unheard_until").isNotNull(), Report.UNHEARD.value)
        .when(is_rebuilt, Report.REBUILT.value)
        .otherwise(_kind_rank(f.col("kind")))
    )


def _kind_rank(kind: Column) -> Column:
    ranks = f.when(kind == AdvisoryKind.STALE, AdvisoryKind.STALE.rank)
    for other in (AdvisoryKind.RETIRED, AdvisoryKind.RECOVERED, AdvisoryKind.NEW):
        ranks = ranks.when(kind == other, other.rank)
    return ranks


def _day(microseconds: Column) -> Column:
    return f.date_from_unix_date(day_of(microseconds))
