"""Let one rollup at a time write the tables of a warehouse.

The JVM holds the lock, for it is the JVM that commits: when Python is killed, it may live on for a moment and end a
commit that it had begun. A lock of the operating system ends with its process, so a dead job keeps nobody out.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_POLL_SECONDS = 0.2


class AlreadyRunning(RuntimeError):
    """Another rollup writes these tables. The text is one line."""


@contextmanager
def alone(spark: SparkSession, warehouse: Path, deadline: float, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``warehouse``; raise AlreadyRunning when another holds it for ``deadline`` seconds."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the process that commits
    path = warehouse / "rollup.lock"
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    try:
        ends_at = time.monotonic() + deadline
        said = False
        while (lock := _try_lock(file)) is None:
            if time.monotonic() > ends_at:
                raise AlreadyRunning(
                    f"another rollup holds {path} since more than {deadline:g} s: wait for it, or end it"
                )
            if not said:
                progress("another rollup is at work on these tables: waiting for it")
                said = True
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            lock.release()
    finally:
        file.close()


def _try_lock(file: Any) -> JavaObject | None:
    try:
        lock: JavaObject | None = file.getChannel().tryLock()
    except Py4JJavaError as error:
        # This very JVM holds it for another caller.
        if error.java_exception.getClass().getSimpleName() == "OverlappingFileLockException":
            return None
        raise
    return lock
