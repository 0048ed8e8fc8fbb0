"""Let one job at a time write the tables of a warehouse.

The JVM holds the locks, for it is the JVM that commits: when Python is killed, it may live on for a moment and end a
commit that it had begun. There are two. A lock of the operating system on a file beside the tables keeps the jobs of
one machine apart; a lock in PostgreSQL, where the catalog is, those of all machines. Both end with the process that
holds them, so a dead job keeps nobody out. Where neither holds, as for a REST catalog that several machines write, what
``catalog`` checks at each commit keeps the tables right: one of two jobs gives up.
"""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from aggregator.catalog_settings import CatalogSettings
from aggregator.lakehouse.warehouse.catalog import check_ours, claim
from aggregator.lakehouse.warehouse.catalog_settings import LOCK_FILE, jdbc_access
from aggregator.lakehouse.warehouse.errors import AlreadyRunning
from aggregator.lakehouse.warehouse.interruption import Check, unstoppable

_POLL_SECONDS = 0.2
_LEFT: list[JavaObject] = []
"""Files and connections that the JVM shall not close before it ends: it closes what nobody knows any more."""
_KEY = 0x6D757374
"""The first half of the key of PostgreSQL's lock; the schema that holds the catalog is the other."""
_ENDS_WITH_ITS_HOST = (
    # A host that lost its power says no farewell: PostgreSQL would wait two hours for it.
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3;"
    " SET idle_session_timeout = 0"
)

Progress = Callable[[str], None]


GAVE_UP = "this one gave up, and nothing was lost or counted twice; run again, and let one machine write these tables"


@contextmanager
def alone(
    spark: SparkSession,
    warehouse: Path,
    catalog: CatalogSettings,
    deadline: float,
    progress: Progress,
    check: Check = unstoppable,
) -> Iterator[None]:
    """Hold the locks of ``warehouse``; raise AlreadyRunning when another holds one for ``deadline`` seconds.

    Raise TablesUnreadable if the tables are not these settings' to write (``check_ours``).

    Who leaves while the JVM may still be at work, and commit, leaves the locks to it: they end with the process.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the process that commits
    path = warehouse / LOCK_FILE
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    held, connection, is_at_work = [file], None, False
    try:
        _wait(lambda: _try_lock(file) is not None, str(path), deadline, progress, check)
        if catalog.type == "postgresql":
            connection = _connect(jvm, catalog)
            held.append(connection)
            what = f"the lock of the catalog at {catalog.uri}"
            _wait(lambda: _try_lock_there(connection), what, deadline, progress, check)
        check_ours(warehouse, catalog)
        yield
        claim(warehouse, catalog)
    except (KeyboardInterrupt, Py4JNetworkError, ConnectionError):
        # Nobody waited for the answer to the last call.
        is_at_work = True
        _LEFT.extend(held)
        raise
    finally:
        if not is_at_work:
            if connection is not None:
                _unlock_there(connection)
            for each in held:
                # Its locks end with it.
                each.close()


def wait_until_free(warehouse: Path, deadline: float, progress: Progress, check: Check = unstoppable) -> None:
    """Wait for another job's end before Spark is started for nothing; raise AlreadyRunning as ``alone`` does.

    This takes no lock: another job may still be faster.
    """
    path = warehouse / LOCK_FILE
    _wait(lambda: _is_free(path), str(path), deadline, progress, check)


def _wait(is_there: Callable[[], bool], what: str, deadline: float, progress: Progress, check: Check) -> None:
    ends_at = time.monotonic() + deadline
    said = False
    while not is_there():
        check()
        if time.monotonic() > ends_at:
            raise AlreadyRunning(f"another job holds {what} since more than {deadline:g} s: wait for it, or end it")
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


def _connect(jvm: Any, catalog: CatalogSettings) -> Any:
    """Open a connection of its own: the catalog's come and go, and a lock ends with the one that took it."""
    url, given = jdbc_access(catalog)
    properties = jvm.java.util.Properties()
    for name, value in {"tcpKeepAlive": "true", **given}.items():
        properties.setProperty(name, value)
    connection = jvm.org.postgresql.Driver().connect(url, properties)
    connection.createStatement().execute(_ENDS_WITH_ITS_HOST)
    return connection


def _try_lock_there(connection: Any) -> bool:
    query = f"SELECT pg_try_advisory_lock({_KEY}, hashtext(current_schema()))"
    answer = connection.createStatement().executeQuery(query)
    return bool(answer.next() and answer.getBoolean(1))


def _unlock_there(connection: Any) -> None:
    """Let the next job have it at once: PostgreSQL lets go of it only a moment after the connection was closed."""
    with contextlib.suppress(Py4JJavaError):  # It is broken, or PostgreSQL away: the lock ends with it.
        connection.createStatement().execute("SELECT pg_advisory_unlock_all()")
