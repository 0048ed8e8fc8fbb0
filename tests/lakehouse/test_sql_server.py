"""Analysts' own clients: a JDBC driver, Spark Connect and spark-sql see all tables and views, and change none."""

import ast
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from aggregator.lakehouse import rollup
from aggregator.lakehouse.commands.serve import serve_sql
from aggregator.lakehouse.commands.spark_sql import spark_sql
from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.spark.java import java_home
from aggregator.lakehouse.tables.schemas import LOSSES, POSITIONS, REGISTRATIONS, TABLES, VIEWS
from aggregator.lakehouse.warehouse import provision
from shared.instants import DAY, HOUR
from shared.nats.connection import ConnectionSettings
from tests.lakehouse.conftest import say, settings_for
from tests.support.aggregator_command import muster
from tests.support.command_process import CommandProcess, running
from tests.support.documents import ANALYSTS, commands, examples, quoted
from tests.support.free_ports import free_ports
from tests.support.quick_spark import spark_block
from tests.support.small_lakehouse import SmallLakehouse
from tests.support.small_rollup import START, Coverage, Interval

NOBODY = ConnectionSettings(servers=("nats://127.0.0.1:1",))
KNOWN_THROUGH = START + 2 * DAY
INTERVALS = [
    Interval("dub1", "n1", "up", START, START + 10 * HOUR, "stale"),
    Interval("dub1", "n1", "down", START + 10 * HOUR, START + 12 * HOUR, "recovered"),
    Interval("dub1", "n1", "up", START + 12 * HOUR, None, None),
    Interval("dub1", "n2", "up", START, None, None),
]
COVERAGE = [Coverage("dub1", START, KNOWN_THROUGH, "observed")]
NAMES = {table.name for table in (*TABLES, *VIEWS)}
QUESTION = "SELECT sender_id, count(*) FROM {0}outages GROUP BY sender_id"
SHOW_ALL = 'print({row[1] for each in ("TABLES", "VIEWS") for row in spark.sql(f"SHOW {each}").collect()})\n'


class Served:
    """A server on tables, and the ports of both protocols."""

    def __init__(self, process: CommandProcess, config: Path, jdbc_port: int, connect_port: int) -> None:
        self.process, self.config, self.jdbc_port, self.connect_port = process, config, jdbc_port, connect_port


def tables_in(directory: Path) -> tuple[SmallLakehouse, Path]:
    """Write tables, and the settings file that names them."""
    lakehouse = SmallLakehouse(directory / "tables")
    lakehouse.roll_up(INTERVALS, COVERAGE, KNOWN_THROUGH)
    lakehouse.append(REGISTRATIONS, [{"sender_id": "n1", "payload": '{"data": "its word"}'}])
    # Its tables are those of this version, but for the partitions, which nobody asks for here.
    positions = lakehouse.catalog.load_table(POSITIONS.identifier)
    positions.transaction().set_properties({provision.DEFINITION: provision.definition()}).commit_transaction()
    provision.prepare(rollup.start_session(settings_for(NOBODY, lakehouse.warehouse), say))
    config = directory / "aggregator.toml"
    config.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "tables"\nspark_master = "local[2]"\n'
        f"{spark_block()}"
    )
    return lakehouse, config


@pytest.fixture(scope="module")
def at_hand(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallLakehouse, Path]:
    return tables_in(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def lakehouse(at_hand: tuple[SmallLakehouse, Path]) -> SmallLakehouse:
    return at_hand[0]


@pytest.fixture(scope="module")
def config(at_hand: tuple[SmallLakehouse, Path]) -> Path:
    return at_hand[1]


@pytest.fixture(scope="module")
def served(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    jdbc_port, connect_port = free_ports(2)
    ports = ("--jdbc-port", str(jdbc_port), "--connect-port", str(connect_port))
    with running(tmp_path_factory.mktemp("server"), "serve-sql", "--config", str(config), *ports) as process:
        process.wait_for("ready")
        yield Served(process, config, jdbc_port, connect_port)
        assert process.end(signal.SIGTERM) == 0
        assert "Traceback" not in process.said


class Jdbc:
    """A connection by Hive's JDBC driver, which Spark's jars bring; its JVM is not the server's."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        jvm: Any = spark._jvm
        # DriverManager offers a driver only to those who loaded it.
        self._connection = jvm.org.apache.hive.jdbc.HiveDriver().connect(url, jvm.java.util.Properties())

    def rows(self, sql: str, columns: int) -> list[tuple[str, ...]]:
        return self._all(self._connection.createStatement().executeQuery(sql), range(1, columns + 1))

    def tables(self, schema: str) -> set[str]:
        """Ask as tools do that show a tree of what is there."""
        return {name for (name,) in self._all(self._connection.getMetaData().getTables(None, schema, "%", None), (3,))}

    def columns(self, schema: str, table: str) -> list[tuple[str, ...]]:
        """Ask as those tools do: name, type and comment of each column."""
        return self._all(self._connection.getMetaData().getColumns(None, schema, table, "%"), (4, 6, 12))

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _all(found: Any, columns: Any) -> list[tuple[str, ...]]:
        rows = []
        while found.next():
            rows.append(tuple(found.getString(column) for column in columns))
        return rows


@pytest.fixture
def jdbc(spark: SparkSession, served: Served) -> Iterator[Jdbc]:
    connection = Jdbc(spark, f"jdbc:hive2://127.0.0.1:{served.jdbc_port}/muster")
    yield connection
    connection.close()


def test_it_says_where_it_listens(served: Served) -> None:
    assert served.process.said.splitlines()[-3:] == [
        f"JDBC           jdbc:hive2://127.0.0.1:{served.jdbc_port}/muster",
        f"Spark Connect  sc://127.0.0.1:{served.connect_port}",
        "ready; SIGTERM or Ctrl-C ends it",
    ]


def test_jdbc_clients_ask_tables_and_views_by_name(jdbc: Jdbc) -> None:
    for prefix in ("", "muster.", "lake.muster."):
        assert jdbc.rows(QUESTION.format(prefix), 2) == [("n1", "1")]
    listed = {name for each in ("TABLES", "VIEWS") for _, name in jdbc.rows(f"SHOW {each}", 2)}
    assert listed == NAMES


def test_jdbc_tools_see_every_table_and_view_in_their_tree(jdbc: Jdbc) -> None:
    assert jdbc.tables("muster") == NAMES
    outages = next(view for view in VIEWS if view.name == "outages")
    assert jdbc.columns("muster", "outages") == [
        (column.name, column.type, column.comment) for column in outages.columns
    ]


def test_a_jdbc_url_need_not_name_the_namespace(spark: SparkSession, served: Served) -> None:
    connection = Jdbc(spark, f"jdbc:hive2://127.0.0.1:{served.jdbc_port}")
    assert connection.rows(QUESTION.format("muster."), 2) == [("n1", "1")]
    connection.close()


@pytest.mark.parametrize(
    "statement", ["DELETE FROM sender_intervals", "DROP TABLE sender_intervals", "DROP VIEW outages"]
)
def test_clients_change_nothing(jdbc: Jdbc, statement: str) -> None:
    with pytest.raises(Py4JJavaError, match="readonly database"):
        jdbc.rows(statement, 1)
    assert jdbc.rows("SELECT count(*) FROM sender_intervals", 1) == [("4",)]
    assert jdbc.rows(QUESTION.format(""), 2) == [("n1", "1")]


def test_payloads_open_as_analysts_are_told(jdbc: Jdbc) -> None:
    opened = quoted(ANALYSTS, "get_json_object(")
    assert jdbc.rows(f"SELECT {opened} FROM registrations", 1) == [("its word",)]


def test_a_running_server_sees_what_was_committed_since_it_was_asked(jdbc: Jdbc, lakehouse: SmallLakehouse) -> None:
    question = "SELECT count(*), max(first_sequence) FROM losses"
    for number in (1, 2):
        lakehouse.append(LOSSES, [{"stream": "ARCHIVE", "first_sequence": number}])
        assert jdbc.rows(question, 2) == [(str(number), str(number))]


def test_beeline_asks_as_analysts_are_told(served: Served) -> None:
    program, *arguments = shlex.split(quoted(ANALYSTS, "beeline -u ").replace(":10000/", f":{served.jdbc_port}/"))
    command = [str(Path(pyspark.__file__).parent / "bin" / program), *arguments]
    environment = os.environ | {"JAVA_HOME": str(java_home(default_cache()))}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    (row,) = [line for line in ran.stdout.splitlines() if "dub1" in line]
    assert "n1" in [cell.strip() for cell in row.split("|")]


def test_spark_connect_asks_tables_and_views_by_name(served: Served) -> None:
    (example,) = [each for each in examples(ANALYSTS, "python") if "sc://127.0.0.1:15002" in each]
    program = example.replace("15002", str(served.connect_port)).replace("spark.stop()\n", SHOW_ALL + "spark.stop()\n")
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    _, worst, *_, names = ran.stdout.splitlines()
    assert worst.split()[-3:] == ["dub1", "n1", "0.916667"]
    assert ast.literal_eval(names) == NAMES


def test_a_port_that_is_taken_is_said_before_spark_starts(served: Served) -> None:
    taken = ["--only", "jdbc", "--jdbc-port", str(served.jdbc_port)]
    answer = CliRunner().invoke(serve_sql, ["--config", str(served.config), *taken])
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"Error: cannot listen on 127.0.0.1:{served.jdbc_port}: Address already in use; end what listens there, or"
        " choose another with --jdbc-port\n"
    )


def test_what_the_next_rollup_will_bring_is_named_and_the_rest_is_served(spark: SparkSession, tmp_path: Path) -> None:
    lakehouse, config = tables_in(tmp_path)
    lakehouse.catalog.drop_table(LOSSES.identifier)
    rollup.start_session(settings_for(NOBODY, lakehouse.warehouse), say).sql("DROP VIEW lake.muster.inventory")
    (port,) = free_ports(1)
    (tmp_path / "server").mkdir()
    serving = ("serve-sql", "--config", str(config), "--only", "jdbc", "--jdbc-port", str(port))
    with running(tmp_path / "server", *serving) as process:
        said = process.wait_for("ready").splitlines()
        connection = Jdbc(spark, f"jdbc:hive2://127.0.0.1:{port}/muster")
        assert connection.tables("muster") == NAMES - {"losses", "inventory"}
        assert connection.rows(QUESTION.format(""), 2) == [("n1", "1")]
        connection.close()
        assert process.end(signal.SIGTERM) == 0
    assert said[0] == "not there yet: losses, inventory; run muster-aggregator rollup, then start this again"


@pytest.mark.parametrize("command", [serve_sql, spark_sql], ids=lambda command: command.name)
def test_tables_that_are_not_there_are_said_before_spark_starts(tmp_path: Path, command: click.Command) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "none"\n')
    answer = CliRunner().invoke(command, ["--config", str(config)])
    assert answer.exit_code == 1
    assert "run muster-aggregator rollup first" in answer.stderr
    assert answer.stderr.count("\n") == 1


async def test_spark_sql_answers_from_the_same_tables(config: Path) -> None:
    (command,) = [each for each in commands(ANALYSTS) if each[0] == "spark-sql"]
    answer = await muster(*command, "--config", str(config))
    assert (answer.returncode, answer.stdout) == (0, "n1\t1\n"), answer.stderr


def test_spark_sql_is_printed_for_a_spark_of_ones_own(config: Path) -> None:
    answer = CliRunner().invoke(spark_sql, ["--config", str(config), "--print", "-e", "SELECT 1"])
    assert answer.exit_code == 0
    assert "/bin/spark-sql" in answer.stdout
    assert "--conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog" in answer.stdout
    assert answer.stdout.endswith("-e \\\n  'SELECT 1'\n")
