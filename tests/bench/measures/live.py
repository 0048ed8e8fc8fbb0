"""Serve the live fleet of a million senders: how fast it is read, what it takes, how soon it is back and tells news."""

import asyncio
import http.client
import json
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.instants import MINUTE
from shared.nats.connection import connect
from shared.nats.jetstream_api import request_json
from shared.nats.settings import ConnectionSettings
from tests.bench.children import Child
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import POLL, Options
from tests.support.lakehouse.hub import Block, Message
from tests.support.live.listeners import Listener, Pace, listening

SENDERS_OF_SITE = 1_000
BURST = 100_000
STALLED = 1_200.0
"""Seconds after which a machine that does much else is believed to have lost something."""
PAGES = 300
BROWSERS = {Pace.ON: 80, Pace.SLOWLY: 10, Pace.NOT: 10}
_PROGRAM = "from aggregator.cli import main; main()"


async def live(options: Options, full: int = 1_000_000, name: str = "live") -> Table:
    """Read an archive, be killed, be back; tell a burst; answer pages, also while another is told to many browsers."""
    count = options.size(full, 20_000)
    burst = min(BURST, count // 10)
    directory = options.directory / "live"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    async with EmbeddedNats(ServerSettings(name="hub", store_dir=directory / "hub")) as server:
        archive = _Archive(server.url, count)
        await archive.create()
        service = _Service(directory, server.url)
        begun_at = time.perf_counter()
        service.start()
        try:
            rate = await service.rate(archive.last)
            await service.through(archive.last)
            reading = time.perf_counter() - begun_at
            resident, processor = service.child.resident(), service.child.processor_seconds()
            await service.kill()
            begun_at = time.perf_counter()
            service.start()
            await service.through(archive.last)
            restart, resident_again = time.perf_counter() - begun_at, service.child.resident()
            hearing = asyncio.create_task(asyncio.to_thread(service.listen_for_stale, burst))
            begun_at = time.perf_counter()
            await archive.burst(burst)
            published = time.perf_counter() - begun_at
            await hearing
            told = time.perf_counter() - begun_at - published
            latencies = sorted(await asyncio.to_thread(service.pages, PAGES))
            idle = await service.child.core_share(options.size(30, 5))
            async with listening(service.port, "", BROWSERS) as listeners:
                before = service.child.resident()
                publishing = asyncio.create_task(archive.burst(burst))
                loaded = sorted(await asyncio.to_thread(service.pages, PAGES))
                await publishing
                await service.through(archive.last)
                grown = service.child.resident() - before
            behind = _behind(listeners[Pace.ON])
        finally:
            await service.kill()
    browsers = sum(BROWSERS.values())
    rows = [
        Row("read from the archive, folded and committed", "advisories/s", rate, None, 100_000),
        Row("all of it, from the start of the process until the service shows it", "s", reading),
        Row("its processor time", "us/advisory", processor / count * 1e6),
        Row("resident memory", "MB", resident, None, 1_000, "less"),
        Row("ready again after kill -9", "s", restart, None, 10, "less"),
        Row("resident memory after that", "MB", resident_again, None, 1_000, "less"),
        Row(f"a burst of {burst:,} told to a listener, after its last was published", "s", told, None, 5, "less"),
        Row("a page of 100 senders, median", "ms", latencies[len(latencies) // 2] * 1e3),
        Row("a page of 100 senders, 99th percentile", "ms", _late(latencies)),
        Row(f"the same while {burst:,} more are told to {browsers} browsers, 99th percentile", "ms", _late(loaded)),
        Row("an event, from the first of those that read on to the last", "s", behind),
        Row("resident memory that it took, a tenth of them slow, and a tenth standing still", "MB", grown),
        Row("idle", "% of a core", idle),
    ]
    notes = [f"{SENDERS_OF_SITE:,} senders to a site; the rate is the store's, from when it was last seen empty"]
    return Table(name, f"{count:,} senders shown live", options.command(name), rows, notes=notes)


async def live_hour(options: Options) -> Table:
    """Show 10,000 senders to many browsers while one of each site falls silent or comes back every two seconds."""
    seconds = options.size(3_600, 20)
    directory = options.directory / "live-hour"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    async with EmbeddedNats(ServerSettings(name="hub", store_dir=directory / "hub")) as server:
        archive = _Archive(server.url, 10_000)
        await archive.create()
        service = _Service(directory, server.url)
        service.start()
        try:
            await service.through(archive.last)
            async with listening(service.port, "", BROWSERS) as listeners:
                ends_at, resident, latencies = time.perf_counter() + seconds, list[float](), list[float]()
                while time.perf_counter() < ends_at:
                    await archive.change()
                    latencies += await asyncio.to_thread(service.pages, 10)
                    resident.append(service.child.resident())
                    await asyncio.sleep(2)
                await service.through(archive.last)
                newest = max(each.heard[-1] for each in listeners[Pace.ON])
        finally:
            await service.kill()
    for each in listeners[Pace.ON]:
        if each.heard != [*range(each.heard[0], each.heard[-1] + 1)] or each.heard[-1] < newest - 1:
            raise RecordsLost(f"one that read on was told {len(each.heard)} events up to {each.heard[-1]} of {newest}")
    first, last = resident[len(resident) // 10], resident[-1]
    rows = [
        Row("events told to each that read on", "", newest),
        Row("an event, from the first of those that read on to the last", "s", _behind(listeners[Pace.ON])),
        Row("a page of 100 senders, 99th percentile", "ms", _late(sorted(latencies))),
        Row("resident memory after a tenth of the time", "MB", first),
        Row("resident memory at the end", "MB", last, None, first * 1.1, "less"),
        Row(
            "slow ones that were cut, and those that stood still",
            "",
            sum(each.is_dropped for each in _others(listeners)),
        ),
    ]
    title = f"10,000 senders shown to {sum(BROWSERS.values())} browsers for {seconds:,} s, 10 changes every 2 s"
    return Table("live-hour", title, options.command("live-hour"), rows)


MEASURES: dict[str, Callable[[Options], Coroutine[Any, Any, Table]]] = {
    "live-hour": live_hour,
    "live": live,
    "live-100k": partial(live, full=100_000, name="live-100k"),
    "live-10k": partial(live, full=10_000, name="live-10k"),
}


def _late(latencies: Sequence[float]) -> float:
    return latencies[int(len(latencies) * 0.99)] * 1e3


def _others(listeners: dict[Pace, list[Listener]]) -> list[Listener]:
    return [*listeners[Pace.SLOWLY], *listeners[Pace.NOT]]


def _behind(listeners: Iterable[Listener]) -> float:
    """Say by how many seconds an event came later to one listener than to another, at most."""
    heard: dict[int, list[float]] = defaultdict(list)
    for each in listeners:
        for number, at in zip(each.heard, each.heard_at, strict=True):
            heard[number].append(at)
    return max((max(times) - min(times) for times in heard.values()), default=0.0)


class _Archive:
    """An archive in which every sender is new once."""

    def __init__(self, url: str, count: int) -> None:
        self._connection = ConnectionSettings(servers=(url,))
        self._blocks = [Block("eu-west", f"site{number}") for number in range(max(1, count // SENDERS_OF_SITE))]
        self._at = time.time_ns() // 1_000 - 30 * MINUTE
        self._stale_of_each = self._change_count = self.last = 0

    async def create(self) -> None:
        async with await connect(self._connection, name="bench", deadline=60.0) as client:
            config = {"name": "ARCHIVE", "subjects": ["fleet.>"], "allow_direct": True}
            await request_json(client, "$JS.API.STREAM.CREATE.ARCHIVE", config, dict[str, Any], deadline=60.0)
            await self._publish(client, self._news())

    async def burst(self, count: int) -> None:
        """Have some more senders of each site be stale, all at once."""
        begin = self._stale_of_each
        end = self._stale_of_each = begin + count // len(self._blocks)
        async with await connect(self._connection, name="bench", deadline=60.0) as client:
            await self._publish(
                client, (block.stale(_name(block, n), self._at) for block in self._blocks for n in range(begin, end))
            )

    async def change(self) -> None:
        """Have one more sender of each site be stale; the next time it comes back."""
        self._change_count, number = self._change_count + 1, self._change_count // 2
        comes_back, now = self._change_count % 2 == 0, time.time_ns() // 1_000
        async with await connect(self._connection, name="bench", deadline=60.0) as client:
            messages = (
                block.recovered(_name(block, number), now)
                if comes_back
                else block.stale(_name(block, number), self._at)
                for block in self._blocks
            )
            await self._publish(client, messages)

    def _news(self) -> Iterator[Message]:
        for block in self._blocks:
            for number in range(SENDERS_OF_SITE):
                yield block.new(_name(block, number), self._at)
            yield block.watermark(self._at, time.time_ns() // 1_000)

    async def _publish(self, client: Client, messages: Iterator[Message]) -> None:
        wanted = self.last
        for wanted, message in enumerate(messages, start=self.last + 1):
            await client.publish(message.subject, message.body)
            if wanted % 5_000 == 0:
                await client.flush()
                await self._stored(client, wanted - 20_000)
        await client.flush()
        await self._stored(client, wanted)
        self.last = wanted

    async def _stored(self, client: Client, wanted: int) -> None:
        ends_at = time.perf_counter() + STALLED
        while True:
            info = await request_json(client, "$JS.API.STREAM.INFO.ARCHIVE", None, dict[str, Any], deadline=60.0)
            if info["state"]["last_seq"] >= wanted:
                return
            if time.perf_counter() > ends_at:
                raise RecordsLost(f"ARCHIVE stands at {info['state']['last_seq']}, not at {wanted}")
            await asyncio.sleep(POLL)


class _Service:
    """The service, as a process."""

    def __init__(self, directory: Path, url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._store = f"{(directory / 'lake/live.db').absolute().as_uri()}?mode=ro"
        config = directory / "aggregator.toml"
        config.write_text(
            f'[hub]\nservers = ["{url}"]\n[lakehouse]\npath = "lake"\n[live]\nlisten = "127.0.0.1:{self.port}"\n'
            'unknown_after = "10h"\n'
        )
        self.child = Child([sys.executable, "-c", _PROGRAM, "serve", "--config", str(config)], directory / "log")

    def start(self) -> None:
        self.child.start()

    async def kill(self) -> None:
        await self.child.end(signal.SIGKILL)

    async def rate(self, last: int) -> float:
        """Give the messages that reach the store each second, from when it was seen empty until it has ``last``."""
        empty_at = time.perf_counter()
        ends_at = empty_at + STALLED
        while (now := time.perf_counter()) < ends_at:
            _ = self.child.pid
            reached = self._stored()
            if reached >= last:
                return last / (now - empty_at)
            if not reached:
                empty_at = now
            await asyncio.sleep(POLL)
        raise RecordsLost(f"the live service did not store through {last}")

    def _stored(self) -> int:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self._store, uri=True)) as store:
            return sum(row[0] for row in store.execute("SELECT sequence FROM position"))
        return 0

    async def through(self, sequence: int) -> None:
        """Wait until it has read a message."""
        ends_at = time.perf_counter() + STALLED
        while time.perf_counter() < ends_at:
            _ = self.child.pid
            try:
                fleet = await asyncio.to_thread(self._get, "/api/v1/fleet")
            except OSError:
                fleet = {}
            if fleet.get("sequence", 0) >= sequence and fleet["now_us"] and "not to be trusted" not in fleet["trust"]:
                return
            await asyncio.sleep(POLL)
        raise RecordsLost(f"the live service did not read through {sequence}")

    def listen_for_stale(self, count: int) -> None:
        """Listen until an event says that so many are stale."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STALLED)
        connection.request("GET", "/api/v1/events")
        answer, name = connection.getresponse(), b""
        while line := answer.readline():
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: ") and name == b"fleet" and json.loads(line[6:])["counts"]["stale"] >= count:
                connection.close()
                return
        raise RecordsLost("the stream of events ended")

    def pages(self, count: int) -> list[float]:
        """Ask for pages of senders, one behind the other; give how long each took in seconds."""
        taken, after = [], ""
        for _ in range(count):
            begun_at = time.perf_counter()
            after = self._get(f"/api/v1/senders?limit=100&after={after}")["after"]
            taken.append(time.perf_counter() - begun_at)
        return taken

    def _get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STALLED)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def _name(block: Block, number: int) -> str:
    return f"node{number:04}.rack{number // 40}.{block.id.site}.example.net"
