"""Let the region's server fail, and its stream refuse, overhear or lose what it is sent."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.observability.status_board import UPSTREAM
from edge_agent.observability.status_report import read_status
from edge_agent.store.read_only import StoreUnreadable
from shared.nats.jetstream_api import request_json
from tests.support.faults.evidence import DEADLINE, client_of, state_of
from tests.support.faults.schedule import Fault
from tests.support.faults.stage import FLEET, FLEET_SUBJECTS, FaultStage

FEW = 3
STATUS_EVERY = 0.1
LONGEST_WAIT = 10.0


@asynccontextmanager
async def region_killed(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    await stage.region.kill()
    yield
    await stage.region.start()


@asynccontextmanager
async def region_suspended(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    stage.region.suspend()
    yield
    stage.region.resume()


@asynccontextmanager
async def region_full(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    """Let FLEET take nothing, then a few records, then nothing: of what is under way some are refused."""
    is_over = asyncio.Event()
    flapping = asyncio.create_task(_flap(stage, 0.01 + fault.detail / 10, is_over))
    yield
    is_over.set()
    await flapping


async def _flap(stage: FaultStage, pause: float, is_over: asyncio.Event) -> None:
    async with client_of(stage.region) as client:
        while not is_over.is_set():
            for few in (0, FEW):
                await _limit_fleet(stage, client, (await state_of(client, FLEET)).messages + few)
                await asyncio.sleep(pause)
        await _limit_fleet(stage, client, -1)


@asynccontextmanager
async def region_deaf(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    """Let FLEET not listen on one subject: of what is sent together it refuses some, and takes what comes behind.

    Each subject has its turn. It lasts on from when the agent has noticed.
    """
    unheard, deaf_since = next(stage.unheard), time.time_ns() // 1000
    async with client_of(stage.region) as client:
        await _update_fleet(stage, client, subjects=[each for each in FLEET_SUBJECTS if each != unheard])
    await _refused(stage, deaf_since)
    yield
    async with client_of(stage.region) as client:
        await _update_fleet(stage, client)


@asynccontextmanager
async def region_swallowed(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    """Let somebody else listen for one kind of advisory, who answers nothing: what comes behind is stored before it.

    It lasts on from when something went astray.
    """
    unheard, gone = next(stage.astray), asyncio.Event()

    async def swallow(_message: Msg) -> None:
        gone.set()

    async with client_of(stage.region) as client:
        await client.subscribe(unheard, cb=swallow)
        await client.flush()
        await _update_fleet(stage, client, subjects=[each for each in FLEET_SUBJECTS if each != unheard])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT):
                await gone.wait()
        yield
        await _update_fleet(stage, client)


async def _refused(stage: FaultStage, since: int) -> None:
    """Wait until the agent says that the region has refused something since then; not for ever: others fail, too."""
    patient_until = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < patient_until:
        await asyncio.sleep(STATUS_EVERY)
        with contextlib.suppress(StoreUnreadable):
            upstream = read_status(stage.store_path).parts.get(UPSTREAM)
            if upstream is not None and upstream.phase == "not accepted" and upstream.since >= since:
                return


async def _limit_fleet(stage: FaultStage, client: Client, messages: int) -> None:
    await _update_fleet(stage, client, max_msgs=messages or 1, discard="new")


async def _update_fleet(stage: FaultStage, client: Client, **changed: object) -> None:
    config = {**stage.fleet_config, **changed}
    await request_json(client, f"$JS.API.STREAM.UPDATE.{FLEET}", config, dict[str, object], deadline=DEADLINE)
