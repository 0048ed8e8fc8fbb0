"""Roll up, and die by SIGKILL: ``dying_rollup.py <servers> <warehouse> <N> [FILE]``.

A whole N is a number of commits: right after the Nth. 7.4 is 0.4 s after the seventh, or at the end where that comes
first; 0.4 is 0.4 s after the tables were first looked at. With a file, import it before. The tables are kept up after
the run, and what that does to each of them counts as a commit too. The commits are the job's own; only what happens
after one of them is not.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from aggregator.lakehouse import rollup
from aggregator.lakehouse.imports.job import import_intervals
from aggregator.lakehouse.imports.mapping import Mapping
from aggregator.lakehouse.warehouse import commits, provision, upkeep
from aggregator.lakehouse.warehouse.upkeep import TableUpkeep
from shared.nats.connection import ConnectionSettings
from shared.settings import Duration
from tests.lakehouse.conftest import say, settings_for

MAPPING = Mapping(
    source="nagios", sender=("host",), start="begin", stop="end", state="state", shape="{region}/{site}/{rack}/{}"
)
UPKEEP = ("compact", "expire")
"""What is done to each table after a run, one kind after the other."""


class Countdown:
    """Ends the process when it has been called often enough, and a part of a second has passed."""

    def __init__(self, moment: float) -> None:
        self.left, self.seconds = int(moment), moment % 1

    def check(self) -> None:
        if self.left == 0 and self.seconds:
            # Whatever the job is doing then, in Python or in Java.
            threading.Timer(self.seconds, die).start()
        elif self.left == 0:
            die()

    def before(self, begin: Any) -> Any:
        def beginning(*arguments: Any, **named: Any) -> Any:
            self.check()
            return begin(*arguments, **named)

        return beginning

    def after(self, commit: Any) -> Any:
        def committing(*arguments: Any, **named: Any) -> Any:
            done = commit(*arguments, **named)
            self.left -= 1
            self.check()
            return done

        return committing


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    countdown = Countdown(float(sys.argv[3]))
    provision.prepare = countdown.before(provision.prepare)
    for name in ("append", "add_files", "advance", "replace", "record"):
        setattr(commits, name, countdown.after(getattr(commits, name)))
    for name in UPKEEP:
        setattr(TableUpkeep, name, countdown.after(getattr(TableUpkeep, name)))
    # Two small files are many here, and nobody reads what was replaced.
    upkeep._MANY_FILES = 2
    settings = settings_for(ConnectionSettings(servers=(sys.argv[1],)), Path(sys.argv[2]))
    kept_up = msgspec.structs.replace(settings.lakehouse, maintain_every=1, keep_snapshots=Duration(0))
    settings = msgspec.structs.replace(settings, lakehouse=kept_up)
    if len(sys.argv) > 4:
        import_intervals(settings, [Path(sys.argv[4])], MAPPING, say)
    rollup.CHUNK_MESSAGES = 10
    rollup.roll_up(settings, rollup.RollupRequest(), say)
    if countdown.seconds and countdown.left <= 0:
        die()


if __name__ == "__main__":
    main()
