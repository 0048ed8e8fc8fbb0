"""Keep all tables small, after a whole run and under its lock. What the tables say stays, but for what is too old.

Rules. Compaction makes new snapshots, which are recorded as a whole run's before any other is let go: readers and the
next rollup go by the recorded ones. What a reader may still be reading stays for ``keep_snapshots`` after it was
replaced. Registrations and quarantined records go that came before the midnight ``expire_after`` ago; no derived table
is made of them, so a full computation gives the same as before. So it does of watermarks that are folded after
``fold_watermarks_after``. Advisories and imports are never too old: all else is made of them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from aggregator.config import LakehouseSettings
from aggregator.lakehouse.derive.coverage.folded_watermarks import fold
from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.schemas import BRONZE, QUARANTINE, REGISTRATIONS, SENDER_INTERVALS, TABLES, WATERMARKS
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.commits import LastUpkeep, WholeRun
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.jvm import java_class
from aggregator.lakehouse.warehouse.layout import divide_more
from aggregator.lakehouse.warehouse.local_paths import local_path
from shared.instants import DAY, SECOND

_MANY_FILES = 5
"""Files of a partition that are made one: fewer are left alone, so that old days are not written again and again."""
_SEVERAL_FILES = 2
"""The same of months that are over, to which little comes."""
_FILE_BYTES = 256 << 20
_LARGE_BYTES = 16 << 20
"""Bytes of a file of many days that is left alone: else all days before would be written again with each new one."""
_COMMIT_BYTES = 512 << 20
"""Bytes of files of days that become their month's in one commit: what is sorted at once, and what a kill undoes."""


class TableUpkeep:
    """One table, whose commits carry ``properties``: its position."""

    def __init__(self, spark: SparkSession, table: Table, properties: Mapping[str, str]) -> None:
        self._spark = spark
        self._iceberg = Iceberg(spark)
        self._table = table
        self._properties = properties

    def compact(self, known_through: int) -> tuple[int, int]:
        """Make few large files of many small ones; give how many there were and how many there are.

        Where files hold many days, the day in which ``known_through`` (microseconds) lies stays by itself. Small files
        of days become files of their month: where that is over, as soon as there are two.
        """
        if self._table.dated_by:
            return self._compact_by_month(known_through)
        rewrite = self._actions().rewriteDataFiles(self._loaded())
        rewrite = rewrite.sort() if self._table.sorted_by else rewrite.binPack()
        finished = self._class("expressions.Expressions").alwaysTrue()
        # To lives, runs add what has ended.
        if self._table.follows is not None and self._table is not SENDER_INTERVALS and known_through:
            finished = self._before(_day_of(known_through))
            rewrite = rewrite.filter(finished)
        if self._table.follows is not None:
            rewrite = rewrite.option("min-file-size-bytes", str(_LARGE_BYTES))
            # Few times in the life of a fleet: as often as it becomes four times as many sites.
            rewrite = rewrite.option("rewrite-all", str(self._is_divided_otherwise(finished)).lower())
        return self._rewritten(rewrite, _MANY_FILES)

    def _compact_by_month(self, known_through: int) -> tuple[int, int]:
        by_day = str(self._iceberg.days_spec(self._table).specId())
        today = str(_day_of(known_through)) if known_through else ""
        sizes = self._iceberg.file_sizes(self._table)
        before = after = 0
        # To Iceberg all files of days are one partition, since the table's are months: it is told which to join.
        for day in sorted(part for part in sizes if part >= today and _is_day(part)):
            if sum(size < _FILE_BYTES * 3 // 4 for size in sizes[day]) >= _MANY_FILES:
                rewrite = self._actions().rewriteDataFiles(self._loaded()).binPack().filter(self._of_days(day, day))
                found = self._rewritten(rewrite.option("output-spec-id", by_day), _MANY_FILES)
                before, after = before + found[0], after + found[1]
        for first, last, many in joins_of_months(sizes, today):
            loaded = self._loaded()
            # In order of time: bounds of files tell what a run has to compare with what is new.
            order = self._class("SortOrder").builderFor(loaded.schema()).asc(self._table.dated_by).build()
            rewrite = self._actions().rewriteDataFiles(loaded).sort(order).filter(self._of_days(first, last))
            found = self._rewritten(rewrite.option("min-file-size-bytes", str(_LARGE_BYTES)), many)
            before, after = before + found[0], after + found[1]
        return before, after

    def _of_days(self, first: str, last: str) -> Any:
        of_rows, column = self._class("expressions.Expressions"), self._table.dated_by
        since = of_rows.greaterThanOrEqual(column, f"{first}T00:00:00+00:00")
        return getattr(of_rows, "and")(since, of_rows.lessThanOrEqual(column, f"{last}T23:59:59.999999+00:00"))

    def _rewritten(self, rewrite: Any, many: int) -> tuple[int, int]:
        rewrite = rewrite.option("min-input-files", str(many)).option("target-file-size-bytes", str(_FILE_BYTES))
        for name, value in self._properties.items():
            rewrite = rewrite.snapshotProperty(name, value)
        result = rewrite.execute()
        return int(result.rewrittenDataFilesCount()), int(result.addedDataFilesCount())

    def _before(self, day: date) -> Any:
        """Select the rows before a day, by what the table's files go by."""
        column = self._table.follows
        midnight = str(day) if column == "day" else f"{day}T00:00:00+00:00"
        return self._class("expressions.Expressions").lessThan(column, midnight)

    def _is_divided_otherwise(self, finished: Any) -> bool:
        """Tell whether any file is partitioned as it was when there were fewer sites."""
        loaded = self._loaded()
        spec, snapshot = loaded.spec().specId(), loaded.currentSnapshot()
        if snapshot is None or all(each.partitionSpecId() == spec for each in snapshot.dataManifests(loaded.io())):
            return False
        files = loaded.newScan().filter(finished).planFiles()
        try:
            return any(task.file().specId() != spec for task in files.iterator())
        finally:
            files.close()

    def forget(self, column: str, midnight: int) -> int:
        """Remove the rows whose ``column`` lies before ``midnight`` (microseconds); give how many there were.

        Files whose rows are all too old go unread. Of one that holds ``midnight`` is written what stays of it.
        """
        loaded, held = self._loaded(), self._iceberg.row_count(self._table)
        too_old = self._class("expressions.Expressions").lessThan(column, midnight)
        whole = self._class("expressions.StrictMetricsEvaluator")(loaded.schema(), too_old)
        delete, are_whole = loaded.newDelete(), set[bool]()
        files = loaded.newScan().filter(too_old).includeColumnStats([column]).planFiles()
        try:
            for task in files.iterator():
                is_whole = bool(whole.eval(task.file()))
                are_whole.add(is_whole)
                if is_whole:
                    delete.deleteFile(task.file())
        finally:
            files.close()
        if True in are_whole:
            for name, value in self._properties.items():
                delete.set(name, value)
            delete.commit()
        if False in are_whole:
            old = f"{column} < timestamp_micros({midnight}L)"
            with self._session_properties():
                self._spark.sql(f"DELETE FROM {self._table.identifier} WHERE {old}")  # noqa: S608 - our own names
        return held - self._iceberg.row_count(self._table)

    @contextmanager
    def _session_properties(self) -> Iterator[None]:
        """Have what SQL commits carry the properties too: it has no other way to say so."""
        conf = self._spark.conf
        names = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in self._properties.items()}
        try:
            for name, value in names.items():
                conf.set(name, value)
            yield
        finally:
            for name in names:
                conf.unset(name)

    def expire(self, superseded_before: int, recorded: int | None = None) -> int:
        """Let go of the snapshots that were no longer the newest at an instant (milliseconds), with their files.

        A snapshot's age says little: the newest one may be days old until a minute ago, and be read since. An older one
        may be the newest again, where a table went back to it. And ``recorded``, by which readers went at that instant,
        lies before what a killed run wrote: neither goes, nor what is younger. Give how many went.
        """
        loaded = self._loaded()
        metadata = json.loads(self._class("TableMetadataParser").toJson(loaded.operations().current()))
        log = metadata.get("snapshot-log", ())
        begin = max((entry["timestamp-ms"] for entry in log if entry["timestamp-ms"] <= superseded_before), default=0)
        read = {recorded, *(entry["snapshot-id"] for entry in log if entry["timestamp-ms"] >= begin)}
        made_at = {snapshot["snapshot-id"]: snapshot["timestamp-ms"] for snapshot in metadata.get("snapshots", ())}
        older_than = min(begin, *(made_at.get(snapshot_id, begin) for snapshot_id in read))
        current = metadata.get("current-snapshot-id")
        going = [
            snapshot
            for snapshot in metadata.get("snapshots", ())
            if snapshot["timestamp-ms"] < older_than and snapshot["snapshot-id"] != current
        ]
        if going:
            loaded.expireSnapshots().expireOlderThan(older_than).retainLast(1).commit()
        return len(going)

    def remove_orphans(self, older_than: int) -> int:
        """Remove the files that no snapshot knows and that were written before an instant (milliseconds).

        Whoever is writing has files that no snapshot knows yet: be sure that they are not that old. Give how many.
        """
        loaded = self._loaded()
        search = self._actions().deleteOrphanFiles(loaded).olderThan(older_than)
        # Hadoop lists directories, and knows no object store; Iceberg's own access to one lists what begins so.
        search = search.usePrefixListing(local_path(str(loaded.location())) is None)
        result = search.execute()
        return sum(1 for _ in result.orphanFileLocations())

    def _actions(self) -> Any:
        session = self._spark._jsparkSession  # noqa: SLF001 - the only way to Iceberg's actions
        return self._class("spark.actions.SparkActions").get(session)

    def _class(self, name: str) -> Any:
        return java_class(self._spark, f"org.apache.iceberg.{name}")

    def _loaded(self) -> Any:
        return self._iceberg.load(self._table)


def joins_of_months(sizes: Mapping[str, Sequence[int]], today: str) -> Iterator[tuple[str, str, int]]:
    """Give first and last day of what is to be joined at once, within a month, and how many files are worth it.

    ``sizes`` has the bytes of files by day or month; days before ``today`` are over. The oldest come first.

    >>> sizes = {"2026-01-30": [9], "2026-02-02": [9, 9], "2026-03": [9] * 5, "2026-03-08": [9]}
    >>> list(joins_of_months(sizes, today="2026-03-08"))
    [('2026-02-01', '2026-02-28', 2), ('2026-03-01', '2026-03-07', 5)]
    """
    small = {part: [size for size in sizes[part] if size < _LARGE_BYTES] for part in sorted(sizes) if part < today}
    for month, parts in groupby(small, key=lambda part: part[:7]):
        begins, counts, held = [f"{month}-01"], [0], 0
        for part in parts:
            added = sum(small[part])
            if counts[-1] and held + added > _COMMIT_BYTES:
                begins, counts, held = [*begins, part], [*counts, 0], 0
            held += added
            counts[-1] += len(small[part]) if _is_day(part) else 0
        next_month = (date.fromisoformat(begins[0]) + timedelta(days=31)).replace(day=1)
        many = _SEVERAL_FILES if month < today[:7] else _MANY_FILES
        for first, end, count in zip(begins, [*begins[1:], min(str(next_month), today)], counts, strict=True):
            # Files of a month are joined with each other, and those of days are.
            if count >= many or len(small.get(month, ())) >= many:
                yield first, str(date.fromisoformat(end) - timedelta(days=1)), many


def _is_day(part: str) -> bool:
    return len(part) == len("2026-11-26")


ORPHANED_AFTER = DAY
"""Age of a file at which nobody can be about to commit it: no run takes a day."""
SWEEP_EVERY = DAY
"""Orphans are rare, for only killed runs leave any, and to look for them takes Spark a second for each table."""
_EXPIRING = ((REGISTRATIONS, "stored_at"), (QUARANTINE, "archived_at"))

Progress = Callable[[str], None]


class Upkeep(msgspec.Struct, frozen=True):
    """What was done: data files made fewer, from how many to how many; rows, snapshots and orphaned files that went.

    ``folded_rows``: watermarks whose time the next ones vouch for.
    """

    compacted: int = 0
    compacted_to: int = 0
    folded_rows: int = 0
    expired_rows: int = 0
    expired_snapshots: int = 0
    orphans: int = 0

    def __str__(self) -> str:
        return (
            f"{self.compacted:,} data files became {self.compacted_to:,}; {self.folded_rows:,} watermarks,"
            f" {self.expired_rows:,} other rows, {self.expired_snapshots:,} snapshots and {self.orphans:,} orphaned"
            " files went"
        )


def is_due(spark: SparkSession, settings: LakehouseSettings) -> bool:
    """Say whether as many rollups wrote something since the last time as the settings allow."""
    return 0 < settings.maintain_every <= commits.last_upkeep(spark).runs_since


def maintain(
    spark: SparkSession, settings: LakehouseSettings, now: int, progress: Progress, *, sweep: bool = False
) -> Upkeep:
    """Compact, then let go of what is too old. All tables stand at the last whole run; ``now`` is in microseconds.

    Orphans are removed once in ``SWEEP_EVERY``, or at once with ``sweep``. Killed at any point, it leaves what the next
    one does away with.
    """
    swept_at = commits.last_upkeep(spark).swept_at or now
    sweep = sweep or now - swept_at >= SWEEP_EVERY
    whole_run = commits.last_whole_run(spark)
    stands = commits.positions(spark, TABLES, whole_run)
    here = msgspec.structs.replace(whole_run, snapshots=commits.snapshots(spark, TABLES))
    tables = {
        table.name: TableUpkeep(spark, table, commits.properties(spark, stands.get(table.name))) for table in TABLES
    }
    divide_more(spark)
    compacted = compacted_to = folded_rows = 0
    behind = _expires_before(whole_run, settings.fold_watermarks_after)
    if behind and WATERMARKS.name in stands:
        # First: what it writes is not compacted again.
        folded_rows = fold(spark, behind, stands[WATERMARKS.name])
        progress(f"  {WATERMARKS.name}: {folded_rows:,} rows were folded")
    for name, table in tables.items():
        known_through = stands[name].known_through if name in stands else 0
        if name == WATERMARKS.name and settings.fold_watermarks_after:
            # Days become months when they are folded: else a day would be folded with its month, or not yet.
            known_through = min(known_through, behind)
        before, after = table.compact(known_through)
        compacted, compacted_to = compacted + before, compacted_to + after
        if before:
            progress(f"  {name}: {before:,} data files became {after:,}")
    expired_rows = 0
    midnight = _expires_before(whole_run, settings.expire_after)
    for expiring, column in _EXPIRING if midnight else ():
        gone = tables[expiring.name].forget(column, midnight)
        expired_rows += gone
        if gone:
            progress(f"  {expiring.name}: {gone:,} rows were too old")
    upkeep = LastUpkeep(runs_since=0, swept_at=now if sweep else swept_at)
    commits.record(spark, whole_run.positions, whole_run.recipe, here, upkeep=upkeep)
    superseded_before = (now - settings.keep_snapshots) // 1_000
    # Before the run that recorded them goes itself.
    recorded = commits.recorded_at(spark, superseded_before)
    expired_snapshots = sum(table.expire(superseded_before, recorded.get(name)) for name, table in tables.items())
    progress(f"  {expired_snapshots:,} snapshots went")
    orphaned_before = (now - ORPHANED_AFTER) // 1_000
    orphans = sum(table.remove_orphans(orphaned_before) for table in tables.values()) if sweep else 0
    return Upkeep(compacted, compacted_to, folded_rows, expired_rows, expired_snapshots, orphans)


def _day_of(known_through: int) -> date:
    """Give the day in which known time ends."""
    return datetime.fromtimestamp((known_through - 1) // SECOND, tz=UTC).date()


def _expires_before(whole_run: WholeRun, expire_after: int) -> int:
    """Give the midnight (microseconds) before which rows go, 0 for none: by the hub's time, not by this machine's.

    Nor by that of imports, which may tell of times long after the hub's last word.
    """
    of_the_hub = (whole_run.positions[table.name] for table in BRONZE if table.name in whole_run.positions)
    known_through = max((position.known_through for position in of_the_hub), default=0)
    expired = known_through - expire_after
    return expired - expired % DAY if expire_after and expired > 0 else 0
