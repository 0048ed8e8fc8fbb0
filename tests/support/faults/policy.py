"""Say things to the agent while everything fails: how often to forward, whose next word to forward, who is gone.

Whatever is said is said in the region, where the agent hears it, or does not, or only later.
"""

import asyncio
import random
import time

import msgspec
import nats.errors
import nats.js.errors

from shared.instants import SECOND
from shared.nats.jetstream_api import ApiError, RequestFailed, request_json
from shared.policy import (
    EVERY_REVISION,
    STREAM,
    ForwardSender,
    Order,
    RetireSender,
    Revision,
    Scope,
    SetThresholds,
    encode_revision,
)
from shared.thresholds import Thresholds
from tests.support.faults.evidence import client_of
from tests.support.faults.fleet import SENDERS
from tests.support.faults.stage import FaultStage, make_stream


class _State(msgspec.Struct):
    last_seq: int


class _Info(msgspec.Struct):
    state: _State


PAUSES = (0.2, 1.5)
PATIENCE = 1.0
SCOPES = (Scope("eu-west"), Scope("eu-west", "dub1"), Scope("eu-west", "dub1", "nodes"))


async def speak_for_ever(stage: FaultStage, seed: int) -> None:
    """Add revisions until cancelled; one that the region does not take is left out."""
    draw = random.Random(f"policy {seed}")
    await make_stream(stage.region, {"name": STREAM, "subjects": [EVERY_REVISION]})
    async with client_of(stage.region) as client:
        while True:
            await asyncio.sleep(draw.uniform(*PAUSES))
            order, scope = _order(draw), draw.choice(SCOPES)
            try:
                info = await request_json(client, f"$JS.API.STREAM.INFO.{STREAM}", None, _Info, deadline=PATIENCE)
                last = info.state.last_seq
                now = time.time_ns() // 1000
                revision = Revision(revision=last + 1, stream_created_us=1, given_at_us=now, author="ops", order=order)
                headers = {"Nats-Expected-Last-Sequence": str(last)}
                await client.jetstream(timeout=PATIENCE).publish(
                    scope.subject, encode_revision(revision), headers=headers
                )
            except (RequestFailed, ApiError, nats.errors.Error, nats.js.errors.Error, TimeoutError):
                continue


def _order(draw: random.Random) -> Order:
    sender_id = f"node-{draw.randrange(SENDERS):02}"
    thresholds = Thresholds(sample_interval=draw.randrange(SECOND // 2, 20 * SECOND))
    return draw.choice((SetThresholds(thresholds), ForwardSender(sender_id), RetireSender(sender_id)))
