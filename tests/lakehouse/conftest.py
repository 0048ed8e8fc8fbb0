"""One Spark for the whole test session; a real hub and tables of its own for every test that asks for them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from aggregator.config import AggregatorSettings, LakehouseSettings
from aggregator.lakehouse import rollup
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupRequest, RollupResult
from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.spark.jars import JARS, POSTGRESQL, JarsUnavailable, iceberg_jars
from aggregator.lakehouse.spark.session import start
from shared.nats.connection import ConnectionSettings
from shared.settings import FilePath
from tests.support.lakehouse.hub import Hub
from tests.support.lakehouse.quick_spark import SPARK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """py4j leaves its sockets to the garbage collector, and whichever test runs then is told."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:.*unclosed|.*<socket.socket:pytest.PytestUnraisableExceptionWarning")
            )


def settings_for(connection: ConnectionSettings, warehouse: Path) -> AggregatorSettings:
    lakehouse = LakehouseSettings(path=FilePath(warehouse), spark_master="local[2]", spark=SPARK)
    return AggregatorSettings(hub=connection, lakehouse=lakehouse)


def say(line: str) -> None:
    print(line, file=sys.stderr)


class Lakehouse:
    """A hub, and the tables made from it."""

    def __init__(self, hub: Hub, warehouse: Path) -> None:
        self.hub = hub
        self.warehouse = warehouse
        self.settings = settings_for(hub.connection, warehouse)

    def roll_up(self, request: RollupRequest | None = None) -> RollupResult:
        return rollup.roll_up(self.settings, request or RollupRequest(), say)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Ask the tables, as Python without Java sees them; instants come as they are."""
        with open_tables(self.warehouse, self.settings.lakehouse.catalog) as tables:
            return [tuple(row) for row in tables.rows(query)]

    def rows_in_spark(self, query: str) -> list[tuple[object, ...]]:
        """Ask the tables, as Spark sees them."""
        spark = rollup.start_session(self.settings, say)
        return [tuple(row) for row in spark.sql(query).collect()]


@pytest.fixture(scope="session")
def nobodys_directory() -> Path:
    """Give a directory of files that nobody may write, not even root."""
    directory = Path("/sys/kernel")
    try:
        (directory / "uevent_seqnum").open("rb+").close()
    except PermissionError:
        return directory
    except OSError as error:
        pytest.skip(f"this machine has no file that nobody may write: {error}")
    pytest.skip("this machine has no file that nobody may write")


PIECES, MANY_PIECES = "spark.sql.adaptive.coalescePartitions.initialPartitionNum", "4"
"""Into how many a session begins to shuffle all rows; a user's begins with 32 and more."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    nobody = ConnectionSettings(servers=("nats://127.0.0.1:1",))
    wanted = rollup.session_settings(settings_for(nobody, tmp_path_factory.mktemp("warehouse")), say)
    # A JVM learns of jars when it starts: this one may come to use any catalog whose driver can be had.
    try:
        jars = iceberg_jars(default_cache(), None, say, (*JARS, POSTGRESQL))
    except JarsUnavailable as error:
        say(str(error))
        jars = wanted.jars
    session = start(msgspec.structs.replace(wanted, jars=jars, extra={**wanted.extra, PIECES: MANY_PIECES}))
    yield session
    session.stop()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Give a hub for all tests of a module, whose REPORT keeps so little that ARCHIVE is read too."""
    hub = Hub(tmp_path_factory.mktemp("hub"), report_limit=7)
    hub.start()
    yield hub
    hub.stop()


@pytest.fixture
def lakehouse(spark: SparkSession, tmp_path: Path) -> Iterator[Lakehouse]:
    hub = Hub(tmp_path / "hub")
    hub.start()
    yield Lakehouse(hub, tmp_path / "lake")
    hub.stop()
