"""Run the agent so that it can be made to die at a commit: ``python -m tests.support.agent.dying_agent run``.

The agent itself knows nothing of this. Where the file that the environment names says "before" or "after", the process
is gone just before, or just after, the next transaction that carries a batch is made durable: where one batch was two
transactions, between them.
"""

import os
import re
import signal
import sqlite3
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from edge_agent.cli import main
from edge_agent.store import decision_log, schema

DEATH = "MUSTER_TEST_DEATH"
_OF_A_BATCH = re.compile(r"INSERT (OR REPLACE )?INTO (block|sender|\w+_outbox)\b")


class When(StrEnum):
    """When, of a commit, the process ends."""

    BEFORE = "before"
    AFTER = "after"


class DyingConnection(sqlite3.Connection):
    """A connection that looks, at every commit of a batch, whether this is the end."""

    _has_batch = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        self._note(sql)
        if sql != "COMMIT":
            return super().execute(sql, *parameters)
        when = self._end()
        if when is When.BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        cursor = super().execute(sql)
        if when is When.AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        self._note(sql)
        return super().executemany(sql, parameters)

    def _note(self, sql: str) -> None:
        if sql.startswith("BEGIN"):
            self._has_batch = False
        elif _OF_A_BATCH.match(sql):
            self._has_batch = True

    def _end(self) -> When | None:
        path = Path(os.environ[DEATH])
        return When(path.read_text()) if self._has_batch and path.exists() else None


if __name__ == "__main__":
    # What a straight run needs is all of it, however long the schedule.
    schema.FORGET_INPUTS = ""
    decision_log.DECISIONS_KEPT = 100_000_000
    setattr(sqlite3, "connect", partial(sqlite3.connect, factory=DyingConnection))  # noqa: B010 - typed as it was
    main()
