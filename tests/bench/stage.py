"""A site's and a region's real servers, their streams, and the contenders between them, one at a time."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, ServerSettings
from tests.bench.children import Child, processor_seconds
from tests.bench.contenders import Contender, Ours, Peer, Work
from tests.bench.report import RecordsLost
from tests.bench.streams import connected, fill, forget_readers, make_stream, stream_state

DELIVERED = (("site", "PEERADV", "peeradv"), ("region", "FLEET", "fleet"), ("region", "PEER", "registration"))
"""Where contenders deliver: the server, the stream, and the subject that it stores what is below of."""

POLL = 0.02
STALLED = 120.0


class Options(msgspec.Struct, frozen=True):
    """What the command line says: sizes, the peer's binary, where servers and stores keep their files.

    ``scale`` is the share of the full size that measures of the lakehouse take, ``seed`` what others draw from.
    """

    is_quick: bool
    peer: Path | None
    directory: Path
    backlog: int
    scale: float = 1.0
    seed: int = 0

    def size(self, full: int, quick: int) -> int:
        """Give how much, by mode."""
        return quick if self.is_quick else full

    def scaled(self, full: int) -> int:
        """Give how much of a full size, at least one."""
        return max(1, round(full * self.scale))

    @property
    def rest(self) -> float:
        """Say how long, in seconds, a contender is left alone between two looks at whether it has come to rest."""
        return self.size(3, 1)

    @property
    def turns(self) -> int:
        """Say how often each contender has its turn: figures are medians."""
        return 1 if self.is_quick else 3

    def command(self, measure: str) -> str:
        """Write the command that repeats a measure."""
        quick = " --quick" if self.is_quick else ""
        peer = f" --peer {self.peer}" if self.peer else ""
        scale = f" --scale {self.scale:g}" if self.scale != 1 and measure.startswith("lakehouse") else ""
        seed = f" --seed {self.seed}" if measure == "accuracy" else ""
        return f".venv/bin/python -m tests.bench{quick}{peer}{scale}{seed} {measure}"


class Pace(NamedTuple):
    """How fast something went: messages per second, and microseconds of processor time for each.

    The latter hardly depends on what else the machine does. ``servers`` is that of both servers together.
    """

    rate: float
    processor: float
    servers: float

    @property
    def bound(self) -> float:
        """Give the rate that two cores allow at most, where contender and servers have them for themselves."""
        return min(1e6 / self.processor, 2e6 / (self.processor + self.servers)) if self.processor else float("nan")


class Stage:
    """Both servers and the two links that lead the contenders to them."""

    def __init__(self, options: Options, servers: dict[str, EmbeddedNats], clients: dict[str, Client]) -> None:
        self.options = options
        self.directory = options.directory
        self.servers = servers
        self.site, self.region = clients["site"], clients["region"]
        self.clients = clients

    async def register(self, payloads: Iterable[bytes]) -> int:
        """Let senders register at the site; give how many messages its stream holds now."""
        return await fill(self.site, "REGISTRATION", "registration.site", payloads)

    @asynccontextmanager
    async def link(self, server: str, round_trip: float = 0.0) -> AsyncIterator[EmbeddedLink]:
        """Stand between a contender and a server."""
        async with EmbeddedLink(self.servers[server].port, round_trip=round_trip) as link:
            yield link

    def work(self, **settings: object) -> Work:
        """Say what is to be done, between the servers themselves unless other addresses are given."""
        addresses = {"site": self.servers["site"].url, "region": self.servers["region"].url}
        return msgspec.convert({**addresses, **settings}, Work)

    @asynccontextmanager
    async def contender(self, kind: type[Contender], work: Work) -> AsyncIterator[Contender]:
        """Set a contender up, nothing read and nothing delivered yet; it is started by whoever measures it."""
        await forget_readers(self.site, "REGISTRATION")
        # Not purged: they would know the ids of the turn before, and those of copies do not change with the store.
        clients = {"site": self.site, "region": self.region}
        for server, stream, subject in DELIVERED:
            await clients[server].jetstream().delete_stream(stream)
            await make_stream(clients[server], stream, subject)
        contender: Contender
        if kind is Peer:
            assert self.options.peer is not None
            contender = Peer(self.directory, work, self.options.peer)
        else:
            contender = Ours(self.directory, work)
        # What was filled in, and what the turn before left, would be written to the disk during this one.
        await asyncio.to_thread(os.sync)
        try:
            yield contender
        finally:
            await contender.child.end()

    @property
    def kinds(self) -> list[type[Contender]]:
        """Name the contenders of this run."""
        return [Ours, Peer] if self.options.peer else [Ours]

    async def records(self, contender: Contender) -> int:
        """Count what has arrived in the region, watermarks aside; fail where the contender has ended."""
        _ = contender.child.pid
        subjects = "fleet.>" if isinstance(contender, Ours) else ""
        state = await stream_state(self.region, contender.target_stream, subjects)
        return state.messages - state.count(".watermark")

    async def told(self, contender: Contender, what: str) -> int:
        """Count a contender's advisories of one kind."""
        server, stream, subjects = contender.advisories
        return (await stream_state(self.clients[server], stream, subjects)).count(what)

    async def pace(
        self, child: Child, progress: Callable[[], Awaitable[int]], goal: int, what: str, limit: float | None = None
    ) -> Pace:
        """Measure how fast a child advances from its first step to ``goal``, or until ``limit`` seconds have passed.

        Raise RecordsLost where it stands still before, or goes beyond.
        """
        first, at_first, processor_at_first, servers_at_first = 0, 0.0, 0.0, 0.0
        reached, reached_at = 0, time.perf_counter()
        while True:
            now_reached, now = await progress(), time.perf_counter()
            if now_reached > goal:
                raise RecordsLost(f"{what}: {now_reached:,} where there are {goal:,}")
            if now_reached > reached:
                if not first:
                    first, at_first = now_reached, now
                    processor_at_first, servers_at_first = child.processor_seconds(), self._servers_seconds()
                reached, reached_at = now_reached, now
            if reached == goal or (limit is not None and first and now - at_first > limit):
                break
            if now - reached_at > STALLED:
                raise RecordsLost(f"{what}: {reached:,} of {goal:,}, and no more for {STALLED:g} s")
            await asyncio.sleep(POLL)
        if reached == first:
            return Pace(float("nan"), float("nan"), float("nan"))
        steps, processor = reached - first, child.processor_seconds() - processor_at_first
        servers = self._servers_seconds() - servers_at_first
        return Pace(steps / (reached_at - at_first), 1e6 * processor / steps, 1e6 * servers / steps)

    def _servers_seconds(self) -> float:
        return sum(processor_seconds(server.pid) for server in self.servers.values())


@asynccontextmanager
async def stage(options: Options, *, sync_always: bool = False, site_storage: str = "") -> AsyncIterator[Stage]:
    """Start both servers on empty directories, and make the streams. ``site_storage``: the most that the site holds."""
    directory = options.directory
    shutil.rmtree(directory, ignore_errors=True)
    async with AsyncExitStack() as stack:
        servers, clients = {}, {}
        for name in ("site", "region"):
            settings = ServerSettings(
                name=name,
                store_dir=directory / name,
                sync_always=sync_always and name == "region",
                max_file=site_storage if name == "site" else "",
            )
            servers[name] = await stack.enter_async_context(EmbeddedNats(settings))
            clients[name] = await connected(servers[name].url)
            stack.push_async_callback(clients[name].close)
        await make_stream(clients["site"], "REGISTRATION", "registration")
        for server, stream, subject in DELIVERED:
            await make_stream(clients[server], stream, subject)
        yield Stage(options, servers, clients)
        await stack.aclose()
    shutil.rmtree(directory, ignore_errors=True)


async def rested(contender: Contender, rest: float) -> None:
    """Wait until a store gives no more space back: that is work of the burst, not of an agent at rest."""
    size, before = 0, -1
    while size != before:
        await asyncio.sleep(rest)
        size, before = contender.store.stat().st_size if isinstance(contender, Ours) else 0, size
