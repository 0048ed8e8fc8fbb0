"""Let SIGTERM and Ctrl-C end a service between two commits, and soon."""

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Self

from pyspark import SparkContext

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """The service was asked to end. Whoever raises it stands between two commits."""


class StopSignal:
    """Notices that the process is asked to end. A context manager, for the main thread of a program only."""

    def __init__(self) -> None:
        self._is_asked = False
        self._woken, self._wake = os.pipe()
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}

    def is_asked(self) -> bool:
        """Tell whether the process was asked to end."""
        return self._is_asked

    def __enter__(self) -> Self:
        """Listen to the signals."""
        for number in _SIGNALS:
            signal.signal(number, self._ask)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Leave the signals to whom they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._wake)

    def check(self, _line: str = "") -> None:
        """Raise Stopped where it was asked for: called between commits, as progress is told."""
        if self._is_asked:
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Wait so long, or until asked."""
        select.select([self._woken], [], [], max(0.0, seconds))

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True
        os.write(self._wake, b"!")
        # A commit is no job of Spark's: it is made whole, or not begun.
        spark = SparkContext._active_spark_context  # noqa: SLF001 - there is no public question
        if spark is not None:
            spark.cancelAllJobs()
