"""Index of the outbox in memory: depths, counters, row ids, what is in flight or acknowledged.

Beside it, what the file says of records that were too large for their target: set apart, or dropped.
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
        """Read what waits in a file that was just opened."""
        after = 0
        while chunk := chunks.first_chunk_behind(database, Lane.REGISTRATIONS, after):
            self.add(chunks.rows_of(database, Lane.REGISTRATIONS, chunk))
            after = chunk.last_row_id

    def add(self, rows: Sequence[OutboxRow]) -> None:
        last = rows[-1]
        of_block = self._chunks.setdefault(last.block, {})
        of_block.update(dict.fromkeys([row.sender_id for row in rows], last.row_id))

    def chunks_with(self, rows: Iterable[OutboxRow], unsent_after: int) -> list[int]:
        """Name, by their last rows, the chunks with other unsent rows of these rows' senders; some may have gone."""
        chunks_of = self._chunks
        found = {chunks_of.get(row.block, {}).get(row.sender_id, 0) for row in rows if row.sender_id}
        return sorted(last_row_id for last_row_id in found if last_row_id > unsent_after)

    def forget_through(self, row_id: int) -> None:
        """Forget chunks that have gone up to a row, where they have become many."""
        if sum(map(len, self._chunks.values())) < self._most:
            return
        for block, of_block in self._chunks.items():
            self._chunks[block] = {sender_id: last for sender_id, last in of_block.items() if last > row_id}
        self._most = max(2 * sum(map(len, self._chunks.values())), WORTH_LOOKING)

    def clear(self) -> None:
        """Forget all: nothing waits in a chunk."""
        self._chunks.clear()


class LastWatermark(msgspec.Struct, frozen=True):
    """A block's last record but registrations: the next watermark of its coverage may replace it while it is unsent.

    ``behind`` is the row of an earlier one of the coverage that keeps its place, 0 where none does.
    """

    row_id: int
    since: int
    size: int
    behind: int


def merge_watermarks(
    rows: list[OutboxRow], last_watermarks: dict[str, LastWatermark], end: int, unsent_after: int
) -> tuple[list[OutboxRow], dict[int, int]]:
    """Give those of a lane's new rows that remain, and the superfluous ones before them: sizes in bytes by row id.

    ``last_watermarks``, by block, follow the new rows. ``end`` is the lane's last row before them; rows up to
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
    """Every row of one lane behind ``begins_after``, by row id."""

    def __init__(self, begins_after: int) -> None:
        self.begins_after = begins_after
        self.rows: dict[int, OutboxRow] = {}
        self.size = 0

    def forget(self, begins_after: int) -> None:
        self.begins_after = begins_after
        self.rows.clear()
        self.size = 0


class RecentRows:
    """The ends of all lanes, as last committed."""

    def __init__(self, last_row_ids: Mapping[Lane, int]) -> None:
        self._lanes = {lane: _RecentRowsOfLane(last_row_ids[lane]) for lane in Lane}

    def append(self, lane: Lane, rows: Sequence[OutboxRow], size: int) -> None:
        """Keep rows that were committed, each with its id; ``size`` is that of all, in bytes."""
        tail = self._lanes[lane]
        tail.size += size
        if tail.size > MOST_BYTES:
            tail.forget(rows[-1].row_id)
        else:
            tail.rows |= {row.row_id: row for row in rows}

    def remove(self, lane: Lane, row_ids: Iterable[int]) -> None:
        """Let rows go that were replaced or dropped before they were sent."""
        tail = self._lanes[lane]
        for row_id in row_ids:
            row = tail.rows.pop(row_id, None)
            if row is not None:
                tail.size -= row.size

    def pass_over(self, lane: Lane, through: int) -> None:
        """Let rows go up to one, which nobody here will send: another has delivered what they say."""
        tail = self._lanes[lane]
        while tail.rows and (first := next(iter(tail.rows))) <= through:
            tail.size -= tail.rows.pop(first).size
            tail.begins_after = first

    def forget(self, lane: Lane, last_row_id: int) -> None:
        """Keep nothing of a lane whose last row is ``last_row_id``."""
        self._lanes[lane].forget(last_row_id)

    def take(self, lane: Lane, after_row_id: int, row_limit: int, before: int = EVERY_ROW) -> list[OutboxRow] | None:
        """Hand out the rows between two, at most so many; None where the file must be read.

        What is handed out is not kept: should it have to be sent again, it is read.
        """
        tail = self._lanes[lane]
        if after_row_id < tail.begins_after:
            return None
        taken: list[OutboxRow] = []
        gone: list[OutboxRow] = []
        for row_id, row in tail.rows.items():
            if len(taken) == row_limit or row_id >= before:
                break
            # What the file was read for before it began here is kept in vain.
            (taken if row_id > after_row_id else gone).append(row)
        for row in (*gone, *taken):
            del tail.rows[row.row_id]
            tail.size -= row.size
            tail.begins_after = row.row_id
        return taken


RESUMES_AT = 0.95
"""How full an outbox that was full may be when reading goes on, as a part of its limit."""

LONGEST_WAIT_FOR_UPLOADS = 0.5
CHUNKED_UP_TO = 0.25
"""How much of the limit registrations may take in chunks, as a part of it."""
SET_APART_UP_TO = 0.25
"""How much may be set apart beside it, as a part of the limit."""
RETURNED_KNOWN = 10_000
"""Of so many rows it is known, by id, since when they have been too large: set apart again, they are not news."""
FILLS_WITHIN = 0.25
"""How long, in seconds, registrations of a backlog let those after them go first, if no more of it come."""
FILLS_UP_TO = 0.5
BATCHES_UNDER_WAY = 32 << 20
"""How full an outbox may be that is to take them in, as a part of its limit; and what must fit in beside that, in
bytes: what is being committed and what is read meanwhile."""


def read_counters(database: sqlite3.Connection) -> dict[str, Counters]:
    """Read, by block, what was compacted, dropped and set apart, by cause."""
    counters: dict[str, Counters] = {}
    for block, what, cause, count in database.execute("SELECT block, what, cause, count FROM outbox_counter"):
        counters.setdefault(block, {}).setdefault(what, {})[cause] = count
    return counters


def set_apart_row(database: sqlite3.Connection, row_id: int) -> tuple[OutboxRow, int]:
    """Read a row that is set apart, without its id, and since when it is."""
    ((lane, block, at, size, subject, headers, payload),) = database.execute(schema.SET_APART_ROW, (row_id,))
    headers_size = size - len(payload) - RECORD_OVERHEAD
    return OutboxRow(Lane(lane), block, subject, _headers(headers), payload, headers_size=headers_size), at


def set_apart_sums(database: sqlite3.Connection) -> list[SetApartSum]:
    return [
        SetApartSum(block, Lane(lane).name.lower(), SizeLimit(cause), *measures)
        for block, lane, cause, *measures in database.execute(schema.SET_APART_BY_LIMIT)
    ]


def dropped_too_large(database: sqlite3.Connection) -> list[DroppedTooLarge]:
    """Say what is known to have been dropped for its size."""
    return [
        DroppedTooLarge(block, TooLarge(SizeLimit(cause), needed), at)
        for block, cause, needed, at in database.execute(schema.TOO_LARGE)
    ]


class OutboxIndex:
    """Depths, counters and row ids as last committed, and what is in flight."""

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
        """Measure what waits in a file that was just opened."""
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
        """Tell whether a backlog brings registrations by the hundred, and there is room for many more."""
        room = min(self.max_outbox * FILLS_UP_TO, self.max_outbox - BATCHES_UNDER_WAY)
        return self.size < room and time.monotonic() - self._came_at < FILLS_WITHIN

    def registrations_came(self) -> None:
        self._came_at = time.monotonic()

    def copies_move(self) -> None:
        """Note that the uploader takes copies, or that some were acknowledged."""
        self._copies_moved.set()

    async def let_uploads_follow(self) -> None:
        """Wait a moment for an uploader that takes copies, until none waits: then they need not be stored at all.

        But a slow link is not waited for: the site's stream may not hold for ever what is not read.
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
        """Give the last row id that may be in flight: those behind it are not."""
        return max(self.in_flight_through[lane], self.deletable_through[lane])

    def take(self, lane: Lane, after_row_id: int, row_limit: int, *, is_changing: bool) -> list[OutboxRow] | None:
        """Hand out rows after one that are kept here, in flight from now on; None where the file must be asked.

        ``is_changing``: a transaction is under way, which may replace registrations, and the last watermarks.
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
        """Note that rows are in flight: they are not replaced from now on."""
        if rows:
            self.in_flight_through[lane] = max(self.in_flight_through[lane], rows[-1].row_id)
            if lane is Lane.COPIES:
                self.copies_move()

    def take_back(self, lane: Lane) -> None:
        """Count only what may have left as in flight, not what was read ahead."""
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
        while len(self.returned) > RETURNED_KNOWN:
            del self.returned[next(iter(self.returned))]
        self.depths, self.chunked = depths, chunked
        self.last_row_ids, self.deleted_through = last_row_ids, deleted_through
        self.last_watermarks = last_watermarks
        if not chunked[Lane.REGISTRATIONS]:
            self.chunked_senders.clear()
        else:
            self.chunked_senders.forget_through(deleted_through[Lane.REGISTRATIONS])
        # Room for a row or two is not worth beginning to read again: it would be full at once, and say so each time.
        self.is_full = self._undroppable_size >= (self.max_outbox * RESUMES_AT if self.is_full else self.max_outbox)
        self._changed.set()

    def add_counts(self, additions: dict[str, Counters]) -> None:
        """Count, by block, what a durable transaction let go."""
        for block, causes in additions.items():
            self.counters[block] = sum_counters(self.counters.get(block, {}), causes)

    def announce_rows(self) -> None:
        self.append_count += 1
        self._appended.set()
        self._appended = asyncio.Event()
