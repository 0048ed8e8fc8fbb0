"""Let one job at a time write the tables of a warehouse.

The JVM holds the lock, for it is the JVM that commits: when Python is killed, it may live on for a moment and end a
commit that it had begun. A lock of the operating system ends with its process, so a dead job keeps nobody out.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from aggregator.lakehouse.stopping import Check, unstoppable

_FILE = "rollup.lock"
_POLL_SECONDS = 0.2
_LEFT: list[JavaObject] = []
"""Files that the JVM shall not close before it ends: it closes what nobody knows any more."""

Progress = Callable[[str], None]


class AlreadyRunning(RuntimeError):
    """Another job writes these tables. The text is one line."""


@contextmanager
def alone(
    spark: SparkSession, warehouse: Path, deadline: float, progress: Progress, check: Check = unstoppable
) -> Iterator[None]:
    """Hold the lock of ``warehouse``; raise AlreadyRunning when another holds it for ``deadline`` seconds.

    Who leaves while the JVM may still be at work, and commit, leaves the lock to it: it ends with the process.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the process that commits
    path = warehouse / _FILE
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    is_at_work = False
    try:
        _wait(lambda: _try_lock(file) is not None, path, deadline, progress, check)
        yield
    except (KeyboardInterrupt, Py4JNetworkError, ConnectionError):
        # Nobody waited for the answer to the last call.
        is_at_work = True
        _LEFT.append(file)
        raise
    finally:
        if not is_at_work:
            # Its locks end with it.
            file.close()


def wait_until_free(warehouse: Path, deadline: float, progress: Progress, check: Check = unstoppable) -> None:
    """Wait for another job's end before Spark is started for nothing; raise AlreadyRunning as ``alone`` does.

    This takes no lock: another job may still be faster.
    """
    path = warehouse / _FILE
    _wait(lambda: _is_free(path), path, deadline, progress, check)


def _wait(is_there: Callable[[], bool], path: Path, deadline: float, progress: Progress, check: Check) -> None:
    ends_at = time.monotonic() + deadline
    said = False
    while not is_there():
        check()
        if time.monotonic() > ends_at:
            raise AlreadyRunning(f"another job holds {path} since more than {deadline:g} s: wait for it, or end it")
        if not said:
            progress("another job is at work on these tables: waiting for it")
            said = True
        time.sleep(_POLL_SECONDS)


def _is_free(path: Path) -> bool:
    """Ask the system, whose locks are the same for Java and for Python."""
    try:
        with path.open("rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _try_lock(file: Any) -> JavaObject | None:
    """Give the lock, which ends when its file is closed."""
    try:
        lock: JavaObject | None = file.getChannel().tryLock()
    except Py4JJavaError as error:
        # This very JVM holds it for another caller.
        if error.java_exception.getClass().getSimpleName() == "OverlappingFileLockException":
            return None
        raise
    return lock
