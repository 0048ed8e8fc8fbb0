"""Do what no batch waits for: delete what was acknowledged, answer operators, give the disk its space back.

Batches delete, too: where they come, none of this costs a transaction of its own.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiosqlite

from edge_agent.ingest.port import StoreFull, StoreUnwritable
from edge_agent.store import schema
from edge_agent.store.batches import SideBatch
from edge_agent.store.damage import noticing_damage
from edge_agent.store.housekeeping import DiskSpace
from edge_agent.store.outbox_index import OutboxBooks

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
        books: OutboxBooks,
        space: DiskSpace,
        transact: Callable[[SideBatch], Awaitable[object]],
    ) -> None:
        self._path = path
        self._database = database
        self._lock = lock
        self._books = books
        self._space = space
        self._transact = transact

    async def run(self) -> None:
        """Flush until cancelled; what cannot be written now is told once and tried again, damage ends it."""
        told, through, still, is_unpacked = "", dict(self._books.deletable_through), 0, False
        while True:
            deleted = self._books.deleted_through
            await asyncio.sleep(FLUSH_INTERVAL)
            still = still + 1 if self._books.deletable_through == through else 0
            is_unpacked, through = is_unpacked and still > 0, dict(self._books.deletable_through)
            try:
                with contextlib.suppress(StoreFull):
                    unpacks = still >= STANDS_STILL and not is_unpacked and any(self._books.chunked.values())
                    # Where batches are committed, they delete: another transaction would wait for the disk in vain.
                    is_left = self._books.has_deletions and self._books.deleted_through == deleted
                    if unpacks or is_left:
                        await self._transact(SideBatch(unpacks=unpacks))
                        is_unpacked = is_unpacked or unpacks
                    await self._answer_operator()
                drains = self._books.deleted_through != deleted
                async with self._lock:
                    with noticing_damage():
                        await self._space.give_back(self._books.size / MOVED_AT_MOST if drains else 0)
                told = ""
            except (StoreUnwritable, sqlite3.OperationalError) as error:
                if told != (told := str(error)):
                    log.warning("store %s: what was delivered cannot be deleted: %s; trying again", self._path, told)

    async def _answer_operator(self) -> None:
        async with self._lock:
            with noticing_damage():
                requests = await self._database.execute_fetchall(schema.OPEN_REQUESTS)
        for row_id, asked in requests:
            blocks = asked.removeprefix(schema.ASKS_SET_APART)
            await self._transact(SideBatch(dropped_blocks=blocks, drops_set_apart=asked != blocks, request=row_id))
