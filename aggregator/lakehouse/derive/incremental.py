"""Bring lives and coverage from one position of the bronze tables to a later one, at the cost of what came between.

What was committed is gone on from wherever records came in their order, and read anew, sender by sender and block by
block, where they did not. The result is that of a computation of everything.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aggregator.archive.contests import Contest
from aggregator.lakehouse.derive import changed_senders, contests, coverage, watermark_coverage
from aggregator.lakehouse.derive.changed_senders import ChangedRows, Turn
from aggregator.lakehouse.derive.folded_watermarks import folded
from aggregator.lakehouse.derive.intervals import BLOCK, SENDER
from aggregator.lakehouse.tables.causes import OF_IMPORTS


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


class Survey(NamedTuple):
    """How much of what is new is not in order, so that plans need not provide for what is not there."""

    born: int
    born_from: int
    to_recompute: int
    disordered_blocks: int
    lost_stores: int


def said_beside(continuations: DataFrame, found: Collection[Contest]) -> DataFrame:
    """Give the spans that no single watermark stands for, from rows of ``continuations`` and the contests in them."""
    spans = watermark_coverage.assumed_spans(continuations).unionByName(watermark_coverage.first_words(continuations))
    return spans.unionByName(contests.contested_spans(continuations, found)) if found else spans


class IncrementalUpdate:
    """One step, from ``before`` to all of ``records``, with time known through ``known_through`` (microseconds)."""

    def __init__(self, records: Records, before: Before, losses: Sequence[tuple[int, int]], known_through: int) -> None:
        self._all, self._before, self._losses, self._known_through = records, before, losses, known_through
        is_new = f.col("hub_sequence") > before.sequence
        advisories, watermarks = (rows.where(is_new) for rows in records)
        self._new = Records(advisories, folded(watermarks, known_through).persist())
        # Of a clock ahead of the hub's: what these vouch for was cut, and goes on.
        known_before = f.timestamp_micros(f.lit(before.known_through))
        # Files of what the hub stored by then are left unread.
        is_ahead = (f.col("archived_at") > known_before) & (f.col("observed_through") > known_before)
        self._ahead = records.watermarks.where(~is_new & is_ahead)
        self._going_on = before.intervals.where(changed_senders.goes_on() & f.col("advisory_kind").isNotNull())
        # Looked at more than once, as much as there is that is new; and what is kept is not planned again.
        self._touched = changed_senders.turns(self._new.advisories, self._going_on).persist()
        self._disordered = watermark_coverage.out_of_order(
            self._new.watermarks, self._ahead, self._new.advisories, before.continuations
        )
        told = self._new.watermarks.where("rebuilt_at IS NOT NULL").select(*BLOCK, "rebuilt_at").distinct()
        known = watermark_coverage.rebuilds(before.continuations)
        self._lost_stores = told.join(known, [*BLOCK, "rebuilt_at"], "left_anti").select(*BLOCK).distinct()
        self._survey = self._look()
        self._in_order, self._continuations, self._said = self._going_on_in_order()
        self._pages = watermark_coverage.ledger(self._in_order.advisories)
        advisories, watermarks = self._in_order
        self._doubts = watermark_coverage.doubts(watermarks, advisories, self._pages, self._continuations)

    def continuations(self) -> DataFrame:
        """Give the rows of the table ``continuations``."""
        return watermark_coverage.continuations(
            self._in_order.watermarks, self._pages, self._continuations, self._doubts, self._known_through
        )

    def coverage(self, continuations: DataFrame, found: Collection[Contest]) -> DataFrame:
        """Give the rows of ``site_coverage``; ``continuations`` as this made them, ``found`` the contests in them."""
        spans = (
            coverage.said_before(self._said)
            .unionByName(
                watermark_coverage.vouched(self._in_order.watermarks, self._pages, self._continuations, self._doubts)
            )
            .unionByName(said_beside(continuations, found))
        )
        imported = self._before.coverage.where(f.col("cause").isin(*OF_IMPORTS))
        return coverage.site_coverage(spans, self._losses, self._known_through).unionByName(imported)

    def interval_rows(self, continuations: DataFrame, found: Collection[Contest]) -> ChangedRows:
        """Say what becomes of ``sender_intervals``; ``continuations`` as this made them, ``found`` the contests."""
        rebuilds = changed_senders.lost_stores(continuations, found)
        to_recompute = self._to_recompute(found)
        if to_recompute is None:
            return changed_senders.continued(
                self._touched, self._new.advisories, self._going_on, rebuilds, self._known_through
            )
        new, all_ = (contests.heard(records.advisories, found) for records in (self._new, self._all))
        return changed_senders.partly_recomputed(
            (self._touched, to_recompute),
            (new, all_),
            self._before.intervals,
            rebuilds,
            self._known_through,
        )

    def _look(self) -> Survey:
        no_instant = f.lit(None).cast("bigint")
        looked_at = (
            self._touched.select("turn", f.unix_micros("first.occurred_at").alias("first_at"))
            .unionAll(self._disordered.select(f.lit("disordered"), no_instant))
            .unionAll(self._lost_stores.select(f.lit("lost"), no_instant))
        )
        rows = looked_at.groupBy("turn").agg(f.count(f.lit(1)), f.min("first_at")).collect()
        found = {what: (count, first_at) for what, count, first_at in rows}
        born, born_from = found.get(Turn.BORN, (0, 0))
        counts = (found.get(what, (0, 0))[0] for what in (Turn.RECOMPUTE, "disordered", "lost"))
        return Survey(born, born_from, *counts)

    def _going_on_in_order(self) -> tuple[Records, DataFrame, DataFrame]:
        """Give what to read on, and after which continuations and coverage: all of it, of a block out of order."""
        records = Records(self._new.advisories, self._new.watermarks.unionAll(self._ahead))
        before = self._before.continuations
        said = self._before.coverage.where(~f.col("cause").isin(*OF_IMPORTS))
        if not self._survey.disordered_blocks:
            return records, before, said
        of = self._disordered

        def others(rows: DataFrame) -> DataFrame:
            return rows.join(of, [*BLOCK], "left_anti")

        advisories, watermarks = (rows.join(of, [*BLOCK], "left_semi") for rows in self._all)
        whole = zip(records, (advisories, folded(watermarks, self._known_through)), strict=True)
        return Records(*(others(some).unionByName(all_) for some, all_ in whole)), others(before), others(said)

    def _to_recompute(self, contested: Collection[Contest]) -> DataFrame | None:
        """Give the senders to be read anew, None where there are none."""
        found = []
        if contested:
            found.append(contests.unheard(self._new.advisories, contested).select(*SENDER))
            before = contests.found_in(self._before.continuations)
            changed = contests.of_changed_blocks(self._all.advisories, before, contested)
            if changed is not None:
                found.append(changed.select(*SENDER))
        if self._survey.to_recompute:
            found.append(self._touched.where(f.col("turn") == Turn.RECOMPUTE).select(*SENDER))
        if self._survey.born:
            born = self._touched.where(f.col("turn") == Turn.BORN)
            begun = f.col("claimed_at") >= f.timestamp_micros(f.lit(self._survey.born_from))
            is_old = f.col("hub_sequence") <= self._before.sequence
            after = changed_senders.said_after(born, self._all.advisories.where(begun & is_old))
            # What ended before any of them was born is left unread.
            reaching = self._before.intervals.where(
                f.col("ended_at") > f.timestamp_micros(f.lit(self._survey.born_from))
            )
            both = (after, changed_senders.unheard_beyond(born, reaching))
            found.extend(others for others in both if others.limit(1).count())
        if self._survey.lost_stores:
            of_blocks = self._all.advisories.join(self._lost_stores, [*BLOCK], "left_semi")
            found.append(of_blocks.select(*SENDER))
        if not found:
            return None
        together = found[0]
        for other in found[1:]:
            together = together.unionAll(other)
        return together.distinct()
