"""Keep what was decided last, for people: why a sender was reported or forwarded, and what became of the record.

Written with the batch that decides, read by ``muster-agent advisories`` and ``explain``; nothing is decided from it.
Messages without a sender are not in it: counters tell of them. What a large batch decides is a row for each thousand
decisions, which are JSON there: SQLite reads them as rows.
"""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import aiosqlite
import msgspec

from edge_agent.core.decisions import Advise, Decision, Forward
from edge_agent.store import decision_log_sql, schema
from edge_agent.store.chunks import CHUNK_ROWS, WORTH_A_CHUNK
from edge_agent.store.incarnations import Incarnations
from edge_agent.store.sqlite import Row, put_rows
from shared.identifiers import Incarnation

_encode = msgspec.json.Encoder().encode


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
        for log in (decision_log_sql.ADVISORY_LOG, decision_log_sql.FORWARD_LOG):
            async with database.execute(decision_log_sql.count_decisions(log)) as cursor:
                row = await cursor.fetchone()
                counts[log] = row[0] if row else 0
        return cls(counts, incarnations)

    def append(
        self,
        database: sqlite3.Connection,
        block_number: int,
        decisions: Sequence[Decision],
        incarnation: Incarnation,
        first_row_id: int,
    ) -> None:
        """Write decisions whose records have the row ids from ``first_row_id`` on, and forget the oldest.

        ``incarnation`` is that of the forwarded messages.
        """
        advised = [each for each in decisions if isinstance(each, Advise)]
        named = [each.incarnation for each in advised] + [each.opening_incarnation for each in advised]
        number_of = self._incarnations.number_all(database, [incarnation, *named])
        number = number_of(incarnation)
        advisories: list[Row] = []
        forwards: list[Row] = []
        for row_id, each in enumerate(decisions, first_row_id):
            if isinstance(each, Advise):
                advisories.append(
                    (
                        row_id,
                        block_number,
                        each.sender_id,
                        each.kind,
                        each.at,
                        each.last_seen_at,
                        number_of(each.incarnation),
                        each.sequence,
                        number_of(each.opening_incarnation),
                        each.opening_sequence,
                        each.ordinal,
                        each.rebuilt,
                    )
                )
            elif isinstance(each, Forward) and each.sender_id:
                message = each.message
                forwards.append(
                    (
                        row_id,
                        block_number,
                        each.sender_id,
                        each.reason,
                        message.stored_at,
                        number,
                        message.sequence,
                        len(message.payload),
                    )
                )
        self._insert(database, decision_log_sql.ADVISORY_LOG, decision_log_sql.log_advisories, advisories)
        self._insert(database, decision_log_sql.FORWARD_LOG, decision_log_sql.log_forwards, forwards)

    def adopt(self) -> None:
        """Keep what the transaction has made durable."""
        self._counts = dict(self._uncommitted)

    def forget_uncommitted(self) -> None:
        """Drop what was rolled back."""
        self._uncommitted = dict(self._counts)

    def _insert(
        self, database: sqlite3.Connection, log: str, statement: Callable[[int], str], rows: Sequence[Row]
    ) -> None:
        if len(rows) < WORTH_A_CHUNK:
            put_rows(database, statement, rows)
        else:
            pieces = [rows[first : first + CHUNK_ROWS] for first in range(0, len(rows), CHUNK_ROWS)]
            chunks = [(piece[-1][0], piece[0][0], len(piece), _encode(piece)) for piece in pieces]
            put_rows(database, partial(decision_log_sql.put_log_chunks, log), chunks)
        self._uncommitted[log] += len(rows)
        if self._uncommitted[log] > decision_log_sql.DECISIONS_KEPT:
            self._forget(database, log)

    def _forget(self, database: sqlite3.Connection, log: str) -> None:
        """Delete the oldest decisions beyond those that are kept; of those in one chunk all or none."""
        while (excess := self._uncommitted[log] - decision_log_sql.DECISIONS_KEPT) > 0:
            chunks = database.execute(decision_log_sql.first_log_chunks(log)).fetchall()
            first_row_id = chunks[0][1] if chunks else schema.EVERY_ROW
            gone = database.execute(decision_log_sql.forget_decisions(log), (first_row_id, excess)).rowcount
            ((next_row_id,),) = database.execute(decision_log_sql.first_decision(log))
            through = 0
            for last_row_id, _, count in chunks:
                if last_row_id > next_row_id or gone + count > excess:
                    break
                gone, through = gone + count, last_row_id
            if through:
                database.execute(decision_log_sql.delete_log_chunks(log), (through,))
            if not gone:
                break
            self._uncommitted[log] -= gone
        if log == decision_log_sql.FORWARD_LOG:
            database.execute(decision_log_sql.FORGET_FATES)
