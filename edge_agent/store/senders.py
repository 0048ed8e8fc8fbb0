"""Senders as rows: the block's number and the sender's slot make the row's id.

Rows refer to incarnations by a short number; the incarnations are in a table of their own. A relay meets those of all
sites below it, and new ones indefinitely, so unreferenced ones are deleted from time to time.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Self

import msgspec

from edge_agent.core.senders import SenderChanges, SenderPage, SenderTable
from edge_agent.store import schema
from edge_agent.store.sqlite import StoreDamaged, put_rows
from shared.identifiers import Incarnation

INCARNATIONS_KEPT = 1_024
"""Number of incarnations from which on unreferenced ones are searched for."""

_ALL = "SELECT number, created_at, epoch_ms FROM incarnation"


class Incarnations:
    """Numbers of the incarnations, as the open transaction sees them; adopt() or forget_uncommitted() ends it."""

    def __init__(self, numbers: dict[Incarnation, int]) -> None:
        self._numbers = numbers
        self._committed = numbers
        self._most = max(len(numbers), INCARNATIONS_KEPT)

    @classmethod
    def load(cls, database: sqlite3.Connection) -> Self:
        return cls(_numbers(database.execute(_ALL)))

    def __len__(self) -> int:
        return len(self._numbers)

    def by_number(self) -> dict[int, Incarnation]:
        """Return the incarnations by their numbers."""
        return {number: incarnation for incarnation, number in self._numbers.items()}

    def number_all(
        self, database: sqlite3.Connection, incarnations: Iterable[Incarnation]
    ) -> Callable[[Incarnation], int]:
        """Assign numbers to incarnations in the open transaction; return a function that maps each to its number.

        Nearly all of them are one and the same object, and a lookup by identity is faster than one by equality.
        """
        objects = {id(each): each for each in incarnations}
        for each in objects.values():
            if each not in self._numbers:
                self._number(database, each)
        numbers = {place: self._numbers[each] for place, each in objects.items()}
        return lambda incarnation: numbers[id(incarnation)]

    def _number(self, database: sqlite3.Connection, incarnation: Incarnation) -> None:
        key = (incarnation.created_at, incarnation.epoch_ms)
        database.execute(schema.PUT_INCARNATION, key)
        query = "SELECT number FROM incarnation WHERE created_at = ? AND epoch_ms = ?"
        ((number,),) = database.execute(query, key)
        if self._numbers is self._committed:
            self._numbers = dict(self._committed)
        self._numbers[incarnation] = number

    def make_room(self, database: sqlite3.Connection) -> None:
        """Delete unreferenced incarnations in the open transaction, once there are many.

        Incarnations that the transaction itself will refer to must be numbered afterwards.
        """
        if len(self._numbers) < self._most:
            return
        database.execute(schema.FORGET_INCARNATIONS)
        self._numbers = _numbers(database.execute(_ALL))
        self._most = max(2 * len(self._numbers), INCARNATIONS_KEPT)

    def adopt(self) -> None:
        """Keep the numbers of the committed transaction."""
        self._committed = self._numbers

    def forget_uncommitted(self) -> None:
        """Drop the numbers of the transaction that was rolled back."""
        self._numbers = self._committed


def _numbers(rows: Iterable[sqlite3.Row]) -> dict[Incarnation, int]:
    return {Incarnation(created, epoch): number for number, created, epoch in rows}


_SLOT_BITS = 32
_SIGN = 1 << 63
PAGE_ROWS = 5_000
_ANY = Incarnation(0, 0)


def slot_range(block_number: int) -> tuple[int, int]:
    """Return the first and the last row id of a block's senders."""
    first = block_number << _SLOT_BITS
    return first, first + (1 << _SLOT_BITS) - 1


def write_senders(
    database: sqlite3.Connection, block_number: int, changes: SenderChanges, incarnations: Incarnations
) -> None:
    """Write a block's changed senders in the open transaction."""
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
    put_rows(database, schema.PUT_SENDER, rows)


def load_senders(database: sqlite3.Connection, block_number: int, incarnations: Incarnations) -> SenderTable:
    """Read a block's senders; raise StoreDamaged for rows that no agent writes."""
    senders = SenderTable()
    for page in _pages(database, block_number, incarnations.by_number()):
        with _row_damage_detection():
            senders.take_page(page)
    senders.put_in_order()
    return senders


def check_senders(database: sqlite3.Connection, block_number: int) -> None:
    """Read a block's senders without keeping them; raise StoreDamaged as load_senders() does."""
    known = dict.fromkeys((number for (number,) in database.execute("SELECT number FROM incarnation")), _ANY)
    for page in _pages(database, block_number, known):
        with _row_damage_detection():
            SenderTable().take_page(msgspec.structs.replace(page, slots=range(len(page.slots))))


def _pages(database: sqlite3.Connection, block_number: int, by_number: dict[int, Incarnation]) -> Iterator[SenderPage]:
    """Yield pages of senders: all rows of a million senders at once would take more memory than their table."""
    first, last = slot_range(block_number)
    with closing(database.execute(schema.SENDERS_OF_BLOCK, (first, last))) as cursor:
        while rows := cursor.fetchmany(PAGE_ROWS):
            with _row_damage_detection():
                page = _page(rows, first, by_number)
            yield page


@contextmanager
def _row_damage_detection() -> Iterator[None]:
    try:
        yield
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise StoreDamaged(f"a sender's row makes no sense: {error!r}") from error


def _page(rows: list[sqlite3.Row], first: int, by_number: dict[int, Incarnation]) -> SenderPage:
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
