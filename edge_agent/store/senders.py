"""Read and write senders as rows: the block's number and the sender's slot make the row's id."""

import sqlite3
from typing import Self

import aiosqlite

from edge_agent.core.senders import SenderPage, SenderState, SenderTable
from edge_agent.store import schema
from shared.identifiers import Incarnation

_SLOT_BITS = 32
_SIGN = 1 << 63
PAGE_ROWS = 5_000

SenderRow = tuple[int, str, int, int, int, int, int, int, int, int, int, int]


class Incarnations:
    """The incarnations that senders' episodes were opened in, by the number that stands for them in rows."""

    def __init__(self, numbers: dict[Incarnation, int]) -> None:
        self._numbers = numbers
        self._uncommitted: dict[Incarnation, int] = {}
        self.by_number = {number: incarnation for incarnation, number in numbers.items()}

    @classmethod
    async def load(cls, database: aiosqlite.Connection) -> Self:
        """Read all of them; there is one per past of a stream."""
        async with database.execute("SELECT number, created_at, epoch_ms FROM incarnation") as cursor:
            return cls({Incarnation(created, epoch): number async for number, created, epoch in cursor})

    def __getitem__(self, incarnation: Incarnation) -> int:
        number = self._numbers.get(incarnation)
        return self._uncommitted[incarnation] if number is None else number

    async def number(self, database: aiosqlite.Connection, incarnation: Incarnation) -> None:
        """Make sure that an incarnation has a number, in the transaction under way."""
        if incarnation in self._numbers or incarnation in self._uncommitted:
            return
        key = (incarnation.created_at, incarnation.epoch_ms)
        await database.execute(schema.PUT_INCARNATION, key)
        query = "SELECT number FROM incarnation WHERE created_at = ? AND epoch_ms = ?"
        async with database.execute(query, key) as cursor:
            row = await cursor.fetchone()
            assert row is not None
            self._uncommitted[incarnation] = row[0]

    def adopt(self) -> None:
        """Keep what the transaction has made durable."""
        self._numbers.update(self._uncommitted)
        self.by_number.update({number: incarnation for incarnation, number in self._uncommitted.items()})
        self._uncommitted.clear()

    def forget_uncommitted(self) -> None:
        """Drop what was rolled back."""
        self._uncommitted.clear()


def slot_range(block_number: int) -> tuple[int, int]:
    """Give the first and the last row id of a block's senders."""
    first = block_number << _SLOT_BITS
    return first, first + (1 << _SLOT_BITS) - 1


def sender_row(first: int, state: SenderState, incarnations: Incarnations) -> SenderRow:
    """Write a sender as a row. SQLite's integers are signed, digests are not."""
    return (
        first + state.slot,
        state.sender_id,
        int(state.phase),
        state.last_seen_at,
        state.last_sequence,
        incarnations[state.opening_incarnation],
        state.opening_sequence,
        state.last_forwarded_at,
        state.forwarded_size,
        state.forwarded_digest - _SIGN,
        int(state.first_interval),
        state.stale_observed_at,
    )


async def load_senders(database: aiosqlite.Connection, block_number: int, incarnations: Incarnations) -> SenderTable:
    """Read a block's senders, page by page: all rows of a million at once would take more than their table does."""
    first, last = slot_range(block_number)
    senders = SenderTable()
    async with database.execute(schema.SENDERS_OF_BLOCK, (first, last)) as cursor:
        while rows := list(await cursor.fetchmany(PAGE_ROWS)):
            senders.take_page(_page(rows, first, incarnations))
    senders.put_in_order()
    return senders


def _page(rows: list[sqlite3.Row], first: int, incarnations: Incarnations) -> SenderPage:
    """Turn rows into columns."""
    row_ids, sender_ids, phases, seen, sequences, numbers, opening, forwarded, sizes, digests, firsts, stale = zip(
        *rows, strict=True
    )
    return SenderPage(
        slots=[row_id - first for row_id in row_ids],
        sender_ids=sender_ids,
        phases=phases,
        last_seen_at=seen,
        last_sequences=sequences,
        opening_incarnations=[incarnations.by_number[number] for number in numbers],
        opening_sequences=opening,
        last_forwarded_at=forwarded,
        forwarded_sizes=sizes,
        forwarded_digests=[digest + _SIGN for digest in digests],
        first_intervals=firsts,
        stale_observed_at=stale,
    )
