"""Changes of the outbox within a transaction: compaction, merged watermarks, and the byte limit.

Advisories, watermarks and copies are never dropped. A newer registration of a sender replaces an older unsent one; over
the byte limit the oldest registrations are dropped and counted, and the decision log records the fate of each. A record
that its target refuses is dead-lettered, outside of the lanes and within a limit of its own, beyond which the oldest is
dropped. Many rows are appended as chunks; registrations only up to a part of the limit, because the chunk of a
registration that is replaced has to be found.
"""

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from edge_agent.core.decisions import Counters
from edge_agent.core.records import Lane, OutboxRow, TooLarge, size_of
from edge_agent.store import chunks, decision_log, schema
from edge_agent.store.chunks import Chunk
from edge_agent.store.outbox_index import OutboxIndex, merge_watermarks, set_apart_row
from edge_agent.store.port import DroppedTooLarge, LaneDepth, Retry
from edge_agent.store.sqlite import put_rows

OUTBOX_FULL = "outbox_full"
TOO_LARGE = "too_large"
SET_APART_FULL = "set_apart_full"
NEWER_SAMPLE = "newer_sample"


class OutboxDelta:
    """The counts of one transaction; they start from the outbox index, which adopts them after the commit.

    ``depths`` is the depth of each lane, ``chunked`` how much of it is in chunks, in bytes. ``additions`` are the
    counts of deleted records by block, ``dropped`` those that an operator dropped. ``set_apart`` is the depth of dead
    letters.
    """

    def __init__(self, index: OutboxIndex) -> None:
        self.depths = dict(index.depths)
        self.chunked = dict(index.chunked)
        self.additions: dict[str, Counters] = {}
        self.dropped = LaneDepth()
        self.set_apart = index.set_apart
        self._max_outbox = index.max_outbox
        self._fates: list[tuple[str, int]] = []

    @property
    def excess(self) -> int:
        """How far the outbox is over its limit, in bytes; negative if it is under it."""
        return sum(depth.size for depth in self.depths.values()) - self._max_outbox

    def has_single_rows(self, lane: Lane) -> bool:
        return self.depths[lane].size > self.chunked[lane]

    def resize(self, lane: Lane, rows: int, size: int) -> None:
        """Add ``rows`` and ``size`` in bytes to a lane's depth; negative ones are subtracted."""
        depth = self.depths[lane]
        self.depths[lane] = LaneDepth(depth.rows + rows, depth.size + size)

    def resize_chunked(self, lane: Lane, rows: int, size: int) -> None:
        self.resize(lane, rows, size)
        self.chunked[lane] += size

    def replace(self, block: str, row_id: int) -> None:
        """Count a registration that a newer one of its sender replaces; the caller subtracts its size."""
        self.count(block, "compacted", NEWER_SAMPLE)
        self._fates.append((NEWER_SAMPLE, row_id))

    def drop(self, block: str, cause: str, row_id: int, size: int) -> None:
        """Count a dropped registration of ``size`` bytes."""
        self.count(block, "dropped", cause)
        self._fates.append((cause, row_id))
        self.resize(Lane.REGISTRATIONS, -1, -size)

    def drop_together(self, block: str, cause: str, rows: int, size: int) -> None:
        """Count registrations that an operator dropped; the caller records the fate of each."""
        self.count(block, "dropped", cause, rows)
        self.resize(Lane.REGISTRATIONS, -rows, -size)
        self.dropped = LaneDepth(self.dropped.rows + rows, self.dropped.size + size)

    def resize_set_apart(self, rows: int, size: int) -> None:
        """Add ``rows`` and ``size`` in bytes to the depth of dead letters."""
        self.set_apart = LaneDepth(self.set_apart.rows + rows, self.set_apart.size + size)

    def drop_set_apart(self, block: str, cause: str, size: int) -> None:
        """Count a dropped dead letter of ``size`` bytes."""
        self.count(block, "dropped", cause)
        self.resize_set_apart(-1, -size)
        self.dropped = LaneDepth(self.dropped.rows + 1, self.dropped.size + size)

    def write(self, database: sqlite3.Connection) -> None:
        """Write the counts, and the fates of registrations that were deleted one by one."""
        if self._fates:
            database.executemany(decision_log.SET_FATE, self._fates)
            database.executemany(decision_log.SET_FATE_IN_CHUNK, self._fates)
        counts = [
            (block, what, cause, count)
            for block, additions in self.additions.items()
            for what, causes in additions.items()
            for cause, count in causes.items()
        ]
        if counts:
            database.executemany(schema.ADD_COUNT, counts)

    def count(self, block: str, what: str, cause: str, count: int = 1) -> None:
        causes = self.additions.setdefault(block, {}).setdefault(what, {})
        causes[cause] = causes.get(cause, 0) + count


class SetApartChange:
    """Changes of the dead letters in one transaction; call adopt() after the commit.

    A row that is appended to its lane again gets a new id. The index remembers that id for a while: if the row is
    refused once more, it is not counted again and keeps the instant of its first refusal.
    """

    def __init__(self, index: OutboxIndex, delta: OutboxDelta) -> None:
        self._index, self._delta = index, delta
        self._kept: list[int] = []
        self._returned: dict[int, int] = {}

    def adopt(self) -> None:
        """Note in the outbox index which rows were tried again."""
        self._index.returned |= self._returned
        for row_id in self._kept:
            self._index.returned.pop(row_id, None)

    def keep(self, database: sqlite3.Connection, row: OutboxRow, too_large: TooLarge, at: int) -> None:
        """Copy a row from its lane, if it is still there; over the byte limit the oldest dead letter is dropped."""
        first_at = self._index.returned.get(row.row_id)
        values = (row.lane, too_large.limit, too_large.needed, first_at or at, row.row_id)
        if not database.execute(schema.SET_APART[row.lane], values).rowcount:
            return
        self._kept.append(row.row_id)
        self._delta.resize_set_apart(1, row.size)
        if first_at is None:
            self._delta.count(row.block, "set_apart", too_large.limit)
        while (excess := self._delta.set_apart.size - self._index.max_set_apart) > 0:
            for row_id, block, size in database.execute(schema.OLDEST_SET_APART).fetchall():
                if excess <= 0:
                    break
                excess -= size
                self._drop(database, (row_id, block, size), SET_APART_FULL)

    def take(self, database: sqlite3.Connection, which: Retry) -> list[tuple[OutboxRow, int]]:
        """Delete and return rows to send again, ordered by id, each with the instant of its first refusal."""
        chosen: list[int] = []
        size = 0
        wanted = (which.lane, which.block, which.limit, which.needed, which.before)
        for row_id, row_size in database.execute(schema.SET_APART_OF_BLOCK, wanted).fetchall():
            chosen.append(row_id)
            size += row_size
            if size >= which.byte_limit:
                break
        found = [set_apart_row(database, row_id) for row_id in sorted(chosen)]
        database.executemany(schema.DELETE_SET_APART, [(row_id,) for row_id in chosen])
        self._delta.resize_set_apart(-len(found), -sum(row.size for row, _ in found))
        return found

    def note_return(self, row_id: int, at: int) -> None:
        self._returned[row_id] = at

    @property
    def returned_ids(self) -> list[int]:
        return list(self._returned)

    def drop(self, database: sqlite3.Connection, blocks: str, cause: str) -> None:
        """Drop all dead letters of the blocks that match a GLOB, counted."""
        for row in database.execute(schema.SET_APART_OF_BLOCKS, (blocks,)).fetchall():
            self._drop(database, row, cause)

    def _drop(self, database: sqlite3.Connection, row: tuple[int, str, int], cause: str) -> None:
        row_id, block, size = row
        database.execute(schema.DELETE_SET_APART, (row_id,))
        self._delta.drop_set_apart(block, cause, size)


_encode = msgspec.json.Encoder().encode


class OutboxChange:
    """Changes of the outbox in one transaction; call adopt() after the commit."""

    _database: sqlite3.Connection

    def __init__(self, index: OutboxIndex, *, is_behind: bool) -> None:
        self._index, self._is_behind = index, is_behind
        # Copies: the uploader continues while the transaction is written.
        self._deletable_through = dict(index.deletable_through)
        self._unsent_after = {lane: index.unsent_after(lane) for lane in Lane}
        self._delta = OutboxDelta(index)
        self._new_chunks: list[Sequence[OutboxRow]] = []
        self._last_row_ids = dict(index.last_row_ids)
        self._last_watermarks = dict(index.last_watermarks)
        self._deleted_through = dict(index.deleted_through)
        self._appended: dict[Lane, tuple[list[OutboxRow], int]] = {}
        self._removed_ids: dict[Lane, list[int]] = {lane: [] for lane in Lane}
        self._has_dropped_unsent = False
        self._set_apart_rows = SetApartChange(index, self._delta)
        self._dropped = set(index.dropped)

    @property
    def dropped(self) -> LaneDepth:
        return self._delta.dropped

    @property
    def retried_ids(self) -> list[int]:
        """The new ids of dead letters that wait in their lane again."""
        return self._set_apart_rows.returned_ids

    @property
    def last_row_id(self) -> int:
        """The largest row id that any lane has had."""
        return max(self._last_row_ids.values())

    def adopt(self) -> None:
        """Update the outbox index with the committed changes."""
        delta = self._delta
        self._index.dropped = self._dropped
        self._index.adopt(
            delta.depths,
            delta.chunked,
            self._last_row_ids,
            self._deleted_through,
            self._last_watermarks,
            delta.set_apart,
        )
        self._set_apart_rows.adopt()
        self._index.add_counts(delta.additions)
        for rows in self._new_chunks:
            self._index.chunked_senders.add(rows)
        for lane, (appended, size) in self._appended.items():
            self._index.tail.append(lane, appended, size)
        for lane, row_ids in self._removed_ids.items():
            self._index.tail.remove(lane, row_ids)
        if self._has_dropped_unsent:
            self._index.tail.forget(Lane.REGISTRATIONS, self._last_row_ids[Lane.REGISTRATIONS])
        if self._is_behind and len(self._appended.get(Lane.REGISTRATIONS, ((), 0))[0]) >= chunks.WORTH_A_CHUNK:
            self._index.note_chunked_registrations()
        if self._appended or self._has_dropped_unsent:
            self._index.announce_rows()

    def begin(self, database: sqlite3.Connection) -> None:
        """Begin in the open transaction, on any thread; delete the rows that the uploader has released."""
        self._database = database
        for lane, row_id in self._deletable_through.items():
            if row_id == self._deleted_through[lane]:
                continue
            if self._delta.has_single_rows(lane):
                ((rows, size),) = self._database.execute(schema.ROWS_THROUGH[lane], (row_id,))
                self._database.execute(schema.DELETE_THROUGH[lane], (row_id,))
                self._delta.resize(lane, -rows, -size)
            if self._delta.chunked[lane]:
                ((rows, size),) = self._database.execute(schema.CHUNKS_THROUGH[lane], (row_id,))
                self._database.execute(schema.DELETE_CHUNKS_THROUGH[lane], (row_id,))
                self._delta.resize_chunked(lane, -rows, -size)
            self._deleted_through[lane] = row_id

    def append(self, rows: Sequence[OutboxRow]) -> int:
        """Append rows; registrations replace older unsent ones, watermarks the previous one of their block.

        Return the id of the first row; the ids of the others follow it.
        """
        first = max(self._last_row_ids.values()) + 1
        lanes: tuple[list[OutboxRow], ...] = ([], [], [])
        for row_id, row in enumerate(rows, first):
            lanes[row.lane].append(_with_row_id(row, row_id))
        advisories, registrations, copies = lanes
        registrations = self._newest_by_sender(registrations)
        self._unpack_chunks_of(registrations)
        self._delete_replaced(registrations)
        self._append(Lane.REGISTRATIONS, registrations)
        self._append(Lane.ADVISORIES, self._without_superfluous(advisories))
        self._append(Lane.COPIES, copies)
        return first

    def trim(self) -> None:
        """Drop the oldest unsent registrations while the outbox is over its limit, counted."""
        after = self._unsent_after[Lane.REGISTRATIONS]
        while (excess := self._delta.excess) > 0:
            chunk = self._first_chunk(Lane.REGISTRATIONS)
            behind = chunk.first_row_id if chunk else schema.EVERY_ROW
            rows = list(self._database.execute(schema.OLDEST_REGISTRATIONS, (after, behind)))
            if not rows:
                if chunk is None:
                    return
                self._unpack(Lane.REGISTRATIONS, chunk)
            dropped = []
            for row_id, size, block in rows:
                if excess <= 0:
                    break
                excess -= size
                dropped.append((row_id,))
                self._delta.drop(block, OUTBOX_FULL, row_id, size)
            self._database.executemany(schema.DELETE_ROW[Lane.REGISTRATIONS], dropped)
            self._removed_ids[Lane.REGISTRATIONS].extend(row_id for (row_id,) in dropped)

    def set_apart(self, row: OutboxRow, too_large: TooLarge, at: int) -> None:
        """Dead-letter a row in flight, counted; does nothing if the row is gone.

        Registrations and watermarks are dropped instead: later ones say the same, or more.
        """
        lane, row_id = row.lane, row.row_id
        chunk = chunks.first_chunk_behind(self._database, lane, row_id - 1)
        if chunk and chunk.first_row_id <= row_id:
            self._unpack(lane, chunk)
        is_kept = lane is not Lane.REGISTRATIONS and not row.is_watermark
        if is_kept:
            self._set_apart_rows.keep(self._database, row, too_large, at)
        if not self._database.execute(schema.DELETE_ROW[lane], (row_id,)).rowcount:
            return
        if lane is Lane.REGISTRATIONS:
            self._delta.drop(row.block, TOO_LARGE, row_id, row.size)
        else:
            self._delta.resize(lane, -1, -row.size)
        if row.is_watermark:
            self._delta.count(row.block, "dropped", TOO_LARGE)
        if not is_kept:
            self._database.execute(schema.NOTE_TOO_LARGE, (row.block, too_large.limit, too_large.needed, at))
            self._dropped.add((row.block, too_large.limit))

    def forget_dropped(self, dropped: Sequence[DroppedTooLarge]) -> None:
        """Delete notes of records dropped for their size, unless another was dropped since."""
        for each in dropped:
            which = each.block, each.too_large.limit
            if self._database.execute(schema.FORGET_TOO_LARGE, (*which, each.at)).rowcount:
                self._dropped.discard(which)

    def retry(self, which: Retry) -> None:
        found = self._set_apart_rows.take(self._database, which)
        if found:
            first = self.append([row for row, _ in found])
            for row_id, (_, at) in enumerate(found, first):
                self._set_apart_rows.note_return(row_id, at)

    def drop_set_apart(self, blocks: str, cause: str) -> None:
        self._set_apart_rows.drop(self._database, blocks, cause)

    def drop_unsent(self, blocks: str, cause: str) -> None:
        """Drop every registration that is not in flight, of the blocks that match a GLOB."""
        after = self._unsent_after[Lane.REGISTRATIONS]
        chunk = self._first_chunk(Lane.REGISTRATIONS)
        if chunk and chunk.first_row_id <= after:
            self._unpack(Lane.REGISTRATIONS, chunk)
        which = (after, blocks)
        for chunk in [Chunk(*row) for row in self._database.execute(schema.UNSENT_CHUNKS, which)]:
            self._delta.drop_together(chunk.block, cause, chunk.count, chunk.size)
            self._delta.chunked[Lane.REGISTRATIONS] -= chunk.size
            within = (cause, chunk.first_row_id, chunk.last_row_id)
            self._database.execute(decision_log.SET_FATES_WITHIN, within)
            self._database.execute(decision_log.SET_FATES_WITHIN_CHUNKS, within)
            self._database.execute(schema.DELETE_CHUNK[Lane.REGISTRATIONS], (chunk.last_row_id,))
        for block, rows, size in self._database.execute(schema.UNSENT_REGISTRATIONS, which):
            self._delta.drop_together(block, cause, rows, size)
        self._database.execute(decision_log.SET_FATE_OF_UNSENT, (cause, *which))
        self._database.execute(decision_log.SET_FATE_OF_UNSENT_IN_CHUNK, (cause, *which))
        self._database.execute(schema.DELETE_UNSENT, which)
        self._has_dropped_unsent = True

    def unpack_acknowledged(self) -> None:
        """Delete the acknowledged records of a chunk, too: the next run on the file would send them again."""
        for lane in schema.CHUNKS:
            through = self._deletable_through[lane]
            chunk = chunks.first_chunk_behind(self._database, lane, through)
            if chunk and chunk.first_row_id <= through:
                self._unpack(lane, chunk)

    def finish(self) -> None:
        self._delta.write(self._database)

    # Appending

    def _append(self, lane: Lane, rows: list[OutboxRow]) -> None:
        if not rows:
            return
        self._last_row_ids[lane] = rows[-1].row_id
        put = self._put_chunks if self._is_worth_chunks(lane, rows) else self._insert
        self._appended[lane] = rows, put(lane, rows)

    def _insert(self, lane: Lane, rows: list[OutboxRow]) -> int:
        values = [
            (
                row.row_id,
                row.block,
                row.sender_id,
                row.size,
                row.watermark_since,
                row.subject,
                _encode(row.headers),
                row.payload,
            )
            for row in rows
        ]
        put_rows(self._database, schema.PUT_ROW[lane], values)
        size = size_of(rows)
        self._delta.resize(lane, len(rows), size)
        return size

    def _without_superfluous(self, rows: list[OutboxRow]) -> list[OutboxRow]:
        """Omit watermarks that later ones replace, and delete those that are already in the lane."""
        lane = Lane.ADVISORIES
        kept, superfluous = merge_watermarks(
            rows, self._last_watermarks, self._last_row_ids[lane], self._unsent_after[lane]
        )
        for row_id, size in superfluous.items():
            self._database.execute(schema.DELETE_ROW[Lane.ADVISORIES], (row_id,))
            self._removed_ids[lane].append(row_id)
            self._delta.resize(lane, -1, -size)
        return kept

    # Compaction

    def _newest_by_sender(self, rows: list[OutboxRow]) -> list[OutboxRow]:
        newest = {row.sender_id: row.row_id for row in rows}
        if len(newest) == len(rows):
            return rows
        kept = []
        for row in rows:
            if not row.sender_id or newest[row.sender_id] == row.row_id:
                kept.append(row)
            else:
                self._delta.replace(row.block, row.row_id)
        return kept

    def _delete_replaced(self, rows: Iterable[OutboxRow], through: int = schema.EVERY_ROW) -> set[str]:
        """Delete unsent rows of the same senders up to ``through``; return the senders that have rows after it."""
        lane = Lane.REGISTRATIONS
        after = self._unsent_after[lane]
        newer: set[str] = set()
        if self._last_row_ids[lane] <= after or not self._delta.has_single_rows(lane):
            return newer
        senders: dict[str, list[str]] = {}
        for row in rows:
            if row.sender_id:
                senders.setdefault(row.block, []).append(row.sender_id)
        for block, sender_ids in senders.items():
            wanted = (msgspec.json.encode(sender_ids).decode(), block, after)
            found = list(self._database.execute(schema.REPLACED_REGISTRATIONS, wanted))
            newer.update(sender_id for row_id, _, sender_id in found if row_id > through)
            replaced = [(row_id, size) for row_id, size, _ in found if row_id <= through]
            self._database.executemany(schema.DELETE_ROW[Lane.REGISTRATIONS], [(row_id,) for row_id, _ in replaced])
            self._removed_ids[lane].extend(row_id for row_id, _ in replaced)
            self._delta.resize(lane, -len(replaced), -sum(size for _, size in replaced))
            for row_id, _ in replaced:
                self._delta.replace(block, row_id)
        return newer

    # Chunks

    def _is_worth_chunks(self, lane: Lane, rows: list[OutboxRow]) -> bool:
        if len(rows) < chunks.WORTH_A_CHUNK or lane is Lane.COPIES:
            return False
        # The next watermark may replace one, and their number is shown to people.
        is_small = lane is not Lane.REGISTRATIONS or self._delta.chunked[lane] <= self._index.max_chunked
        return is_small and not any(row.watermark_since for row in rows)

    def _put_chunks(self, lane: Lane, rows: list[OutboxRow]) -> int:
        pieces = chunks.put_chunks(self._database, lane, rows)
        if lane is Lane.REGISTRATIONS:
            self._new_chunks += [piece for piece, _ in pieces]
        size = sum(size for _, size in pieces)
        self._delta.resize_chunked(lane, len(rows), size)
        return size

    def _first_chunk(self, lane: Lane) -> Chunk | None:
        """Return the first chunk with rows that are not in flight."""
        if not self._delta.chunked[lane]:
            return None
        return chunks.first_chunk_behind(self._database, lane, self._unsent_after[lane])

    def _unpack_chunks_of(self, rows: Iterable[OutboxRow]) -> None:
        """Unpack the chunks that hold older registrations of the same senders."""
        if self._delta.chunked[Lane.REGISTRATIONS]:
            unsent_after = self._unsent_after[Lane.REGISTRATIONS]
            for last_row_id in self._index.chunked_senders.chunks_with(rows, unsent_after):
                chunk = chunks.first_chunk_behind(self._database, Lane.REGISTRATIONS, last_row_id - 1)
                if chunk and chunk.last_row_id == last_row_id:
                    self._unpack(Lane.REGISTRATIONS, chunk)

    def _unpack(self, lane: Lane, chunk: Chunk) -> None:
        """Turn a chunk into single rows, without those that were acknowledged or that a newer registration replaces."""
        acknowledged, unsent = self._deletable_through[lane], self._unsent_after[lane]
        rows = chunks.rows_of(self._database, lane, chunk)
        self._database.execute(schema.DELETE_CHUNK[lane], (chunk.last_row_id,))
        self._delta.resize_chunked(lane, -chunk.count, -chunk.size)
        newer = self._delete_replaced([row for row in rows if row.row_id > unsent], chunk.last_row_id)
        for row in rows:
            if row.row_id > unsent and row.sender_id in newer:
                self._delta.replace(row.block, row.row_id)
                self._removed_ids[lane].append(row.row_id)
        self._insert(
            lane,
            [
                row
                for row in rows
                if acknowledged < row.row_id <= unsent or (row.row_id > unsent and row.sender_id not in newer)
            ],
        )


def _with_row_id(row: OutboxRow, row_id: int) -> OutboxRow:
    """Set a row's id; a row that has one already is copied, since others refer to it by that id."""
    if row.row_id:
        return msgspec.structs.replace(row, row_id=row_id)
    msgspec.structs.force_setattr(row, "row_id", row_id)
    return row
