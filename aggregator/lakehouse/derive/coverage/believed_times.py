"""Believed instants of records: bounded by the times at which the hub stored them.

Rules. Nothing happened after the hub stored the record that tells of it: such an instant counts as that of storing, and
the record's other instants move with it (``records/judge.py``). So a store that takes a lost one's place, or another
agent's, does so when it says that it did, or when the hub stored the first that it told, where that is earlier. Of a
sender's advisories, one that claims more than ``SKEW`` beyond has no place in time of its own: it comes before all that
its site observed later and that claims no such thing, in the site's order (incarnations as they reached the hub,
ordinals within).

Nobody looks back further than ``LOOK_BACK`` from the instant of a record, and none of a stream's later records looks
back behind the creation of that stream: a last sighting, or a time observed since, that lies before counts from there.
The tables of records keep what was said.

While the hub's clock was behind (``clock_steps.py``), its time of a record proves nothing against what the record
claims. Nothing is ahead then and no other instant moves; what has one instant by the hub's time keeps the order of what
it claims.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.archive.hub_clock import ClockStep
from aggregator.lakehouse.derive.coverage.clock_steps import is_under
from aggregator.lakehouse.derive.intervals.episodes import SENDER
from aggregator.lakehouse.spark.effort import computed_once
from aggregator.records.judge import Operators, believed, believed_earlier
from shared.identifiers import AdvisoryKind

_OF_COLUMNS = Operators(f.least, f.greatest, lambda condition, one, other: f.when(condition, one).otherwise(other))


def believed_advisories(advisories: DataFrame, steps: Sequence[ClockStep] = ()) -> DataFrame:
    """Return rows of ``advisories`` with believed instants; ``claimed_at`` keeps the claimed one.

    ``steps`` are those of the hub's clock.

    Rows that ``is_ahead`` marks get their place by ``in_site_order``; until then ``ahead_place`` is 0.
    """
    claimed_at, believed_at, lead, is_ahead = _believed("occurred_at", steps)
    return advisories.withColumns(
        {
            "claimed_at": f.col("occurred_at"),
            "is_ahead": f.coalesce(is_ahead, f.lit(False)),
            "occurred_at": f.timestamp_micros(believed_at),
            "last_seen_at": _earlier("last_seen_at", believed_at, lead, claimed_at),
            "unheard_until": f.timestamp_micros(f.unix_micros("unheard_until") - lead),
            "ahead_place": f.lit(0),
        }
    )


def believed_watermarks(watermarks: DataFrame, steps: Sequence[ClockStep] = ()) -> DataFrame:
    """Return rows of ``watermarks`` with believed instants; ``claimed_through`` keeps the claimed one.

    ``rebuilt_at`` names the store (``archive/stores.py``). ``steps`` are those of the hub's clock.
    """
    claimed_at, believed_at, lead, _ = _believed("observed_through", steps)
    return watermarks.withColumns(
        {
            "observed_through": f.timestamp_micros(believed_at),
            "observed_since": _earlier("observed_since", believed_at, lead, claimed_at),
            "claimed_through": f.col("observed_through"),
            "rebuilt_at": f.coalesce("store_began_at", "rebuilt_at"),
        }
    )


def in_site_order(advisories: DataFrame) -> DataFrame:
    """Give advisories that are ahead, of ``believed_advisories``, their place among all others of their senders."""
    of_incarnation = Window.partitionBy(*SENDER, "incarnation")
    onward = Window.partitionBy(*SENDER).orderBy("incarnation_place", "ordinal", "hub_sequence")
    from_here, later = (onward.rowsBetween(first, Window.unboundedFollowing) for first in (0, 1))
    earlier = onward.rowsBetween(Window.unboundedPreceding, -1)
    occurred = f.when(~f.col("is_ahead"), f.col("occurred_at"))
    dates_back = f.col("kind").isin(AdvisoryKind.STALE, AdvisoryKind.RETIRED)
    # A last sighting lies behind what was observed before it.
    seen = f.greatest("last_seen_at", "observed_before")
    observed = f.when(~f.col("is_ahead"), f.when(dates_back, seen).otherwise(f.col("occurred_at")))
    placed = (
        advisories.withColumn("incarnation_place", f.min("hub_sequence").over(of_incarnation))
        .withColumn("observed_before", f.max(occurred).over(earlier))
        .withColumn("observed", observed)
        .withColumn("observed_later", f.min("observed").over(later))
        .withColumn("ahead_place", f.when(f.col("is_ahead"), -f.count_if("is_ahead").over(from_here)).otherwise(0))
    )
    moved = f.when(f.col("is_ahead"), f.least("occurred_at", "observed_later")).otherwise(f.col("occurred_at"))
    return (
        placed.withColumn("occurred_at", moved)
        .withColumn("last_seen_at", f.least("last_seen_at", "occurred_at"))
        .withColumn("ahead_place", f.col("ahead_place").cast("int"))
        .drop("incarnation_place", "observed_before", "observed", "observed_later")
    )


def in_site_order_where_ahead(advisories: DataFrame) -> DataFrame:
    """Do so of all senders of whom anything is ahead: nearly always there is none, and one look is all it takes."""
    senders = computed_once(advisories.where("is_ahead").select(*SENDER).distinct())
    if senders.isEmpty():
        return advisories
    others, own = (advisories.join(senders, [*SENDER], how) for how in ("left_anti", "left_semi"))
    return others.unionByName(in_site_order(own).select(*others.columns))


def _believed(claimed: str, steps: Sequence[ClockStep]) -> tuple[Column, Column, Column, Column]:
    """Return the claimed main instant of records in microseconds, and the columns of ``believed``."""
    claimed_at = f.unix_micros(claimed)
    return claimed_at, *believed(claimed_at, f.unix_micros("archived_at"), is_under(steps), _OF_COLUMNS)


def _earlier(name: str, believed_at: Column, lead: Column, claimed_at: Column) -> Column:
    """Return the believed instant of the column ``name``, of records that claim ``claimed_at`` as their main one."""
    # To split the text instead, Spark compiles a pattern for each row.
    created_at = f.substring_index("incarnation", "-", 1).try_cast("bigint")
    known_creation = f.when(created_at <= claimed_at, created_at)
    return f.timestamp_micros(believed_earlier(f.unix_micros(name), believed_at, lead, known_creation, _OF_COLUMNS))
