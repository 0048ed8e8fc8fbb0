"""Log of the latest decisions, for people: why a sender was reported or forwarded, and the fate of the record.

It is written with the batch that decides and read by ``muster-agent advisories`` and ``explain``; no decision depends
on it. Messages without a sender are only counted. Decisions of a large batch become one row per thousand, whose body is
a JSON array that SQLite reads as rows.
"""

import sqlite3
from collections.abc import Sequence
from typing import Self

import msgspec

from edge_agent.core.decisions import Advise, Decision, Forward
from edge_agent.store import schema
from edge_agent.store.chunks import CHUNK_ROWS, WORTH_A_CHUNK
from edge_agent.store.senders import Incarnations
from edge_agent.store.sqlite import Row, put_rows
from shared.identifiers import Incarnation

# Of advisories and of forwards each: about 15 MB, weeks of a fleet's advisories, a day of 4,000 senders' samples.
DECISIONS_KEPT = 100_000
ADVISORY_LOG, FORWARD_LOG = "advisory_log", "forward_log"
LOG_CHUNKS = {ADVISORY_LOG: "advisory_log_chunk", FORWARD_LOG: "forward_log_chunk"}

_ADVISORY_FIELDS = (
    "row_id block sender_id kind at last_seen_at incarnation sequence "
    "opening_incarnation opening_sequence ordinal rebuilt"
)
_FORWARD_FIELDS = "row_id block sender_id reason at incarnation sequence size"


def _fields(names: str) -> str:
    return ", ".join(names.split())


def _element(place: int) -> str:
    return f"json_extract(value, '$[{place}]')"


def _elements(names: str) -> str:
    return ", ".join(f"{_element(place)} AS {name}" for place, name in enumerate(names.split()))


# The whole logs, for people. ``through`` is the last row id of the row or chunk that holds a decision.
LOGGED_ADVISORIES = (
    f"(SELECT row_id AS through, {_fields(_ADVISORY_FIELDS)} FROM advisory_log UNION ALL "
    f"SELECT last_row_id, {_elements(_ADVISORY_FIELDS)} FROM advisory_log_chunk, json_each(body))"
)
LOGGED_FORWARDS = (
    f"(SELECT row_id AS through, {_fields(_FORWARD_FIELDS)}, fate FROM forward_log UNION ALL "
    f"SELECT last_row_id, {_elements(_FORWARD_FIELDS)}, "
    f"COALESCE((SELECT fate FROM forward_fate WHERE row_id = {_element(0)}), '') "
    "FROM forward_log_chunk, json_each(body))"
)

LOG_BEGINS = f"SELECT MIN(at) FROM (SELECT at FROM {LOGGED_ADVISORIES} ORDER BY through LIMIT 1)"

SET_FATE = "UPDATE forward_log SET fate = ? WHERE row_id = ?"
SET_FATE_OF_UNSENT = (
    "UPDATE forward_log SET fate = ? WHERE row_id IN "
    "(SELECT row_id FROM registration_outbox WHERE row_id > ? AND block GLOB ?)"
)
SET_FATES_WITHIN = "UPDATE forward_log SET fate = ? WHERE row_id BETWEEN ? AND ? AND fate = ''"
_IN_CHUNK = "(SELECT first_row_id FROM forward_log_chunk WHERE last_row_id >= {0} ORDER BY last_row_id LIMIT 1) <= {0}"
SET_FATE_IN_CHUNK = f"INSERT OR IGNORE INTO forward_fate SELECT ?2, ?1 WHERE {_IN_CHUNK.format('?2')}"
SET_FATE_OF_UNSENT_IN_CHUNK = (
    "INSERT OR IGNORE INTO forward_fate SELECT waits.row_id, ? FROM registration_outbox AS waits "
    f"WHERE waits.row_id > ? AND waits.block GLOB ? AND {_IN_CHUNK.format('waits.row_id')}"
)
SET_FATES_WITHIN_CHUNKS = (
    f"INSERT OR IGNORE INTO forward_fate SELECT {_element(0)}, ?1 FROM forward_log_chunk, json_each(body) "
    f"WHERE last_row_id >= ?2 AND first_row_id <= ?3 AND {_element(0)} BETWEEN ?2 AND ?3"
)
FORGET_FATES = (
    "DELETE FROM forward_fate WHERE row_id < "
    f"COALESCE((SELECT first_row_id FROM forward_log_chunk ORDER BY last_row_id LIMIT 1), {schema.EVERY_ROW})"
)


LOG_ADVISORY = "INSERT INTO advisory_log VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
LOG_FORWARD = "INSERT INTO forward_log VALUES (?,?,?,?,?,?,?,?,'')"


COUNT_DECISIONS = {
    log: f"SELECT (SELECT COUNT(*) FROM {log}) + (SELECT COALESCE(SUM(count), 0) FROM {chunk})"
    for log, chunk in LOG_CHUNKS.items()
}
# The cost of a deletion is proportional to the rows that it deletes.
_LOGS = {log: log for log in LOG_CHUNKS}
FORGET_DECISIONS = schema.by_table(
    _LOGS, "DELETE FROM {0} WHERE row_id IN (SELECT row_id FROM {0} WHERE row_id < ? ORDER BY row_id LIMIT ?)"
)
FIRST_DECISION = schema.by_table(_LOGS, f"SELECT COALESCE(MIN(row_id), {schema.EVERY_ROW}) FROM {{}}")
PUT_LOG_CHUNK = schema.by_table(
    LOG_CHUNKS, "INSERT INTO {} (last_row_id, first_row_id, count, body) VALUES (?,?,?,CAST(? AS TEXT))"
)
FIRST_LOG_CHUNKS = schema.by_table(
    LOG_CHUNKS, "SELECT last_row_id, first_row_id, count FROM {} ORDER BY last_row_id LIMIT 100"
)
DELETE_LOG_CHUNKS = schema.by_table(LOG_CHUNKS, "DELETE FROM {} WHERE last_row_id <= ?")

_encode = msgspec.json.Encoder().encode


class DecisionLog:
    """The decision logs of one store, and the number of rows in each as last committed."""

    def __init__(self, counts: dict[str, int], incarnations: Incarnations) -> None:
        self._counts = counts
        self._uncommitted = dict(counts)
        self._incarnations = incarnations

    @classmethod
    def load(cls, database: sqlite3.Connection, incarnations: Incarnations) -> Self:
        """Count the rows of a file that was just opened."""
        counts = {log: database.execute(COUNT_DECISIONS[log]).fetchone()[0] for log in LOG_CHUNKS}
        return cls(counts, incarnations)

    def append(
        self,
        database: sqlite3.Connection,
        block_number: int,
        decisions: Sequence[Decision],
        incarnation: Incarnation,
        first_row_id: int,
    ) -> None:
        """Write decisions and delete the oldest; their records have row ids from ``first_row_id`` on.

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
        self._insert(database, ADVISORY_LOG, LOG_ADVISORY, advisories)
        self._insert(database, FORWARD_LOG, LOG_FORWARD, forwards)

    def adopt(self) -> None:
        self._counts = dict(self._uncommitted)

    def forget_uncommitted(self) -> None:
        self._uncommitted = dict(self._counts)

    def _insert(self, database: sqlite3.Connection, log: str, statement: str, rows: Sequence[Row]) -> None:
        if len(rows) < WORTH_A_CHUNK:
            put_rows(database, statement, rows)
        else:
            pieces = [rows[first : first + CHUNK_ROWS] for first in range(0, len(rows), CHUNK_ROWS)]
            chunks = [(piece[-1][0], piece[0][0], len(piece), _encode(piece)) for piece in pieces]
            put_rows(database, PUT_LOG_CHUNK[log], chunks)
        self._uncommitted[log] += len(rows)
        if self._uncommitted[log] > DECISIONS_KEPT:
            self._forget(database, log)

    def _forget(self, database: sqlite3.Connection, log: str) -> None:
        """Delete the oldest decisions beyond DECISIONS_KEPT; a chunk is deleted whole or not at all."""
        while (excess := self._uncommitted[log] - DECISIONS_KEPT) > 0:
            chunks = database.execute(FIRST_LOG_CHUNKS[log]).fetchall()
            first_row_id = chunks[0][1] if chunks else schema.EVERY_ROW
            gone = database.execute(FORGET_DECISIONS[log], (first_row_id, excess)).rowcount
            ((next_row_id,),) = database.execute(FIRST_DECISION[log])
            through = 0
            for last_row_id, _, count in chunks:
                if last_row_id > next_row_id or gone + count > excess:
                    break
                gone, through = gone + count, last_row_id
            if through:
                database.execute(DELETE_LOG_CHUNKS[log], (through,))
            if not gone:
                break
            self._uncommitted[log] -= gone
        if log == FORWARD_LOG:
            database.execute(FORGET_FATES)
