"""Bring the lives of senders up to date with new advisories, at the cost of the senders that these are about.

Rules. A sender whose new advisories all come after the one that its going-on interval rests on is continued from that
interval. A sender without one, of whom the first new advisory opens an episode, is born, unless an older advisory was
said to come after, it was to be unheard for longer, or another store followed the one that announces it. All others
(late history, stores that were lost, claims of times to come) are read anew from their first advisory on.
"""

from collections import defaultdict
from enum import StrEnum
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.coverage.believed_times import in_site_order
from aggregator.lakehouse.derive.intervals.episodes import (
    AHEAD,
    BLOCK,
    SENDER,
    UNKNOWN,
    going_on_reports,
    place,
    reports,
    sender_intervals,
    with_whole_days,
)
from aggregator.lakehouse.spark.effort import computed_once
from aggregator.lakehouse.tables.schemas import SENDER_INTERVALS
from aggregator.lakehouse.warehouse.layout import Days, selected, whole_files
from shared.identifiers import AdvisoryKind

_MOST_DAYS = 64
"""Days that are looked for one by one."""


class Turn(StrEnum):
    """How a sender is brought up to date."""

    CONTINUED = "continued"
    BORN = "born"
    RECOMPUTE = "anew"


class ChangedRows(NamedTuple):
    """What to write: ``rows`` in the place of those ``where``; ``old`` and ``new`` are the lives that changed.

    ``new`` is persisted, and ``old`` where it is small: they are used more than once. ``since`` is the day, counted
    from 1970, on which the first of ``rows`` ends, None: in the last.
    """

    rows: DataFrame
    where: Column
    old: DataFrame
    new: DataFrame
    since: int | None = None


def goes_on() -> Column:
    """Select the intervals that go on: a partition of their own."""
    return f.col("ended_at").isNull()


def turns(advisories: DataFrame, going_on: DataFrame) -> DataFrame:
    """Say for each sender of the new ``advisories`` how to go on: (sender, ``turn``, ``first``: its place).

    ``going_on`` has the rows of ``sender_intervals`` that go on.
    """
    said = place()
    begins = (f.col("kind") == AdvisoryKind.NEW) & ~f.col("rebuilt")
    first = advisories.groupBy(*SENDER).agg(
        f.min(said).alias("first"), f.min_by(begins, said).alias("begins"), f.max("is_ahead").alias("is_ahead")
    )
    # What is ahead has its place among all that was said of its sender.
    turn = (
        f.when(f.col("is_ahead") | (f.col("basis") == AHEAD), Turn.RECOMPUTE)
        .when(f.col("rests_on").isNull(), f.when(f.col("begins"), Turn.BORN))
        # Of two at one instant, what they claim decides, which an interval does not keep.
        .when((f.col("state") != UNKNOWN) & (f.col("rests_on") < f.col("first.occurred_at")), Turn.CONTINUED)
    )
    return first.join(
        going_on.select(*SENDER, "state", "basis", f.col("advisory_at").alias("rests_on")), [*SENDER], "left"
    ).select(*SENDER, "first", f.coalesce(turn, f.lit(Turn.RECOMPUTE)).alias("turn"))


def blocks_of_changed(before: DataFrame | None, after: DataFrame | None) -> DataFrame | None:
    """Return (region, site, block) with another order of stores ``after`` than ``before``; None if there is none."""
    sides = [side.withColumn("step", f.lit(step)) for side, step in ((before, -1), (after, 1)) if side is not None]
    if not sides:
        return None
    ends = reduce(DataFrame.unionAll, sides).groupBy(*BLOCK, "incarnation", "store_end")
    changed = ends.agg(f.sum("step").alias("step"))
    blocks = computed_once(changed.where("step != 0").select(*BLOCK).distinct())
    return None if blocks.isEmpty() else blocks


def said_after(born: DataFrame, old_advisories: DataFrame) -> DataFrame:
    """Give the senders among ``born``, as of ``turns``, of whom an old advisory comes after their first new one."""
    old = old_advisories.select(*SENDER, place().alias("said"))
    return born.join(old, [*SENDER]).where("said > first").select(*SENDER).distinct()


def unheard_beyond(born: DataFrame, intervals: DataFrame) -> DataFrame:
    """Give the senders among ``born``, as of ``turns``, that ``intervals`` has unheard when their new life began."""
    unheard = intervals.where(f.col("advisory_kind") == AdvisoryKind.RETIRED).select(*SENDER, "ended_at")
    return born.join(unheard, [*SENDER]).where("ended_at > first.occurred_at").select(*SENDER).distinct()


def announced_by_earlier_stores(advisories: DataFrame, stores: DataFrame) -> DataFrame:
    """Return the senders of ``advisories`` of any of ``stores``: the last store may have announced them before."""
    return advisories.join(f.broadcast(stores), [*BLOCK, "incarnation"], "left_semi").select(*SENDER).distinct()


def continued(
    touched: DataFrame, advisories: DataFrame, going_on: DataFrame, stores: DataFrame | None, known_through: int
) -> ChangedRows:
    """Bring ``touched``, as of ``turns``, up to date with the new ``advisories``: none is to be read anew."""
    senders = touched.select(*SENDER)
    old = going_on.join(senders, [*SENDER], "left_semi").persist()
    new = sender_intervals(going_on_reports(old).unionAll(reports(advisories)), stores, known_through).persist()
    others = with_whole_days(going_on.join(senders, [*SENDER], "left_anti"), known_through)
    return ChangedRows(new.unionByName(others), goes_on(), old, new)


def partly_recomputed(
    touched: tuple[DataFrame, DataFrame],
    advisories: tuple[DataFrame, DataFrame],
    intervals: DataFrame,
    stores: DataFrame | None,
    known_through: int,
) -> ChangedRows:
    """Bring senders up to date of which some are read anew.

    ``touched`` has the senders that new advisories are about, as of ``turns``, and those to be read anew, among them or
    beside them; ``advisories`` the new ones, and all. ``intervals`` has the rows of ``sender_intervals``: of those that
    have ended, the partitions that change are written anew, and no others.
    """
    (senders, to_recompute), (new_advisories, all_advisories) = touched, advisories
    in_order = senders.select(*SENDER).join(to_recompute, [*SENDER], "left_anti")
    changed = in_order.unionAll(to_recompute)
    going_on = intervals.where(goes_on())
    records = (
        going_on_reports(going_on.join(in_order, [*SENDER], "left_semi"))
        .unionAll(reports(new_advisories.join(to_recompute, [*SENDER], "left_anti")))
        .unionAll(reports(in_site_order(all_advisories.join(to_recompute, [*SENDER], "left_semi"))))
    )
    new = sender_intervals(records, stores, known_through).persist()
    ended, new_ended = intervals.where(~goes_on()), new.where(~goes_on())
    replaced, replacing = (rows.join(to_recompute, [*SENDER], "left_semi") for rows in (ended, new_ended))
    days = _moved(replaced.exceptAll(replacing).unionAll(replacing.exceptAll(replaced)))
    moved = selected(days, SENDER_INTERVALS)
    rows = (
        new.where(goes_on())
        .unionByName(with_whole_days(going_on.join(changed, [*SENDER], "left_anti"), known_through))
        .unionByName(new_ended.join(in_order, [*SENDER], "left_semi"))
        .unionByName(ended.where(moved).join(to_recompute, [*SENDER], "left_anti"))
        .unionByName(replacing.where(moved))
    )
    old = going_on.join(in_order, [*SENDER], "left_semi").unionByName(
        intervals.join(to_recompute, [*SENDER], "left_semi")
    )
    return ChangedRows(rows, goes_on() | moved, old, new, min((each.first for each in days), default=None))


def _moved(ended: DataFrame) -> list[Days]:
    """Give the days on which any of these rows ends, with those that share a file."""
    days: dict[int, set[int]] = defaultdict(set)
    for day, bucket in ended.select(f.unix_date(f.to_date("ended_at")), "site_bucket").distinct().collect():
        days[bucket].add(day)
    touched = [Days(bucket, bucket + 1, day, day + 1) for bucket, of_bucket in days.items() for day in of_bucket]
    if len(touched) > _MOST_DAYS:
        touched = [Days(bucket, bucket + 1, min(found), max(found) + 1) for bucket, found in days.items()]
    return whole_files(ended.sparkSession, SENDER_INTERVALS, touched)
