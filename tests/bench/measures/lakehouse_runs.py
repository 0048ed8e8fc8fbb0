"""How fast a rollup reads the archive, and how long it takes where there is nothing new."""

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from nats.aio.client import Client
from pyspark import SparkContext

from aggregator.config import AggregatorSettings
from aggregator.lakehouse import rollup
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.identifiers import AdvisoryKind, BlockId, Incarnation
from shared.instants import SECOND, parse_instant
from shared.nats.connection import ConnectionSettings
from shared.nats.jetstream_api import request_json
from shared.subjects import advisory_subject
from shared.wire import encode
from tests.bench.memory import PeakMemory, Resident
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options
from tests.bench.streams import FILL_DEADLINE, connected, stream_state
from tests.bench.warehouses import MASTER, say, settings_for
from tests.support.core.advisories import advisory_of
from tests.support.lakehouse.spark_cluster import Cluster, cluster
from tests.support.waiting import until

MESSAGES, FEW_MESSAGES = 4_000_000, 40_000
FLUSH = 2_000
START = parse_instant("2026-01-01T00:00:00Z")
API_DEADLINE = 60.0
_FLAT = 1.1
"""What memory may grow to, in times of what the first part took, and still be called flat."""


_ONE_CORE_EACH = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}


class Read(Exception):
    """Ends a rollup that has read everything and would derive now."""


async def reading(options: Options) -> Table:
    """Measure the way from the archive into the bronze tables: read, decoded, compared, committed."""
    count = FEW_MESSAGES if options.is_quick else options.scaled(MESSAGES)
    shutil.rmtree(options.directory, ignore_errors=True)
    settings = ServerSettings(name="hub", store_dir=options.directory / "hub")
    async with EmbeddedNats(settings) as server:
        size = await _fill(server.url, count)
        lake = settings_for(options.directory / "lake", ConnectionSettings(servers=(server.url,)))
        rows = await asyncio.to_thread(_read, lake, count)
    return Table(
        measure="lakehouse-reading",
        title=f"{count:,} advisories of {size} bytes from the archive into bronze tables; {MASTER}",
        command=options.command("lakehouse-reading"),
        rows=rows,
    )


async def nothing_new(options: Options) -> Table:
    """Measure the command, from start to prompt, where nothing is new."""
    shutil.rmtree(options.directory, ignore_errors=True)
    settings = ServerSettings(name="hub", store_dir=options.directory / "hub")
    async with EmbeddedNats(settings) as server:
        await _fill(server.url, 1_000)
        config = options.directory / "aggregator.toml"
        config.write_text(f'[hub]\nservers = ["{server.url}"]\n[lakehouse]\npath = "lake"\nspark_master = "{MASTER}"\n')
        command = [sys.executable, "-m", "aggregator.cli", "rollup", "--config", str(config)]
        taken = []
        for _ in range(1 + options.turns):
            began = time.perf_counter()
            await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
            taken.append(time.perf_counter() - began)
    return Table(
        measure="lakehouse-nothing",
        title=f"a rollup of little, and {options.turns} that find nothing new",
        command=options.command("lakehouse-nothing"),
        rows=[
            Row("the first, of 1,000 advisories", "s", taken[0]),
            Row("nothing new, from command to prompt, the longest", "s", max(taken[1:]), must=10, better="less"),
        ],
    )


async def on_cluster(options: Options) -> Table:
    """Measure the same way on workers of one core each, where one of them may help, and where two may."""
    count = FEW_MESSAGES if options.is_quick else options.scaled(MESSAGES // 4)
    shutil.rmtree(options.directory, ignore_errors=True)
    settings = ServerSettings(name="hub", store_dir=options.directory / "hub")
    taken: dict[int, list[float]] = {1: [], 2: []}
    async with EmbeddedNats(settings) as server:
        size = await _fill(server.url, count)
        place = options.directory / "cluster"
        place.mkdir()
        with cluster(place, 2) as spark:
            for turn in range(options.turns):
                for cores, seconds in taken.items():
                    own = {"spark.cores.max": str(cores), **_ONE_CORE_EACH}
                    directory = options.directory / f"lake-{cores}-{turn}"
                    lake = settings_for(directory, ConnectionSettings(servers=(server.url,)), spark.url, own)
                    seconds.append(await asyncio.to_thread(_seconds_to_read, lake, spark, cores))
    one, two = (statistics.median(each) for each in taken.values())
    return Table(
        measure="lakehouse-cluster",
        title=f"{count:,} advisories of {size} bytes into bronze tables, on a standalone master with two workers",
        command=options.command("lakehouse-cluster"),
        rows=[
            Row("one core of one worker", "rows/s", count / one),
            Row("one core of each", "rows/s", count / two),
            Row("two cores, in times of one", "times", one / two),
        ],
        notes=[
            f"medians of {options.turns} in turns; hub, driver and workers share this machine's {os.cpu_count()} cores"
        ],
    )


def _seconds_to_read(lake: AggregatorSettings, spark: Cluster, cores: int) -> float:
    """Read everything with so many executors, which have started and run before."""
    started = spark.executors_started()
    context = rollup.start_session(lake, say).sparkContext
    context.parallelize(range(cores * 4), cores * 4).map(str).count()
    times = _times_of(lake, lambda _line: None)
    context.stop()
    if spark.executors_started() - started != cores:
        raise RecordsLost(f"{spark.executors_started() - started} executors started, not {cores}")
    return times["deriving"] - times["reading"]


def _times_of(lake: AggregatorSettings, heard: Callable[[str], None]) -> dict[str, float]:
    """Read everything, and derive nothing: give when each kind of line was first said, and each line to ``heard``."""
    times: dict[str, float] = {}

    def note(line: str) -> None:
        say(line)
        times.setdefault(line.split(maxsplit=1)[0], time.perf_counter())
        heard(line)
        if line.startswith("deriving"):
            raise Read

    with contextlib.suppress(Read):
        rollup.roll_up(lake, rollup.RollupRequest(), note)
    return times


def _read(lake: AggregatorSettings, count: int) -> list[Row]:
    peaks: list[tuple[str, Resident]] = []

    def look(line: str) -> None:
        if line.startswith("read "):
            peaks.append((line.split()[1], memory.peaks))

    with PeakMemory() as memory:
        times = _times_of(lake, look)
    seconds = times["deriving"] - times["reading"]
    SparkContext.getOrCreate().stop()
    rows = [Row("read, decoded, compared, committed", "rows/s", count / seconds, must=70_000)]
    (few, of_few), (all_of_them, of_all) = peaks[0], peaks[-1]
    for what, first, last in (("Java", of_few.java, of_all.java), ("Python's workers", of_few.others, of_all.others)):
        rows.append(Row(f"most memory of {what}, through {few}", "MB", first))
        must = _FLAT * first
        rows.append(Row(f"most memory of {what}, through {all_of_them}", "MB", last, must=must, better="less"))
    return rows


async def _fill(url: str, count: int) -> int:
    """Make the hub's streams and publish advisories; give the size of one in bytes."""
    client = await connected(url)
    try:
        archive = {"name": "ARCHIVE", "subjects": ["fleet.>"], "allow_direct": True}
        await _make(client, archive)
        await _make(client, {"name": "REPORT", "mirror": {"name": "ARCHIVE"}, "allow_direct": True})
        size = 0
        for number, (subject, body) in enumerate(_advisories(count), start=1):
            size = len(body)
            await client.publish(subject, body)
            if number % FLUSH == 0:
                await client.flush(60)
        await client.flush(60)
        await until(partial(_holds, client, count), "REPORT has everything", FILL_DEADLINE)
        return size
    finally:
        await client.close()


def _advisories(count: int) -> Iterator[tuple[str, bytes]]:
    block, incarnation = BlockId("eu-west", "dub1", "nodes"), Incarnation(1, 1)
    subject = advisory_subject(block, AdvisoryKind.NEW)
    for number in range(count):
        at = START + number * SECOND // 20
        record = advisory_of(
            block,
            AdvisoryKind.NEW,
            sender_id=f"node{number}.example",
            inspect_field="sender",
            at=at,
            last_seen_at=at,
            stream="REGISTRATION",
            incarnation=incarnation,
            sequence=number,
            opening=(incarnation, number),
            ordinal=number + 1,
            rebuilt=False,
        )
        yield subject, encode(record)


async def _holds(client: Client, count: int) -> bool:
    return (await stream_state(client, "REPORT")).messages == count


async def _make(client: Client, config: dict[str, object]) -> None:
    subject = f"$JS.API.STREAM.CREATE.{config['name']}"
    await request_json(client, subject, config, dict[str, object], deadline=API_DEADLINE)


MEASURES = {"lakehouse-reading": reading, "lakehouse-nothing": nothing_new, "lakehouse-cluster": on_cluster}
