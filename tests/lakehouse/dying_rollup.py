"""Roll up, and die by SIGKILL right after the Nth commit: ``dying_rollup.py <servers> <warehouse> <N>``.

The commits are the job's own; only what happens after one of them is not.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from aggregator.lakehouse import catalog, job
from shared.nats_connection import ConnectionSettings
from tests.lakehouse.conftest import say, settings_for


class Countdown:
    """Ends the process when it has been called often enough."""

    def __init__(self, commits: int) -> None:
        self.left = commits

    def after(self, commit: Any) -> Any:
        def committing(*arguments: Any) -> Any:
            done = commit(*arguments)
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return committing


def main() -> None:
    countdown = Countdown(int(sys.argv[3]))
    for name in ("append", "advance", "replace", "record"):
        setattr(catalog, name, countdown.after(getattr(catalog, name)))
    job.CHUNK_MESSAGES = 10
    job.roll_up(settings_for(ConnectionSettings(servers=(sys.argv[1],)), Path(sys.argv[2])), job.RollupRequest(), say)


if __name__ == "__main__":
    main()
