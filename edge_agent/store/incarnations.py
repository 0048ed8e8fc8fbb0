"""Number the streams' pasts: rows carry the number, which is short, and the pasts stand in a table of their own.

A relay meets those of all sites below it, and new ones for ever: what no row refers to any more is forgotten in time.
"""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Self

import aiosqlite

from edge_agent.store import schema
from shared.identifiers import Incarnation

KEPT = 1_024
"""How many there may be before it is worth looking for those that nothing refers to."""

_ALL = "SELECT number, created_at, epoch_ms FROM incarnation"


class Incarnations:
    """Every incarnation's number, as the transaction under way sees them: adopt() or forget_uncommitted() ends it."""

    def __init__(self, numbers: dict[Incarnation, int]) -> None:
        self._numbers = numbers
        self._committed = numbers
        self._most = max(len(numbers), KEPT)

    @classmethod
    async def load(cls, database: aiosqlite.Connection) -> Self:
        """Read all of them."""
        return cls(_numbers(await database.execute_fetchall(_ALL)))

    def __len__(self) -> int:
        return len(self._numbers)

    def by_number(self) -> dict[int, Incarnation]:
        """Give the incarnations by the numbers that stand for them in rows."""
        return {number: incarnation for incarnation, number in self._numbers.items()}

    def number_all(
        self, database: sqlite3.Connection, incarnations: Iterable[Incarnation]
    ) -> Callable[[Incarnation], int]:
        """Make sure that incarnations have numbers, in the transaction under way; give what tells them.

        They are many, and nearly all of them one and the same object: that is found faster than what equals it.
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
        """Forget, in the transaction under way, those that nothing refers to, where they have become many.

        What the transaction itself is about to refer to is to be numbered after this.
        """
        if len(self._numbers) < self._most:
            return
        database.execute(schema.FORGET_INCARNATIONS)
        self._numbers = _numbers(database.execute(_ALL))
        self._most = max(2 * len(self._numbers), KEPT)

    def adopt(self) -> None:
        """Keep what the transaction has made durable."""
        self._committed = self._numbers

    def forget_uncommitted(self) -> None:
        """Drop what was rolled back."""
        self._numbers = self._committed


def _numbers(rows: Iterable[sqlite3.Row]) -> dict[Incarnation, int]:
    return {Incarnation(created, epoch): number for number, created, epoch in rows}
