"""Another catalog and warehouse by one block of the settings: Spark and Python without Java follow it alike."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from aggregator import config
from aggregator.catalog_settings import CatalogSettings
from aggregator.demo.compare_command import compare
from aggregator.lakehouse import rollup
from aggregator.lakehouse.commands.spark_sql import spark_sql
from aggregator.lakehouse.commands.sql import sql
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.warehouse.catalog import check_reachable
from aggregator.lakehouse.warehouse.errors import AlreadyRunning, TablesUnreadable
from aggregator.lakehouse.warehouse.lock import alone
from shared.instants import DAY, HOUR, MINUTE
from shared.settings import FilePath
from shared.truth import TruthHeader, UpInterval, encode_line
from tests.lakehouse.conftest import Lakehouse, say
from tests.support.documents.documents import ANALYSTS, examples
from tests.support.lakehouse.hub import Block
from tests.support.lakehouse.postgresql import PASSWORD, USER, PostgreSql, postgresql
from tests.support.lakehouse.small_rollup import START
from tests.support.nats.free_ports import free_ports


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as server:
        yield server


@pytest.fixture
def settings_file(server: PostgreSql, tmp_path: Path) -> Path:
    file = tmp_path / "aggregator.toml"
    file.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n[lakehouse.catalog]\n'
        f'type = "postgresql"\nuri = "{server.uri}"\nuser = "{USER}"\npassword_file = "{server.password_file}"\n'
        f"warehouse = {json.dumps(str(tmp_path / 'a shared store'))}\n"
    )
    return file


def test_a_rollup_into_postgresql_is_read_by_spark_and_without_java(
    spark: SparkSession, lakehouse: Lakehouse, server: PostgreSql, settings_file: Path, tmp_path: Path
) -> None:
    catalog = config.load(settings_file).lakehouse.catalog
    with pytest.raises(TablesUnreadable, match="there are no tables in the catalog at postgresql://127.0.0.1:"):
        open_tables(lakehouse.warehouse, catalog)
    tables = msgspec.structs.replace(lakehouse.settings.lakehouse, catalog=catalog)
    lakehouse.settings = msgspec.structs.replace(lakehouse.settings, lakehouse=tables)
    site = Block("eu-west", "dub1")
    lakehouse.hub.publish([site.new("n1", START + HOUR), site.stale("n1", START + 2 * HOUR)])
    lakehouse.hub.publish([site.watermark(START, START + DAY)])
    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    with (
        alone(spark, elsewhere, catalog, 0, say),
        pytest.raises(
            AlreadyRunning, match=r"^another job holds the lock of the catalog at postgresql://.* since more"
        ),
        alone(spark, tmp_path, catalog, 0.3, say),
    ):
        pass
    with alone(spark, elsewhere, catalog, 0, say):
        # As if that machine had died.
        lock = "FROM pg_locks WHERE locktype = 'advisory' AND granted"
        assert server.ask(f"SELECT count(pg_terminate_backend(pid)) {lock}") == 1
        lakehouse.roll_up()
    question = "SELECT sender_id, count(*) FROM outages GROUP BY sender_id"
    assert lakehouse.rows(question) == lakehouse.rows_in_spark(question) == [("n1", 1)]
    asked = CliRunner().invoke(sql, [question, "--config", str(settings_file), "--format", "csv"])
    assert asked.stdout.splitlines()[1:] == ["n1,1"]
    header = TruthHeader(
        seed=0, registration_interval=5 * MINUTE, jitter=0, started_at_us=START, ended_at_us=START + DAY, script=""
    )
    was_up = UpInterval(site="dub1", sender="n1", up_from_us=START + HOUR - 1, up_to_us=START + 2 * HOUR + 1)
    (tmp_path / "truth.jsonl").write_bytes(encode_line(header) + encode_line(was_up))
    compared = CliRunner().invoke(compare, [str(tmp_path / "truth.jsonl"), "--config", str(settings_file)])
    assert compared.stdout.splitlines()[-1:] == ["all 1 senders are within the bound"], compared.stderr
    (program,) = [each for each in examples(ANALYSTS, "python") if "load_catalog" in each]
    shown = "analyst:secret@hub.example.net"
    assert shown in program
    program = program.replace(shown, f"{USER}:{quote(PASSWORD)}@127.0.0.1:{server.port}")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout.count("n1")) == (0, 2), ran.stderr
    assert not (lakehouse.warehouse / "catalog.db").exists()
    assert list((tmp_path / "a shared store").rglob("*.parquet"))
    assert not list(lakehouse.warehouse.rglob("*.parquet"))
    printed = CliRunner().invoke(spark_sql, ["--config", str(settings_file), "--print"])
    assert "jdbc:postgresql://127.0.0.1:" in printed.stdout
    assert PASSWORD not in printed.stdout


def test_a_catalog_that_cannot_be_had_is_one_line(lakehouse: Lakehouse, server: PostgreSql, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("guessed\n")
    (nobody_listens,) = free_ports(1)
    good = CatalogSettings(type="postgresql", uri=server.uri, user=USER, password_file=FilePath(server.password_file))
    broken = {
        "password authentication failed": msgspec.structs.replace(good, password_file=FilePath(wrong)),
        "Connection refused": msgspec.structs.replace(good, uri=f"postgresql://127.0.0.1:{nobody_listens}/muster"),
        "nowhere cannot be read: No such file": msgspec.structs.replace(good, password_file=FilePath("/nowhere")),
    }
    for line, catalog in broken.items():
        tables = msgspec.structs.replace(lakehouse.settings.lakehouse, catalog=catalog)
        settings = msgspec.structs.replace(lakehouse.settings, lakehouse=tables)
        with pytest.raises(TablesUnreadable, match=line) as by_reading:
            open_tables(tmp_path, catalog)
        with pytest.raises(TablesUnreadable, match=line) as by_writing:
            rollup.session_settings(settings, say)
        assert "\n" not in str(by_reading.value)
        assert "guessed" not in f"{by_reading.value}{by_writing.value}"


def test_a_store_that_cannot_be_had_is_one_line_before_spark_starts(tmp_path: Path) -> None:
    (nobody_listens,) = free_ports(1)
    (tmp_path / "key").write_text("guessed\n")
    properties = {"s3.endpoint": f"http://127.0.0.1:{nobody_listens}", "client.region": "us-east-1"}
    secrets = {name: FilePath(tmp_path / "key") for name in ("s3.access-key-id", "s3.secret-access-key")}
    catalog = CatalogSettings(warehouse="s3://lake/tables", properties=properties, secrets=secrets)
    with pytest.raises(TablesUnreadable, match=r"^the warehouse s3://lake/tables cannot be read: .*connect") as refusal:
        check_reachable(tmp_path, catalog)
    assert "\n" not in str(refusal.value)


class Unlistable(BaseHTTPRequestHandler):
    """A store that lets nobody list what it has."""

    def do_GET(self) -> None:
        answer = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def test_only_who_writes_must_be_allowed_to_list_a_store(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("guessed\n")
    secrets = {name: FilePath(tmp_path / "key") for name in ("s3.access-key-id", "s3.secret-access-key")}
    with ThreadingHTTPServer(("127.0.0.1", 0), Unlistable) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        properties = {"s3.endpoint": f"http://127.0.0.1:{server.server_port}", "client.region": "us-east-1"}
        catalog = CatalogSettings(warehouse="s3://lake/tables", properties=properties, secrets=secrets)
        check_reachable(tmp_path, catalog, read_only=True)
        with pytest.raises(TablesUnreadable, match=r"^the warehouse s3://lake/tables cannot be read: .*ACCESS_DENIED"):
            check_reachable(tmp_path, catalog)
        server.shutdown()


def test_a_page_in_the_place_of_a_rest_catalog_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "config").write_text("<html>Who are you?</html>")
    pages = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        catalog = CatalogSettings(type="rest", uri=f"http://127.0.0.1:{server.server_port}")
        for open_it in (check_reachable, open_tables):
            with pytest.raises(TablesUnreadable, match=r"does not answer as .* is that its address\?$"):
                open_it(tmp_path, catalog)
        server.shutdown()
