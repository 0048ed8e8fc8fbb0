"""Keep what its target cannot take where it holds up nobody: beside the lanes, within a bound of its own.

A row that goes back to its lane, for another trial, gets a new id. It is known by that here for a while: set apart
again, it is no news, and has been too large since the first time.
"""

import sqlite3

import msgspec

from edge_agent.core.records import RECORD_OVERHEAD, Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.store import schema
from edge_agent.store.outbox_delta import OutboxDelta
from edge_agent.store.outbox_index import OutboxIndex
from edge_agent.store.port import DroppedTooLarge, PutBack, SetApartSum

SET_APART_FULL = "set_apart_full"

_headers = msgspec.json.Decoder(dict[str, str]).decode


def set_apart_row(database: sqlite3.Connection, row_id: int) -> tuple[OutboxRow, int]:
    """Read a row that is set apart, without its id, and since when it is."""
    ((lane, block, at, size, subject, headers, payload),) = database.execute(schema.SET_APART_ROW, (row_id,))
    headers_size = size - len(payload) - RECORD_OVERHEAD
    return OutboxRow(Lane(lane), block, subject, _headers(headers), payload, headers_size=headers_size), at


def set_apart_sums(database: sqlite3.Connection) -> list[SetApartSum]:
    """Sum up what is set apart, by block, lane and limit."""
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


class SetApartChange:
    """What one transaction does to what is set apart; adopt() it when that was durable."""

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
        """Take a row over from its lane, where it still is; beyond the bound, the oldest goes, counted."""
        first_at = self._index.returned.get(row.row_id)
        values = (too_large.limit, too_large.needed, first_at or at, row.row_id)
        if not database.execute(schema.set_apart(row.lane), values).rowcount:
            return
        self._kept.append(row.row_id)
        self._delta.resize_set_apart(1, row.size)
        if first_at is None:
            self._delta.count_set_apart(row.block, too_large.limit)
        while (excess := self._delta.set_apart.size - self._index.max_set_apart) > 0:
            for row_id, block, size in database.execute(schema.OLDEST_SET_APART).fetchall():
                if excess <= 0:
                    break
                excess -= size
                self._drop(database, (row_id, block, size), SET_APART_FULL)

    def take(self, database: sqlite3.Connection, which: PutBack) -> list[tuple[OutboxRow, int]]:
        """Give up rows that go back to their lane, in the order in which they came; and since when they were here."""
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

    def returned(self, row_id: int, at: int) -> None:
        """Note the new id of a row that goes back."""
        self._returned[row_id] = at

    @property
    def returned_ids(self) -> list[int]:
        """Give the new ids of the rows that go back."""
        return list(self._returned)

    def drop(self, database: sqlite3.Connection, blocks: str, cause: str) -> None:
        """Drop everything of the blocks that match a GLOB, counted."""
        for row in database.execute(schema.SET_APART_OF_BLOCKS, (blocks,)).fetchall():
            self._drop(database, row, cause)

    def _drop(self, database: sqlite3.Connection, row: tuple[int, str, int], cause: str) -> None:
        row_id, block, size = row
        database.execute(schema.DELETE_SET_APART, (row_id,))
        self._delta.drop_set_apart(block, cause, size)
