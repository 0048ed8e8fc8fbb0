"""Change the outbox within a transaction: compaction, merging of watermarks, the byte limit, and counts by cause.

Advisories, watermarks and copies are never dropped. A newer registration of a sender replaces an older one that has not
been sent; over the byte limit the oldest registrations go, counted, and the log of decisions says of each what became
of it.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from edge_agent.core.block_state import Counters
from edge_agent.core.outgoing import RECORD_OVERHEAD, Lane, OutboxRow
from edge_agent.ports import LaneDepth
from edge_agent.store import schema
from edge_agent.store.bulk import put_rows
from edge_agent.store.outbox_books import LastWatermark, OutboxBooks

NEWER_SAMPLE = "newer_sample"
OUTBOX_FULL = "outbox_full"

_encode = msgspec.json.Encoder().encode

NumberedRow = tuple[int, OutboxRow]


class OutboxChange:
    """What one transaction does to the outbox; adopt() it when that was durable."""

    _database: sqlite3.Connection

    def __init__(self, books: OutboxBooks) -> None:
        self._books = books
        # As it is now: what the uploader does goes on while the transaction is written.
        self._deletable_through = dict(books.deletable_through)
        self._unsent_after = {lane: books.unsent_after(lane) for lane in Lane}
        self._depths = dict(books.depths)
        self._last_row_ids = dict(books.last_row_ids)
        self._last_watermark = books.last_watermark
        self._deleted_through = dict(books.deleted_through)
        self._additions: dict[str, Counters] = {}
        self._appended: dict[Lane, list[NumberedRow]] = {}
        self._removed: dict[Lane, list[int]] = {lane: [] for lane in Lane}
        self._has_dropped_unsent = False
        self.dropped = LaneDepth()
        self._fates: list[tuple[str, int]] = []

    def adopt(self) -> None:
        """Let the books say what the transaction made durable."""
        self._books.adopt(self._depths, self._last_row_ids, self._deleted_through, self._last_watermark)
        self._books.add_counts(self._additions)
        for lane, rows in self._appended.items():
            self._books.tail.append(lane, rows)
        for lane, row_ids in self._removed.items():
            self._books.tail.remove(lane, row_ids)
        if self._has_dropped_unsent:
            self._books.tail.forget(Lane.REGISTRATIONS, self._last_row_ids[Lane.REGISTRATIONS])
        if self._appended:
            self._books.announce_rows()

    def begin(self, database: sqlite3.Connection) -> None:
        """Write into the transaction under way, from any thread; delete what the uploader has let go."""
        self._database = database
        for lane, row_id in self._deletable_through.items():
            if row_id == self._deleted_through[lane]:
                continue
            ((rows, size),) = self._database.execute(schema.rows_through(lane), (row_id,))
            self._database.execute(schema.delete_through(lane), (row_id,))
            self._resize(lane, -rows, -size)
            self._deleted_through[lane] = row_id

    def append(self, rows: Sequence[OutboxRow]) -> int:
        """Append rows to their lanes: registrations replace older unsent ones, watermarks the one just before.

        Give the first one's row id; the others' follow.
        """
        first = max(self._last_row_ids.values()) + 1
        advisories, registrations, copies = (
            [(row_id, row) for row_id, row in enumerate(rows, first) if row.lane is lane] for lane in Lane
        )
        registrations = self._newest_by_sender(registrations)
        self._delete_replaced([row for _, row in registrations])
        self._insert(Lane.REGISTRATIONS, registrations)
        self._insert(Lane.ADVISORIES, self._merged(advisories))
        self._insert(Lane.COPIES, copies)
        return first

    def trim(self) -> None:
        """Drop the oldest unsent registrations while the outbox is over its limit, counted."""
        excess = sum(depth.size for depth in self._depths.values()) - self._books.max_outbox
        after = self._unsent_after[Lane.REGISTRATIONS]
        while excess > 0:
            rows = list(self._database.execute(schema.OLDEST_REGISTRATIONS, (after,)))
            if not rows:
                return
            dropped = []
            for row_id, size, block in rows:
                if excess <= 0:
                    break
                dropped.append((row_id,))
                excess -= size
                self._count(block, "dropped", OUTBOX_FULL)
                self._fates.append((OUTBOX_FULL, row_id))
                self._resize(Lane.REGISTRATIONS, -1, -size)
            self._database.executemany(schema.DELETE_REGISTRATION, dropped)
            self._removed[Lane.REGISTRATIONS].extend(row_id for (row_id,) in dropped)

    def discard(self, row: OutboxRow, cause: str) -> None:
        """Drop one registration, counted by ``cause``; without effect where it is gone already."""
        cursor = self._database.execute(schema.DELETE_REGISTRATION, (row.row_id,))
        if cursor.rowcount:
            self._count(row.block, "dropped", cause)
            self._fates.append((cause, row.row_id))
            self._resize(Lane.REGISTRATIONS, -1, -row.size)

    def drop_unsent(self, blocks: str, cause: str) -> None:
        """Drop every registration that is not in flight, of the blocks that match a GLOB."""
        which = (self._unsent_after[Lane.REGISTRATIONS], blocks)
        for block, rows, size in self._database.execute(schema.UNSENT_REGISTRATIONS, which):
            self._count(block, "dropped", cause, rows)
            self._resize(Lane.REGISTRATIONS, -rows, -size)
            self.dropped = LaneDepth(self.dropped.rows + rows, self.dropped.size + size)
        self._database.execute(schema.SET_FATE_OF_UNSENT, (cause, *which))
        self._database.execute(schema.DELETE_UNSENT, which)
        self._has_dropped_unsent = True

    def finish(self) -> None:
        """Write what this transaction counted, and what became of the registrations that it let go."""
        if self._fates:
            self._database.executemany(schema.SET_FATE, self._fates)
        counts = [
            (block, what, cause, count)
            for block, additions in self._additions.items()
            for what, causes in additions.items()
            for cause, count in causes.items()
        ]
        if counts:
            self._database.executemany(schema.ADD_COUNT, counts)

    def _newest_by_sender(self, rows: list[NumberedRow]) -> list[NumberedRow]:
        newest = {row.sender_id: row_id for row_id, row in rows}
        if len(newest) == len(rows):
            return rows
        kept = []
        for row_id, row in rows:
            if not row.sender_id or newest[row.sender_id] == row_id:
                kept.append((row_id, row))
            else:
                self._count(row.block, "compacted", NEWER_SAMPLE)
                self._fates.append((NEWER_SAMPLE, row_id))
        return kept

    def _delete_replaced(self, rows: Iterable[OutboxRow]) -> None:
        after = self._unsent_after[Lane.REGISTRATIONS]
        if self._last_row_ids[Lane.REGISTRATIONS] <= after or not self._depths[Lane.REGISTRATIONS].rows:
            return
        senders: dict[str, list[str]] = {}
        for row in rows:
            if row.sender_id:
                senders.setdefault(row.block, []).append(row.sender_id)
        for block, sender_ids in senders.items():
            wanted = (msgspec.json.encode(sender_ids).decode(), block, after)
            replaced = list(self._database.execute(schema.REPLACED_REGISTRATIONS, wanted))
            self._database.executemany(schema.DELETE_REGISTRATION, [(row_id,) for row_id, _ in replaced])
            self._removed[Lane.REGISTRATIONS].extend(row_id for row_id, _ in replaced)
            for row_id, size in replaced:
                self._count(block, "compacted", NEWER_SAMPLE)
                self._fates.append((NEWER_SAMPLE, row_id))
                self._resize(Lane.REGISTRATIONS, -1, -size)

    def _merged(self, rows: list[NumberedRow]) -> list[NumberedRow]:
        """Leave out watermarks that the next row makes superfluous, the unsent one at the lane's end included."""
        if not rows:
            return rows
        last = self._last_watermark
        if last and last.row_id > self._unsent_after[Lane.ADVISORIES]:
            _, first = rows[0]
            if first.is_watermark and (first.block, first.watermark_since) == (last.block, last.since):
                self._database.execute(schema.DELETE_ADVISORY, (last.row_id,))
                self._removed[Lane.ADVISORIES].append(last.row_id)
                self._resize(Lane.ADVISORIES, -1, -last.size)
        following: list[OutboxRow | None] = [*(row for _, row in rows[1:]), None]
        return [each for each, after in zip(rows, following, strict=True) if not _supersedes(after, each[1])]

    def _insert(self, lane: Lane, rows: list[NumberedRow]) -> None:
        if not rows:
            return
        values = [
            (
                row_id,
                row.block,
                row.sender_id,
                len(row.payload) + RECORD_OVERHEAD,
                row.watermark_since,
                row.subject,
                _encode(row.headers),
                row.payload,
            )
            for row_id, row in rows
        ]
        put_rows(self._database, partial(schema.put_in_outbox, lane), values)
        last_row_id, last = rows[-1]
        self._last_row_ids[lane] = last_row_id
        self._appended[lane] = rows
        self._resize(lane, len(rows), sum([row.size for _, row in rows]))
        if lane is Lane.ADVISORIES:
            self._last_watermark = (
                LastWatermark(last_row_id, last.block, last.watermark_since, last.size) if last.is_watermark else None
            )

    def _resize(self, lane: Lane, rows: int, size: int) -> None:
        depth = self._depths[lane]
        self._depths[lane] = LaneDepth(depth.rows + rows, depth.size + size)

    def _count(self, block: str, what: str, cause: str, count: int = 1) -> None:
        causes = self._additions.setdefault(block, {}).setdefault(what, {})
        causes[cause] = causes.get(cause, 0) + count


def _supersedes(row: OutboxRow | None, before: OutboxRow) -> bool:
    """Tell whether a watermark just behind another of the same coverage says all that the other said."""
    return (
        row is not None
        and row.is_watermark
        and before.is_watermark
        and (row.block, row.watermark_since) == (before.block, before.watermark_since)
    )
