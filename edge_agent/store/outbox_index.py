"""Index of the outbox in memory: depths, counters, row ids, and which rows are in flight or acknowledged.

Also the notes in the file about records that were too large for their target: dead-lettered, or dropped.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

import msgspec

from edge_agent.core.block_state import sum_counters
from edge_agent.core.decisions import Counters
from edge_agent.core.records import RECORD_OVERHEAD, Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.store import chunks, schema
from edge_agent.store.port import DroppedTooLarge, LaneDepth, SetApartSum
from edge_agent.store.schema import EVERY_ROW
from shared.decoding import Decoder

_headers = Decoder(dict[str, str], "headers")

WORTH_LOOKING = 100_000


class ChunkedSenders:
    """The senders in chunks of registrations, by block, as last committed."""

    def __init__(self) -> None:
        self._chunks: dict[str, dict[str, int]] = {}
        self._most = WORTH_LOOKING

    def load(self, database: sqlite3.Connection) -> None:
        """Read the chunks of a file that was just opened."""
        after = 0
        while chunk := chunks.first_chunk_behind(database, Lane.REGISTRATIONS, after):
            self.add(chunks.rows_of(database, Lane.REGISTRATIONS, chunk))
            after = chunk.last_row_id

    def add(self, rows: Sequence[OutboxRow]) -> None:
        last = rows[-1]
        of_block = self._chunks.setdefault(last.block, {})
        of_block.update(dict.fromkeys([row.sender_id for row in rows], last.row_id))

    def chunks_with(self, rows: Iterable[OutboxRow], unsent_after: int) -> list[int]:
        """Return the last row ids of chunks with other unsent rows of the same senders; some may be deleted already."""
        chunks_of = self._chunks
        found = {chunks_of.get(row.block, {}).get(row.sender_id, 0) for row in rows if row.sender_id}
        return sorted(last_row_id for last_row_id in found if last_row_id > unsent_after)

    def forget_through(self, row_id: int) -> None:
        """Forget deleted chunks up to a row, once the index has become large."""
        if sum(map(len, self._chunks.values())) < self._most:
            return
        for block, of_block in self._chunks.items():
            self._chunks[block] = {sender_id: last for sender_id, last in of_block.items() if last > row_id}
        self._most = max(2 * sum(map(len, self._chunks.values())), WORTH_LOOKING)

    def clear(self) -> None:
        """Forget all: no chunk is left."""
        self._chunks.clear()


class LastWatermark(msgspec.Struct, frozen=True):
    """A block's last record other than registrations: the next watermark of its coverage replaces it while unsent.

    ``behind`` is the row id of an earlier watermark of that coverage that keeps its place, 0 if there is none.
    """

    row_id: int
    since: int
    size: int
    behind: int


def merge_watermarks(
    rows: list[OutboxRow], last_watermarks: dict[str, LastWatermark], end: int, unsent_after: int
) -> tuple[list[OutboxRow], dict[int, int]]:
    """Return the rows of ``rows`` to append, and the earlier rows to delete: sizes in bytes by row id.

    ``last_watermarks``, by block, are updated. ``end`` is the lane's last row before ``rows``; rows up to
    ``unsent_after`` may be in flight.
    """
    superfluous: dict[int, int] = {}
    for row in rows:
        last = last_watermarks.pop(row.block, None)
        if since := row.watermark_since:
            behind = 0
            if last and last.since == since and last.row_id > unsent_after:
                behind = last.row_id
                if last.row_id == end or last.behind > unsent_after:
                    behind, superfluous[last.row_id] = last.behind, last.size
            last_watermarks[row.block] = LastWatermark(row.row_id, since, row.size, behind)
        end = row.row_id
    kept = [row for row in rows if superfluous.pop(row.row_id, None) is None] if superfluous else rows
    return kept, superfluous


MOST_BYTES = 16 << 20


class _RecentRowsOfLane:
    """Every row of one lane after ``begins_after``, by row id."""

    def __init__(self, begins_after: int) -> None:
        self.begins_after = begins_after
        self.rows: dict[int, OutboxRow] = {}
        self.size = 0

    def forget(self, begins_after: int) -> None:
        self.begins_after = begins_after
        self.rows.clear()
        self.size = 0


class RecentRows:
    """The newest rows of all lanes, as last committed."""

    def __init__(self, last_row_ids: Mapping[Lane, int]) -> None:
        self._lanes = {lane: _RecentRowsOfLane(last_row_ids[lane]) for lane in Lane}

    def append(self, lane: Lane, rows: Sequence[OutboxRow], size: int) -> None:
        """Add committed rows with their ids; ``size`` is the sum in bytes."""
        tail = self._lanes[lane]
        tail.size += size
        if tail.size > MOST_BYTES:
            tail.forget(rows[-1].row_id)
        else:
            tail.rows |= {row.row_id: row for row in rows}

    def remove(self, lane: Lane, row_ids: Iterable[int]) -> None:
        """Remove rows that were replaced or dropped before they were sent."""
        tail = self._lanes[lane]
        for row_id in row_ids:
            row = tail.rows.pop(row_id, None)
            if row is not None:
                tail.size -= row.size

    def pass_over(self, lane: Lane, through: int) -> None:
        """Remove rows up to one that this agent will not send: the pair's other agent has delivered them."""
        tail = self._lanes[lane]
        while tail.rows and (first := next(iter(tail.rows))) <= through:
            tail.size -= tail.rows.pop(first).size
            tail.begins_after = first

    def forget(self, lane: Lane, last_row_id: int) -> None:
        """Forget all rows of a lane that ends at ``last_row_id``."""
        self._lanes[lane].forget(last_row_id)

    def take(self, lane: Lane, after_row_id: int, row_limit: int, before: int = EVERY_ROW) -> list[OutboxRow] | None:
        """Remove and return at most ``row_limit`` rows between two; None if the file must be read.

        Returned rows are not kept: if they have to be sent again, they are read from the file.
        """
        tail = self._lanes[lane]
        if after_row_id < tail.begins_after:
            return None
        taken: list[OutboxRow] = []
        gone: list[OutboxRow] = []
        for row_id, row in tail.rows.items():
            if len(taken) == row_limit or row_id >= before:
                break
            # Rows up to ``after_row_id`` were already read from the file.
            (taken if row_id > after_row_id else gone).append(row)
        for row in (*gone, *taken):
            del tail.rows[row.row_id]
            tail.size -= row.size
            tail.begins_after = row.row_id
        return taken


RESUMES_AT = 0.95
"""Reading resumes when a full outbox has shrunk to this part of its limit."""

LONGEST_WAIT_FOR_UPLOADS = 0.5
CHUNKED_UP_TO = 0.25
"""Largest part of the limit that registrations in chunks may take."""
SET_APART_UP_TO = 0.25
"""Limit of the dead letters, as a part of the outbox's limit and in addition to it."""
RETRIED_KEPT = 10_000
"""Number of retried rows whose first refusal is remembered: refused again, they are not counted again."""
FILLS_WITHIN = 0.25
"""Seconds after the last large batch of a backlog during which registrations wait for those that replace them."""
FILLS_UP_TO = 0.5
BATCHES_UNDER_WAY = 32 << 20
"""The outbox waits like that only up to FILLS_UP_TO of its limit, with this many bytes left for the batches that are
being committed or read."""


def read_counters(database: sqlite3.Connection) -> dict[str, Counters]:
    """Return the counts of compacted, dropped and dead-lettered records, by block, outcome and cause."""
    counters: dict[str, Counters] = {}
    for block, what, cause, count in database.execute("SELECT block, what, cause, count FROM outbox_counter"):
        counters.setdefault(block, {}).setdefault(what, {})[cause] = count
    return counters


def set_apart_row(database: sqlite3.Connection, row_id: int) -> tuple[OutboxRow, int]:
    """Return a dead letter as a row without an id, and the instant of its first refusal."""
    ((lane, block, at, size, subject, headers, payload),) = database.execute(schema.SET_APART_ROW, (row_id,))
    headers_size = size - len(payload) - RECORD_OVERHEAD
    return OutboxRow(Lane(lane), block, subject, _headers(headers), payload, headers_size=headers_size), at


def set_apart_sums(database: sqlite3.Connection) -> list[SetApartSum]:
    return [
        SetApartSum(block, Lane(lane).name.lower(), SizeLimit(cause), *measures)
        for block, lane, cause, *measures in database.execute(schema.SET_APART_BY_LIMIT)
    ]


def dropped_too_large(database: sqlite3.Connection) -> list[DroppedTooLarge]:
    """Return the notes of records that were dropped for their size."""
    return [
        DroppedTooLarge(block, TooLarge(SizeLimit(cause), needed), at)
        for block, cause, needed, at in database.execute(schema.TOO_LARGE)
    ]


class OutboxIndex:
    """Depths, counters and row ids as last committed, and the rows in flight."""

    def __init__(
        self,
        max_outbox: int,
        depths: dict[Lane, LaneDepth],
        chunked: dict[Lane, int],
        last_row_ids: dict[Lane, int],
        counters: dict[str, Counters],
        set_apart: LaneDepth,
    ) -> None:
        self.max_outbox = max_outbox
        self.max_set_apart = int(max_outbox * SET_APART_UP_TO)
        self.set_apart = set_apart
        self.returned: dict[int, int] = {}
        self.dropped: set[tuple[str, str]] = set()
        self.max_chunked = int(max_outbox * CHUNKED_UP_TO)
        self.depths = depths
        self.chunked = chunked
        self.chunked_senders = ChunkedSenders()
        self._came_at = float("-inf")
        self.last_row_ids = last_row_ids
        self.counters = counters
        self.last_watermarks: dict[str, LastWatermark] = {}
        self.tail = RecentRows(last_row_ids)
        self.in_flight_through = dict.fromkeys(Lane, 0)
        self.deletable_through = dict.fromkeys(Lane, 0)
        self.give_back: dict[Lane, Callable[[], int]] = {}
        self._copies_moved = asyncio.Event()
        self.deleted_through = dict.fromkeys(Lane, 0)
        self.is_full = self._undroppable_size >= max_outbox
        self.append_count = 0
        self._appended = asyncio.Event()
        self._changed = asyncio.Event()

    @classmethod
    def load(cls, database: sqlite3.Connection, max_outbox: int) -> Self:
        """Measure the outbox of a file that was just opened."""
        depths, chunked, last_row_ids = {}, dict.fromkeys(Lane, 0), {}
        sequences = dict(database.execute("SELECT name, seq FROM sqlite_sequence"))
        for lane, table in schema.OUTBOXES.items():
            depths[lane] = LaneDepth(*database.execute(schema.ROWS_THROUGH[lane], (EVERY_ROW,)).fetchone())
            last_row_ids[lane] = sequences.get(table, 0)
        for lane, table in schema.CHUNKS.items():
            rows, chunked[lane] = database.execute(schema.CHUNKS_THROUGH[lane], (EVERY_ROW,)).fetchone()
            depths[lane] = LaneDepth(depths[lane].rows + rows, depths[lane].size + chunked[lane])
            last_row_ids[lane] = max(last_row_ids[lane], sequences.get(table, 0))
        set_apart = LaneDepth(*database.execute(schema.SET_APART_DEPTH).fetchone())
        index = cls(max_outbox, depths, chunked, last_row_ids, read_counters(database), set_apart)
        index.dropped = {(block, cause) for block, cause, *_ in database.execute(schema.TOO_LARGE)}
        index.chunked_senders.load(database)
        return index

    @property
    def has_deletions(self) -> bool:
        return self.deletable_through != self.deleted_through

    @property
    def size(self) -> int:
        return sum(depth.size for depth in self.depths.values())

    async def wait_for_too_large(self) -> None:
        while not self.set_apart.rows and not self.dropped:
            self._changed.clear()
            await self._changed.wait()

    @property
    def _undroppable_size(self) -> int:
        return self.depths[Lane.ADVISORIES].size + self.depths[Lane.COPIES].size

    async def wait_for_room(self) -> None:
        while self.is_full:
            self._changed.clear()
            await self._changed.wait()

    @property
    def copies_wait(self) -> bool:
        is_acknowledged = self.deletable_through[Lane.COPIES] >= self.last_row_ids[Lane.COPIES]
        return self.depths[Lane.COPIES].rows > 0 and not is_acknowledged

    @property
    def is_filling(self) -> bool:
        """True while a backlog brings registrations by the hundred and there is room for many more."""
        room = min(self.max_outbox * FILLS_UP_TO, self.max_outbox - BATCHES_UNDER_WAY)
        return self.size < room and time.monotonic() - self._came_at < FILLS_WITHIN

    def note_chunked_registrations(self) -> None:
        self._came_at = time.monotonic()

    def copies_move(self) -> None:
        """Note that the uploader takes copies, or that some were acknowledged."""
        self._copies_moved.set()

    async def wait_for_uploads(self) -> None:
        """Wait briefly for an uploader that takes copies, until none is left: then they need not be stored at all.

        The wait is short because the site's stream may not keep unread messages for the time that a slow link takes.
        """
        if not self._copies_moved.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT_FOR_UPLOADS):
                while self.copies_wait:
                    self._copies_moved.clear()
                    await self._copies_moved.wait()
        self._copies_moved.clear()

    def unsent_after(self, lane: Lane) -> int:
        """Return the last row id that may be in flight."""
        return max(self.in_flight_through[lane], self.deletable_through[lane])

    def take(self, lane: Lane, after_row_id: int, row_limit: int, *, is_changing: bool) -> list[OutboxRow] | None:
        """Return rows after one that are in memory, in flight from now on; None if the file must be read.

        ``is_changing``: a transaction is being written, which may replace registrations and the last watermarks.
        """
        if after_row_id >= self.last_row_ids[lane]:
            return []
        if is_changing and lane is Lane.REGISTRATIONS:
            return None
        before = self._first_replaceable if is_changing and lane is Lane.ADVISORIES else EVERY_ROW
        rows = self.tail.take(lane, after_row_id, row_limit, before)
        self.leave(lane, rows or ())
        return rows if before == EVERY_ROW else rows or None

    @property
    def _first_replaceable(self) -> int:
        unsent_after = self.unsent_after(Lane.ADVISORIES)
        unsent = (last.row_id for last in self.last_watermarks.values() if last.row_id > unsent_after)
        return min(unsent, default=EVERY_ROW)

    def leave(self, lane: Lane, rows: Sequence[OutboxRow]) -> None:
        """Note that rows are in flight: from now on they are not replaced."""
        if rows:
            self.in_flight_through[lane] = max(self.in_flight_through[lane], rows[-1].row_id)
            if lane is Lane.COPIES:
                self.copies_move()

    def take_back(self, lane: Lane) -> None:
        """Reduce the rows in flight to those that may have left, without those that were only read ahead."""
        if lane in self.give_back:
            self.in_flight_through[lane] = self.give_back[lane]()

    def acknowledged_through(self) -> dict[Lane, int]:
        return {
            lane: self.deletable_through[lane] if depth.rows else self.last_row_ids[lane]
            for lane, depth in self.depths.items()
        }

    async def wait_for_rows(self, seen: int) -> int:
        while self.append_count == seen:
            await self._appended.wait()
        return self.append_count

    def adopt(
        self,
        depths: dict[Lane, LaneDepth],
        chunked: dict[Lane, int],
        last_row_ids: dict[Lane, int],
        deleted_through: dict[Lane, int],
        last_watermarks: dict[str, LastWatermark],
        set_apart: LaneDepth,
    ) -> None:
        self.set_apart = set_apart
        while len(self.returned) > RETRIED_KEPT:
            del self.returned[next(iter(self.returned))]
        self.depths, self.chunked = depths, chunked
        self.last_row_ids, self.deleted_through = last_row_ids, deleted_through
        self.last_watermarks = last_watermarks
        if not chunked[Lane.REGISTRATIONS]:
            self.chunked_senders.clear()
        else:
            self.chunked_senders.forget_through(deleted_through[Lane.REGISTRATIONS])
        # Reading does not resume for room for a row or two: the outbox would be full, and reported full, at once.
        self.is_full = self._undroppable_size >= (self.max_outbox * RESUMES_AT if self.is_full else self.max_outbox)
        self._changed.set()

    def add_counts(self, additions: dict[str, Counters]) -> None:
        """Add the counts of a committed transaction, by block."""
        for block, causes in additions.items():
            self.counters[block] = sum_counters(self.counters.get(block, {}), causes)

    def announce_rows(self) -> None:
        self.append_count += 1
        self._appended.set()
        self._appended = asyncio.Event()
