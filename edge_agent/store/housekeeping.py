"""Keep the last of the disk for deletions, and give back what the file no longer needs."""

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
    """Tell whether a commit leaves the disk its reserve: the pages that are free within the file take rows, too.

    Raise OSError where the disk cannot be asked.
    """
    return shutil.disk_usage(directory).free + PAGE_SIZE * free_pages >= DISK_RESERVE


class DiskSpace:
    """The room that a store's file has on its disk, and within itself."""

    def __init__(self, path: Path, database: aiosqlite.Connection) -> None:
        self._directory = path.parent
        self._database = database
        self._free_pages_seen = 0

    @property
    def is_short(self) -> bool:
        """Tell whether the disk is down to its reserve: SQLite calls much of what a full disk does an I/O error."""
        return not has_room(self._directory)

    @property
    def has_room(self) -> bool:
        """Tell it with the free pages that were seen last, half a second ago."""
        return has_room(self._directory, self._free_pages_seen)

    async def check_reserve(self) -> None:
        """Raise StoreFull where a commit would take the last of the disk: what fills it must be able to go."""
        with damage_detection():
            if await self._has_room():
                return
            await in_thread(self._database, _write_log_back)
            if await self._has_room():
                return
        raise StoreFull(f"less than {format_size(DISK_RESERVE)} left on the disk of {self._directory}")

    async def give_back(self, more_than: float) -> None:
        """Make the file shorter where much of it is free, and more than so many bytes; outside of any transaction."""
        if await self._free_pages() > max(FREE_PAGES_KEPT, more_than / PAGE_SIZE):
            # Not execute(): of a statement without columns it takes one step, and here a step is a page.
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


log = logging.getLogger("muster.agent")

FLUSH_INTERVAL = 0.5
MOVED_AT_MOST = 0.25
"""How much may wait while any of it leaves, as a part of what the file has free, for that to be given back: what stands
at the file's end is then moved to its front, which holds up whoever reads it to send it, and it is gone in a moment."""

STANDS_STILL = 4
"""So many of these intervals without an acknowledgement, and what was acknowledged of a chunk goes, too."""


class Flusher:
    """The loop. ``transact`` writes one transaction; ``lock`` keeps out of the way of one that is under way."""

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
        """Flush until cancelled; what cannot be written now is told once and tried again, damage ends it."""
        logged, through, still, is_unpacked = "", dict(self._index.deletable_through), 0, False
        while True:
            deleted = self._index.deleted_through
            await asyncio.sleep(FLUSH_INTERVAL)
            still = still + 1 if self._index.deletable_through == through else 0
            is_unpacked, through = is_unpacked and still > 0, dict(self._index.deletable_through)
            try:
                with contextlib.suppress(StoreFull):
                    unpacks = still >= STANDS_STILL and not is_unpacked and any(self._index.chunked.values())
                    # Where batches are committed, they delete: another transaction would wait for the disk in vain.
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
