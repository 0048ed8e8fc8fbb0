"""Let each kind of fault happen to the stage, and heal it."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from shared.embedded.link import EmbeddedLink
from tests.support.agent.dying_agent import When
from tests.support.faults.fleet import MALFORMATIONS, SUBJECT
from tests.support.faults.region import region_deaf, region_full, region_killed, region_suspended, region_swallowed
from tests.support.faults.schedule import Fault, FaultKind, Moment, Target
from tests.support.faults.site import (
    consumer_paused,
    site_deaf,
    site_deaf_to_some,
    site_exhausted,
    site_full,
    site_killed,
    site_stepped,
    site_suspended,
)
from tests.support.faults.stage import COPIED_SUBJECTS, FaultStage
from tests.support.nats.stepped_clock import CANNOT_STEP

ROUND_TRIPS = (0.06, 1.0)
PATIENCE = 1.0
# It may have been started just now.
PATIENCE_WITH_AGENT = 2.5
LOOK_EVERY = 0.001
PATIENCE_PER_FAULT = 0.15
LONGEST_START = 10.0
AT_ANY_TIME_ONE_IN = 3
BANDWIDTHS = (4_000, 400_000)
# Below the agent's reserve, where it pauses, down to where nothing can be written at all.
BYTES_LEFT = (0, 0, 64 << 10, 1 << 20, 32 << 20)
BOTH_ONE_IN = 3
# What the agent's own headers take, and more.
BYTES_LESS = 600
Injector = Callable[[FaultStage, Fault], AbstractAsyncContextManager[None]]
LinkOf = Callable[[FaultStage, Fault], EmbeddedLink]


@asynccontextmanager
async def _agent_killed(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    victim = stage.victim(fault.detail)
    victim.kill()
    yield
    victim.start()


@asynccontextmanager
async def _agent_dies(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    await started(stage, LONGEST_START)
    victim = stage.victim(fault.detail)
    await victim.die(When.BEFORE if fault.detail < 0.25 else When.AFTER, PATIENCE_WITH_AGENT)
    yield
    victim.start()


@asynccontextmanager
async def _agent_stopped(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    victim = stage.victim(fault.detail)
    await victim.stop()
    yield
    victim.start()


@asynccontextmanager
async def _agent_suspended(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    victim = stage.victim(fault.detail)
    victim.suspend()
    yield
    victim.resume()


def _database(change: str) -> Injector:
    """End the agent, half the time at once, and let another process change the database meanwhile."""

    @asynccontextmanager
    async def inject(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
        victim = stage.victim(fault.detail)
        if fault.detail < 0.5:
            victim.kill()
        else:
            await victim.stop()
        if victim.store_path.exists():
            command = (sys.executable, "-m", "tests.support.faults.database", change, str(victim.store_path))
            changing = await asyncio.create_subprocess_exec(*command)
            assert await changing.wait() == 0, change
        yield
        victim.start()

    return inject


def _cut(link_of: LinkOf) -> Injector:
    @asynccontextmanager
    async def inject(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
        link = link_of(stage, fault)
        await link.cut()
        yield
        await link.restore()

    return inject


def _stalled(link_of: LinkOf) -> Injector:
    """Half of them deliver late what they took; of the others it never arrives."""

    @asynccontextmanager
    async def inject(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
        link = link_of(stage, fault)
        link.stall()
        yield
        if fault.detail < 0.5:
            await link.cut()
        await link.restore()

    return inject


def _slow(link_of: LinkOf) -> Injector:
    @asynccontextmanager
    async def inject(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
        link = link_of(stage, fault)
        usual = link.round_trip
        link.round_trip = _between(ROUND_TRIPS, fault.detail)
        link.bandwidth = int(_between(BANDWIDTHS, 1.0 - fault.detail))
        yield
        link.round_trip, link.bandwidth = usual, 0

    return inject


@asynccontextmanager
async def _disk_full(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    stage.disk.fill(BYTES_LEFT[int(fault.detail * len(BYTES_LEFT))])
    yield
    stage.disk.free()


def _oversized(subjects: Sequence[str]) -> Injector:
    """Let somebody publish as much as the site's server takes in one message; half of them less, by some bytes."""

    @asynccontextmanager
    async def inject(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
        less = max(0, int((fault.detail - 0.5) * 2 * BYTES_LESS))
        stage.habits.oversized.append((subjects[fault.number % len(subjects)], less))
        yield

    return inject


@asynccontextmanager
async def _malformed(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    stage.habits.malforms = MALFORMATIONS[int(fault.detail * len(MALFORMATIONS))]
    yield
    stage.habits.malforms = ""


def _between(bounds: tuple[float, float], detail: float) -> float:
    low, high = bounds
    return low * float((high / low) ** detail)


def _source_link(stage: FaultStage, _fault: Fault) -> EmbeddedLink:
    return stage.speaker.source_link


def _uplink(stage: FaultStage, fault: Fault) -> EmbeddedLink:
    """Choose of a pair's links mostly that of one member: the other can do what that one cannot."""
    return stage.uplink if fault.number % BOTH_ONE_IN == 0 else stage.victim(fault.detail).uplink


INJECTORS: dict[FaultKind, Injector] = {
    FaultKind.AGENT_KILLED: _agent_killed,
    FaultKind.AGENT_DIES: _agent_dies,
    FaultKind.AGENT_STOPPED: _agent_stopped,
    FaultKind.AGENT_SUSPENDED: _agent_suspended,
    FaultKind.DATABASE_RESTARTED: _database("rewrite"),
    FaultKind.DATABASE_UPGRADED: _database("make_old"),
    FaultKind.SITE_KILLED: site_killed,
    FaultKind.SITE_SUSPENDED: site_suspended,
    FaultKind.SITE_STEPPED: site_stepped,
    FaultKind.SITE_FULL: site_full,
    FaultKind.SITE_EXHAUSTED: site_exhausted,
    FaultKind.SITE_DEAF: site_deaf,
    FaultKind.SITE_DEAF_TO_SOME: site_deaf_to_some,
    FaultKind.CONSUMER_PAUSED: consumer_paused,
    FaultKind.REGION_KILLED: region_killed,
    FaultKind.REGION_SUSPENDED: region_suspended,
    FaultKind.REGION_FULL: region_full,
    FaultKind.REGION_DEAF: region_deaf,
    FaultKind.REGION_SWALLOWED: region_swallowed,
    FaultKind.SOURCE_CUT: _cut(_source_link),
    FaultKind.SOURCE_STALLED: _stalled(_source_link),
    FaultKind.SOURCE_SLOW: _slow(_source_link),
    FaultKind.UPLINK_CUT: _cut(_uplink),
    FaultKind.UPLINK_STALLED: _stalled(_uplink),
    FaultKind.UPLINK_SLOW: _slow(_uplink),
    FaultKind.DISK_FULL: _disk_full,
    FaultKind.OVERSIZED_REGISTRATION: _oversized((SUBJECT,)),
    FaultKind.OVERSIZED_COPY: _oversized(COPIED_SUBJECTS),
    FaultKind.MALFORMED: _malformed,
}


SPARED = {
    FaultKind.REGION_DEAF: (Target.AGENT, Target.UPLINK),
    FaultKind.REGION_SWALLOWED: (Target.AGENT, Target.UPLINK),
    # Nothing tells who was away of subjects that were edited meanwhile, and back.
    FaultKind.SITE_DEAF_TO_SOME: (Target.AGENT, Target.SOURCE_LINK),
}
"""What must work for a fault to be felt: nothing else befalls it meanwhile."""


async def started(stage: FaultStage, patience: float) -> None:
    """Wait until an agent that was started does its work."""
    patient_until = time.monotonic() + patience
    while time.monotonic() < patient_until:
        if not any(agent.is_starting for agent in stage.agents):
            return
        await asyncio.sleep(LOOK_EVERY)


async def come(stage: FaultStage, fault: Fault) -> None:
    """Wait until a fault's moment has come; not for long where nothing is under way: another fault keeps it."""
    if fault.moment is Moment.AT_ONCE:
        return
    patience = PATIENCE_WITH_AGENT if fault.target is Target.AGENT else PATIENCE
    before, patient_until = sign_of(stage, fault.moment), time.monotonic() + patience
    while time.monotonic() < patient_until:
        await asyncio.sleep(LOOK_EVERY)
        if sign_of(stage, fault.moment) != before:
            return


def sign_of(stage: FaultStage, moment: Moment) -> int:
    """Give what changes at such moments."""
    match moment:
        case Moment.READING:
            return sum(agent.source_link.passed_bytes for agent in stage.agents)
        case Moment.SENDING:
            return stage.uplink.passed_bytes
        case _:
            return max(agent.written_at() for agent in stage.agents)


def kinds_left_out(stage: FaultStage) -> dict[FaultKind, str]:
    """Name the kinds that cannot be made on this machine, and why."""
    left_out: dict[FaultKind, str] = {}
    if not stage.disk.is_small:
        left_out[FaultKind.DISK_FULL] = (
            "needs a small disk of its own, and mounting one is not permitted here (be root)"
        )
    if CANNOT_STEP:
        left_out[FaultKind.SITE_STEPPED] = CANNOT_STEP
    return left_out


async def play(stage: FaultStage, faults: list[Fault]) -> None:
    """Let every fault happen at its time, and return when the last one is healed.

    Where a machine is slower than the schedule, faults of one target wait for each other. While the agent starts, most
    faults that are still to come stand back, within bounds: one that never runs cannot be hurt.
    """
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    locks = {target: asyncio.Lock() for target in Target}

    async def happen(fault: Fault) -> None:
        async with AsyncExitStack() as stack:
            for target in (fault.target, *SPARED.get(fault.kind, ())):
                await stack.enter_async_context(locks[target])
            await come(stage, fault)
            async with INJECTORS[fault.kind](stage, fault):
                await asyncio.sleep(fault.duration)

    async with asyncio.TaskGroup() as tasks:
        patience = PATIENCE_PER_FAULT * len(faults)
        for fault in faults:
            waited_since = loop.time()
            if fault.number % AT_ANY_TIME_ONE_IN:
                await started(stage, min(patience, LONGEST_START))
            waited = loop.time() - waited_since
            patience -= waited
            began_at += waited
            await asyncio.sleep(began_at + fault.at - loop.time())
            tasks.create_task(happen(fault), name=f"{fault.number}: {fault.kind}")
