"""The store's disk space: a reserve for deletions, and free pages that are returned to the file system."""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiosqlite

from edge_agent.store import schema
from edge_agent.store.batches import SideBatch
from edge_agent.store.outbox_index import OutboxIndex
from edge_agent.store.port import StoreFull, StoreUnwritable
from edge_agent.store.sqlite import damage_detection, in_thread
from shared.sizes import format_size

FREE_PAGES_KEPT = 4096
PAGE_SIZE = 4096
DISK_RESERVE = 64 << 20


def has_room(directory: Path, free_pages: int = 0) -> bool:
    """Return True if a commit leaves the disk its reserve; free pages within the file also take rows.

    Raise OSError if the disk does not report its free space.
    """
    return shutil.disk_usage(directory).free + PAGE_SIZE * free_pages >= DISK_RESERVE


class DiskSpace:
    """The free space of a store's file, on its disk and within itself."""

    def __init__(self, path: Path, database: aiosqlite.Connection) -> None:
        self._directory = path.parent
        self._database = database
        self._free_pages_seen = 0

    @property
    def is_short(self) -> bool:
        """True if the disk is down to its reserve; SQLite reports most errors of a full disk as I/O errors."""
        return not has_room(self._directory)

    @property
    def has_room(self) -> bool:
        """The same with the free pages counted last, half a second ago."""
        return has_room(self._directory, self._free_pages_seen)

    async def check_reserve(self) -> None:
        """Raise StoreFull if a commit would use up the reserve: deletions must remain possible."""
        with damage_detection():
            if await self._has_room():
                return
            await in_thread(self._database, _write_log_back)
            if await self._has_room():
                return
        raise StoreFull(f"less than {format_size(DISK_RESERVE)} left on the disk of {self._directory}")

    async def give_back(self, more_than: float) -> None:
        """Shorten the file if more than ``more_than`` bytes, and a minimum, are free; outside of any transaction."""
        if await self._free_pages() > max(FREE_PAGES_KEPT, more_than / PAGE_SIZE):
            # Not execute(): it takes one step of a statement without columns, and one step frees one page.
            with contextlib.suppress(sqlite3.OperationalError):
                await self._database.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES_KEPT})")
            await in_thread(self._database, _write_log_back_unless_read)

    async def _has_room(self) -> bool:
        return has_room(self._directory) or has_room(self._directory, await self._free_pages())

    async def _free_pages(self) -> int:
        # One step to the connection's thread and back, twice a second: a cursor would take three.
        ((count,),) = await self._database.execute_fetchall("PRAGMA freelist_count")
        self._free_pages_seen = int(count)
        return self._free_pages_seen


def _write_log_back(database: sqlite3.Connection) -> None:
    """Empty SQLite's log into the file as far as the disk has room: until then both take space."""
    with contextlib.suppress(sqlite3.OperationalError):
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _write_log_back_unless_read(database: sqlite3.Connection) -> None:
    """Do not wait for a reader in another process: nothing would be committed meanwhile."""
    ((patience,),) = database.execute("PRAGMA busy_timeout").fetchall()
    database.execute("PRAGMA busy_timeout=0").fetchall()
    try:
        _write_log_back(database)
    finally:
        database.execute(f"PRAGMA busy_timeout={patience}").fetchall()


log = logging.getLogger("muster.agent")

FLUSH_INTERVAL = 0.5
MOVED_AT_MOST = 0.25
"""Largest outbox, as a part of the file's free space, at which that space is returned while rows still leave: SQLite
then moves the pages at the end of the file, which delays the uploader, and those rows leave in a moment anyway."""

STANDS_STILL = 4
"""After this number of intervals without an acknowledgement, the acknowledged part of a chunk is deleted, too."""


class Flusher:
    """Loop that deletes acknowledged rows. ``transact`` writes one transaction, under ``lock``."""

    def __init__(
        self,
        path: Path,
        database: aiosqlite.Connection,
        lock: asyncio.Lock,
        index: OutboxIndex,
        space: DiskSpace,
        transact: Callable[[SideBatch], Awaitable[object]],
    ) -> None:
        self._path = path
        self._database = database
        self._lock = lock
        self._index = index
        self._space = space
        self._transact = transact

    async def run(self) -> None:
        """Flush until cancelled. A failed write is logged once and repeated; damage ends the loop."""
        logged, through, still, is_unpacked = "", dict(self._index.deletable_through), 0, False
        while True:
            deleted = self._index.deleted_through
            await asyncio.sleep(FLUSH_INTERVAL)
            still = still + 1 if self._index.deletable_through == through else 0
            is_unpacked, through = is_unpacked and still > 0, dict(self._index.deletable_through)
            try:
                with contextlib.suppress(StoreFull):
                    unpacks = still >= STANDS_STILL and not is_unpacked and any(self._index.chunked.values())
                    # Batches that are committed delete these rows: another transaction would only wait for the disk.
                    is_left = self._index.has_deletions and self._index.deleted_through == deleted
                    if unpacks or is_left:
                        await self._transact(SideBatch(unpacks=unpacks))
                        is_unpacked = is_unpacked or unpacks
                    await self._answer_operator()
                drains = self._index.deleted_through != deleted
                async with self._lock:
                    with damage_detection():
                        await self._space.give_back(self._index.size / MOVED_AT_MOST if drains else 0)
                logged = ""
            except (StoreUnwritable, sqlite3.OperationalError) as error:
                if logged != (logged := str(error)):
                    log.warning("store %s: what was delivered cannot be deleted: %s; trying again", self._path, logged)

    async def _answer_operator(self) -> None:
        async with self._lock:
            with damage_detection():
                requests = await self._database.execute_fetchall(schema.OPEN_REQUESTS)
        for row_id, asked in requests:
            blocks = asked.removeprefix(schema.ASKS_SET_APART)
            await self._transact(SideBatch(dropped_blocks=blocks, drops_set_apart=asked != blocks, request=row_id))
