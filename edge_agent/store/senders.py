"""Read and write senders as rows: the block's number and the sender's slot make the row's id."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import aiosqlite
import msgspec

from edge_agent.core.senders import SenderChanges, SenderPage, SenderTable
from edge_agent.store import schema
from edge_agent.store.incarnations import Incarnations
from edge_agent.store.sqlite import StoreDamaged, put_rows
from shared.identifiers import Incarnation

_SLOT_BITS = 32
_SIGN = 1 << 63
PAGE_ROWS = 5_000
_ANY = Incarnation(0, 0)


def slot_range(block_number: int) -> tuple[int, int]:
    """Give the first and the last row id of a block's senders."""
    first = block_number << _SLOT_BITS
    return first, first + (1 << _SLOT_BITS) - 1


def write_senders(
    database: sqlite3.Connection, block_number: int, changes: SenderChanges, incarnations: Incarnations
) -> None:
    """Write a block's changed senders, in the transaction under way."""
    first, _ = slot_range(block_number)
    if changes.retired:
        database.executemany(schema.DELETE_SENDER, [(first + state.slot,) for state in changes.retired])
    states = (*changes.heard, *changes.stale)
    number_of = incarnations.number_all(database, (state.opening_incarnation for state in states))
    rows = [
        (
            first + state.slot,
            state.sender_id,
            int(state.phase),
            state.last_seen_at,
            state.last_sequence,
            number_of(state.opening_incarnation),
            state.opening_sequence,
            state.last_forwarded_at,
            state.forwarded_size,
            # SQLite's integers are signed, digests are not.
            state.forwarded_digest - _SIGN,
            state.first_interval,
            state.stale_observed_at,
        )
        for state in states
    ]
    put_rows(database, schema.put_senders, rows)


async def load_senders(database: aiosqlite.Connection, block_number: int, incarnations: Incarnations) -> SenderTable:
    """Read a block's senders, page by page: all rows of a million at once would take more than their table does.

    Raise StoreDamaged for what no agent wrote.
    """
    first, last = slot_range(block_number)
    senders, by_number = SenderTable(), incarnations.by_number()
    async with database.execute(schema.SENDERS_OF_BLOCK, (first, last)) as cursor:
        while rows := list(await cursor.fetchmany(PAGE_ROWS)):
            with _row_damage_detection():
                senders.take_page(_page(rows, first, by_number))
    senders.put_in_order()
    return senders


def check_senders(database: sqlite3.Connection, block_number: int) -> None:
    """Read a block's senders, and keep none; raise StoreDamaged as load_senders() does."""
    first, last = slot_range(block_number)
    known = dict.fromkeys((number for (number,) in database.execute("SELECT number FROM incarnation")), _ANY)
    with closing(database.execute(schema.SENDERS_OF_BLOCK, (first, last))) as cursor:
        while rows := cursor.fetchmany(PAGE_ROWS):
            with _row_damage_detection():
                page = _page(rows, first, known)
                SenderTable().take_page(msgspec.structs.replace(page, slots=range(len(rows))))


@contextmanager
def _row_damage_detection() -> Iterator[None]:
    try:
        yield
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise StoreDamaged(f"a sender's row makes no sense: {error!r}") from error


def _page(rows: list[sqlite3.Row], first: int, by_number: dict[int, Incarnation]) -> SenderPage:
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
        opening_incarnations=[by_number[number] for number in numbers],
        opening_sequences=opening,
        last_forwarded_at=forwarded,
        forwarded_sizes=sizes,
        forwarded_digests=[digest + _SIGN for digest in digests],
        first_intervals=firsts,
        stale_observed_at=stale,
    )
