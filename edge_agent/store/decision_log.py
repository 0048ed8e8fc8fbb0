"""Keep what was decided last, for people: why a sender was reported or forwarded, and what became of the record.

Written with the batch that decides, read by ``muster-agent advisories`` and ``explain``; nothing is decided from it.
Messages without a sender are not in it: counters tell of them.
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Self

import aiosqlite

from edge_agent.core.decision import Advise, Decision, Forward
from edge_agent.store import schema
from edge_agent.store.bulk import Row, put_rows
from edge_agent.store.incarnations import Incarnations
from shared.identifiers import Incarnation


class DecisionLog:
    """The logs of one store. What it knows beside the file is how many rows they hold, as last committed."""

    def __init__(self, counts: dict[str, int], incarnations: Incarnations) -> None:
        self._counts = counts
        self._uncommitted = dict(counts)
        self._incarnations = incarnations

    @classmethod
    async def load(cls, database: aiosqlite.Connection, incarnations: Incarnations) -> Self:
        """Count what a file that was just opened holds."""
        counts = {}
        for log in (schema.ADVISORY_LOG, schema.FORWARD_LOG):
            async with database.execute(schema.count_decisions(log)) as cursor:
                row = await cursor.fetchone()
                counts[log] = row[0] if row else 0
        return cls(counts, incarnations)

    def append(
        self,
        database: sqlite3.Connection,
        block: int,
        decisions: Sequence[Decision],
        incarnation: Incarnation,
        first_row_id: int,
    ) -> None:
        """Write decisions whose records have the row ids from ``first_row_id`` on, and forget the oldest.

        ``block`` is the block's number, ``incarnation`` that of the forwarded messages.
        """
        numbered = list(enumerate(decisions, first_row_id))
        advised = [(row_id, each) for row_id, each in numbered if isinstance(each, Advise)]
        forwarded = [(row_id, each) for row_id, each in numbered if isinstance(each, Forward) and each.sender_id]
        named = chain.from_iterable((each.incarnation, each.opening_incarnation) for _, each in advised)
        number_of = self._incarnations.number_all(database, chain((incarnation,), named))
        number = number_of(incarnation)
        advisories = [
            (
                row_id,
                block,
                each.sender_id,
                str(each.kind),
                each.at,
                each.last_seen_at,
                number_of(each.incarnation),
                each.sequence,
                number_of(each.opening_incarnation),
                each.opening_sequence,
                each.ordinal,
                each.rebuilt,
            )
            for row_id, each in advised
        ]
        forwards = [
            (
                row_id,
                block,
                each.sender_id,
                str(each.reason),
                message.stored_at,
                number,
                message.sequence,
                len(message.payload),
            )
            for row_id, each in forwarded
            for message in (each.message,)
        ]
        self._insert(database, schema.ADVISORY_LOG, schema.log_advisories, advisories)
        self._insert(database, schema.FORWARD_LOG, schema.log_forwards, forwards)

    def adopt(self) -> None:
        """Keep what the transaction has made durable."""
        self._counts = dict(self._uncommitted)

    def forget_uncommitted(self) -> None:
        """Drop what was rolled back."""
        self._uncommitted = dict(self._counts)

    def _insert(
        self, database: sqlite3.Connection, log: str, statement: Callable[[int], str], rows: Sequence[Row]
    ) -> None:
        if not rows:
            return
        put_rows(database, statement, rows)
        self._uncommitted[log] += len(rows)
        excess = self._uncommitted[log] - schema.DECISIONS_KEPT
        if excess > 0:
            database.execute(schema.forget_decisions(log), (excess - 1,))
            self._uncommitted[log] -= excess
