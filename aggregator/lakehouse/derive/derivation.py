"""Bring the derived tables to one position of the bronze tables, and prove that the accounting adds up.

All of them go on from one whole run: where a run was killed between two commits, what it committed is taken back first.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.availability import window_accounts
from aggregator.lakehouse.derive.availability.accounting import check
from aggregator.lakehouse.derive.availability.changed_windows import changed_since
from aggregator.lakehouse.derive.availability.imported_availability import (
    import_availability,
    import_sender_availability,
)
from aggregator.lakehouse.derive.checkpoint import Checkpoint
from aggregator.lakehouse.derive.coverage import clock_steps, contests, known_time, losses, watermark_coverage
from aggregator.lakehouse.derive.coverage.believed_times import (
    believed_advisories,
    believed_watermarks,
    in_site_order_where_ahead,
)
from aggregator.lakehouse.derive.coverage.folded_watermarks import folded
from aggregator.lakehouse.derive.coverage.known_time import Unknown
from aggregator.lakehouse.derive.coverage.maintenance import Declared, DeclaredMaintenance, begin_with, declared
from aggregator.lakehouse.derive.coverage.stores import stores
from aggregator.lakehouse.derive.incremental import Before, IncrementalUpdate, Records, said_beside
from aggregator.lakehouse.derive.intervals.episodes import reports, sender_intervals
from aggregator.lakehouse.derive.intervals.imported_intervals import imported_coverage, imported_intervals
from aggregator.lakehouse.spark.effort import computed_once, fit_sender_days, fit_windows, joined_as, looked_at_again
from aggregator.lakehouse.tables.causes import Cause
from aggregator.lakehouse.tables.imports import (
    DERIVED_FROM_IMPORTS,
    IMPORT_AVAILABILITY,
    IMPORT_SENDER_AVAILABILITY,
    IMPORTS,
)
from aggregator.lakehouse.tables.position import NOWHERE, HubPosition
from aggregator.lakehouse.tables.schemas import (
    ADVISORIES,
    CONTINUATIONS,
    DERIVED,
    FLEET_AVAILABILITY_DAILY,
    REGION_AVAILABILITY_DAILY,
    SENDER_DAY_EXCEPTIONS,
    SENDER_INTERVALS,
    SENDER_MAINTENANCE_DAYS,
    SITE_AVAILABILITY_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_BUCKETS,
    SITE_COVERAGE,
    SITE_COVERAGE_DAILY,
    WATERMARKS,
    Table,
)
from aggregator.lakehouse.warehouse import commits, layout
from aggregator.lakehouse.warehouse.commits import WholeRun
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.layout import Days, days_since, selected, whole_files
from aggregator.lakehouse.warehouse.windows import DAY_US, HOUR_US
from shared.instants import SECOND

Progress = Callable[[str], None]


class Derivation:
    """One step of all derived tables to ``position``.

    Known time ends where the hub's does; what was imported from later on waits for it. Before any word from a hub, it
    ends with the imports. ``registration_interval`` is in microseconds. ``written`` are the tables written so far.
    """

    def __init__(
        self,
        spark: SparkSession,
        position: HubPosition,
        imported: HubPosition | None,
        registration_interval: int,
        progress: Progress,
    ) -> None:
        self._spark, self._position, self._imported = spark, position, imported
        self._interval, self._progress = registration_interval, progress
        self.written: list[Table] = []
        self._known_through = position.known_through or (imported.known_through if imported is not None else 0)
        through = f.col("hub_sequence") <= position.sequence
        advisories, watermarks = (spark.table(table.identifier).where(through) for table in (ADVISORIES, WATERMARKS))
        self._steps = clock_steps.read(spark, position)
        self._records = Records(
            believed_advisories(advisories, self._steps), believed_watermarks(watermarks, self._steps)
        )

    def run(self, checkpoint: Checkpoint | None) -> None:
        """Compute what has changed since ``checkpoint``, where all tables stand, or everything where there is none.

        Raise AccountingError before a wrong sum is committed; what was committed before it is for ``take_back``. The
        result is the same.
        """
        try:
            if checkpoint is None:
                self._in_full()
            else:
                self._from_checkpoint(checkpoint)
        finally:
            self._spark.catalog.clearCache()

    def _in_full(self) -> None:
        known_through = self._known_through
        records = self._records._replace(watermarks=folded(self._records.watermarks, known_through).persist())
        nothing, pages = self._read(CONTINUATIONS).limit(0), watermark_coverage.ledger(records.advisories)
        doubts = watermark_coverage.doubts(records.watermarks, records.advisories, pages, nothing)
        self._write(
            watermark_coverage.continuations(records.watermarks, pages, nothing, doubts, known_through), CONTINUATIONS
        )
        after = self._read(CONTINUATIONS)
        found = contests.found_in(after)
        heard = in_site_order_where_ahead(contests.heard(records.advisories, found))
        interval_rows = sender_intervals(reports(heard), stores(after, found), known_through)
        spans = watermark_coverage.vouched(records.watermarks, pages, nothing, doubts).unionByName(
            said_beside(after, found)
        )
        seen = known_time.site_coverage(spans, self._unknown(), known_through)
        if self._imported is not None:
            imports = self._read(IMPORTS)
            interval_rows = interval_rows.unionByName(imported_intervals(imports, known_through))
            seen = seen.unionByName(imported_coverage(imports, known_through))
        seen = seen.persist()
        since, site_count = _extent(seen)
        layout.divide(self._spark, site_count)
        self._write(seen, SITE_COVERAGE, since=since)
        self._write(interval_rows, SENDER_INTERVALS, since=since)
        self._windows(dict.fromkeys(range(SITE_BUCKETS), 0), self._declared(), since)

    def _from_checkpoint(self, checkpoint: Checkpoint) -> None:
        def stood(table: Table) -> DataFrame:
            return commits.read_at(self._spark, table, checkpoint.snapshots[table.name])

        known_before = checkpoint.position.known_through
        before = Before(
            checkpoint.position.sequence, known_before, *map(stood, (SENDER_INTERVALS, SITE_COVERAGE, CONTINUATIONS))
        )
        ended_since = (step for step in self._steps if step.resumed_sequence > checkpoint.position.sequence)
        unknown_from = min((step.stepped_at for step in ended_since), default=known_before)
        update = IncrementalUpdate(self._records, before, self._unknown(), unknown_from, self._known_through)
        self._write(update.continuations(), CONTINUATIONS)
        after = self._read(CONTINUATIONS)
        found = contests.found_in(after)
        seen = update.coverage(after, found)
        self._write_since(seen.begins, seen.rows, SITE_COVERAGE)
        interval_rows = update.interval_rows(after, found)
        self._write(interval_rows.rows, SENDER_INTERVALS, interval_rows.where, interval_rows.since)
        changed = selected(days_since(seen.begins), SITE_COVERAGE)
        begins = changed_since(
            (interval_rows.old, interval_rows.new),
            (before.coverage.where(changed), self._read(SITE_COVERAGE).where(changed)),
            known_before,
        )
        windows = self._declared()
        begins = begin_with(begins, declared(self._spark, checkpoint.position.sequence), windows)
        fit_sender_days(self._spark, (self._known_through - min(begins.values())) // DAY_US)
        self._windows(begins, windows)

    def _unknown(self) -> list[Unknown]:
        """Return the time that is unknown for all blocks."""
        lost = (Unknown(*span, Cause.LOST) for span in losses.spans(self._spark, self._position))
        ended = (step for step in self._steps if step.resumed_at)
        return [*lost, *(Unknown(step.stepped_at, step.resumed_at, Cause.HUB_CLOCK) for step in ended)]

    def _declared(self) -> Collection[Declared]:
        return declared(self._spark, self._position.sequence)

    def _windows(self, begins: Mapping[int, int], windows: Collection[Declared], since: int | None = None) -> None:
        """Compute the windows that ``begins`` tells of, by bucket of sites, or all, which lie from day ``since`` on.

        ``windows`` are those of maintenance.
        """
        known_through, interval = self._known_through, self._interval
        maintenance = DeclaredMaintenance(self._spark, windows, min(begins.values()), known_through)
        # Files of days before all of them are left unread.
        reaches = f.col("ended_at") > f.timestamp_micros(f.lit(min(begins.values())))
        covered = maintenance.cut_coverage(self._read(SITE_COVERAGE).where(reaches))
        intervals = self._read(SENDER_INTERVALS)
        by_day = computed_once(known_time.coverage_windows(covered, DAY_US, begins, known_through))
        known = known_time.KnownDays.of(by_day)
        fit_windows(self._spark, known.day_count * DAY_US // HOUR_US)
        # A site whose link flaps has many spans in a day.
        known = known._replace(rows=joined_as(by_day, known.day_count + known.span_count))
        interval_rows = looked_at_again(window_accounts.spans_since(intervals, begins, known_through))
        spans = maintenance.cut_spans(interval_rows)

        def write(rows: DataFrame, table: Table) -> None:
            self._write(rows, table, since=since) if since is not None else self._write_since(begins, rows, table)

        if windows or Iceberg(self._spark).row_count(SENDER_MAINTENANCE_DAYS):
            write(maintenance.sender_days(interval_rows), SENDER_MAINTENANCE_DAYS)
        else:
            commits.advance(self._spark, SENDER_MAINTENANCE_DAYS, self._position)
            self.written.append(SENDER_MAINTENANCE_DAYS)
        write(known_time.site_coverage_daily(by_day), SITE_COVERAGE_DAILY)
        exceptions = window_accounts.sender_day_exceptions(spans, known, known_through, interval)
        write(exceptions, SENDER_DAY_EXCEPTIONS)
        in_time = selected(days_since(begins), SENDER_DAY_EXCEPTIONS)
        days_cut = looked_at_again(self._read(SENDER_DAY_EXCEPTIONS).where(in_time))
        site_days = computed_once(
            window_accounts.site_availability_daily(spans, days_cut, known, known_through, interval)
        )
        site_hours = computed_once(
            window_accounts.site_availability_hourly(spans, days_cut, known, known_through, interval)
        )
        check(spans, days_cut, site_days, site_hours, known_through)
        write(site_hours, SITE_AVAILABILITY_HOURLY)
        write(site_days, SITE_AVAILABILITY_DAILY)
        # Small tables, and not partitioned: days before are taken over as they are.
        begin = f.lit(_day(min(begins.values())))
        days = looked_at_again(self._read(SITE_AVAILABILITY_DAILY).where(f.col("day") >= begin))
        for table, keys in ((REGION_AVAILABILITY_DAILY, ("region",)), (FLEET_AVAILABILITY_DAILY, ())):
            kept = self._read(table).where(f.col("day") < begin)
            self._write(window_accounts.over_sites(days, *keys).unionByName(kept), table)

    def _read(self, table: Table) -> DataFrame:
        return self._spark.table(table.identifier)

    def _write_since(self, begins: Mapping[int, int], rows: DataFrame, table: Table) -> None:
        """Write ``rows`` in the place of those from ``begins`` on, and again what their files had of days before."""
        whole = whole_files(self._spark, table, days_since(begins))
        before = [
            Days(bucket, bucket + 1, each.first, min(each.end, begins[bucket] // DAY_US))
            for each in whole
            for bucket in range(each.low, each.high)
            if each.first < begins[bucket] // DAY_US
        ]
        if before:
            kept = self._read(table).where(selected(before, table))
            rows = rows.select(*table.column_names).unionByName(kept)
        self._write(rows, table, selected(whole, table), min(each.first for each in whole))

    def _write(self, rows: DataFrame, table: Table, where: Column | None = None, since: int | None = None) -> None:
        times = None if since is None else (since, (self._known_through - 1) // DAY_US)
        commits.replace(rows, table, f.lit(True) if where is None else where, self._position, times)
        self.written.append(table)
        self._progress(f"  {table.name}")


def derive_from_imports(spark: SparkSession, imported: HubPosition, progress: Progress) -> None:
    """Recompute the tables that speak of imports alone, which stands at ``imported``."""
    imports = spark.table(IMPORTS.identifier)
    for table, make in (
        (IMPORT_SENDER_AVAILABILITY, import_sender_availability),
        (IMPORT_AVAILABILITY, _import_availability),
    ):
        commits.replace(make(imports), table, f.lit(True), imported)
        progress(f"  {table.name}")


def take_back(spark: SparkSession, whole_run: WholeRun) -> str:
    """Have the derived tables say what they said after the last whole run, or nothing where there was none.

    Say what became of it, for whoever is told why.
    """
    stood = whole_run.snapshots
    before = [table for table in (*DERIVED, *DERIVED_FROM_IMPORTS) if table.name in stood]
    if not commits.go_back(spark, before, stood):
        return (
            "what was derived could not be taken back, for snapshots of the last whole run are gone: ask nothing of the"
            " tables before a run has gone through"
        )
    since = [table for table in (*DERIVED, *DERIVED_FROM_IMPORTS) if table not in before]
    written = commits.snapshots(spark, since)
    for table in since:
        if table.name in written:
            commits.replace(spark.table(table.identifier).limit(0), table, f.lit(True), NOWHERE)
    return "nothing of it stays in the derived tables"


def _import_availability(imports: DataFrame) -> DataFrame:
    return import_availability(imports, imports.sparkSession.table(IMPORT_SENDER_AVAILABILITY.identifier))


def _extent(coverage: DataFrame) -> tuple[int, int]:
    """Give the first day that anything is known of, and count the sites."""
    found = coverage.agg(f.min(f.unix_micros("started_at")), f.count_distinct("region", "site")).first()
    assert found is not None
    return (found[0] or 0) // DAY_US, found[1]


def _day(midnight: int) -> date:
    return datetime.fromtimestamp(midnight // SECOND, tz=UTC).date()
