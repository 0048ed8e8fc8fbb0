"""Define the statements of the decision log: decisions stand in a row each, or by the thousand in chunks.

Whoever reads the log takes both as one: ``LOGGED_ADVISORIES`` and ``LOGGED_FORWARDS``.
"""

from edge_agent.store import schema

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


# The logs whole, for people. ``through`` is the row id up to which what stands together with a decision reaches.
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


def log_advisories(count: int) -> str:
    """Log ``count`` advisories."""
    return "INSERT INTO advisory_log VALUES " + schema.rows("(?,?,?,?,?,?,?,?,?,?,?,?)", count)


def log_forwards(count: int) -> str:
    """Log ``count`` forwarded registrations, of which nothing is known yet."""
    return "INSERT INTO forward_log VALUES " + schema.rows("(?,?,?,?,?,?,?,?,'')", count)


def count_decisions(log: str) -> str:
    """Count what a log holds."""
    return f"SELECT (SELECT COUNT(*) FROM {log}) + (SELECT COALESCE(SUM(count), 0) FROM {LOG_CHUNKS[log]})"


def forget_decisions(log: str) -> str:
    """Delete a log's oldest rows before one, as many as the parameter says; the cost is that of the rows that go."""
    return f"DELETE FROM {log} WHERE row_id IN (SELECT row_id FROM {log} WHERE row_id < ? ORDER BY row_id LIMIT ?)"


def put_log_chunks(log: str, count: int) -> str:
    """Log many decisions as ``count`` rows."""
    columns = "(last_row_id, first_row_id, count, body)"
    return f"INSERT INTO {LOG_CHUNKS[log]} {columns} VALUES " + schema.rows("(?,?,?,CAST(? AS TEXT))", count)


def first_log_chunks(log: str) -> str:
    """Name a log's oldest chunks."""
    return f"SELECT last_row_id, first_row_id, count FROM {LOG_CHUNKS[log]} ORDER BY last_row_id LIMIT 100"


def first_decision(log: str) -> str:
    """Name the oldest decision that stands in a row of its own."""
    return f"SELECT COALESCE(MIN(row_id), {schema.EVERY_ROW}) FROM {log}"


def delete_log_chunks(log: str) -> str:
    """Delete a log's chunks up to and including one."""
    return f"DELETE FROM {LOG_CHUNKS[log]} WHERE last_row_id <= ?"
