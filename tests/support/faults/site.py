"""Let the site's server fail, its clock step, its stream refuse what senders say, and its consumers pause."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
from nats.aio.client import Client

from shared.instants import SECOND
from shared.nats.jetstream_api import NO_SUCH_CONSUMER, ApiError, PubAck, request_json
from tests.support.faults.evidence import DEADLINE, client_of
from tests.support.faults.fleet import SUBJECT
from tests.support.faults.schedule import Fault
from tests.support.faults.stage import COPIED_SUBJECTS, PROBE, STREAM, STREAM_SUBJECTS, FaultStage
from tests.support.nats.stepped_clock import SteppedClock

CLOCK_STEP = 1 * SECOND
BALLAST = "BALLAST"
BALLAST_SIZE = 1_000_000
LONGEST_PAUSE = timedelta(minutes=1)
SEEN_AFTER = 1.0


class _Consumers(msgspec.Struct):
    consumers: list[str] | None = None


@asynccontextmanager
async def site_killed(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    await stage.site.kill()
    with stage.site_down():
        yield
    await stage.site.start()


@asynccontextmanager
async def site_suspended(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    stage.site.suspend()
    with stage.site_down():
        yield
    stage.site.resume()


@asynccontextmanager
async def site_stepped(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    """Let its clock be ahead for a while, by less than makes a blind span or a new epoch."""
    with SteppedClock(stage.site) as clock, stage.site_ahead(CLOCK_STEP):
        clock.set(CLOCK_STEP)
        yield
        clock.set(0)


@asynccontextmanager
async def site_full(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    """Let the stream be over its limit, and refuse what is new."""
    await _update_stream(stage, max_msgs=1, discard="new")
    with stage.site_down(refuses=True):
        yield
    await _update_stream(stage)


@asynccontextmanager
async def site_exhausted(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    """Let another stream use up what the server may store: of the senders' stream nothing shows it."""
    async with client_of(stage.site) as client:
        await _ask(client, f"STREAM.CREATE.{BALLAST}", {"name": BALLAST, "subjects": [BALLAST.lower()]})
        while await _stores(client):
            """Go on until it takes no more: then it takes nothing, however small."""
    with stage.site_down(refuses=True):
        yield
    async with client_of(stage.site) as client:
        await _ask(client, f"STREAM.DELETE.{BALLAST}")


@asynccontextmanager
async def site_deaf(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    """Let somebody edit the stream's subjects: they cover nothing that anybody publishes, probes included."""
    await _update_stream(stage, subjects=["elsewhere.>"])
    with stage.site_down(refuses=True):
        yield
    await _update_stream(stage)


@asynccontextmanager
async def site_deaf_to_some(stage: FaultStage, _fault: Fault) -> AsyncIterator[None]:
    """Let the stream's subjects cover those of some senders, and the probe's, but not those of most."""
    await _update_stream(stage, subjects=[*COPIED_SUBJECTS, PROBE])
    with stage.site_down(refuses=True, subject=SUBJECT):
        yield
    await _update_stream(stage)
    # What is edited back and forth between two looks of an agent, it cannot know.
    await asyncio.sleep(SEEN_AFTER)


@asynccontextmanager
async def consumer_paused(stage: FaultStage, fault: Fault) -> AsyncIterator[None]:
    """Let somebody pause a consumer of the stream: what is stored is delivered later."""
    async with client_of(stage.site) as client:
        found = msgspec.convert(await _ask(client, f"CONSUMER.NAMES.{STREAM}"), _Consumers).consumers
    # Until the agent has made one there is none.
    name = sorted(found)[int(fault.detail * len(found))] if found else "none"
    await _pause(stage, name, datetime.now(UTC) + LONGEST_PAUSE)
    yield
    await _pause(stage, name, None)


async def _pause(stage: FaultStage, consumer: str, until: datetime | None) -> None:
    """Pause a consumer, or let it go on; the agent may not have made it yet, or make it anew."""
    async with client_of(stage.site) as client:
        body = {"pause_until": until.isoformat()} if until else {}
        try:
            await _ask(client, f"CONSUMER.PAUSE.{STREAM}.{consumer}", body)
        except ApiError as error:
            if error.err_code != NO_SUCH_CONSUMER:
                raise


async def _update_stream(stage: FaultStage, **changed: object) -> None:
    config = {"name": STREAM, "subjects": STREAM_SUBJECTS, **changed}
    async with client_of(stage.site) as client:
        await _ask(client, f"STREAM.UPDATE.{STREAM}", config)


async def _stores(client: Client) -> bool:
    answer = await client.request(BALLAST.lower(), bytes(BALLAST_SIZE), timeout=DEADLINE)
    return msgspec.json.decode(answer.data, type=PubAck).error is None


async def _ask(client: Client, what: str, body: object = None) -> dict[str, object]:
    return await request_json(client, f"$JS.API.{what}", body, dict[str, object], deadline=DEADLINE)
