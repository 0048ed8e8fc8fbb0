"""What the hub does during a soak, and what befalls it: rollups, comparisons, orders, an archive that fails."""

import asyncio
import math
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from aggregator.demo.processes import Child
from aggregator.demo.story import muster
from shared.embedded.link import EmbeddedLink
from tests.soak.stage import SITES, Soak

DEADLINE = 600.0
GAP = (10.0, 60.0)
LASTS = (0.2, 40.0)
ROLLUP_EVERY = 300.0
ORDER_EVERY = 40.0
KILLED_ONE_IN = 4
TRIES, TRY_AGAIN_AFTER = 20, 3.0
LOOK_EVERY = 0.2
SENDERS = 100
Injector = Callable[[Soak, random.Random], AbstractAsyncContextManager[None]]


class HubRun:
    """What was done at the hub, and what was found wrong there; faults, rollups, and comparisons with the page."""

    def __init__(self, soak: Soak, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.agreements: list[str] = []
        self.wrong: list[str] = []
        self._disturbed_until = 0.0
        self._soak = soak
        self._draw = random.Random(f"hub {seed}")

    async def suffer(self, seconds: float) -> None:
        """Let one thing after another fail and heal, for some time."""
        deck: list[str] = []
        draw, ends_at = random.Random(self._draw.random()), time.monotonic() + seconds
        while (gap := draw.uniform(*GAP)) < ends_at - time.monotonic():
            await asyncio.sleep(gap)
            deck = deck or draw.sample([*INJECTORS], len(INJECTORS))
            kind = deck.pop()
            self.counts[kind] += 1
            self._disturbed_until = math.inf
            low, high = LASTS
            async with INJECTORS[kind](self._soak, draw):
                await asyncio.sleep(low * (high / low) ** draw.random())
            self._disturbed_until = time.monotonic()

    async def keep_live(self) -> None:
        """Start the live service again where it ends by itself, which is wrong."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._soak.live_is_wanted:
                try:
                    _ = self._soak.live.pid
                except RuntimeError as error:
                    self.wrong.append(f"the live service: {error}")
                    self._soak.start_live()

    async def roll_up_for_ever(self, every: float) -> None:
        """Roll up and compare at intervals; now and then a rollup is killed under way."""
        draw = random.Random(self._draw.random())
        while True:
            began_at = time.monotonic()
            if draw.randrange(KILLED_ONE_IN) == 0:
                await self.roll_up(killed_after=draw.uniform(3.0, 30.0))
            if await self.roll_up():
                await self.compare()
            await asyncio.sleep(max(0.0, began_at + every - time.monotonic()))

    async def roll_up(self, *options: str, killed_after: float = DEADLINE) -> bool:
        """Roll up; tell whether it came to its end. It may fail where the hub is away meanwhile, with one line."""
        log = self._soak.directory / "rollup.log"
        before, began_at = log.stat().st_size if log.exists() else 0, time.monotonic()
        command = muster("muster-aggregator", "rollup", "--config", self._soak.aggregator_path, *options)
        child, code = await Child.start("rollup", command, log=log), None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(killed_after):
                    code = await child.wait()
        finally:
            await child.kill()
        self.counts["rollup " + ("done" if code == 0 else "killed" if code is None else "failed")] += 1
        if code == 0 or (code is None and killed_after < DEADLINE):
            return code == 0
        said = log.read_bytes()[before:].decode(errors="replace")
        if code is None or "Traceback" in said or self._disturbed_until < began_at:
            self.wrong.append(f"rollup ended with {code}: {said[-2000:]}")
        else:
            self.counts["rollup failed: " + said.strip().splitlines()[-1][:90]] += 1
        return False

    async def compare(self) -> None:
        """Compare page and tables; again where the service, or the hub, is away."""
        said = ""
        for _ in range(TRIES):
            child = await Child.start(
                "verify", muster("muster-aggregator", "verify", "--config", self._soak.aggregator_path)
            )
            lines = [line async for line in child.lines()]
            code = await child.wait()
            if lines and lines[-1].startswith("at message"):
                self.agreements.append(lines[-1])
                if code:
                    self.wrong.append("\n  ".join(["page and tables differ:", *lines]))
                return
            said = "\n  ".join(lines)
            await asyncio.sleep(TRY_AGAIN_AFTER)
        self.wrong.append(f"page and tables could not be compared: {said}")

    async def give_orders(self) -> None:
        """Say things to sites, until cancelled: an order that the hub does not take is left out."""
        draw = random.Random(self._draw.random())
        while True:
            await asyncio.sleep(ORDER_EVERY)
            sender = ("--block", "nodes", "--sender", f"node-{draw.randrange(SENDERS):02}")
            order = draw.choice((["forward", *sender], ["retire", *sender], ["set", "--sample-interval", "15s"]))
            place = ("--site", draw.choice([*SITES]), "--config", str(self._soak.servers.topology_path))
            child = await Child.start("policy", muster("muster-aggregator", "policy", *order, *place))
            said = [line async for line in child.lines()]
            code = await child.wait()
            self.counts["orders given" if code == 0 else f"orders not taken: {(said or ['silently'])[-1][:90]}"] += 1
            if any(line.startswith("Traceback") for line in said):
                self.wrong.append("\n  ".join(["an order:", *said]))


@asynccontextmanager
async def _hub_killed(soak: Soak, _draw: random.Random) -> AsyncIterator[None]:
    await soak.servers.hub.kill()
    try:
        yield
    finally:
        await soak.servers.hub.start()


@asynccontextmanager
async def _hub_suspended(soak: Soak, _draw: random.Random) -> AsyncIterator[None]:
    soak.servers.hub.suspend()
    try:
        yield
    finally:
        soak.servers.hub.resume()


def _link(fails: Callable[[EmbeddedLink], Awaitable[None]]) -> Injector:
    @asynccontextmanager
    async def inject(soak: Soak, draw: random.Random) -> AsyncIterator[None]:
        link = draw.choice([*soak.servers.links.values()])
        await fails(link)
        try:
            yield
        finally:
            await link.cut()
            await link.restore()

    return inject


async def _stall(link: EmbeddedLink) -> None:
    link.stall()


@asynccontextmanager
async def _live_ends(soak: Soak, draw: random.Random) -> AsyncIterator[None]:
    await soak.end_live(draw.choice((signal.SIGKILL, signal.SIGTERM)))
    try:
        yield
    finally:
        soak.start_live()


@asynccontextmanager
async def _relay_ends(soak: Soak, draw: random.Random) -> AsyncIterator[None]:
    if draw.random() < 0.5:
        soak.relay.kill()
    else:
        await soak.relay.stop()
    try:
        yield
    finally:
        soak.relay.start()


@asynccontextmanager
async def _centre_killed(soak: Soak, _draw: random.Random) -> AsyncIterator[None]:
    await soak.centre.kill()
    try:
        yield
    finally:
        await soak.centre.start()


INJECTORS: dict[str, Injector] = {
    "hub killed": _hub_killed,
    "hub suspended": _hub_suspended,
    "link to the hub cut": _link(EmbeddedLink.cut),
    "link to the hub half-open": _link(_stall),
    "live service ended": _live_ends,
    "relay ended": _relay_ends,
    "centre's server killed": _centre_killed,
}
