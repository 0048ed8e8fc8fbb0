"""Tables and statements of the store. A released version is never edited: it gets a migration.

``sender.row_id`` is the block's number in the upper 32 bits and the sender's slot in the lower: new senders append, a
sighting rewrites one short row, and no index is needed. The outboxes use AUTOINCREMENT because a late acknowledgement
must never match another row under its id; ids rise across all lanes. A decision's row in the logs has the id of its
record in the outbox, which shows whether the record still waits.
"""

from collections.abc import Mapping
from typing import TypeVar

from edge_agent.core.records import Lane

K = TypeVar("K")

VERSION = 4
RECORDED_INPUTS_KEPT = 10_000
EVERY_ROW = (1 << 63) - 1

OUTBOX_COLUMNS = """(
  row_id          INTEGER PRIMARY KEY AUTOINCREMENT,
  block           TEXT NOT NULL,
  sender_id       TEXT NOT NULL,
  size            INTEGER NOT NULL,
  watermark_since INTEGER NOT NULL,
  subject         TEXT NOT NULL,
  headers         BLOB NOT NULL,
  payload         BLOB NOT NULL
)"""
"""Of all versions so far. If they change, files.py keeps these for the migrations that created them."""

CHUNK_COLUMNS = """(
  last_row_id  INTEGER PRIMARY KEY AUTOINCREMENT,
  first_row_id INTEGER NOT NULL,
  block        TEXT NOT NULL,
  count        INTEGER NOT NULL,
  size         INTEGER NOT NULL,
  body         BLOB NOT NULL
)"""
"""Of all versions from 3 on. ``body`` is MessagePack of a list of OutboxRow."""

LOG_CHUNK_COLUMNS = """(
  last_row_id  INTEGER PRIMARY KEY,
  first_row_id INTEGER NOT NULL,
  count        INTEGER NOT NULL,
  body         TEXT NOT NULL
)"""
"""Of all versions from 3 on. ``body`` is a JSON array with one array of the log's columns for each decision."""

FATE_COLUMNS = """(
  row_id INTEGER PRIMARY KEY,
  fate   TEXT NOT NULL
)"""
"""Of all versions from 3 on: the fates of forwarded registrations whose decision is in a chunk of the log."""

SET_APART_COLUMNS = """(
  row_id  INTEGER PRIMARY KEY,
  lane    INTEGER NOT NULL,
  block   TEXT NOT NULL,
  cause   TEXT NOT NULL,
  needed  INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  size    INTEGER NOT NULL,
  subject TEXT NOT NULL,
  headers BLOB NOT NULL,
  payload BLOB NOT NULL
)"""
"""Dead letters, of all versions from 4 on. The large columns are last: the others are read without them."""

TOO_LARGE_COLUMNS = """(
  block  TEXT NOT NULL,
  cause  TEXT NOT NULL,
  needed INTEGER NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (block, cause)
) WITHOUT ROWID"""
"""Of all versions from 4 on: the last registration or watermark that was dropped, and what the largest one needed."""

CREATE = f"""
CREATE TABLE origin (
  replaces_lost INTEGER NOT NULL
);
CREATE TABLE block (
  number INTEGER PRIMARY KEY,
  name   TEXT NOT NULL UNIQUE,
  region TEXT NOT NULL,
  site   TEXT NOT NULL,
  state  TEXT NOT NULL
);
CREATE TABLE incarnation (
  number     INTEGER PRIMARY KEY,
  created_at INTEGER NOT NULL,
  epoch_ms   INTEGER NOT NULL,
  UNIQUE (created_at, epoch_ms)
);
CREATE TABLE sender (
  row_id             INTEGER PRIMARY KEY,
  sender_id          TEXT NOT NULL,
  phase              INTEGER NOT NULL,
  last_seen_at       INTEGER NOT NULL,
  last_sequence      INTEGER NOT NULL,
  opening_incarnation INTEGER NOT NULL,
  opening_sequence   INTEGER NOT NULL,
  last_forwarded_at  INTEGER NOT NULL,
  forwarded_size     INTEGER NOT NULL,
  forwarded_digest   INTEGER NOT NULL,
  first_interval     INTEGER NOT NULL,
  stale_observed_at  INTEGER NOT NULL
);
CREATE TABLE advisory_outbox {OUTBOX_COLUMNS};
CREATE TABLE registration_outbox {OUTBOX_COLUMNS};
CREATE TABLE copy_outbox {OUTBOX_COLUMNS};
CREATE TABLE advisory_chunk {CHUNK_COLUMNS};
CREATE TABLE registration_chunk {CHUNK_COLUMNS};
CREATE TABLE set_apart {SET_APART_COLUMNS};
CREATE TABLE too_large {TOO_LARGE_COLUMNS};
CREATE INDEX registration_outbox_sender ON registration_outbox (sender_id, block) WHERE sender_id <> '';
CREATE TABLE outbox_counter (
  block TEXT NOT NULL,
  what  TEXT NOT NULL,
  cause TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (block, what, cause)
) WITHOUT ROWID;
CREATE TABLE recorded_input (
  row_id INTEGER PRIMARY KEY AUTOINCREMENT,
  block  TEXT NOT NULL,
  body   TEXT NOT NULL
);
CREATE TABLE advisory_log (
  row_id              INTEGER PRIMARY KEY,
  block               INTEGER NOT NULL,
  sender_id           TEXT NOT NULL,
  kind                TEXT NOT NULL,
  at                  INTEGER NOT NULL,
  last_seen_at        INTEGER NOT NULL,
  incarnation         INTEGER NOT NULL,
  sequence            INTEGER NOT NULL,
  opening_incarnation INTEGER NOT NULL,
  opening_sequence    INTEGER NOT NULL,
  ordinal             INTEGER NOT NULL,
  rebuilt             INTEGER NOT NULL
);
CREATE TABLE forward_log (
  row_id      INTEGER PRIMARY KEY,
  block       INTEGER NOT NULL,
  sender_id   TEXT NOT NULL,
  reason      TEXT NOT NULL,
  at          INTEGER NOT NULL,
  incarnation INTEGER NOT NULL,
  sequence    INTEGER NOT NULL,
  size        INTEGER NOT NULL,
  fate        TEXT NOT NULL
);
CREATE TABLE advisory_log_chunk {LOG_CHUNK_COLUMNS};
CREATE TABLE forward_log_chunk {LOG_CHUNK_COLUMNS};
CREATE TABLE forward_fate {FATE_COLUMNS};
CREATE TABLE operator_request (
  row_id INTEGER PRIMARY KEY AUTOINCREMENT,
  asked  TEXT NOT NULL,
  answer TEXT
);
CREATE TABLE status (
  name TEXT PRIMARY KEY,
  body TEXT NOT NULL
) WITHOUT ROWID;
"""
NEW_STORE = f"PRAGMA auto_vacuum=INCREMENTAL; BEGIN; {CREATE} PRAGMA user_version={VERSION}; COMMIT;"

OUTBOXES = {
    Lane.ADVISORIES: "advisory_outbox",
    Lane.REGISTRATIONS: "registration_outbox",
    Lane.COPIES: "copy_outbox",
}
CHUNKS = {Lane.ADVISORIES: "advisory_chunk", Lane.REGISTRATIONS: "registration_chunk"}
"""Tables of a lane's chunks. Row ids are those of its outbox: a row is in one of the two tables."""

PUT_SENDER = "INSERT OR REPLACE INTO sender VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
DELETE_SENDER = "DELETE FROM sender WHERE row_id = ?"
SENDERS_OF_BLOCK = "SELECT * FROM sender WHERE row_id BETWEEN ? AND ?"
PUT_BLOCK = (
    "INSERT INTO block (name, region, site, state) VALUES (?,?,?,?) "
    "ON CONFLICT (name) DO UPDATE SET region = excluded.region, site = excluded.site, state = excluded.state"
)
BLOCK_NUMBER = "SELECT number FROM block WHERE name = ?"
PUT_INCARNATION = "INSERT OR IGNORE INTO incarnation (created_at, epoch_ms) VALUES (?,?)"
FORGET_INCARNATIONS = (
    "DELETE FROM incarnation WHERE number NOT IN (SELECT opening_incarnation FROM sender) "
    "AND number NOT IN (SELECT incarnation FROM forward_log) "
    "AND number NOT IN (SELECT incarnation FROM advisory_log) "
    "AND number NOT IN (SELECT opening_incarnation FROM advisory_log) "
    "AND number NOT IN (SELECT json_extract(value, '$[5]') FROM forward_log_chunk, json_each(body)) "
    "AND number NOT IN (SELECT json_extract(value, '$[6]') FROM advisory_log_chunk, json_each(body)) "
    "AND number NOT IN (SELECT json_extract(value, '$[8]') FROM advisory_log_chunk, json_each(body))"
)
ADD_COUNT = (
    "INSERT INTO outbox_counter VALUES (?,?,?,?) "
    "ON CONFLICT (block, what, cause) DO UPDATE SET count = count + excluded.count"
)
RECORD_INPUT = "INSERT INTO recorded_input (block, body) VALUES (?,?)"
FORGET_INPUTS = (
    "DELETE FROM recorded_input WHERE row_id <= "
    f"(SELECT seq FROM sqlite_sequence WHERE name = 'recorded_input') - {RECORDED_INPUTS_KEPT}"
)
OPEN_REQUESTS = "SELECT row_id, asked FROM operator_request WHERE answer IS NULL"
ANSWER_REQUEST = "UPDATE operator_request SET answer = ? WHERE row_id = ?"
ASKS_SET_APART = "set apart: "
"""Prefix of the GLOB in an operator's request that concerns dead letters, not registrations."""
CLEAR_STATUS = "DELETE FROM status"
PUT_STATUS = "INSERT INTO status VALUES (?,?)"

REPLACED_REGISTRATIONS = (
    "SELECT row_id, size, sender_id FROM registration_outbox WHERE sender_id <> '' "
    "AND sender_id IN (SELECT value FROM json_each(?)) AND block = ? AND row_id > ?"
)
OLDEST_REGISTRATIONS = (
    "SELECT row_id, size, block FROM registration_outbox WHERE row_id > ? AND row_id < ? ORDER BY row_id LIMIT 1000"
)
UNSENT_REGISTRATIONS = (
    "SELECT block, COUNT(*), SUM(size) FROM registration_outbox WHERE row_id > ? AND block GLOB ? GROUP BY block"
)
DELETE_UNSENT = "DELETE FROM registration_outbox WHERE row_id > ? AND block GLOB ?"
UNSENT_CHUNKS = (
    "SELECT last_row_id, first_row_id, block, count, size FROM registration_chunk "
    "WHERE last_row_id > ? AND block GLOB ? ORDER BY last_row_id"
)

SET_APART_DEPTH = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM set_apart"
SET_APART_ROW = "SELECT lane, block, at, size, subject, headers, payload FROM set_apart WHERE row_id = ?"
SMALLEST_SET_APART = (
    "SELECT lane, block, cause, row_id, MIN(needed) FROM set_apart GROUP BY lane, block, cause ORDER BY row_id"
)
SET_APART_OF_BLOCK = (
    "SELECT row_id, size FROM set_apart WHERE lane = ? AND block = ? AND cause = ? AND needed <= ? AND row_id < ? "
    "ORDER BY needed, row_id"
)
# Copies first: a missing advisory makes time unknown at the hub.
OLDEST_SET_APART = "SELECT row_id, block, size FROM set_apart ORDER BY lane DESC, at, row_id LIMIT 100"
SET_APART_OF_BLOCKS = "SELECT row_id, block, size FROM set_apart WHERE block GLOB ?"
SET_APART_BY_LIMIT = (
    "SELECT block, lane, cause, COUNT(*), SUM(size), MAX(needed), MIN(at) FROM set_apart "
    "GROUP BY block, lane, cause ORDER BY block, lane, cause"
)
LIST_SET_APART = "SELECT row_id, lane, block, cause, needed, at, size, subject FROM set_apart ORDER BY at, row_id"
DELETE_SET_APART = "DELETE FROM set_apart WHERE row_id = ?"
HAS_SET_APART = "SELECT EXISTS (SELECT 1 FROM set_apart WHERE row_id = ?)"
NOTE_TOO_LARGE = (
    "INSERT INTO too_large VALUES (?,?,?,?) "
    "ON CONFLICT (block, cause) DO UPDATE SET needed = MAX(needed, excluded.needed), at = excluded.at"
)
TOO_LARGE = "SELECT block, cause, needed, at FROM too_large ORDER BY block, cause"
FORGET_TOO_LARGE = "DELETE FROM too_large WHERE block = ? AND cause = ? AND at = ?"


def by_table(tables: Mapping[K, str], statement: str) -> dict[K, str]:
    """Format ``statement`` for each of several tables; ``{}`` is replaced by the table's name."""
    return {name: statement.format(table) for name, table in tables.items()}


# Of one row, or of a lane's rows between two, or up to and including one; in order, and measured in count and bytes.
_OUTBOX_ROW = "row_id, block, sender_id, size, watermark_since, subject, headers, payload"
PUT_ROW = by_table(OUTBOXES, f"INSERT INTO {{}} ({_OUTBOX_ROW}) VALUES (?,?,?,?,?,?,?,?)")
PENDING_ROWS = by_table(OUTBOXES, f"SELECT {_OUTBOX_ROW} FROM {{}} WHERE row_id > ? AND row_id < ? ORDER BY row_id")
DELETE_ROW = by_table(OUTBOXES, "DELETE FROM {} WHERE row_id = ?")
DELETE_THROUGH = by_table(OUTBOXES, "DELETE FROM {} WHERE row_id <= ?")
ROWS_THROUGH = by_table(OUTBOXES, "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM {} WHERE row_id <= ?")
SET_APART = by_table(
    OUTBOXES,
    "INSERT INTO set_apart SELECT row_id, ?, block, ?, ?, ?, size, subject, headers, payload FROM {} WHERE row_id = ?",
)
"""Copies a row of the outbox to the dead letters, with its lane, the limit, the size needed and the instant."""

# Of a chunk, the first behind a row without its records; or of those whose rows are all up to and including one.
_CHUNK = "last_row_id, first_row_id, block, count, size"
PUT_CHUNK = by_table(CHUNKS, f"INSERT INTO {{}} ({_CHUNK}, body) VALUES (?,?,?,?,?,?)")
FIRST_CHUNK_BEHIND = by_table(CHUNKS, f"SELECT {_CHUNK} FROM {{}} WHERE last_row_id > ? ORDER BY last_row_id LIMIT 1")
CHUNK_BODY = by_table(CHUNKS, "SELECT body FROM {} WHERE last_row_id = ?")
DELETE_CHUNK = by_table(CHUNKS, "DELETE FROM {} WHERE last_row_id = ?")
DELETE_CHUNKS_THROUGH = by_table(CHUNKS, "DELETE FROM {} WHERE last_row_id <= ?")
CHUNKS_THROUGH = by_table(
    CHUNKS, "SELECT COALESCE(SUM(count), 0), COALESCE(SUM(size), 0) FROM {} WHERE last_row_id <= ?"
)


def waits(lane: Lane, row_id: str) -> str:
    """Return an expression that is true if the row of an id, which may be deleted, waits in a lane."""
    chunk = CHUNKS[lane]
    first = f"SELECT first_row_id FROM {chunk} WHERE last_row_id >= {row_id} ORDER BY last_row_id LIMIT 1"
    return (
        f"(EXISTS (SELECT 1 FROM {OUTBOXES[lane]} AS waiting WHERE waiting.row_id = {row_id}) "
        f"OR COALESCE(({first}) <= {row_id}, 0) "
        f"OR EXISTS (SELECT 1 FROM set_apart WHERE set_apart.row_id = {row_id}))"
    )
