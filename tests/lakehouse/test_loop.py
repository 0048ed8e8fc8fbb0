"""The service outlives what passes, says so in a line, and ends between two commits when it is asked to."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from aggregator.lakehouse import rollup as job
from aggregator.lakehouse.commands.repeat import roll_up_every
from aggregator.lakehouse.commands.rollup import rollup
from aggregator.lakehouse.spark.stop_signal import StopSignal
from shared.embedded.link import EmbeddedLink
from shared.instants import DAY, HOUR, SECOND
from shared.nats.connection import ConnectionSettings
from tests.lakehouse.conftest import Lakehouse, say, settings_for
from tests.support.faults.disk import SmallDisk
from tests.support.lakehouse.hub import Block, Hub

DEADLINE = 300.0
FIRST = int(time.time()) * SECOND // DAY * DAY - DAY


class LinkThread:
    """A link that goes on while a test's own thread is busy."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.link = EmbeddedLink(port)

    def call(self, what: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(what(), self._loop).result(DEADLINE)  # type: ignore[arg-type]

    def close(self) -> None:
        self.call(self.link.cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def linked(hub: Hub) -> Iterator[LinkThread]:
    thread = LinkThread(hub.server.port)
    thread.call(thread.link.restore)
    try:
        yield thread
    finally:
        thread.close()


def test_the_service_outlives_cut_links_dead_servers_and_full_disks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "CONNECT_DEADLINE", 1.0)
    told: list[job.RollupResult] = []
    complaints: list[str] = []
    hub = Hub(tmp_path / "hub")
    dub1 = Block("eu", "dub1")
    records = [dub1.new("n1", FIRST), dub1.stale("n1", FIRST + HOUR), dub1.watermark(FIRST, FIRST + 2 * HOUR)]

    def hear(where: list[job.RollupResult] | list[str]) -> None:
        known, ends_at = len(where), time.monotonic() + DEADLINE
        while len(where) == known:
            assert time.monotonic() < ends_at, "the service has nothing to say"
            time.sleep(0.05)

    def break_things(thread: LinkThread, disk: SmallDisk) -> None:
        try:
            hear(told)
            thread.call(thread.link.cut)
            hear(complaints)
            asyncio.run(hub.server.stop())
            thread.call(thread.link.restore)
            hear(complaints)
            asyncio.run(hub.server.start())
            if disk.is_small:
                disk.fill(0)
            hub.publish(records)
            if disk.is_small:
                while "writing failed" not in complaints[-1]:
                    hear(complaints)
                assert "No space left on device" in complaints[-1] or "SQLITE_FULL" in complaints[-1]
                disk.free()
            while not told[-1].position.sequence:
                hear(told)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with hub, linked(hub) as thread, SmallDisk(tmp_path / "disk") as disk, StopSignal() as stop:
        settings = settings_for(ConnectionSettings(servers=(thread.link.url,)), disk.path / "lake")
        breaking = threading.Thread(target=break_things, args=(thread, disk))
        breaking.start()
        roll_up_every(settings, 0.3, stop, told.append, complaints.append)
        breaking.join()
        had_small_disk = disk.is_small
        lakehouse = Lakehouse(hub, disk.path / "lake")
        assert lakehouse.rows("SELECT kind FROM advisories ORDER BY occurred_at") == [("new",), ("stale",)]
        assert lakehouse.rows("SELECT count(*) FROM sender_intervals") == [(2,)]
    assert sum(each.counts.read for each in told) <= len(records)
    say("\n".join(complaints))
    if not had_small_disk:
        pytest.skip("it outlived cut links and dead servers; a disk of its own to fill can be mounted by root only")


def test_a_service_is_no_place_for_what_is_done_once(tmp_path: Path) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "tables"\n')
    asked = CliRunner().invoke(rollup, ["--config", str(config), "--every", "5m", "--full"])
    assert (asked.exit_code, "leave --once, --full and --accept-loss out" in asked.output) == (2, True)
    asked = CliRunner().invoke(rollup, ["--every", "often"])
    assert "not a duration: 'often', write for example 90s, 12m, 1h30m or 7d" in asked.output
