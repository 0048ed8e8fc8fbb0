"""SIGTERM and Ctrl-C end a job in the middle of its work: in one line, with its exit code, nothing lost or twice."""

import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.lakehouse.conftest import Lakehouse
from tests.lakehouse.test_exactly_once import story, tables_of
from tests.support.hub import Hub
from tests.support.quick_spark import spark_block

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
    command = [sys.executable, "-c", "from aggregator.cli import main; main()", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: Process, number: signal.Signals) -> tuple[int, list[str]]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE)
    return process.returncode, errors.splitlines()


def test_a_signal_ends_a_run_between_two_commits(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.publish(story())
    config = tmp_path / "aggregator.toml"
    config.write_text(
        f'[hub]\nservers = ["{hub.server.url}"]\n[lakehouse]\npath = "lake"\nspark_master = "local[2]"\n{spark_block()}'
    )
    stopped = Lakehouse(hub, tmp_path / "lake")

    with running("rollup", "--config", config) as once:
        assert once.stderr is not None
        said = [once.stderr.readline()]
        while said[-1] and not said[-1].startswith("deriving"):
            said.append(once.stderr.readline())
        assert said[-1], said
        status, errors = ended(once, signal.SIGINT)
    assert (status, errors) == (130, ["muster-aggregator: stopped between two commits: the next run goes on from here"])

    with running("rollup", "--config", config, "--every", "5m") as service:
        ends_at = time.monotonic() + DEADLINE
        while not is_locked(stopped.warehouse):
            assert service.poll() is None
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        assert ended(service, signal.SIGTERM) == (0, [])

    assert stopped.roll_up().counts.read == 0
    straight = Lakehouse(hub, tmp_path / "straight")
    straight.roll_up()
    assert tables_of(stopped) == tables_of(straight)
