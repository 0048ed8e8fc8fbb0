"""Let SIGTERM and Ctrl-C end a job between two commits, and soon.

The handler notes what was asked and writes into a pipe, nothing else: the main thread may be in the middle of a call to
the JVM, whose connection takes no second one. A thread that reads the pipe, on a connection of its own, has Spark give
up what it computes; the main thread's call then returns, with an error. A commit is no job of Spark's: it is made
whole, or not begun. The JVM itself goes on after a SIGTERM (``process``), though a whole group of processes was
sent one. Whoever asks again ends the process at once, as kill -9 would; what comes within a second of the first is the
same request, for ``timeout`` signals its command and then the command's group.
"""

import asyncio
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkException

from aggregator.lakehouse.spark.jars import JarsUnavailable
from aggregator.lakehouse.spark.java import JavaUnavailable
from aggregator.lakehouse.spark.process import GONE
from aggregator.lakehouse.warehouse.interruption import Check
from shared.command_line.terminal import echo

CUT_SHORT = (JarsUnavailable, JavaUnavailable, PySparkException, *GONE)
"""What a request to end may look like: Spark's work was given up, or what gets its jars or looks for its Java ended."""

STOPPING = "muster-aggregator: stopping as soon as no commit is under way; a second request ends it at once"

Result = TypeVar("Result")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 0.2
_SAME_REQUEST_SECONDS = 1.0
_CANCEL_AGAIN_SECONDS = 1.0
"""A job of Spark's that begins after the last were cancelled is to be given up too."""


class Stopped(Exception):
    """The process was asked to end, by the signal ``number``. Whoever raises it stands between two commits."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped between two commits: the next run goes on from here")
        self.number = number


class StopSignal:
    """Notices that the process is asked to end. A context manager, for the main thread of a program only.

    What is raised because work was given up, or a process of the group ended, leaves the context as Stopped.
    """

    def __init__(self) -> None:
        self._number, self._asked_at = 0, 0.0
        self._woken, self._wake = os.pipe()
        self._ended, self._end = os.pipe()
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._canceller = threading.Thread(target=self._cancel, name="stop-signal", daemon=True)

    def is_asked(self) -> bool:
        return self._number != 0

    def __enter__(self) -> Self:
        self._canceller.start()
        for number in _SIGNALS:
            signal.signal(number, self._ask)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._end)
        self._canceller.join()
        for end in (self._woken, self._wake, self._ended):
            os.close(end)
        if self.is_asked() and isinstance(error, CUT_SHORT):
            raise Stopped(self._number) from error

    def check(self, _line: str = "") -> None:
        """Raise Stopped where it was asked for: called between commits, as progress is told."""
        if self.is_asked():
            raise Stopped(self._number)

    def telling(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """Give what checks before it tells of progress, which happens between commits."""

        def checked(line: str) -> None:
            self.check()
            tell(line)

        return checked

    def wait(self, seconds: float) -> None:
        """Wait so long, or until asked."""
        select.select([self._woken], [], [], max(0.0, seconds))

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.is_asked():
            self._number, self._asked_at = number, now
            os.write(self._wake, b"!")
        elif now - self._asked_at > _SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _cancel(self) -> None:
        select.select([self._woken, self._ended], [], [])
        if self._number == signal.SIGINT:
            # The work under way, such as a commit or the start of Spark, may take a minute to end.
            echo(STOPPING, err=True)
        pause = 0.0
        while not select.select([self._ended], [], [], pause)[0]:
            spark = SparkContext._active_spark_context  # noqa: SLF001 - there is no public question
            if spark is not None:
                # A JVM that is gone computes nothing; a context that starts or was stopped has no JVM (AttributeError).
                with suppress(*GONE, AttributeError):
                    spark.cancelAllJobs()
            pause = _CANCEL_AGAIN_SECONDS


async def until_stopped(work: Coroutine[Any, Any, Result], check: Check) -> Result:
    """Await ``work``, which changes nothing, and give it up where ``check`` raises."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_POLL_SECONDS))[0]:
            check()
        return task.result()
    finally:
        task.cancel()
