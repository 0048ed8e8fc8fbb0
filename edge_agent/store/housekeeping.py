"""Keep the last of the disk for deletions, and give back what the file no longer needs."""

import contextlib
import os
import sqlite3
from pathlib import Path

import aiosqlite

from edge_agent.ingest.port import StoreFull
from edge_agent.store.damage import noticing_damage
from edge_agent.store.transaction import in_thread
from shared.sizes import format_size

FREE_PAGES_KEPT = 4096
PAGE_SIZE = 4096
DISK_RESERVE = 64 << 20


class DiskSpace:
    """The room that a store's file has on its disk, and within itself."""

    def __init__(self, path: Path, database: aiosqlite.Connection) -> None:
        self._directory = path.parent
        self._database = database

    @property
    def is_short(self) -> bool:
        """Tell whether the disk is down to its reserve: SQLite calls much of what a full disk does an I/O error."""
        return self._free() < DISK_RESERVE

    async def check_reserve(self) -> None:
        """Raise StoreFull where a commit would take the last of the disk: what fills it must be able to go."""
        with noticing_damage():
            if await self._has_room():
                return
            await in_thread(self._database, _write_log_back)
            if await self._has_room():
                return
        raise StoreFull(f"less than {format_size(DISK_RESERVE)} left on the disk of {self._directory}")

    async def give_back(self, more_than: float = 0) -> None:
        """Make the file shorter where much of it is free, and more than so many bytes; outside of any transaction."""
        if await self._free_pages() > max(FREE_PAGES_KEPT, more_than / PAGE_SIZE):
            # Not execute(): of a statement without columns it takes one step, and here a step is a page.
            with contextlib.suppress(sqlite3.OperationalError):
                await self._database.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES_KEPT})")
            await in_thread(self._database, _write_log_back_unless_read)

    async def _has_room(self) -> bool:
        free = self._free()
        return free >= DISK_RESERVE or free + PAGE_SIZE * await self._free_pages() >= DISK_RESERVE

    def _free(self) -> int:
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize

    async def _free_pages(self) -> int:
        async with self._database.execute("PRAGMA freelist_count") as cursor:
            row = await cursor.fetchone()
            return row[0] if row else 0


def _write_log_back(database: sqlite3.Connection) -> None:
    """Empty SQLite's log into the file, as far as the disk has room for that: until then both take space."""
    with contextlib.suppress(sqlite3.OperationalError):
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _write_log_back_unless_read(database: sqlite3.Connection) -> None:
    """Do not wait for a reader of another process, who may take his time: nothing would be committed meanwhile."""
    ((patience,),) = database.execute("PRAGMA busy_timeout").fetchall()
    database.execute("PRAGMA busy_timeout=0").fetchall()
    try:
        _write_log_back(database)
    finally:
        database.execute(f"PRAGMA busy_timeout={patience}").fetchall()
