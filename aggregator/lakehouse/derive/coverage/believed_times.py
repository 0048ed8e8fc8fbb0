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
from aggregator.records.judge import LEAD, SKEW, believed_earlier
from shared.identifiers import AdvisoryKind


def believed_advisories(advisories: DataFrame, steps: Sequence[ClockStep] = ()) -> DataFrame:
    """Return rows of ``advisories`` with believed instants; ``claimed_at`` keeps the claimed one.

    ``steps`` are those of the hub's clock.

    Rows that ``is_ahead`` marks get their place by ``in_site_order``; until then ``ahead_place`` is 0.
    """
    claimed, stored = f.col("occurred_at"), f.col("archived_at")
    occurred = f.least(claimed, stored)
    lead, under = _lead(claimed, occurred, steps), is_under(steps)
    is_beyond = f.unix_micros(claimed) > f.unix_micros(stored) + SKEW
    return advisories.withColumns(
        {
            "claimed_at": claimed,
            "is_ahead": f.coalesce(is_beyond, f.lit(False)) & ~under,
            "occurred_at": occurred,
            "last_seen_at": _earlier(claimed, occurred, f.col("last_seen_at"), lead),
            "unheard_until": f.timestamp_micros(f.unix_micros("unheard_until") - lead),
            "ahead_place": f.lit(0),
        }
    )


def believed_watermarks(watermarks: DataFrame, steps: Sequence[ClockStep] = ()) -> DataFrame:
    """Return rows of ``watermarks`` with believed instants; ``claimed_through`` keeps the claimed one.

    ``rebuilt_at`` names the store (``archive/stores.py``). ``steps`` are those of the hub's clock.
    """
    claimed = f.col("observed_through")
    through = f.least(claimed, "archived_at")
    return watermarks.withColumns(
        {
            "observed_through": through,
            "observed_since": _earlier(claimed, through, f.col("observed_since"), _lead(claimed, through, steps)),
            "claimed_through": claimed,
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


def _earlier(claimed: Column, believed: Column, earlier: Column, lead: Column) -> Column:
    """Return the believed instant of ``earlier`` in records that claim ``claimed``, believed to be ``believed``."""
    believed_at = f.unix_micros(believed)
    # To split the text instead, Spark compiles a pattern for each row.
    created_at = f.substring_index("incarnation", "-", 1).try_cast("bigint")
    known_creation = f.when(created_at <= f.unix_micros(claimed), created_at)
    bounds = believed_at, lead, known_creation
    return f.timestamp_micros(believed_earlier(f.unix_micros(earlier), *bounds, f.least, f.greatest))


def _lead(claimed: Column, believed: Column, steps: Sequence[ClockStep]) -> Column:
    lead = f.unix_micros(claimed) - f.unix_micros(believed)
    return f.when((lead <= LEAD) & ~is_under(steps), lead).otherwise(0)
