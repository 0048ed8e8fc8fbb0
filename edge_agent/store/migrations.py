"""Bring a store that an older agent wrote to the version that this one reads, in one transaction.

Each released version has a step to the next; a step is never edited once it was released. Whatever ends the process in
between leaves the old store whole.
"""

import sqlite3

from edge_agent.store import schema

OLDEST = 1

_TO_2 = f"CREATE TABLE copy_outbox {schema.OUTBOX_COLUMNS};"
_TO_3 = f"""
CREATE TABLE advisory_chunk {schema.CHUNK_COLUMNS};
CREATE TABLE registration_chunk {schema.CHUNK_COLUMNS};
CREATE TABLE advisory_log_chunk {schema.LOG_CHUNK_COLUMNS};
CREATE TABLE forward_log_chunk {schema.LOG_CHUNK_COLUMNS};
CREATE TABLE forward_fate {schema.FATE_COLUMNS};
"""

_TO_4 = f"""
CREATE TABLE set_apart {schema.SET_APART_COLUMNS};
CREATE TABLE too_large {schema.TOO_LARGE_COLUMNS};
"""

STEPS = {1: _TO_2, 2: _TO_3, 3: _TO_4}
"""What leads from each version to the next."""


def can_migrate(version: int) -> bool:
    """Tell whether a store of ``version`` can become one that this agent reads."""
    return OLDEST <= version < schema.VERSION


def migrate(database: sqlite3.Connection, version: int) -> None:
    """Take the store from ``version`` to ours. Raise sqlite3.Error, having changed nothing, where that fails."""
    steps = "".join(STEPS[each] for each in range(version, schema.VERSION))
    try:
        database.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version={schema.VERSION}; COMMIT;")
    except sqlite3.Error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
