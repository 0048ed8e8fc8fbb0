"""Commit batches to one SQLite file and hand out the outbox: WAL, ``synchronous=FULL``, one transaction per batch.

One connection writes, one transaction at a time. What is in memory beside it (depths, counters, what is in flight) is
changed only after the transaction was durable.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Mapping
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Self

import aiosqlite
import msgspec

from edge_agent.core.block_state import BlockState, Counters
from edge_agent.core.outgoing import Lane, OutboxRow
from edge_agent.core.senders import SenderTable
from edge_agent.ports import EVERYTHING, BatchCommit, LaneDepth, StoreFull
from edge_agent.store import schema
from edge_agent.store.decision_log import DecisionLog
from edge_agent.store.files import unusable
from edge_agent.store.outbox import OutboxChange
from edge_agent.store.outbox_books import OutboxBooks
from edge_agent.store.senders import Incarnations, load_senders, sender_row, slot_range
from edge_agent.tallies import Tally
from shared.identifiers import BlockId
from shared.sizes import format_size

log = logging.getLogger("muster.agent")

FLUSH_INTERVAL = 0.5
FREE_PAGES_KEPT = 4096
PAGE_SIZE = 4096
DISK_RESERVE = 64 << 20
OPERATOR = "operator"


class SqliteStore:
    """The store of one agent: senders, blocks, outbox, counters and status."""

    def __init__(
        self,
        path: Path,
        database: aiosqlite.Connection,
        incarnations: Incarnations,
        books: OutboxBooks,
        log: DecisionLog,
    ) -> None:
        self._path = path
        self._database = database
        self._incarnations = incarnations
        self._books = books
        self._log = log
        self._lock = asyncio.Lock()
        self.commits = Tally()
        self._block_counters: dict[str, Counters] = {}
        self._flusher = asyncio.create_task(self._flush_deletions(), name="store flusher")

    @classmethod
    async def open(cls, path: Path, max_outbox: int) -> Self:
        """Open a file that prepare() has made sure of; raise StoreUnusable. ``max_outbox`` is in bytes."""
        database = await aiosqlite.connect(path, isolation_level=None, timeout=30)
        try:
            return await cls._opened(path, database, max_outbox)
        except BaseException as error:
            # Its thread would keep a process that wants to end.
            await database.close()
            if isinstance(error, sqlite3.Error):
                raise unusable(path, error) from error
            raise

    @classmethod
    async def _opened(cls, path: Path, database: aiosqlite.Connection, max_outbox: int) -> Self:
        # 16 MB of log: a row that leaves at once has been deleted by the time its pages would go into the file.
        checkpoints = ("journal_size_limit=67108864", "wal_autocheckpoint=4000")
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY", *checkpoints):
            await database.execute(f"PRAGMA {pragma}")
        # Some distributions overwrite what is deleted: an outbox would be written twice.
        await database.execute("PRAGMA secure_delete=OFF")
        incarnations = await Incarnations.load(database)
        books, log = await OutboxBooks.load(database, max_outbox), await DecisionLog.load(database, incarnations)
        return cls(path, database, incarnations, books, log)

    async def close(self) -> None:
        """Write what is still to be deleted, where the disk has room for that, and close."""
        self._flusher.cancel()
        await asyncio.gather(self._flusher, return_exceptions=True)
        try:
            if self._books.has_deletions:
                with contextlib.suppress(StoreFull):
                    await self._transact(_Batch())
        finally:
            async with self._lock:
                await self._database.close()

    async def load_block(self, name: str) -> tuple[BlockState, SenderTable] | None:
        """Read a block's state and senders; None where the store does not know it."""
        async with self._database.execute("SELECT number, state FROM block WHERE name = ?", (name,)) as cursor:
            row = await cursor.fetchone()
        if row is None:
            return None
        state = msgspec.json.decode(row[1], type=BlockState)
        self._block_counters[name] = state.counters
        return state, await load_senders(self._database, row[0], self._incarnations)

    async def known_blocks(self) -> list[tuple[BlockId, BlockState]]:
        """Read whose blocks the store holds, and their states."""
        rows = await self._database.execute_fetchall("SELECT region, site, name, state FROM block")
        return [(BlockId(*row[:3]), msgspec.json.decode(row[3], type=BlockState)) for row in rows]

    async def commit(self, batch: BatchCommit) -> None:
        """Make one batch durable; raise StoreFull, having changed nothing, where the disk is full."""
        await self._transact(batch)
        self._block_counters[batch.block_id.block] = batch.state.counters

    def counters(self) -> dict[str, Counters]:
        """Give every block's counters, those of its outbox included."""
        return {block: {**counters, **self.outbox_counters(block)} for block, counters in self._block_counters.items()}

    async def write_status(self, status: Mapping[str, object]) -> None:
        """Replace what ``muster-agent status`` shows, by name; raise StoreFull where the disk is full."""
        await self._transact(_Batch(status={name: msgspec.json.encode(body).decode() for name, body in status.items()}))

    # The outbox

    def is_paused(self) -> bool:
        """Tell whether what may not be dropped has reached the outbox's limit."""
        return self._books.is_full

    async def wait_for_room(self) -> None:
        """Wait until it has not."""
        await self._books.wait_for_room()

    async def let_uploads_follow(self) -> None:
        """Wait a moment where copies are read faster than they leave."""
        await self._books.let_uploads_follow()

    def depths(self) -> dict[Lane, LaneDepth]:
        """Measure what waits."""
        return dict(self._books.depths)

    def outbox_counters(self, block: str) -> Counters:
        """Give what was compacted and dropped, by cause."""
        return self._books.counters.get(block, {})

    async def pending(
        self, lane: Lane, after_row_id: int, row_limit: int, byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        """Read a lane's rows after one, in order; from then on they are in flight and are not replaced.

        Out of the file no more than the row that reaches ``byte_limit``.
        """
        if lane is Lane.COPIES and (kept := self._books.tail.take(lane, after_row_id, row_limit)) is not None:
            # No transaction that is under way replaces a copy.
            if kept:
                self._books.handed_out(kept[-1].row_id)
            return kept
        async with self._lock:
            rows = self._books.tail.take(lane, after_row_id, row_limit)
            if rows is None:
                rows = await self._read_pending(lane, after_row_id, row_limit, byte_limit)
            if rows:
                self._books.in_flight_through[lane] = max(self._books.in_flight_through[lane], rows[-1].row_id)
                if lane is Lane.COPIES:
                    self._books.handed_out(rows[-1].row_id)
        return rows

    async def _read_pending(self, lane: Lane, after_row_id: int, row_limit: int, byte_limit: int) -> list[OutboxRow]:
        if byte_limit < EVERYTHING:
            sizes = await self._database.execute_fetchall(schema.pending_sizes(lane), (after_row_id, row_limit))
            before = accumulate((size for (size,) in sizes), initial=0)
            row_limit = min(sum(1 for _ in takewhile(lambda size: size < byte_limit, before)), row_limit)
        found = await self._database.execute_fetchall(schema.pending_rows(lane), (after_row_id, row_limit))
        return [
            OutboxRow(lane, block, subject, msgspec.json.decode(headers), payload, sender_id, since, row_id)
            for row_id, block, sender_id, since, subject, headers, payload in found
        ]

    def delete_through(self, lane: Lane, row_id: int) -> None:
        """Let rows that were acknowledged go with the next transaction; losing this only sends them again."""
        self._books.deletable_through[lane] = max(self._books.deletable_through[lane], row_id)

    def release(self, lane: Lane) -> None:
        """Take back that rows are in flight: they will be read and sent again."""
        self._books.in_flight_through[lane] = 0

    async def wait_for_rows(self, seen: int) -> int:
        """Wait until the count of appends differs from ``seen``; give the new count."""
        return await self._books.wait_for_rows(seen)

    async def discard(self, row: OutboxRow, cause: str) -> None:
        """Drop a registration that can never be delivered, counted by cause."""
        await self._transact(_Batch(discarded=(row, cause)))

    async def drop_registrations(self, blocks: str, request: int = 0) -> LaneDepth:
        """Drop the registrations that are not in flight, of the blocks that match a GLOB, because an operator asks.

        ``request`` is the row that asked, if one did; it gets the answer. Raise StoreFull where the disk is full.
        """
        return (await self._transact(_Batch(dropped_blocks=blocks, request=request))).dropped

    # Transactions

    async def _transact(self, batch: "BatchCommit | _Batch") -> OutboxChange:
        """Write one transaction; whoever waits for it may be cancelled, the transaction itself goes on to its end."""
        return await asyncio.shield(asyncio.ensure_future(self._transact_wholly(batch)))

    async def _transact_wholly(self, batch: "BatchCommit | _Batch") -> OutboxChange:
        async with self._lock:
            with self.commits.measured():
                return await self._transact_locked(batch)

    async def _transact_locked(self, batch: "BatchCommit | _Batch") -> OutboxChange:
        outbox = OutboxChange(self._books, self._database)
        try:
            if isinstance(batch, BatchCommit):
                await self._leave_room()
            await self._database.execute("BEGIN IMMEDIATE")
            try:
                await outbox.delete_acknowledged()
                await self._write(batch, outbox)
                await outbox.write_counts()
                await self._database.execute("COMMIT")
            except BaseException:
                await self._roll_back()
                raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise StoreFull(str(error)) from error
            raise
        self._incarnations.adopt()
        self._log.adopt()
        outbox.adopt()
        return outbox

    async def _roll_back(self) -> None:
        self._incarnations.forget_uncommitted()
        self._log.forget_uncommitted()
        if self._database.in_transaction:
            await self._database.execute("ROLLBACK")

    async def _write(self, batch: "BatchCommit | _Batch", outbox: OutboxChange) -> None:
        if isinstance(batch, _Batch):
            if batch.discarded:
                await outbox.discard(*batch.discarded)
            if batch.dropped_blocks:
                await outbox.drop_unsent(batch.dropped_blocks, OPERATOR)
                answer = msgspec.json.encode(outbox.dropped).decode()
                await self._database.execute(schema.ANSWER_REQUEST, (answer, batch.request))
            await self._database.executemany(schema.PUT_STATUS, batch.status.items())
            return
        number = await self._write_block(batch)
        await self._write_senders(batch, number)
        first_row_id = await outbox.append(batch.rows)
        if batch.decisions:
            assert len(batch.decisions) == len(batch.rows), "a decision without its record"
            incarnation = batch.state.position.incarnation
            await self._log.append(self._database, number, batch.decisions, incarnation, first_row_id)
        await outbox.trim()
        if batch.recorded:
            inputs = [(batch.block_id.block, msgspec.json.encode(item).decode()) for item in batch.recorded]
            await self._database.executemany(schema.RECORD_INPUT, inputs)
            await self._database.execute(schema.FORGET_INPUTS)

    async def _write_block(self, batch: BatchCommit) -> int:
        block_id = batch.block_id
        state = msgspec.json.encode(batch.state).decode()
        await self._database.execute(schema.PUT_BLOCK, (block_id.block, block_id.region, block_id.site, state))
        async with self._database.execute("SELECT number FROM block WHERE name = ?", (block_id.block,)) as cursor:
            row = await cursor.fetchone()
            assert row is not None
            return int(row[0])

    async def _write_senders(self, batch: BatchCommit, number: int) -> None:
        first, _ = slot_range(number)
        changes = batch.changes
        if changes.retired:
            await self._database.executemany(schema.DELETE_SENDER, [(first + s.slot,) for s in changes.retired])
        states = (*changes.heard, *changes.stale)
        for incarnation in {state.opening_incarnation for state in states}:
            await self._incarnations.number(self._database, incarnation)
        await self._database.executemany(
            schema.PUT_SENDER, [sender_row(first, state, self._incarnations) for state in states]
        )

    async def _flush_deletions(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL)
            try:
                with contextlib.suppress(StoreFull):
                    if self._books.has_deletions:
                        await self._transact(_Batch())
                    await self._answer_operator()
                await self._give_space_back()
                told = ""
            except sqlite3.OperationalError as error:
                if told != (told := str(error)):
                    log.warning("store %s: what was delivered cannot be deleted: %s; trying again", self._path, told)

    async def _answer_operator(self) -> None:
        async with self._lock:
            requests = await self._database.execute_fetchall(schema.OPEN_REQUESTS)
        for row_id, blocks in requests:
            await self.drop_registrations(blocks, row_id)

    async def _leave_room(self) -> None:
        """Keep the last of the disk for deletions: what fills it with rows must be able to let them go."""
        if await self._has_room():
            return
        await self._write_log_back()
        if not await self._has_room():
            raise StoreFull(f"less than {format_size(DISK_RESERVE)} left on the disk of {self._path.parent}")

    async def _has_room(self) -> bool:
        disk = os.statvfs(self._path.parent)
        free = disk.f_bavail * disk.f_frsize
        return free >= DISK_RESERVE or free + PAGE_SIZE * await self._free_pages() >= DISK_RESERVE

    async def _write_log_back(self) -> None:
        """Empty SQLite's log into the file, as far as the disk has room for that: until then both take space."""
        with contextlib.suppress(sqlite3.OperationalError):
            await self._database.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")

    async def _free_pages(self) -> int:
        async with self._database.execute("PRAGMA freelist_count") as cursor:
            row = await cursor.fetchone()
            return row[0] if row else 0

    async def _give_space_back(self) -> None:
        async with self._lock:
            if await self._free_pages() > FREE_PAGES_KEPT:
                # Not execute(): of a statement without columns it takes one step, and here a step is a page.
                with contextlib.suppress(sqlite3.OperationalError):
                    await self._database.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES_KEPT})")
                await self._write_log_back()


class _Batch(msgspec.Struct, frozen=True):
    """What is written beside batches of a block."""

    status: Mapping[str, str] = {}
    discarded: tuple[OutboxRow, str] | None = None
    dropped_blocks: str = ""
    request: int = 0
