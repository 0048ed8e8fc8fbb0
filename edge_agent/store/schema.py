"""Define the store's tables and statements. A released version is never edited: it gets a migration.

``sender.row_id`` is the block's number in the upper 32 bits and the sender's slot in the lower: new senders append, a
sighting rewrites one short row, and nothing needs an index. The outboxes use AUTOINCREMENT because an acknowledgement
that comes late must never meet another row under its id; ids rise across all lanes. A decision's row in the logs has
the id of its record in the outbox: together they say whether it still waits.
"""

from edge_agent.core.outgoing import Lane

VERSION = 2
RECORDED_INPUTS_KEPT = 10_000
# Of advisories and of forwards each: about 15 MB, weeks of a fleet's advisories, a day of 4,000 senders' samples.
DECISIONS_KEPT = 100_000
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

ADVISORY_LOG, FORWARD_LOG = "advisory_log", "forward_log"
OUTBOXES = {
    Lane.ADVISORIES: "advisory_outbox",
    Lane.REGISTRATIONS: "registration_outbox",
    Lane.COPIES: "copy_outbox",
}

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
    "AND number NOT IN (SELECT opening_incarnation FROM advisory_log)"
)
ADD_COUNT = "INSERT INTO outbox_counter VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
RECORD_INPUT = "INSERT INTO recorded_input (block, body) VALUES (?,?)"
FORGET_INPUTS = (
    "DELETE FROM recorded_input WHERE row_id <= "
    f"(SELECT seq FROM sqlite_sequence WHERE name = 'recorded_input') - {RECORDED_INPUTS_KEPT}"
)
SET_FATE = "UPDATE forward_log SET fate = ? WHERE row_id = ?"
OPEN_REQUESTS = "SELECT row_id, asked FROM operator_request WHERE answer IS NULL"
ANSWER_REQUEST = "UPDATE operator_request SET answer = ? WHERE row_id = ?"
PUT_STATUS = "INSERT OR REPLACE INTO status VALUES (?,?)"

REPLACED_REGISTRATIONS = (
    "SELECT row_id, size FROM registration_outbox WHERE sender_id <> '' "
    "AND sender_id IN (SELECT value FROM json_each(?)) AND block = ? AND row_id > ?"
)
OLDEST_REGISTRATIONS = "SELECT row_id, size, block FROM registration_outbox WHERE row_id > ? ORDER BY row_id LIMIT 1000"
DELETE_REGISTRATION = "DELETE FROM registration_outbox WHERE row_id = ?"
UNSENT_REGISTRATIONS = (
    "SELECT block, COUNT(*), SUM(size) FROM registration_outbox WHERE row_id > ? AND block GLOB ? GROUP BY block"
)
SET_FATE_OF_UNSENT = (
    "UPDATE forward_log SET fate = ? WHERE row_id IN "
    "(SELECT row_id FROM registration_outbox WHERE row_id > ? AND block GLOB ?)"
)
DELETE_UNSENT = "DELETE FROM registration_outbox WHERE row_id > ? AND block GLOB ?"
DELETE_ADVISORY = "DELETE FROM advisory_outbox WHERE row_id = ?"


def put_senders(count: int) -> str:
    """Write ``count`` senders, each as it is now."""
    return "INSERT OR REPLACE INTO sender VALUES " + _rows("(?,?,?,?,?,?,?,?,?,?,?,?)", count)


def log_advisories(count: int) -> str:
    """Log ``count`` advisories."""
    return "INSERT INTO advisory_log VALUES " + _rows("(?,?,?,?,?,?,?,?,?,?,?,?)", count)


def log_forwards(count: int) -> str:
    """Log ``count`` forwarded registrations, of which nothing is known yet."""
    return "INSERT INTO forward_log VALUES " + _rows("(?,?,?,?,?,?,?,?,'')", count)


def put_in_outbox(lane: Lane, count: int) -> str:
    """Append ``count`` rows to a lane's outbox."""
    return (
        f"INSERT INTO {OUTBOXES[lane]} "
        "(row_id, block, sender_id, size, watermark_since, subject, headers, payload) VALUES "
        + _rows("(?,?,?,?,?,?,?,?)", count)
    )


def _rows(values: str, count: int) -> str:
    return ",".join([values] * count)


def pending_rows(lane: Lane) -> str:
    """List a lane's rows after one, in order."""
    return (
        f"SELECT row_id, block, sender_id, watermark_since, subject, headers, payload FROM {OUTBOXES[lane]} "
        "WHERE row_id > ? ORDER BY row_id LIMIT ?"
    )


def pending_sizes(lane: Lane) -> str:
    """List what a lane's rows after one take, in order, without reading them."""
    return f"SELECT size FROM {OUTBOXES[lane]} WHERE row_id > ? ORDER BY row_id LIMIT ?"


def delete_through(lane: Lane) -> str:
    """Delete a lane's rows up to and including one."""
    return f"DELETE FROM {OUTBOXES[lane]} WHERE row_id <= ?"


def rows_through(lane: Lane) -> str:
    """Measure a lane's rows up to and including one: count and bytes."""
    return f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM {OUTBOXES[lane]} WHERE row_id <= ?"


def count_decisions(log: str) -> str:
    """Count a log's rows."""
    return f"SELECT COUNT(*) FROM {log}"


def forget_decisions(log: str) -> str:
    """Delete a log's oldest rows, one more than the parameter says; the cost is that of the rows that go."""
    return f"DELETE FROM {log} WHERE row_id <= (SELECT row_id FROM {log} ORDER BY row_id LIMIT 1 OFFSET ?)"
