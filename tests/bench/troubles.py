"""Let real trouble befall a site and all who observe it, at once: the agent, the peer, and the rivals' observer."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import nats.js.errors

from shared.embedded.link import EmbeddedLink
from shared.instants import SECOND
from tests.bench.children import Child
from tests.bench.detectors import StreamClock
from tests.bench.stage import Stage
from tests.bench.streams import change_stream
from tests.support.nats.stepped_clock import CANNOT_STEP, SteppedClock

SITE_STORAGE = "32MB"
_BALLAST = (512 << 10, 16 << 10, 512)
_MOST_OF_A_SIZE = 200
_AHEAD = 8


class Trouble(NamedTuple):
    """What went wrong, from when until nothing of it was left."""

    name: str
    started_at: int
    ended_at: int


class Scene:
    """What trouble befalls: the site's server and stream, the observers, and their links to it."""

    def __init__(self, servers: Stage, observers: Sequence[Child], links: Sequence[EmbeddedLink]) -> None:
        self.servers = servers
        self.site = servers.servers["site"]
        self.observers = observers
        self.links = links
        self.clock = StreamClock(now())
        self.troubles: list[Trouble] = []

    async def befall(self, name: str, seconds: float) -> None:
        """Let one kind of trouble last for a while, and heal it."""
        started_at = now()
        async with TROUBLES[name](self):
            await asyncio.sleep(seconds)
        self.troubles.append(Trouble(name, started_at, now()))

    async def change_stream(self, **changed: object) -> None:
        """Let the site's stream have these settings besides its usual ones."""
        await change_stream(self.servers.site, "REGISTRATION", "registration", **changed)


@asynccontextmanager
async def _stopped(scene: Scene) -> AsyncIterator[None]:
    for child in scene.observers:
        os.kill(child.pid, signal.SIGSTOP)
    yield
    for child in scene.observers:
        os.kill(child.pid, signal.SIGCONT)


@asynccontextmanager
async def _killed(scene: Scene) -> AsyncIterator[None]:
    for child in scene.observers:
        await child.end(signal.SIGKILL)
    yield
    for child in scene.observers:
        child.start()


@asynccontextmanager
async def _cut(scene: Scene) -> AsyncIterator[None]:
    for link in scene.links:
        await link.cut()
    yield
    for link in scene.links:
        await link.restore()


@asynccontextmanager
async def _half_open(scene: Scene) -> AsyncIterator[None]:
    for link in scene.links:
        link.stall()
    yield
    for link in scene.links:
        await link.restore()


@asynccontextmanager
async def _server_killed(scene: Scene) -> AsyncIterator[None]:
    await scene.site.kill()
    yield
    await scene.site.start()


@asynccontextmanager
async def _server_stopped(scene: Scene) -> AsyncIterator[None]:
    scene.site.suspend()
    yield
    scene.site.resume()


@asynccontextmanager
async def _stream_full(scene: Scene) -> AsyncIterator[None]:
    await scene.change_stream(max_bytes=1 << 10, discard="new")
    yield
    await scene.change_stream()


@asynccontextmanager
async def _storage_exhausted(scene: Scene) -> AsyncIterator[None]:
    """Let another stream take all that the server may store: STREAM.INFO of the senders' stream shows nothing of it."""
    jetstream = scene.servers.site.jetstream()
    await jetstream.add_stream(name="BALLAST", subjects=["ballast"])
    for size in _BALLAST:
        for _ in range(_MOST_OF_A_SIZE):
            try:
                await jetstream.publish("ballast", bytes(size))
            except nats.js.errors.APIError:
                break
    yield
    await jetstream.delete_stream("BALLAST")


@asynccontextmanager
async def _subjects_changed(scene: Scene) -> AsyncIterator[None]:
    await scene.change_stream(subjects=["elsewhere.>"])
    yield
    await scene.change_stream()


@asynccontextmanager
async def _clock_ahead(scene: Scene) -> AsyncIterator[None]:
    """Set the server's clock ahead, and back; it is over when that clock shows what it had not shown before."""
    with SteppedClock(scene.site) as clock:
        clock.set(_AHEAD * SECOND)
        scene.clock.step(now(), _AHEAD * SECOND)
        yield
        clock.set(0)
        scene.clock.step(now(), 0)
    await asyncio.sleep(_AHEAD)


TROUBLES: dict[str, Callable[[Scene], AbstractAsyncContextManager[None]]] = {
    "who observes stands still": _stopped,
    "who observes is killed": _killed,
    "link to the site cut": _cut,
    "link to the site half-open": _half_open,
    "site's server killed": _server_killed,
    "site's server stands still": _server_stopped,
    "site's stream full": _stream_full,
    "site's server out of storage": _storage_exhausted,
    "stream's subjects changed": _subjects_changed,
    **({} if CANNOT_STEP else {"site's clock ahead, set back": _clock_ahead}),
}


def now() -> int:
    """Give this machine's time in microseconds."""
    return time.time_ns() // 1_000
