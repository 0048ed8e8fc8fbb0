"""Incremental update of senders' intervals, at the cost of the senders that new advisories name.

A sender whose new advisories all come after the one that its open interval rests on is continued from that interval. A
sender without an open interval whose first new advisory opens an episode is born, unless an older advisory of it is
ordered after that one, its last episode ended later as unheard, or a later store followed the one that announces it.
All others (late history, stores that were lost, claims of future times) are recomputed from their first advisory.
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
    open_reports,
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
"""The most days that are selected one by one; more are selected as one range by bucket."""


class Turn(StrEnum):
    """How a sender is updated."""

    CONTINUED = "continued"
    BORN = "born"
    RECOMPUTE = "anew"


class ChangedRows(NamedTuple):
    """Rows that replace those ``where``; ``old`` and ``new`` are the changed intervals before and after.

    ``new`` is persisted, and ``old`` where it is small, because they are used more than once. ``since`` is the day,
    counted from 1970, on which the first of ``rows`` ends; None means the last day.
    """

    rows: DataFrame
    where: Column
    old: DataFrame
    new: DataFrame
    since: int | None = None


def is_open() -> Column:
    """Return the condition that an interval is open; open intervals are a partition of their own."""
    return f.col("ended_at").isNull()


def turns(advisories: DataFrame, open_intervals: DataFrame) -> DataFrame:
    """Return how each sender of the new ``advisories`` is updated: (sender, ``turn``, ``first``: its place).

    ``open_intervals`` has the open rows of ``sender_intervals``.
    """
    order = place()
    begins = (f.col("kind") == AdvisoryKind.NEW) & ~f.col("rebuilt")
    first = advisories.groupBy(*SENDER).agg(
        f.min(order).alias("first"), f.min_by(begins, order).alias("begins"), f.max("is_ahead").alias("is_ahead")
    )
    # The place of an advisory that is ahead depends on all the advisories of its sender.
    turn = (
        f.when(f.col("is_ahead") | (f.col("basis") == AHEAD), Turn.RECOMPUTE)
        .when(f.col("rests_on").isNull(), f.when(f.col("begins"), Turn.BORN))
        # Two advisories of one instant are ordered by their claimed instants, which an interval does not keep.
        .when((f.col("state") != UNKNOWN) & (f.col("rests_on") < f.col("first.occurred_at")), Turn.CONTINUED)
    )
    return first.join(
        open_intervals.select(*SENDER, "state", "basis", f.col("advisory_at").alias("rests_on")), [*SENDER], "left"
    ).select(*SENDER, "first", f.coalesce(turn, f.lit(Turn.RECOMPUTE)).alias("turn"))


def changed_blocks(before: DataFrame | None, after: DataFrame | None) -> DataFrame | None:
    """Return (region, site, block) whose order of stores changed; None if there are none."""
    sides = [side.withColumn("step", f.lit(step)) for side, step in ((before, -1), (after, 1)) if side is not None]
    if not sides:
        return None
    ends = reduce(DataFrame.unionAll, sides).groupBy(*BLOCK, "incarnation", "store_end")
    changed = ends.agg(f.sum("step").alias("step"))
    blocks = computed_once(changed.where("step != 0").select(*BLOCK).distinct())
    return None if blocks.isEmpty() else blocks


def with_later_advisory(born: DataFrame, old_advisories: DataFrame) -> DataFrame:
    """Return the senders of ``born``, rows of ``turns``, with an old advisory after their first new one."""
    old = old_advisories.select(*SENDER, place().alias("old_place"))
    return born.join(old, [*SENDER]).where("old_place > first").select(*SENDER).distinct()


def unheard_beyond(born: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return the senders of ``born``, rows of ``turns``, that were unheard in ``intervals`` at their new birth."""
    unheard = intervals.where(f.col("advisory_kind") == AdvisoryKind.RETIRED).select(*SENDER, "ended_at")
    return born.join(unheard, [*SENDER]).where("ended_at > first.occurred_at").select(*SENDER).distinct()


def announced_by_earlier_stores(advisories: DataFrame, stores: DataFrame) -> DataFrame:
    """Return the senders of ``advisories`` of any of ``stores``: the last store may have announced them before."""
    return advisories.join(f.broadcast(stores), [*BLOCK, "incarnation"], "left_semi").select(*SENDER).distinct()


def continued(
    touched: DataFrame, advisories: DataFrame, open_intervals: DataFrame, stores: DataFrame | None, known_through: int
) -> ChangedRows:
    """Continue the intervals of ``touched``, rows of ``turns``, with the new ``advisories``; none is recomputed."""
    senders = touched.select(*SENDER)
    old = open_intervals.join(senders, [*SENDER], "left_semi").persist()
    new = sender_intervals(open_reports(old).unionAll(reports(advisories)), stores, known_through).persist()
    others = with_whole_days(open_intervals.join(senders, [*SENDER], "left_anti"), known_through)
    return ChangedRows(new.unionByName(others), is_open(), old, new)


def partly_recomputed(
    touched: tuple[DataFrame, DataFrame],
    advisories: tuple[DataFrame, DataFrame],
    intervals: DataFrame,
    stores: DataFrame | None,
    known_through: int,
) -> ChangedRows:
    """Continue the intervals of some senders and recompute those of others.

    ``touched`` is (the senders that new advisories name, as rows of ``turns``; the senders to recompute, whether or not
    they are among these); ``advisories`` is (the new ones, all). ``intervals`` has the rows of ``sender_intervals``: of
    the closed ones, only partitions that change are written again.
    """
    (senders, to_recompute), (new_advisories, all_advisories) = touched, advisories
    in_order = senders.select(*SENDER).join(to_recompute, [*SENDER], "left_anti")
    changed = in_order.unionAll(to_recompute)
    open_intervals = intervals.where(is_open())
    records = (
        open_reports(open_intervals.join(in_order, [*SENDER], "left_semi"))
        .unionAll(reports(new_advisories.join(to_recompute, [*SENDER], "left_anti")))
        .unionAll(reports(in_site_order(all_advisories.join(to_recompute, [*SENDER], "left_semi"))))
    )
    new = sender_intervals(records, stores, known_through).persist()
    ended, new_ended = intervals.where(~is_open()), new.where(~is_open())
    replaced, replacing = (rows.join(to_recompute, [*SENDER], "left_semi") for rows in (ended, new_ended))
    days = _moved(replaced.exceptAll(replacing).unionAll(replacing.exceptAll(replaced)))
    moved = selected(days, SENDER_INTERVALS)
    rows = (
        new.where(is_open())
        .unionByName(with_whole_days(open_intervals.join(changed, [*SENDER], "left_anti"), known_through))
        .unionByName(new_ended.join(in_order, [*SENDER], "left_semi"))
        .unionByName(ended.where(moved).join(to_recompute, [*SENDER], "left_anti"))
        .unionByName(replacing.where(moved))
    )
    old = open_intervals.join(in_order, [*SENDER], "left_semi").unionByName(
        intervals.join(to_recompute, [*SENDER], "left_semi")
    )
    return ChangedRows(rows, is_open() | moved, old, new, min((day.first for day in days), default=None))


def _moved(ended: DataFrame) -> list[Days]:
    """Return the days on which any of these rows ends, extended to whole files."""
    days: dict[int, set[int]] = defaultdict(set)
    for day, bucket in ended.select(f.unix_date(f.to_date("ended_at")), "site_bucket").distinct().collect():
        days[bucket].add(day)
    touched = [Days(bucket, bucket + 1, day, day + 1) for bucket, of_bucket in days.items() for day in of_bucket]
    if len(touched) > _MOST_DAYS:
        touched = [Days(bucket, bucket + 1, min(of_bucket), max(of_bucket) + 1) for bucket, of_bucket in days.items()]
    return whole_files(ended.sparkSession, SENDER_INTERVALS, touched)
