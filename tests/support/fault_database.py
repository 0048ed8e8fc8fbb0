"""Change an agent's database while the agent is away: write it anew, or put it back to the first version.

A process of its own: ``python -m tests.support.fault_database rewrite|make_old PATH``. On a full disk nothing changes.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from edge_agent.store import schema

# What takes back each step of edge_agent.store.migrations, by the version that the step leads to.
TAKE_BACK = {2: "DROP TABLE copy_outbox;"}
OLDEST = 1


def rewrite(database: sqlite3.Connection) -> None:
    """Write the log back into the file, and the file anew."""
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    database.execute("VACUUM")


def make_old(database: sqlite3.Connection) -> None:
    """Make of it what the first version of the agent wrote, so that the next start brings it up to date."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    steps = "".join(TAKE_BACK[each] for each in range(version, OLDEST, -1))
    database.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version={OLDEST}; COMMIT;")


def change(path: Path, how: str) -> None:
    """Do one or the other."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        try:
            {"rewrite": rewrite, "make_old": make_old}[how](database)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise


if __name__ == "__main__":
    assert set(range(OLDEST + 1, schema.VERSION + 1)) == TAKE_BACK.keys(), "say how to take back the newest step"
    change(Path(sys.argv[2]), sys.argv[1])
