"""Bring lives and coverage from one position of the bronze tables to a later one, at the cost of what came between.

What was committed is gone on from wherever records came in their order, and read anew, sender by sender and block by
block, where they did not. The result is that of a computation of everything.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.archive.contests import Contest
from aggregator.lakehouse.derive import changed_senders
from aggregator.lakehouse.derive.changed_senders import ChangedRows, Turn
from aggregator.lakehouse.derive.coverage import contests, known_time, watermark_coverage
from aggregator.lakehouse.derive.coverage.folded_watermarks import folded
from aggregator.lakehouse.derive.coverage.known_time import Unknown
from aggregator.lakehouse.derive.coverage.stores import stores
from aggregator.lakehouse.derive.coverage.watermark_coverage import LIFE
from aggregator.lakehouse.derive.intervals.episodes import BLOCK, SENDER, site_bucket
from aggregator.lakehouse.spark.effort import computed_once, fit_history
from aggregator.lakehouse.tables.causes import OF_IMPORTS
from aggregator.lakehouse.tables.schemas import SITE_BUCKETS, SITE_COVERAGE
from aggregator.lakehouse.warehouse.layout import days_since, selected
from aggregator.lakehouse.warehouse.windows import DAY_US


class Records(NamedTuple):
    """Rows of ``advisories`` and ``watermarks``."""

    advisories: DataFrame
    watermarks: DataFrame


class Before(NamedTuple):
    """What was derived at ``sequence``, when time was known through ``known_through`` (microseconds)."""

    sequence: int
    known_through: int
    intervals: DataFrame
    coverage: DataFrame
    continuations: DataFrame


class ChangedCoverage(NamedTuple):
    """``rows`` to put in the place of those that end after ``begins``: midnights (microseconds) by bucket of sites."""

    rows: DataFrame
    begins: Mapping[int, int]


class Survey(NamedTuple):
    """How much of what is new is not in order, so that plans need not provide for what is not there."""

    born: int
    born_from: int
    to_recompute: int
    disordered_blocks: int


def said_beside(continuations: DataFrame, found: Collection[Contest]) -> DataFrame:
    """Give the spans that no single watermark stands for, from rows of ``continuations`` and the contests in them."""
    spans = watermark_coverage.assumed_spans(continuations).unionByName(watermark_coverage.first_words(continuations))
    return spans.unionByName(contests.contested_spans(continuations, found)) if found else spans


def news(before: DataFrame, after: DataFrame) -> DataFrame:
    """Say since when (region, site, block, ``at``: microseconds) records in order tell more of a block.

    ``before`` and ``after`` have the rows of ``continuations`` without them and with them.
    """
    told = ("observed_through", "last_observed_through", "first_observed_since", "assumed_from", "assumed_to")
    life = f.struct(*told, "first_word_at")
    both = (
        before.select(*LIFE, life.alias("old"))
        .unionByName(after.select(*LIFE, life.alias("new")), allowMissingColumns=True)
        .groupBy(*LIFE)
        .agg(f.max("old").alias("old"), f.max("new").alias("new"))
    )
    old, new = f.col("old"), f.col("new")

    def differ(*names: str) -> Column:
        return ~f.struct(*(old[name] for name in names)).eqNullSafe(f.struct(*(new[name] for name in names)))

    is_longer = old["assumed_from"] == new["assumed_from"]
    at = f.least(
        f.when(
            differ("observed_through", "last_observed_through"),
            f.coalesce(old["observed_through"], new["first_observed_since"]),
        ),
        f.when(
            differ("assumed_from", "assumed_to"), f.when(is_longer, old["assumed_to"]).otherwise(new["assumed_from"])
        ),
        f.when(differ("first_word_at"), new["first_word_at"]),
    )
    return both.select(*BLOCK, f.unix_micros(at).alias("at")).where("at IS NOT NULL")


class IncrementalUpdate:
    """One step, from ``before`` to all of ``records``, with time known through ``known_through`` (microseconds).

    ``unknown`` is so for all blocks; what of it was not so ``before`` begins at ``unknown_from`` or later.
    """

    def __init__(
        self, records: Records, before: Before, unknown: Sequence[Unknown], unknown_from: int, known_through: int
    ) -> None:
        self._all, self._before, self._unknown, self._known_through = records, before, unknown, known_through
        self._begins_by = min(before.known_through, unknown_from)
        is_new = f.col("hub_sequence") > before.sequence
        advisories, watermarks = (rows.where(is_new) for rows in records)
        self._new = Records(advisories, folded(watermarks, known_through).persist())
        # Of a clock ahead of the hub's: what these vouch for was cut, and goes on.
        known_before = f.timestamp_micros(f.lit(before.known_through))
        # Files of what the hub stored by then are left unread.
        is_ahead = (f.col("archived_at") > known_before) & (f.col("observed_through") > known_before)
        self._ahead = records.watermarks.where(~is_new & is_ahead)
        self._going_on = before.intervals.where(changed_senders.is_open() & f.col("advisory_kind").isNotNull())
        # Looked at more than once, as much as there is that is new; and what is kept is not planned again.
        self._touched = changed_senders.turns(self._new.advisories, self._going_on).persist()
        self._disordered = watermark_coverage.out_of_order(
            self._new.watermarks, self._ahead, self._new.advisories, before.continuations
        )
        self._survey = self._look()
        if self._survey.to_recompute or self._survey.disordered_blocks:
            fit_history(before.intervals.sparkSession)
        self._contested = contests.found_in(before.continuations)
        self._go_on_in_order()

    def continuations(self) -> DataFrame:
        """Give the rows of the table ``continuations``."""
        return watermark_coverage.continuations(
            self._in_order.watermarks, self._pages, self._continuations, self._doubts, self._known_through
        )

    def coverage(self, continuations: DataFrame, found: Collection[Contest]) -> ChangedCoverage:
        """Say what becomes of ``site_coverage``; ``continuations`` as this made them, ``found`` the contests in them.

        In order, nothing is said of the time before the first of what is new: what ended by then stays as it is.
        """
        withdrawn = contests.withdrawn(continuations, self._contested, found)
        if withdrawn is not None:
            # What counted as contested is not taken back by what is new.
            self._disordered = self._disordered.unionByName(withdrawn).distinct()
            self._survey = self._survey._replace(disordered_blocks=self._survey.disordered_blocks + 1)
            fit_history(continuations.sparkSession)
            self._go_on_in_order()
        spans = watermark_coverage.vouched(self._in_order.watermarks, self._pages, self._continuations, self._doubts)
        spans = spans.unionByName(said_beside(continuations, found))
        is_imported, told = f.col("cause").isin(*OF_IMPORTS), self._before.coverage
        said, recomputed, began = told.where(~is_imported), None, news(self._before.continuations, continuations)
        begun = sorted(set(found) - set(self._contested))
        if begun:
            contested = contests.contested_spans(continuations, begun)
            began = began.unionByName(contested.select(*BLOCK, f.col("started_at").alias("at")))
        if self._survey.disordered_blocks:
            of, spans = f.broadcast(self._disordered), computed_once(spans)
            whole = spans.join(of, [*BLOCK], "left_semi")
            recomputed = computed_once(known_time.site_coverage(whole, self._unknown, self._known_through))
            replaced = said.join(of, [*BLOCK], "left_semi")
            moved = recomputed.exceptAll(replaced).unionByName(replaced.exceptAll(recomputed))
            spans, said, began = (rows.join(of, [*BLOCK], "left_anti") for rows in (spans, said, began))
            began = began.unionByName(moved.select(*BLOCK, f.unix_micros("ended_at").alias("at")))
        begins = _midnights(began, self._begins_by)
        reaches = selected(days_since(begins), SITE_COVERAGE)
        # What is said again of the time before stands in the rows that stay.
        spans = known_time.said_before(said.where(reaches)).unionByName(known_time.since(spans, begins))
        rows = known_time.site_coverage(spans, self._unknown, self._known_through)
        rows = rows.unionByName(told.where(reaches & is_imported))
        return ChangedCoverage(rows if recomputed is None else rows.unionByName(recomputed.where(reaches)), begins)

    def interval_rows(self, continuations: DataFrame, found: Collection[Contest]) -> ChangedRows:
        """Say what becomes of ``sender_intervals``; ``continuations`` as this made them, ``found`` the contests."""
        order, order_before = stores(continuations, found), stores(self._before.continuations, self._contested)
        new, all_ = self._new.advisories, self._all.advisories
        if found and not contests.unheard(new, found).isEmpty():
            new = contests.heard(new, found)
            self._touched = changed_senders.turns(new, self._going_on).persist()
            self._survey = self._look()
        late = None if order is None else changed_senders.announced_by_earlier_stores(new, order)
        to_recompute = self._to_recompute(found, changed_senders.changed_blocks(order_before, order), late)
        if to_recompute is None:
            return changed_senders.continued(self._touched, new, self._going_on, order, self._known_through)
        all_ = contests.heard(all_, found)
        return changed_senders.partly_recomputed(
            (self._touched, to_recompute),
            (new, all_),
            self._before.intervals,
            order,
            self._known_through,
        )

    def _look(self) -> Survey:
        no_instant = f.lit(None).cast("bigint")
        looked_at = self._touched.select("turn", f.unix_micros("first.occurred_at").alias("first_at")).unionAll(
            self._disordered.select(f.lit("disordered"), no_instant)
        )
        rows = looked_at.groupBy("turn").agg(f.count(f.lit(1)), f.min("first_at")).collect()
        found = {what: (count, first_at) for what, count, first_at in rows}
        born, born_from = found.get(Turn.BORN, (0, 0))
        counts = (found.get(what, (0, 0))[0] for what in (Turn.RECOMPUTE, "disordered"))
        return Survey(born, born_from, *counts)

    def _go_on_in_order(self) -> None:
        """Choose what to read on, and after which continuations: all of it, of a block out of order."""
        records = Records(self._new.advisories, self._new.watermarks.unionAll(self._ahead))
        before = self._before.continuations
        if self._survey.disordered_blocks:
            of = f.broadcast(computed_once(self._disordered))
            advisories, watermarks = (rows.join(of, [*BLOCK], "left_semi") for rows in self._all)
            whole = zip(records, (advisories, folded(watermarks, self._known_through)), strict=True)
            records = Records(*(some.join(of, [*BLOCK], "left_anti").unionByName(all_) for some, all_ in whole))
            before = before.join(of, [*BLOCK], "left_anti")
        self._in_order, self._continuations = records, before
        self._pages = watermark_coverage.ledger(records.advisories)
        self._doubts = watermark_coverage.doubts(records.watermarks, records.advisories, self._pages, before)

    def _to_recompute(
        self, contested: Collection[Contest], lost_stores: DataFrame | None, late: DataFrame | None
    ) -> DataFrame | None:
        """Return the senders to recompute, or None if there are none.

        Among them are all senders of the blocks of ``lost_stores``, and those of ``late`` that are born.
        """
        found = []
        changed = contests.of_changed_blocks(self._all.advisories, self._contested, contested)
        if changed is not None:
            found.append(changed.select(*SENDER))
        if self._survey.to_recompute:
            found.append(self._touched.where(f.col("turn") == Turn.RECOMPUTE).select(*SENDER))
        if self._survey.born:
            born = self._touched.where(f.col("turn") == Turn.BORN)
            if self._survey.born_from < self._before.known_through - DAY_US:
                fit_history(born.sparkSession)
            begun = f.col("claimed_at") >= f.timestamp_micros(f.lit(self._survey.born_from))
            is_old = f.col("hub_sequence") <= self._before.sequence
            after = changed_senders.with_later_advisory(born, self._all.advisories.where(begun & is_old))
            # What ended before any of them was born is left unread.
            reaching = self._before.intervals.where(
                f.col("ended_at") > f.timestamp_micros(f.lit(self._survey.born_from))
            )
            others = [after, changed_senders.unheard_beyond(born, reaching)]
            if late is not None:
                others.append(born.select(*SENDER).join(late, [*SENDER], "left_semi"))
            found.extend(other for other in others if other.limit(1).count())
        if lost_stores is not None:
            of_blocks = self._all.advisories.join(f.broadcast(lost_stores), [*BLOCK], "left_semi")
            found.append(of_blocks.select(*SENDER))
        if not found:
            return None
        fit_history(self._before.intervals.sparkSession)
        together = found[0]
        for other in found[1:]:
            together = together.unionAll(other)
        # It is looked at again and again, and each look would read history anew.
        return computed_once(together.distinct())


def _midnights(began: DataFrame, known_before: int) -> dict[int, int]:
    """Give what to derive anew of each bucket of sites: since ``began``, as of ``news``, or the end of known time."""
    found = dict.fromkeys(range(SITE_BUCKETS), known_before)
    for bucket, at in began.groupBy(site_bucket()).agg(f.min("at")).collect():
        found[bucket] = min(found[bucket], at)
    return {bucket: at - at % DAY_US for bucket, at in found.items()}
