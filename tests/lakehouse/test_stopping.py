"""SIGTERM and Ctrl-C end a job in the middle of its work: in one line, with its exit code, nothing lost or twice."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from aggregator.lakehouse.imports.job import import_intervals
from aggregator.lakehouse.imports.mapping import Mapping
from aggregator.lakehouse.spark.stop_signal import STOPPING, StopSignal
from aggregator.lakehouse.tables.schemas import TABLES, VIEWS
from shared.instants import HOUR, SECOND
from tests.lakehouse.bronze.test_exactly_once import FIRST, story, tables_of
from tests.lakehouse.conftest import Lakehouse, say
from tests.support.lakehouse.hub import Hub
from tests.support.lakehouse.quick_spark import spark_block

DEADLINE = 180.0
Process = subprocess.Popen[str]


def is_locked(warehouse: Path) -> bool:
    try:
        with (warehouse / "rollup.lock").open("rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def running(*arguments: str | Path) -> Iterator[Process]:
    """Run the command in a group of its own, with whatever it starts."""
    command = [sys.executable, "-c", "from aggregator.cli import main; main()", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_locked(process: Process, warehouse: Path) -> None:
    ends_at = time.monotonic() + DEADLINE
    while not is_locked(warehouse):
        assert process.poll() is None
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def wait_until_it_derives(process: Process) -> None:
    assert process.stderr is not None
    said = [process.stderr.readline()]
    while said[-1] and not said[-1].startswith("deriving"):
        said.append(process.stderr.readline())
    assert said[-1], said


def ended(process: Process) -> tuple[int, list[str]]:
    """Give the exit code, and the lines that are not of the progress."""
    _, errors = process.communicate(timeout=DEADLINE)
    return process.returncode, [line for line in errors.splitlines() if not line.startswith("  ")]


def living(group: int) -> list[bytes]:
    """Give the commands of a group's processes that have not ended, whether or not anybody has waited for them."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        # Others end meanwhile.
        with suppress(ProcessLookupError, FileNotFoundError):
            if os.getpgid(int(process.name)) == group:
                commands.append((process / "cmdline").read_bytes())
    return list(filter(None, commands))


def test_a_signal_ends_a_run_between_two_commits(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    """As systemd and ``timeout`` send it: to the command, and to the Java and the workers that it has started."""
    hub.publish(story())
    config, history = tmp_path / "aggregator.toml", tmp_path / "history.csv"
    config.write_text(
        f'[hub]\nservers = ["{hub.server.url}"]\n[lakehouse]\npath = "lake"\nspark_master = "local[2]"\n{spark_block()}'
    )
    history.write_text(f"host,state,begin,end\na,down,{FIRST // SECOND},{(FIRST + HOUR) // SECOND}\n")
    stopped = Lakehouse(hub, tmp_path / "lake")

    with running("rollup", "--config", config) as once:
        wait_until_it_derives(once)
        once.send_signal(signal.SIGTERM)
        os.killpg(once.pid, signal.SIGTERM)
        once.wait(DEADLINE)
        assert living(once.pid) == []
        assert ended(once) == (143, ["muster-aggregator: stopped between two commits: the next run goes on from here"])

    of_columns = ["--sender", "host", "--state", "state", "--start", "begin", "--stop", "end"]
    with running("import", "intervals", history, "--config", config, *of_columns) as importing:
        wait_until_it_derives(importing)
        (java,) = map(int, Path(f"/proc/{importing.pid}/task/{importing.pid}/children").read_text().split())
        os.kill(java, signal.SIGKILL)
        status, errors = ended(importing)
    assert (status, [line.partition(":")[2].partition(":")[0] for line in errors]) == (
        1, [" Java, in which Spark runs, has ended (SIGKILL)"]
    )  # fmt: skip

    with running("rollup", "--config", config, "--every", "5m") as service:
        wait_until_locked(service, stopped.warehouse)
        os.killpg(service.pid, signal.SIGTERM)
        assert ended(service) == (0, [])

    assert stopped.roll_up().counts.read == 0
    straight = Lakehouse(hub, tmp_path / "straight")
    straight.roll_up()
    mapping = Mapping(source="history", sender=("host",), state="state", start="begin", stop="end")
    import_intervals(straight.settings, [history], mapping, say)
    assert tables_of(stopped) == tables_of(straight)


def test_ctrl_c_ends_a_first_run_before_all_tables_are_made(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.publish(story())
    lake, config = Lakehouse(hub, tmp_path / "lake"), tmp_path / "aggregator.toml"
    config.write_text(
        f'[hub]\nservers = ["{hub.server.url}"]\n[lakehouse]\npath = "lake"\nspark_master = "local[2]"\n{spark_block()}'
    )
    with running("rollup", "--config", config) as first:
        wait_until_locked(first, lake.warehouse)
        os.killpg(first.pid, signal.SIGINT)
        status, errors = ended(first)
    assert (status, errors[-2:]) == (
        130, [STOPPING, "muster-aggregator: stopped between two commits: the next run goes on from here"]
    )  # fmt: skip
    with closing(sqlite3.connect(lake.warehouse / "catalog.db")) as catalog:
        assert catalog.execute("SELECT count(*) FROM iceberg_tables").fetchone()[0] < len(TABLES) + len(VIEWS)

    lake.roll_up()
    straight = Lakehouse(hub, tmp_path / "straight")
    straight.roll_up()
    assert tables_of(lake) == tables_of(straight)


def test_messages_of_python_are_shown_while_java_warns_into_the_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    script = (
        "import os, pathlib\n"
        "from aggregator.lakehouse.spark.session import errors_into\n"
        "from shared.command_line.terminal import echo\n"
        f"with errors_into(pathlib.Path({str(log)!r})):\n"
        "    echo('stopping', err=True)\n"
        "    os.write(2, b'a warning')\n"
        "echo('stopped', err=True)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert (ran.stderr, log.read_text()) == ("stopping\nstopped\n", "a warning")


def test_a_request_while_spark_starts_is_noted_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    class Starting:
        """A context without its side in Java."""

        def __getattr__(self, name: str) -> object:
            asked.set()
            raise AttributeError(name)

    monkeypatch.setattr(SparkContext, "_active_spark_context", Starting())
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(DEADLINE)
        assert stop.is_asked()
