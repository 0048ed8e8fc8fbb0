"""Serve the tables to those who speak Spark Connect and have the token.

A client of Spark Connect can run any code as the server's user. That nothing is changed is a matter of that user's
rights, which the command sees to; that the catalog is opened read only keeps clients from trying in good faith.
"""

import os
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aggregator.lakehouse.spark.session import SessionSettings, start
from aggregator.lakehouse.tables.schemas import TABLES, VIEWS
from aggregator.lakehouse.warehouse.iceberg import Iceberg

_SERVED = (*TABLES, *VIEWS)
_HOST = "127.0.0.1"
"""Spark Connect has no TLS: whoever is elsewhere comes through a tunnel."""
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the variable's name, not its value


class ServingFailed(RuntimeError):
    """The server cannot start. The text is one line: what, where, what to do."""


class SqlEndpoint(msgspec.Struct, frozen=True):
    """The address that Spark Connect listens on, and the token of its clients."""

    port: int
    token: str

    @property
    def url(self) -> str:
        """Give what clients are told: they send a token without TLS to this name only."""
        return f"sc://localhost:{self.port}/;token=TOKEN"


def check_port(endpoint: SqlEndpoint) -> None:
    """Raise ServingFailed where the port cannot be had: before Spark takes seconds to start and pages to say so."""
    try:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((_HOST, endpoint.port))
    except OSError as error:
        raise ServingFailed(
            f"cannot listen on {_HOST}:{endpoint.port}: {error.strerror}; end what listens there, or choose another"
            " with --port"
        ) from error


@contextmanager
def serving(
    settings: SessionSettings, endpoint: SqlEndpoint, log: Path, say: Callable[[str], None]
) -> Iterator[Callable[[], bool]]:
    """Serve meanwhile, and give what tells whether Spark is still there. What Spark has to say goes to ``log``.

    ``say`` is told in a line which tables and views of this version are not there yet: the others are served.
    Raise ServingFailed, and what ``session.start`` raises.
    """
    # Not among the properties, which stand on the JVM's command line for everybody to read.
    os.environ[_TOKEN] = endpoint.token
    extra = {**settings.extra, **_extra(endpoint)}
    try:
        spark = start(msgspec.structs.replace(settings, extra=extra, log=log, read_only=True))
    except OSError as error:
        if Path(error.filename or "") != log:
            raise
        raise ServingFailed(f"{log} cannot be written: {error.strerror}; name another file with --log") from error
    try:
        try:
            present = Iceberg(spark).names()
            missing = [table.name for table in _SERVED if table.name not in present]
            if missing:
                say(f"not there yet: {', '.join(missing)}; run muster-aggregator rollup, then start this again")
            _packages(spark).sql.connect.service.SparkConnectService.start(_context(spark))
        except (Py4JJavaError, PySparkException) as error:
            raise ServingFailed(f"the server did not start: {_root_cause(error)}; see {log}") from error
        yield lambda: _is_there(spark)
    finally:
        _stop(spark)


def _extra(endpoint: SqlEndpoint) -> dict[str, str]:
    return {
        # Spark's own views are kept in memory, and gone with the process.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.connect.grpc.binding.address": _HOST,
        "spark.connect.grpc.binding.port": str(endpoint.port),
        # One long query must not keep the others waiting.
        "spark.scheduler.mode": "FAIR",
    }


def _is_there(spark: SparkSession) -> bool:
    try:
        return not _context(spark).isStopped()
    except (Py4JError, OSError):
        return False


def _stop(spark: SparkSession) -> None:
    """End Spark. Its JVM may be gone already, killed or out of memory."""
    with warnings.catch_warnings(), suppress(Py4JError, OSError):
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


def _packages(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm  # noqa: SLF001 - Python has no name for the server
    return jvm.org.apache.spark


def _context(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc()  # noqa: SLF001 - as above


def _root_cause(error: Py4JJavaError | PySparkException) -> str:
    if isinstance(error, PySparkException):
        return str(error).strip().splitlines()[0]
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString()).splitlines()[0]
