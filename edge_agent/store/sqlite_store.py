"""The store of an agent in one SQLite file: WAL, ``synchronous=FULL``, one transaction per batch.

One connection writes, one transaction at a time. State in memory (depths, counters, rows in flight) changes only after
the transaction was committed.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import aiosqlite
import msgspec

from edge_agent.core.block_state import BlockState, decode_block_state
from edge_agent.core.decisions import Counters
from edge_agent.core.records import Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.core.senders import SenderTable
from edge_agent.runtime.tally import Tally
from edge_agent.store import schema
from edge_agent.store.batches import SideBatch, write_block_batch, write_side_batch
from edge_agent.store.chunks import read_pending
from edge_agent.store.decision_log import DecisionLog
from edge_agent.store.files import LOCKED, StoreUnusable, unusable
from edge_agent.store.housekeeping import DiskSpace, Flusher
from edge_agent.store.marker import Marker
from edge_agent.store.outbox_change import OutboxChange
from edge_agent.store.outbox_index import OutboxIndex, dropped_too_large, set_apart_sums
from edge_agent.store.port import (
    EVERYTHING,
    BatchCommit,
    DroppedTooLarge,
    LaneDepth,
    OutboxLevel,
    Retry,
    SetApart,
    StoreFailing,
    StoreFull,
    StoreLocked,
    StoreUnwritable,
)
from edge_agent.store.senders import Incarnations, load_senders
from edge_agent.store.sqlite import StoreDamaged, damage_detection, in_thread, transact
from shared.decoding import WireError
from shared.identifiers import BlockId
from shared.tasks import to_its_end

LOCK_PATIENCE = 10.0
"""How long a transaction waits for another process that has the file locked, in seconds."""

HANGS_AFTER = LOCK_PATIENCE + 2


class SqliteStore:
    """Senders, blocks, outbox, counters and status of one agent. Any use of its file may raise StoreDamaged."""

    def __init__(
        self,
        path: Path,
        database: aiosqlite.Connection,
        incarnations: Incarnations,
        index: OutboxIndex,
        log: DecisionLog,
        marker: Marker,
    ) -> None:
        self._path = path
        self._database = database
        self._incarnations = incarnations
        self._index = index
        self._log = log
        self._marker = marker
        self._space = DiskSpace(path, database)
        self._lock = asyncio.Lock()
        self._refused: StoreUnwritable | None = None
        self._began = 0.0
        self.commits = Tally()
        self._block_counters: dict[str, Counters] = {}
        flusher = Flusher(path, database, self._lock, index, self._space, self._transact)
        self._flusher = asyncio.create_task(flusher.run(), name="store flusher")

    @classmethod
    async def open(cls, path: Path, max_outbox: int) -> Self:
        """Open a file that prepare() has checked; raise StoreUnusable. ``max_outbox`` is in bytes."""
        try:
            database = await aiosqlite.connect(path, isolation_level=None, timeout=LOCK_PATIENCE)
        except sqlite3.Error as error:
            raise unusable(path, error) from error
        try:
            with damage_detection():
                return await cls._load(path, database, max_outbox)
        except BaseException as error:
            # Its thread would keep the process from ending.
            await database.close()
            if isinstance(error, sqlite3.Error):
                raise unusable(path, error) from error
            raise

    @classmethod
    async def _load(cls, path: Path, database: aiosqlite.Connection, max_outbox: int) -> Self:
        # 16 MB of log: a row that leaves at once is deleted before its pages would be written into the file.
        checkpoints = ("journal_size_limit=67108864", "wal_autocheckpoint=4000")
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY", *checkpoints):
            await database.execute(f"PRAGMA {pragma}")
        # Some distributions overwrite deleted data: an outbox would be written twice.
        await database.execute("PRAGMA secure_delete=OFF")

        def load(connection: sqlite3.Connection) -> tuple[Incarnations, OutboxIndex, DecisionLog]:
            incarnations = Incarnations.load(connection)
            return incarnations, OutboxIndex.load(connection, max_outbox), DecisionLog.load(connection, incarnations)

        return cls(path, database, *await in_thread(database, load), Marker(path))

    async def close(self) -> None:
        """Write pending deletions, if that is possible now, and close; otherwise those rows are sent again."""
        self._flusher.cancel()
        await asyncio.gather(self._flusher, return_exceptions=True)
        try:
            if self._index.has_deletions or any(self._index.chunked.values()):
                with contextlib.suppress(StoreUnwritable):
                    await self._transact(SideBatch(unpacks=True))
        finally:
            async with self._lock:
                await self._database.close()
            await asyncio.to_thread(self._marker.sync)

    async def load_block(self, name: str) -> tuple[BlockState, SenderTable] | None:
        """Return a block's state and senders; None if the store has no such block."""

        def load(database: sqlite3.Connection) -> tuple[BlockState, SenderTable] | None:
            row = database.execute("SELECT number, state FROM block WHERE name = ?", (name,)).fetchone()
            return row and (self._state(name, row[1]), load_senders(database, row[0], self._incarnations))

        # A transaction whose task was cancelled may still be under way.
        async with self._lock:
            found = await in_thread(self._database, load)
        if found is not None:
            self._block_counters[name] = found[0].counters
        return found

    async def block_states(self) -> list[tuple[BlockId, BlockState]]:
        """Return the ids and states of all blocks in the store, after any open transaction."""
        async with self._lock:
            with damage_detection():
                rows = await self._database.execute_fetchall("SELECT region, site, name, state FROM block")
                return [(BlockId(*row[:3]), self._state(*row[2:])) for row in rows]

    def _state(self, name: str, body: str) -> BlockState:
        """Decode a block's state; raise StoreUnusable for that of another version, which that version can use."""
        try:
            return decode_block_state(body)
        except WireError as error:
            if not isinstance(error.__cause__, msgspec.ValidationError):
                raise
            raise StoreUnusable(
                f"store {self._path}: block {name} is of another version of the agent ({error}); use that one"
            ) from error

    async def commit(self, batch: BatchCommit) -> None:
        await self._transact(batch)
        self._block_counters[batch.block_id.block] = batch.state.counters

    @property
    def trouble(self) -> StoreUnwritable | None:
        """The reason why nothing can be written now: the last transaction failed, or one does not end."""
        lasted = time.monotonic() - self._began if self._began else 0.0
        if lasted > HANGS_AFTER:
            return StoreFailing(f"a write has not ended for {round(lasted)} s, the disk hangs")
        return self._refused

    def counters(self) -> dict[str, Counters]:
        """Return every block's counters, those of its outbox included."""
        return {block: {**counters, **self.outbox_counters(block)} for block, counters in self._block_counters.items()}

    async def write_status(self, status: Mapping[str, object]) -> None:
        """Replace the status of ``muster-agent status``; raise StoreUnwritable, or the error that ended the flusher."""
        if self._flusher.done():
            self._flusher.result()
        bodies = {name: msgspec.json.encode(body).decode() for name, body in status.items()}
        await self._transact(SideBatch(status=bodies))
        # Once per status, not once per batch.
        await asyncio.to_thread(self._marker.sync)

    # The outbox

    def is_paused(self) -> bool:
        return self._index.is_full

    async def wait_for_room(self) -> None:
        await self._index.wait_for_room()

    def copies_wait(self) -> bool:
        return self._index.copies_wait

    async def wait_for_uploads(self) -> None:
        await self._index.wait_for_uploads()

    @property
    def has_room(self) -> bool:
        """True if the disk has room for a commit, as check_reserve() decides; raise OSError if it is gone."""
        return self._space.has_room

    def depths(self) -> dict[Lane, LaneDepth]:
        return dict(self._index.depths)

    def last_row_ids(self) -> dict[Lane, int]:
        return dict(self._index.last_row_ids)

    @property
    def append_count(self) -> int:
        return self._index.append_count

    def acknowledged_through(self) -> dict[Lane, int]:
        return self._index.acknowledged_through()

    def outbox_counters(self, block: str) -> Counters:
        return self._index.counters.get(block, {})

    def at_hand(self, lane: Lane, after_row_id: int, row_limit: int) -> list[OutboxRow] | None:
        return self._index.take(lane, after_row_id, row_limit, is_changing=self._lock.locked())

    async def pending(
        self, lane: Lane, after_row_id: int, row_limit: int, byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        async with self._lock:
            rows = self._index.take(lane, after_row_id, row_limit, is_changing=False)
            if rows is None:
                rows = await in_thread(
                    self._database, lambda database: read_pending(database, lane, after_row_id, row_limit, byte_limit)
                )
                self._index.leave(lane, rows)
        return rows

    def delete_through(self, lane: Lane, row_id: int) -> None:
        self._index.deletable_through[lane] = max(self._index.deletable_through[lane], row_id)
        self._index.tail.pass_over(lane, row_id)
        if lane is Lane.COPIES:
            self._index.copies_move()

    def is_filling(self) -> bool:
        return self._index.is_filling

    def release(self, lane: Lane) -> None:
        self._index.in_flight_through[lane] = 0

    async def wait_for_rows(self, seen: int) -> int:
        return await self._index.wait_for_rows(seen)

    def reads_ahead(self, lane: Lane, give_back: Callable[[], int]) -> None:
        self._index.give_back[lane] = give_back

    async def drop_registrations(self, blocks: str) -> LaneDepth:
        """Drop the registrations that have not left, of the blocks that match a GLOB, on an operator's order.

        Raise StoreUnwritable.
        """
        return (await self._transact(SideBatch(dropped_blocks=blocks))).dropped

    # What is too large

    def set_apart_depth(self) -> LaneDepth:
        return self._index.set_apart

    async def set_apart(self, rows: Sequence[tuple[OutboxRow, TooLarge]]) -> None:
        await self._transact(SideBatch(oversized=rows, refused_at=time.time_ns() // 1000))

    async def wait_for_too_large(self) -> None:
        await self._index.wait_for_too_large()

    async def dropped_too_large(self) -> list[DroppedTooLarge]:
        async with self._lock:
            return await in_thread(self._database, dropped_too_large)

    async def outbox_level(self) -> OutboxLevel:
        """Return the size of the outbox, and the records that are too large for the region."""
        index = self._index
        is_any = index.set_apart.rows or index.dropped
        if not is_any:
            return OutboxLevel(index.size, index.max_outbox)
        async with self._lock:
            set_apart, dropped = await in_thread(
                self._database, lambda database: (set_apart_sums(database), dropped_too_large(database))
            )
        return OutboxLevel(index.size, index.max_outbox, tuple(set_apart), tuple(dropped))

    async def forget_dropped(self, dropped: Sequence[DroppedTooLarge]) -> None:
        await self._transact(SideBatch(forgotten=dropped))

    async def smallest_set_apart(self) -> list[SetApart]:
        async with self._lock:
            with damage_detection():
                rows = await self._database.execute_fetchall(schema.SMALLEST_SET_APART)
        return [
            SetApart(Lane(lane), block, row_id, TooLarge(SizeLimit(cause), needed))
            for lane, block, cause, row_id, needed in rows
        ]

    async def retry(self, which: Retry) -> list[int]:
        return (await self._transact(SideBatch(retry=which))).retried_ids

    async def drop_set_apart(self, blocks: str) -> LaneDepth:
        """Drop the dead letters of the blocks that match a GLOB, on an operator's order; raise StoreUnwritable."""
        return (await self._transact(SideBatch(dropped_blocks=blocks, drops_set_apart=True))).dropped

    async def has_set_apart(self, row_id: int) -> bool:
        async with self._lock:
            with damage_detection():
                ((found,),) = await self._database.execute_fetchall(schema.HAS_SET_APART, (row_id,))
        return bool(found)

    # Transactions

    async def _transact(self, batch: BatchCommit | SideBatch) -> OutboxChange:
        """Write one transaction. If the caller is cancelled, the transaction still runs to its end."""
        return await to_its_end(self._transact_wholly(batch))

    async def _transact_wholly(self, batch: BatchCommit | SideBatch) -> OutboxChange:
        async with self._lock:
            with self.commits.measure():
                return await self._transact_locked(batch)

    async def _transact_locked(self, batch: BatchCommit | SideBatch) -> OutboxChange:
        if isinstance(batch, SideBatch) and batch.dropped_blocks and not batch.drops_set_apart:
            self._index.take_back(Lane.REGISTRATIONS)
        outbox = OutboxChange(self._index, is_behind=isinstance(batch, BatchCommit) and batch.is_behind)

        def write(database: sqlite3.Connection) -> None:
            outbox.begin(database)
            if isinstance(batch, BatchCommit):
                write_block_batch(database, batch, outbox, self._incarnations, self._log)
            else:
                write_side_batch(database, batch, outbox)
            outbox.finish()

        def note() -> None:
            blocks = [batch.block_id.block] if isinstance(batch, BatchCommit) else []
            self._marker.note(outbox.last_row_id, blocks)

        self._began = time.monotonic()
        try:
            if isinstance(batch, BatchCommit):
                await self._space.check_reserve()
            await transact(self._database, write, note)
        except BaseException as error:
            self._incarnations.forget_uncommitted()
            self._log.forget_uncommitted()
            # A disk that is nearly full may fail to read for this reason.
            met = error.__cause__ if isinstance(error, StoreDamaged) and self._space.is_short else error
            if isinstance(met, sqlite3.OperationalError):
                self._refused = self._unwritable(met)
                if self._refused is not None:
                    raise self._refused from error
            raise
        finally:
            self._began = 0.0
        self._refused = None
        self._incarnations.adopt()
        self._log.adopt()
        outbox.adopt()
        return outbox

    def _unwritable(self, error: sqlite3.OperationalError) -> StoreUnwritable | None:
        cause = error.sqlite_errorcode & 0xFF
        if cause == sqlite3.SQLITE_FULL or (cause == sqlite3.SQLITE_IOERR and self._space.is_short):
            return StoreFull(str(error))
        if cause == sqlite3.SQLITE_IOERR:
            return StoreFailing(f"{error} ({error.sqlite_errorname}): the kernel's log says more")
        if cause in LOCKED:
            return StoreLocked(f"another process keeps {self._path} locked; end that one")
        return None
