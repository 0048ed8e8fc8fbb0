"""Define the store's tables and statements. A released version is never edited: it gets a migration.

``sender.row_id`` is the block's number in the upper 32 bits and the sender's slot in the lower: new senders append, a
sighting rewrites one short row, and nothing needs an index. The outboxes use AUTOINCREMENT because an acknowledgement
that comes late must never meet another row under its id; ids rise across all lanes. A decision's row in the logs has
the id of its record in the outbox: together they say whether it still waits.
"""

from edge_agent.core.records import Lane

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
"""Of all versions so far. Should they change, migrations.py keeps these for the steps that made them."""

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
"""Of all versions from 3 on. ``body`` is a JSON array: of each decision an array of what its log has in columns."""

FATE_COLUMNS = """(
  row_id INTEGER PRIMARY KEY,
  fate   TEXT NOT NULL
)"""
"""Of all versions from 3 on: what became of forwarded registrations that stand in a chunk of the log."""

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
"""Of all versions from 4 on. What is large stands last: the rest is read without it."""

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

OUTBOXES = {
    Lane.ADVISORIES: "advisory_outbox",
    Lane.REGISTRATIONS: "registration_outbox",
    Lane.COPIES: "copy_outbox",
}
CHUNKS = {Lane.ADVISORIES: "advisory_chunk", Lane.REGISTRATIONS: "registration_chunk"}
"""Where a lane's rows stand by the thousand. Row ids are those of its outbox: a row is in the one or in the other."""

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
ADD_COUNT = "INSERT INTO outbox_counter VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
RECORD_INPUT = "INSERT INTO recorded_input (block, body) VALUES (?,?)"
FORGET_INPUTS = (
    "DELETE FROM recorded_input WHERE row_id <= "
    f"(SELECT seq FROM sqlite_sequence WHERE name = 'recorded_input') - {RECORDED_INPUTS_KEPT}"
)
OPEN_REQUESTS = "SELECT row_id, asked FROM operator_request WHERE answer IS NULL"
ANSWER_REQUEST = "UPDATE operator_request SET answer = ? WHERE row_id = ?"
ASKS_SET_APART = "set apart: "
"""Stands before the GLOB of an operator's request that is about what is set apart, not about registrations."""
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
# Copies first: of an advisory that is missing, the hub calls the time unknown.
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
    "ON CONFLICT DO UPDATE SET needed = MAX(needed, excluded.needed), at = excluded.at"
)
TOO_LARGE = "SELECT block, cause, needed, at FROM too_large ORDER BY block, cause"
FORGET_TOO_LARGE = "DELETE FROM too_large WHERE block = ? AND cause = ? AND at = ?"


def put_in_outbox(lane: Lane) -> str:
    """Append a row to a lane's outbox."""
    columns = "row_id, block, sender_id, size, watermark_since, subject, headers, payload"
    return f"INSERT INTO {OUTBOXES[lane]} ({columns}) VALUES (?,?,?,?,?,?,?,?)"


def set_apart(lane: Lane) -> str:
    """Put a row of a lane's outbox among those that are set apart; the outbox keeps it."""
    return (
        f"INSERT INTO set_apart SELECT row_id, {int(lane)}, block, ?, ?, ?, size, subject, headers, payload "
        f"FROM {OUTBOXES[lane]} WHERE row_id = ?"
    )


def delete_row(lane: Lane) -> str:
    """Delete one row of a lane's outbox."""
    return f"DELETE FROM {OUTBOXES[lane]} WHERE row_id = ?"


def pending_rows(lane: Lane) -> str:
    """List a lane's rows between two, in order."""
    return (
        f"SELECT row_id, block, sender_id, size, watermark_since, subject, headers, payload FROM {OUTBOXES[lane]} "
        "WHERE row_id > ? AND row_id < ? ORDER BY row_id"
    )


def delete_through(lane: Lane) -> str:
    """Delete a lane's rows up to and including one."""
    return f"DELETE FROM {OUTBOXES[lane]} WHERE row_id <= ?"


def rows_through(lane: Lane) -> str:
    """Measure a lane's rows up to and including one: count and bytes."""
    return f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM {OUTBOXES[lane]} WHERE row_id <= ?"


def put_chunk(lane: Lane) -> str:
    """Append a chunk to a lane."""
    return f"INSERT INTO {CHUNKS[lane]} (last_row_id, first_row_id, block, count, size, body) VALUES (?,?,?,?,?,?)"


def first_chunk_behind(lane: Lane) -> str:
    """Name a lane's first chunk with rows behind one, without reading them."""
    return (
        f"SELECT last_row_id, first_row_id, block, count, size FROM {CHUNKS[lane]} "
        "WHERE last_row_id > ? ORDER BY last_row_id LIMIT 1"
    )


def chunk_body(lane: Lane) -> str:
    """Read a chunk's rows."""
    return f"SELECT body FROM {CHUNKS[lane]} WHERE last_row_id = ?"


def delete_chunk(lane: Lane) -> str:
    """Delete one chunk."""
    return f"DELETE FROM {CHUNKS[lane]} WHERE last_row_id = ?"


def delete_chunks_through(lane: Lane) -> str:
    """Delete a lane's chunks whose rows are all up to and including one."""
    return f"DELETE FROM {CHUNKS[lane]} WHERE last_row_id <= ?"


def chunks_through(lane: Lane) -> str:
    """Measure the rows of those chunks: count and bytes."""
    return f"SELECT COALESCE(SUM(count), 0), COALESCE(SUM(size), 0) FROM {CHUNKS[lane]} WHERE last_row_id <= ?"


def waits(lane: Lane, row_id: str) -> str:
    """Write the expression that tells whether the row of an id waits in a lane, or one that is not there any more."""
    chunk = CHUNKS[lane]
    first = f"SELECT first_row_id FROM {chunk} WHERE last_row_id >= {row_id} ORDER BY last_row_id LIMIT 1"
    return (
        f"(EXISTS (SELECT 1 FROM {OUTBOXES[lane]} AS waiting WHERE waiting.row_id = {row_id}) "
        f"OR COALESCE(({first}) <= {row_id}, 0) "
        f"OR EXISTS (SELECT 1 FROM set_apart WHERE set_apart.row_id = {row_id}))"
    )
