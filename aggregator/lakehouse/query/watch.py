"""End a question that takes longer than it may, or that gets nowhere.

DuckDB ends most of them when it is told to. One that waits for what never comes may not hear of it: then the process
ends, with a line, and leaves nothing half done.
"""

import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from aggregator.lakehouse.query.engine import Tables
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.command_line.terminal import echo
from shared.whole_files import discard

STALLED_SECONDS = 60.0
"""Without an answer, and without work: DuckDB, all of whose threads wait, gets nowhere."""
_WORK_SECONDS = 0.5
"""Of processor time within ``STALLED_SECONDS``: a busy machine gives a query more than that, the watch uses less."""
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.1


class Watch:
    """Watch one question to ``tables``. A context manager, which raises TablesUnreadable where it ended it.

    ``timeout`` is in seconds of DuckDB's, 0: none; time in which somebody reads the answer does not count.
    ``unfinished`` is a file that the answer is written to: it goes where the process ends.
    """

    def __init__(self, tables: Tables, timeout: float = 0.0, unfinished: Path | None = None) -> None:
        self._tables, self._timeout, self._unfinished = tables, timeout, unfinished
        self._reason: str | None = None
        self._ends_at = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def end(self, reason: str) -> None:
        """End the question; ``reason`` is one line."""
        if self._reason is None:
            self._reason, self._ends_at = reason, time.monotonic() + _GRACE_SECONDS
            self._tables.interrupt()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._reason is not None:
            raise TablesUnreadable(self._reason) from error

    def _watch(self) -> None:
        worked, worked_at = time.process_time(), time.monotonic()
        while not self._is_over.wait(_POLL_SECONDS):
            now, work = time.monotonic(), time.process_time()
            if self._reason is not None:
                if now > self._ends_at:
                    self._leave(self._reason)
                continue
            is_asking = self._tables.is_asking
            if not is_asking or work - worked > _WORK_SECONDS:
                worked, worked_at = work, now
            if self._timeout and self._tables.asked_seconds > self._timeout:
                self.end(f"no answer within {self._timeout:g} s (--timeout)")
            elif now - worked_at > STALLED_SECONDS:
                self.end(f"the query gets nowhere: no work was done for {STALLED_SECONDS:g} s; ask it otherwise")

    def _leave(self, reason: str) -> None:
        """End the process. Python would wait for the thread that never ends."""
        if self._unfinished is not None:
            discard(self._unfinished.parent)
        echo(f"Error: {reason}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
