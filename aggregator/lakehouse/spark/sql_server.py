"""Serve the tables to those who speak JDBC (HiveServer2's protocol) or Spark Connect: both from one Spark.

Nothing can be changed through it: the catalog is opened so that its driver refuses to commit, or its own rights do
(``read_only.py``). Tools that look around
by JDBC's own calls see Spark's first catalog only, so every table and view stands there too, as a view of its name.
"""

import os
import socket
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aggregator.lakehouse.spark.session import SessionSettings, start
from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.tables.schemas import TABLES, VIEWS
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG
from aggregator.lakehouse.warehouse.iceberg import Iceberg

_FOR_TOOLS = f"spark_catalog.{NAMESPACE}"
_SERVED = (*TABLES, *VIEWS)


class ServingFailed(RuntimeError):
    """The server cannot start. The text is one line: what, where, what to do."""


class Endpoints(msgspec.Struct, frozen=True):
    """Where to listen. A port is None where its protocol is not served."""

    host: str
    jdbc_port: int | None
    connect_port: int | None

    @property
    def urls(self) -> dict[str, str]:
        """Give what clients are told, by protocol."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        urls = {}
        if self.jdbc_port is not None:
            urls["JDBC"] = f"jdbc:hive2://{host}:{self.jdbc_port}/{NAMESPACE}"
        if self.connect_port is not None:
            urls["Spark Connect"] = f"sc://{host}:{self.connect_port}"
        return urls


def check_ports(endpoints: Endpoints) -> None:
    """Raise ServingFailed where a port cannot be had: before Spark takes seconds to start and pages to say so."""
    for option, port in (("--jdbc-port", endpoints.jdbc_port), ("--connect-port", endpoints.connect_port)):
        if port is not None:
            try:
                family = socket.getaddrinfo(endpoints.host, port, type=socket.SOCK_STREAM)[0][0]
                with socket.socket(family) as tried:
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried.bind((endpoints.host, port))
            except OSError as error:
                raise ServingFailed(
                    f"cannot listen on {endpoints.host}:{port}: {error.strerror}; end what listens there, or choose"
                    f" another with {option}"
                ) from error


@contextmanager
def serving(
    settings: SessionSettings, endpoints: Endpoints, log: Path, say: Callable[[str], None]
) -> Iterator[Callable[[], bool]]:
    """Serve meanwhile, and give what tells whether Spark is still there. What Spark has to say goes to ``log``.

    ``say`` is told in a line which tables and views of this version are not there yet: the others are served.
    Raise ServingFailed, and what ``session.start`` raises.
    """
    if endpoints.jdbc_port is not None:
        # The Thrift server asks the environment first, before any setting.
        place = {"HIVE_SERVER2_THRIFT_BIND_HOST": endpoints.host, "HIVE_SERVER2_THRIFT_PORT": str(endpoints.jdbc_port)}
        os.environ |= place
    extra = {**settings.extra, **_extra(endpoints)}
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
            if endpoints.jdbc_port is not None:
                _name_for_tools(spark, present)
                _serve_jdbc(spark)
            if endpoints.connect_port is not None:
                _packages(spark).sql.connect.service.SparkConnectService.start(_context(spark))
        except (Py4JJavaError, PySparkException) as error:
            raise ServingFailed(f"the server did not start: {_root_cause(error)}; see {log}") from error
        yield lambda: _is_there(spark)
    finally:
        _stop(spark)


def _extra(endpoints: Endpoints) -> dict[str, str]:
    return {
        # Spark's own views are kept in memory, and gone with the process.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.connect.grpc.binding.address": endpoints.host,
        "spark.connect.grpc.binding.port": str(endpoints.connect_port or 0),
        # One long query must not keep the others waiting.
        "spark.scheduler.mode": "FAIR",
    }


def _name_for_tools(spark: SparkSession, present: Collection[str]) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {_FOR_TOOLS}")
    for table in _SERVED:
        if table.name in present:
            spark.sql(f"CREATE VIEW {_FOR_TOOLS}.{table.name} AS SELECT * FROM {CATALOG}.{table.identifier}")  # noqa: S608


def _serve_jdbc(spark: SparkSession) -> None:
    server: Any = _packages(spark).sql.hive.thriftserver.HiveThriftServer2
    server.startWithSparkSession(spark._jsparkSession, False)  # noqa: SLF001


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
    jvm: Any = spark._jvm  # noqa: SLF001 - Python has no name for the servers
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
