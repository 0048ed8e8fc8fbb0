"""Change an agent's database while the agent is away: write it anew, or put it back to the first version.

A process of its own: ``python -m tests.support.faults.database rewrite|make_old PATH``. On a full disk nothing changes.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.store import marker, schema
from edge_agent.store.decision_log import LOGGED_ADVISORIES, LOGGED_FORWARDS
from shared.wire import ORIGIN_HEADER, parse_origin_header

# What takes back each step of edge_agent.store.files, by the version that the step leads to.
TAKE_BACK = {
    2: ("DROP TABLE copy_outbox",),
    3: tuple(
        f"DROP TABLE {table}"
        for table in ("advisory_chunk", "registration_chunk", "advisory_log_chunk", "forward_log_chunk", "forward_fate")
    ),
    4: ("DROP TABLE set_apart", "DROP TABLE too_large"),
}
OLDEST = 1
COPIES_SINCE = 2
CHUNKS_SINCE = 3
SET_APART_SINCE = 4
COPIES_SET_APART = f"SELECT 1 FROM set_apart WHERE lane = {int(Lane.COPIES)}"


def rewrite(database: sqlite3.Connection) -> None:
    """Write the log back into the file, and the file anew."""
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    database.execute("VACUUM")


def make_old(database: sqlite3.Connection) -> bool:
    """Make of it what the first version of the agent wrote, so that the next start brings it up to date.

    It knew no copies: those that wait are read from the site's stream again. Where one is set apart nothing changes:
    all behind it would be read again, though the region may have forgotten that it has it. Tell whether it was done.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    database.execute("BEGIN IMMEDIATE")
    if version >= SET_APART_SINCE and database.execute(COPIES_SET_APART).fetchone():
        database.execute("ROLLBACK")
        return False
    if version >= SET_APART_SINCE:
        _let_wait_again(database)
    if version >= CHUNKS_SINCE:
        _unpack(database)
    if version >= COPIES_SINCE:
        _read_copies_again(database)
    for each in range(version, OLDEST, -1):
        for statement in TAKE_BACK[each]:
            database.execute(statement)
    database.execute(f"PRAGMA user_version={OLDEST}")
    database.execute("COMMIT")
    return True


def _let_wait_again(database: sqlite3.Connection) -> None:
    """Put what is set apart back into its lane, under an id behind all others."""
    for row_id, lane in database.execute("SELECT row_id, lane FROM set_apart ORDER BY row_id").fetchall():
        tables = [*schema.OUTBOXES.values(), *schema.CHUNKS.values()]
        places = ",".join("?" * len(tables))
        ((last_id,),) = database.execute(f"SELECT MAX(seq) FROM sqlite_sequence WHERE name IN ({places})", tables)
        database.execute(
            f"INSERT INTO {schema.OUTBOXES[Lane(lane)]} SELECT ?, block, '', size, 0, subject, headers, payload "
            "FROM set_apart WHERE row_id = ?",
            (last_id + 1, row_id),
        )


def _unpack(database: sqlite3.Connection) -> None:
    """Write every record of a chunk as a row: what did not know chunks had rows alone."""
    for lane, table in schema.CHUNKS.items():
        for (body,) in database.execute(f"SELECT body FROM {table} ORDER BY last_row_id").fetchall():
            rows = msgspec.msgpack.decode(body, type=list[OutboxRow])
            values = [
                (
                    row.row_id,
                    row.block,
                    row.sender_id,
                    row.size,
                    row.watermark_since,
                    row.subject,
                    msgspec.json.encode(row.headers),
                    row.payload,
                )
                for row in rows
            ]
            database.executemany(schema.PUT_ROW[lane], values)
        _count_on(database, schema.OUTBOXES[lane], table)
    for log, logged in (("advisory_log", LOGGED_ADVISORIES), ("forward_log", LOGGED_FORWARDS)):
        columns = ", ".join(row[1] for row in database.execute(f"PRAGMA table_info({log})"))
        database.execute(f"INSERT OR IGNORE INTO {log} SELECT {columns} FROM {logged}")


def _count_on(database: sqlite3.Connection, outbox: str, chunks: str) -> None:
    """Let a lane's ids go on behind those of its chunks: what has left was in the outbox then."""
    ids = "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name IN (?, ?)"
    ((last_id,),) = database.execute(ids, (outbox, chunks))
    database.execute("DELETE FROM sqlite_sequence WHERE name = ?", (outbox,))
    database.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (outbox, last_id))


def _read_copies_again(database: sqlite3.Connection) -> None:
    for name, state in database.execute("SELECT name, state FROM block").fetchall():
        waiting = database.execute("SELECT headers FROM copy_outbox WHERE block = ?", (name,)).fetchall()
        if waiting:
            first = min(parse_origin_header(json.loads(headers)[ORIGIN_HEADER])[2] for (headers,) in waiting)
            body = json.loads(state)
            body["position"] |= {"sequence": first - 1, "stored_at": 0}
            # Of what is read again the clock is no clock that was set back, however long it waits.
            body["examined_sequence"] = body["past_stored_at"] = body["source_clock"] = 0
            database.execute("UPDATE block SET state = ? WHERE name = ?", (json.dumps(body), name))


def change(path: Path, how: str) -> None:
    """Do one or the other."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        try:
            if how == "rewrite":
                rewrite(database)
            elif make_old(database):
                # Nor did an agent of that version note what it had committed.
                marker.forget(path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise


if __name__ == "__main__":
    assert sys.argv[1] in ("rewrite", "make_old")
    assert set(range(OLDEST + 1, schema.VERSION + 1)) == TAKE_BACK.keys(), "say how to take back the newest step"
    change(Path(sys.argv[2]), sys.argv[1])
