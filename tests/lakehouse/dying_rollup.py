"""Roll up, and die by SIGKILL right after the Nth commit: ``dying_rollup.py <servers> <warehouse> <N> [FILE]``.

With a file, import it instead. The commits are the job's own; only what happens after one of them is not.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from aggregator.lakehouse import catalog, job
from aggregator.lakehouse.imports.job import import_intervals
from aggregator.lakehouse.imports.mapping import Mapping
from shared.nats_connection import ConnectionSettings
from tests.lakehouse.conftest import say, settings_for

MAPPING = Mapping(
    source="nagios", sender=("host",), start="begin", stop="end", state="state", shape="{region}/{site}/{rack}/{}"
)


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
    for name in ("append", "add_files", "advance", "replace", "record"):
        setattr(catalog, name, countdown.after(getattr(catalog, name)))
    settings = settings_for(ConnectionSettings(servers=(sys.argv[1],)), Path(sys.argv[2]))
    if len(sys.argv) > 4:
        import_intervals(settings, [Path(sys.argv[4])], MAPPING, say)
    job.CHUNK_MESSAGES = 10
    job.roll_up(settings, job.RollupRequest(), say)


if __name__ == "__main__":
    main()
