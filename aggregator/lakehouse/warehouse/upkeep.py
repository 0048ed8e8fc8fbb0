"""Keep all tables small, after a whole run and under its lock. What the tables say stays, but for what is too old.

Rules. Compaction makes new snapshots, which are recorded as a whole run's before any other is let go: readers and the
next rollup go by the recorded ones. What a reader may still be reading stays for ``keep_snapshots`` after it was
replaced. Registrations and quarantined records older than ``expire_after`` go by whole days; no derived table is made
of them, so a full computation gives the same as before. Advisories, watermarks and imports are never too old: all
else is made of them.
"""

from collections.abc import Callable

import msgspec
from pyspark.sql import SparkSession

from aggregator.config import LakehouseSettings
from aggregator.lakehouse.table_upkeep import TableUpkeep
from aggregator.lakehouse.tables.schemas import BRONZE, QUARANTINE, REGISTRATIONS, TABLES
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.commits import LastUpkeep, WholeRun
from shared.instants import DAY

ORPHANED_AFTER = DAY
"""Age of a file at which nobody can be about to commit it: no run takes a day."""
SWEEP_EVERY = DAY
"""Orphans are rare, for only killed runs leave any, and to look for them takes Spark a second for each table."""
_EXPIRING = ((REGISTRATIONS, "stored_at"), (QUARANTINE, "archived_at"))

Progress = Callable[[str], None]


class Upkeep(msgspec.Struct, frozen=True):
    """What was done: data files made fewer, from how many to how many; rows, snapshots and orphaned files that went."""

    compacted: int = 0
    compacted_to: int = 0
    expired_rows: int = 0
    expired_snapshots: int = 0
    orphans: int = 0

    def __str__(self) -> str:
        return (
            f"{self.compacted:,} data files became {self.compacted_to:,}; {self.expired_rows:,} rows,"
            f" {self.expired_snapshots:,} snapshots and {self.orphans:,} orphaned files went"
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
    compacted = compacted_to = 0
    for name, table in tables.items():
        before, after = table.compact()
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
    return Upkeep(compacted, compacted_to, expired_rows, expired_snapshots, orphans)


def _expires_before(whole_run: WholeRun, expire_after: int) -> int:
    """Give the midnight (microseconds) before which rows go, 0 for none: by the hub's time, not by this machine's.

    Nor by that of imports, which may tell of times long after the hub's last word.
    """
    of_the_hub = (whole_run.positions[table.name] for table in BRONZE if table.name in whole_run.positions)
    known_through = max((position.known_through for position in of_the_hub), default=0)
    expired = known_through - expire_after
    return expired - expired % DAY if expire_after and expired > 0 else 0
