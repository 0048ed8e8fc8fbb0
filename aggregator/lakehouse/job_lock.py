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
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_FILE = "rollup.lock"
_POLL_SECONDS = 0.2

Progress = Callable[[str], None]


class AlreadyRunning(RuntimeError):
    """Another job writes these tables. The text is one line."""


@contextmanager
def alone(spark: SparkSession, warehouse: Path, deadline: float, progress: Progress) -> Iterator[None]:
    """Hold the lock of ``warehouse``; raise AlreadyRunning when another holds it for ``deadline`` seconds."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the process that commits
    path = warehouse / _FILE
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    try:
        locks: list[JavaObject] = []

        def locked() -> bool:
            lock = _try_lock(file)
            locks.extend([] if lock is None else [lock])
            return lock is not None

        _wait(locked, path, deadline, progress)
        try:
            yield
        finally:
            locks[0].release()
    finally:
        file.close()


def wait_until_free(warehouse: Path, deadline: float, progress: Progress) -> None:
    """Wait for another job's end before Spark is started for nothing; raise AlreadyRunning as ``alone`` does.

    This takes no lock: another job may still be faster.
    """
    path = warehouse / _FILE
    _wait(lambda: _is_free(path), path, deadline, progress)


def _wait(is_there: Callable[[], bool], path: Path, deadline: float, progress: Progress) -> None:
    ends_at = time.monotonic() + deadline
    said = False
    while not is_there():
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
    try:
        lock: JavaObject | None = file.getChannel().tryLock()
    except Py4JJavaError as error:
        # This very JVM holds it for another caller.
        if error.java_exception.getClass().getSimpleName() == "OverlappingFileLockException":
            return None
        raise
    return lock
