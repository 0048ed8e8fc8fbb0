"""Analysts' own clients: Spark Connect and spark-sql see all tables and views, and change none."""

import ast
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from aggregator.lakehouse import rollup
from aggregator.lakehouse.commands.serve import serve_sql
from aggregator.lakehouse.commands.spark_sql import spark_sql
from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.tables.schemas import POSITIONS, REGISTRATIONS, TABLES, VIEWS
from aggregator.lakehouse.warehouse import provision
from shared.instants import DAY, HOUR
from shared.nats.connection import ConnectionSettings
from tests.lakehouse.conftest import say, settings_for
from tests.support.command_process import CommandProcess, running
from tests.support.documents.documents import ANALYSTS, commands, examples
from tests.support.lakehouse.quick_spark import spark_block
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import START, Coverage, Interval
from tests.support.nats.free_ports import free_ports
from tests.support.other_user import OTHER
from tests.support.topology.aggregator_command import muster

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
SHOW_ALL = 'print({row[1] for each in ("TABLES", "VIEWS") for row in spark.sql(f"SHOW {each}").collect()})\n'
TOKEN = "0123456789abcdef" * 2

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's server is started by root alone")


class Served:
    """A server on tables, as a user who may only read them."""

    def __init__(self, process: CommandProcess, place: Path, port: int) -> None:
        self.process, self.place, self.port = process, place, port

    def ask(self, program: str, token: str | None = TOKEN) -> "subprocess.CompletedProcess[str]":
        """Run a program of a client, which finds its session under ``spark``."""
        url = f"sc://localhost:{self.port}/" + (f";token={token}" if token else "")
        session = f'from pyspark.sql import SparkSession\nspark = SparkSession.builder.remote("{url}").getOrCreate()\n'
        command = [sys.executable, "-c", session + program]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


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
def place(spark: SparkSession) -> Iterator[Path]:
    """Give a directory that everybody may read, unlike pytest's."""
    with TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        tables_in(place)
        (place / "secret").write_text("ours alone")
        (place / "secret").chmod(0o600)
        home = place / "home"
        shutil.copytree(default_cache() / "jars", home / "cache" / "jars")
        (home / "token").write_text(f"{TOKEN}\n")
        (home / "token").chmod(0o600)
        yield place


@pytest.fixture(scope="module")
def config(place: Path) -> Path:
    return place / "aggregator.toml"


@pytest.fixture(scope="module")
def served(config: Path, place: Path) -> Iterator[Served]:
    home = place / "home"
    for path in (home, *home.rglob("*")):
        os.chown(path, OTHER, OTHER)
    (port,) = free_ports(1)
    arguments = ("--config", str(config), "--token-file", str(home / "token"), "--port", str(port))
    own = {"HOME": str(home), "MUSTER_CACHE": str(home / "cache")}
    with running(home, "serve-sql", *arguments, user=OTHER, environment=own) as process:
        process.wait_for("ready")
        yield Served(process, place, port)
        assert process.end(signal.SIGTERM) == 0
        assert "Traceback" not in process.said


def digests(place: Path) -> dict[Path, str]:
    return {
        file: hashlib.sha256(file.read_bytes()).hexdigest() for file in (place / "tables").rglob("*") if file.is_file()
    }


@only_root
def test_it_says_where_it_listens_and_keeps_the_token_to_itself(served: Served) -> None:
    assert served.process.said.splitlines()[-2:] == [
        f"Spark Connect  sc://localhost:{served.port}/;token=TOKEN",
        "ready; SIGTERM or Ctrl-C ends it",
    ]
    lines = [line for line in Path("/proc").glob("[0-9]*/cmdline") if TOKEN.encode() in line.read_bytes()]
    assert lines == []
    assert TOKEN not in (served.place / "home" / "serve-sql.log").read_text()


@only_root
def test_spark_connect_asks_tables_and_views_by_name(served: Served) -> None:
    (example,) = [each for each in examples(ANALYSTS, "python") if "sc://localhost:15002" in each]
    program = example.replace("15002", str(served.port)).replace("spark.stop()\n", SHOW_ALL + "spark.stop()\n")
    (served.place / "mine").write_text(TOKEN)
    program = program.replace("/home/me/token", str(served.place / "mine"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    _, worst, *_, names = ran.stdout.splitlines()
    assert worst.split()[-3:] == ["dub1", "n1", "0.916667"]
    assert ast.literal_eval(names) == NAMES


@only_root
@pytest.mark.parametrize("token", [None, "0" * 32, TOKEN[:-1]])
def test_whoever_has_no_token_is_turned_away(served: Served, token: str | None) -> None:
    ran = served.ask('print(spark.sql("SELECT 1").collect())', token)
    assert ran.returncode != 0
    assert "UNAUTHENTICATED" in ran.stderr or "authenticat" in ran.stderr.lower()
    assert "Row(" not in ran.stdout


ATTACKS = {
    "statement": 'spark.sql("DELETE FROM muster.sender_intervals")',
    "drop": 'spark.sql("DROP TABLE muster.sender_intervals")',
    "another catalog of the same file": """
for key, value in {{
    "": "org.apache.iceberg.spark.SparkCatalog",
    ".type": "jdbc",
    ".uri": "jdbc:sqlite:{tables}/catalog.db",
    ".warehouse": "file://{tables}",
    ".jdbc.schema-version": "V1",
}}.items():
    spark.conf.set(f"spark.sql.catalog.mine{{key}}", value)
spark.sql("DELETE FROM mine.muster.sender_intervals")
""",
    "a file among the tables' own": 'spark.range(9).write.mode("overwrite").parquet("file://{tables}/muster/losses")',
    "a command": "spark.sql(\"SELECT TRANSFORM(1) USING 'rm {tables}/catalog.db'\").collect()",
    "Python": """
from pyspark.sql.functions import udf
spark.range(1).select(udf(lambda _: open("{tables}/catalog.db", "w").close() or "", "string")("id")).collect()
""",
    "reading what is ours": 'print(spark.read.text("file://{place}/secret").collect())',
    "reading it in Python": """
from pyspark.sql.functions import udf
print(spark.range(1).select(udf(lambda _: open("{place}/secret").read(), "string")("id")).collect())
""",
}


@only_root
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_client_with_the_token_changes_no_table_and_reads_no_secret(served: Served, attack: str) -> None:
    before = digests(served.place)
    ran = served.ask(ATTACKS[attack].format(tables=served.place / "tables", place=served.place))
    assert "ours alone" not in ran.stdout + ran.stderr
    assert ran.returncode != 0
    assert digests(served.place) == before


@only_root
def test_a_port_that_is_taken_is_said_before_spark_starts(served: Served, config: Path) -> None:
    home = served.place / "home"
    taken = ("--config", str(config), "--token-file", str(home / "token"), "--port", str(served.port))
    (home / "second").mkdir()
    os.chown(home / "second", OTHER, OTHER)
    with running(home / "second", "serve-sql", *taken, user=OTHER, environment={"HOME": str(home)}) as process:
        process.wait_for("Address already in use; end what listens there, or choose another with --port")


@only_root
def test_root_is_refused(config: Path, place: Path) -> None:
    answer = CliRunner().invoke(serve_sql, ["--config", str(config), "--token-file", str(place / "home" / "token")])
    assert (answer.exit_code, answer.stderr.count("\n")) == (1, 1)
    assert answer.stderr.startswith("Error: serve-sql runs the code of its clients: start it as a user of its own")


def test_tables_that_are_not_there_are_said_before_spark_starts(tmp_path: Path) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "none"\n')
    answer = CliRunner().invoke(spark_sql, ["--config", str(config)])
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
