"""Start a real standalone cluster of Spark on this machine: a master, and workers of one core each."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.spark.java import java_home
from tests.support.nats.free_ports import free_ports

_DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """A master that answers at ``url``, the processes of its workers, whose children are executors, and their files."""

    def __init__(self, url: str, pids: list[int], workers: list[Path]) -> None:
        self.url, self.pids, self._workers = url, pids, workers

    def executors_started(self) -> int:
        """Count the executors that workers have started."""
        return sum(1 for worker in self._workers for _ in worker.glob("app-*/*/stderr"))

    def all_took_part(self) -> bool:
        """Tell whether each worker has started an executor: more than one, where one had to be started again."""
        return all(any(worker.glob("app-*/*/stderr")) for worker in self._workers)

    def drivers_served(self) -> int:
        """Count the drivers for which a worker has started an executor."""
        return len({started.parents[1].name for worker in self._workers for started in worker.glob("app-*/*/stderr")})


@contextmanager
def cluster(directory: Path, worker_count: int) -> Iterator[Cluster]:
    """Run one meanwhile, all workers registered."""
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    workers = [directory / f"worker-{number}" for number in range(worker_count)]
    log = directory / "master.log"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as running:
        running.enter_context(_daemon(log, f"{_DEPLOY}.master.Master", *local, "--port", str(port)))
        _wait_until(log, "I have been elected leader", 1)
        pids = []
        for worker in workers:
            room = ("--cores", "1", "--memory", "1g", "--work-dir", str(worker))
            log_of_worker = directory / f"{worker.name}.log"
            started = _daemon(log_of_worker, f"{_DEPLOY}.worker.Worker", *local, *room, url)
            pids.append(running.enter_context(started))
        _wait_until(log, "Registering worker", worker_count)
        yield Cluster(url, pids, workers)


def environment() -> dict[str, str]:
    """Give what Spark's own programs find in theirs, which are on the PATH."""
    package = find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    home = Path(package.origin).parent
    return os.environ | {
        "JAVA_HOME": str(java_home(default_cache())),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
    }


@contextmanager
def _daemon(log: Path, *arguments: str) -> Iterator[int]:
    small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["spark-class", *arguments],
            env=environment() | small,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(300)


def _wait_until(log: Path, text: str, times: int) -> None:
    ends_at = time.monotonic() + 600
    while (said := log.read_text()).count(text) < times:
        assert time.monotonic() < ends_at, f"not yet {times} times {text!r}: {said}"
        time.sleep(0.05)
