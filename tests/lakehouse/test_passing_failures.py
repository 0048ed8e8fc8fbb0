"""What passes, or an operator mends meanwhile, is a line of the service's, not its end; no wait outlives a signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler

from aggregator.catalog_settings import CatalogSettings
from aggregator.config import LakehouseSettings
from aggregator.lakehouse import rollup
from aggregator.lakehouse.commands.failures import CommandInterrupted, explained, in_one_line
from aggregator.lakehouse.commands.repeat import roll_up_every
from aggregator.lakehouse.spark.jars import JarsUnavailable
from aggregator.lakehouse.spark.process import how_it_ended, say_nothing_of_its_end
from aggregator.lakehouse.spark.stop_signal import STOPPING, Stopped, StopSignal
from shared.instants import DAY, SECOND
from shared.nats.connection import ConnectionSettings
from tests.lakehouse.conftest import say, settings_for
from tests.support.faults.disk import BALLAST, SmallDisk
from tests.support.nats.free_ports import free_ports

NOBODY = ConnectionSettings(servers=("nats://127.0.0.1:1",))


def complaints_of_a_service(lakehouse: LakehouseSettings) -> list[str]:
    """Let a service go on until it has complained twice."""
    complaints: list[str] = []

    def complain(line: str) -> None:
        complaints.append(line)
        if len(complaints) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = msgspec.structs.replace(settings_for(NOBODY, Path(lakehouse.path)), lakehouse=lakehouse)
    with StopSignal() as stop:
        roll_up_every(settings, 0.05, stop, lambda _result: None, complain)
    return complaints


def test_a_master_or_a_catalog_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    (nobody_listens,) = free_ports(1)
    lakehouse = settings_for(NOBODY, tmp_path).lakehouse
    master = f"spark://127.0.0.1:{nobody_listens}"
    without_master = complaints_of_a_service(msgspec.structs.replace(lakehouse, spark_master=master))
    assert [line.partition(" (")[0] for line in without_master] == [f"no Spark master answers at {master}"] * 2
    uri = f"postgresql://127.0.0.1:{nobody_listens}/muster"
    catalog = CatalogSettings(type="postgresql", uri=uri)
    without_catalog = complaints_of_a_service(msgspec.structs.replace(lakehouse, catalog=catalog))
    assert [line.partition(" cannot")[0] for line in without_catalog] == [f"the catalog at {uri}"] * 2


@pytest.mark.parametrize(
    "said",
    [
        "Connection to 127.0.0.1:5432 refused. Check that the hostname and port are correct.",
        "FATAL: terminating connection due to administrator command",
        "This connection has been closed.",
        "An I/O error occurred while sending to the backend.",
    ],
)
def test_a_catalog_that_goes_away_in_mid_run_is_one_line(said: str) -> None:
    pages = (
        "An error occurred while calling o1.\n: org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect\n"
        f"\tat a.b.C(C.java:1)\nCaused by: org.postgresql.util.PSQLException: {said}\n\tat a.b.D(D.java:2)\n"
    )
    line = explained(Py4JError(pages))
    assert line is not None
    assert line.startswith(f"the catalog's server fails ({said}): mend it")
    assert "\n" not in line


def test_an_object_store_that_goes_away_in_mid_run_is_one_line_that_blames_no_catalog() -> None:
    said = "Unable to execute HTTP request: Connect to 127.0.0.1:9000 failed: Connection refused"
    pages = (
        "An error occurred while calling o1.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b.C(C.java:1)\n"
        f"Caused by: software.amazon.awssdk.core.exception.SdkClientException: {said} (SDK Attempt Count: 4)\n"
        "\tat a.b.D(D.java:2)\nCaused by: java.net.ConnectException: Connection refused\n"
    )
    line = explained(Py4JError(pages))
    assert line is not None
    assert line.startswith(f"the object store fails ({said} (SDK Attempt Count: 4)): mend it")


def test_what_no_restart_of_a_catalog_mends_is_no_failure_that_passes() -> None:
    assert explained(Py4JError("x\nCaused by: org.postgresql.util.PSQLException: ERROR: duplicate key value\n")) is None


@pytest.mark.parametrize(
    "said",
    [
        "java.io.FileNotFoundException: /lake/muster/x.parquet (Permission denied)",
        "java.nio.file.AccessDeniedException: /lake/muster/x.parquet",
        "java.io.IOException: Mkdirs failed to create file:/lake/muster/x.parquet (exists=false, cwd=file:/root)",
    ],
)
def test_what_java_may_not_open_is_one_line_that_names_it(said: str) -> None:
    line = explained(Py4JError(f"An error occurred while calling o1.\n: {said}\n\tat a.b.C(C.java:1)\n"))
    assert line is not None
    assert line.startswith("/lake/muster/x.parquet may not be read or written: run as the user whose tables these are")
    assert "\n" not in line


def test_tables_of_another_user_are_named_in_one_line(tmp_path: Path, nobodys_directory: Path) -> None:
    (tmp_path / "lake").mkdir()
    lock = tmp_path / "lake" / "rollup.lock"
    lock.symlink_to(nobodys_directory / "uevent_seqnum")
    ended = muster(tmp_path, "maintain")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith(
        f"muster-aggregator: {lock} may not be read or written: run as the user whose tables these"
    )


def test_an_import_that_fills_the_disk_says_so_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "outages.csv").write_text("host,begin,end\nh,2006-01-01,2006-01-02\n")
    with SmallDisk(tmp_path / "lake") as disk:
        if not disk.is_small:
            pytest.skip("a disk of its own can be mounted by root only")
        disk.fill(0)
        columns = "--sender host --start begin --stop end --always down"
        ended = muster(tmp_path, "import", "intervals", *columns.split(), str(tmp_path / "outages.csv"))
        assert [path.name for path in disk.path.iterdir()] == [BALLAST]
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith("muster-aggregator: writing failed (No space left on device): mend the disk of the")


def test_a_service_on_tables_that_it_may_not_write_tries_again(nobodys_directory: Path) -> None:
    lake = nobodys_directory / "lake"
    complaints = complaints_of_a_service(settings_for(NOBODY, lake).lakehouse)
    assert [line.partition(":")[0] for line in complaints] == [f"{lake} may not be read or written"] * 2


def test_a_service_that_may_not_write_its_cache_blames_no_tables_and_tries_again(
    tmp_path: Path, nobodys_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("MUSTER_CACHE", str(nobodys_directory / "muster"))
    complaints = complaints_of_a_service(settings_for(NOBODY, tmp_path / "lake").lakehouse)
    java = nobodys_directory / "muster" / "java"
    assert complaints == [f"Java cannot be kept in {java}: Operation not permitted; set MUSTER_CACHE"] * 2


def muster(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command whose tables are in ``directory``."""
    config = directory / "aggregator.toml"
    config.write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n')
    command = [sys.executable, "-c", "from aggregator.cli import main; main()", *arguments, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_a_service_whose_java_does_not_start_ends_and_keeps_what_the_last_one_said(tmp_path: Path) -> None:
    config, warehouse = tmp_path / "aggregator.toml", tmp_path / "lake"
    config.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n'
        '[lakehouse.spark]\n"spark.driver.memory" = "1k"\n'
    )
    warehouse.mkdir()
    (warehouse / "spark.log").write_text("out of memory\n")
    command = [sys.executable, "-c", "from aggregator.cli import main; main()"]
    service = subprocess.run(
        [*command, "rollup", "--every", "5m", "--config", config],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert service.returncode == 1
    assert service.stderr.startswith("muster-aggregator: Java ended before Spark had begun: spark.log in the tables' ")
    assert len(service.stderr.splitlines()) == 1
    assert "Too small maximum heap" in service.stdout + (warehouse / "spark.log").read_text()
    assert (warehouse / "spark.log.1").read_text() == "out of memory\n"


def test_who_is_asked_to_end_while_java_and_jars_are_looked_for_does_not_complain_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where a whole group of processes is told to end: the Java that is asked for its version ends, too.
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nkill -TERM {os.getpid()}\nkill -TERM $$\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    settings = settings_for(NOBODY, tmp_path / "lake")
    no_jars = msgspec.structs.replace(settings.lakehouse, jars=str(tmp_path))
    settings = msgspec.structs.replace(settings, lakehouse=no_jars)
    complaints: list[str] = []
    with StopSignal() as stop:
        roll_up_every(settings, 0.05, stop, lambda _result: None, complaints.append)
    assert (stop.is_asked(), complaints) == (True, [])
    with pytest.raises(Stopped) as stopped, StopSignal():
        rollup.session_settings(settings, say)
    assert isinstance(stopped.value.__cause__, JarsUnavailable)


def test_a_signal_without_a_name_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 40)"]) as java:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))
        assert how_it_ended(ConnectionResetError()) == "signal 40"


@pytest.mark.parametrize("end", ["killed", "asked to end"])
def test_what_fails_with_an_accumulator_is_told_until_the_jvm_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    def told() -> str:
        try:
            raise KeyError("an accumulator that nobody knows")
        except KeyError:
            server.handle_error(server.socket, "the JVM")
        return capsys.readouterr().err

    with (
        AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "token") as server,
        subprocess.Popen(["sleep", "infinity"], stdin=subprocess.PIPE) as java,
    ):
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))
        say_nothing_of_its_end(server)
        try:
            assert "an accumulator that nobody knows" in told()
            if end == "killed":
                java.kill()
            else:
                assert java.stdin is not None
                java.stdin.close()
            assert told() == ""
        finally:
            java.kill()


def test_waiting_for_a_hub_ends_with_a_signal(tmp_path: Path) -> None:
    with StopSignal() as stop:

        def check() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            stop.check()

        with pytest.raises(CommandInterrupted, match="stopped between two commits") as stopped, in_one_line():
            rollup.roll_up(settings_for(NOBODY, tmp_path), rollup.RollupRequest(), say, check)
    assert stopped.value.exit_code == 130


@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, f"{STOPPING}\n"), (signal.SIGTERM, "")])
def test_a_person_who_asks_for_the_end_reads_at_once_that_it_comes(
    capsys: pytest.CaptureFixture[str], number: int, said: str
) -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), number)
        stop.wait(DAY / SECOND)
    assert capsys.readouterr().err == said


def test_signals_of_a_moment_are_one_request_and_a_later_one_ends_the_process_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aggregator.lakehouse.spark.stop_signal._SAME_REQUEST_SECONDS", DAY / SECOND)
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped) as stopped:
            stop.check()
    assert stopped.value.number == signal.SIGINT
    later = (
        "import os, signal, time; from aggregator.lakehouse.spark import stop_signal\n"
        "stop_signal._SAME_REQUEST_SECONDS = 0\n"
        "with stop_signal.StopSignal():\n"
        "    os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01); os.kill(os.getpid(), signal.SIGTERM)"
    )
    assert subprocess.run([sys.executable, "-c", later], timeout=600, check=False).returncode == -signal.SIGTERM
