"""Look at the newest messages of a stream, through a consumer of our own that the server forgets in seconds."""

import secrets
from collections import Counter
from contextlib import aclosing

import msgspec
import nats.errors
from nats.js.api import Header
from nats.js.errors import Error as JetStreamError

from edge_agent.config.stream import StreamSettings
from edge_agent.core.intake import Intake
from edge_agent.core.observation import Observation, Rejected, SourceMessage, excerpt
from edge_agent.core.payload import DigestRule
from edge_agent.doctor.visit import Visit
from edge_agent.source.consumer import ConsumerInfo
from edge_agent.source.replies import delivery_of
from shared.nats.jetstream_api import ApiError, RequestFailed, api_prefix
from shared.nats.stream_messages import delivered
from shared.tables import visible

MOST_MESSAGES = 10_000
MOST_BYTES = 16 << 20
PATIENCE = 2.0
FORGOTTEN_AFTER = 5_000_000_000


class Sample(msgspec.Struct, frozen=True):
    """What the newest messages say: who registered when (microseconds), and why others could not be told whose.

    ``examples`` shows the last message of each of those reasons, ``repeated`` a Nats-Msg-Id of each sender that was
    stored with one more than once; ``message_ids`` are all that were seen.
    """

    sightings: list[tuple[str, int]]
    rejected: Counter[str]
    examples: dict[str, str]
    message_ids: set[str]
    repeated: dict[str, str]

    @property
    def message_count(self) -> int:
        return len(self.sightings) + sum(self.rejected.values())


async def newest_messages(visit: Visit, block: StreamSettings, last_sequence: int, mean_size: int) -> Sample | None:
    """Read the newest messages up to a bound of number and bytes; None where the server does not let us."""
    stream, prefix, name = block.source.stream, api_prefix(block.source.domain), f"muster-doctor-{secrets.token_hex(4)}"
    wanted = max(min(MOST_MESSAGES, MOST_BYTES // max(mean_size, 1)), 1)
    config = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(last_sequence - wanted + 1, 1),
        "ack_policy": "none",
        "inactive_threshold": FORGOTTEN_AFTER,
        "mem_storage": True,
        **({"filter_subject": block.filter_subject} if block.filter_subject else {}),
    }
    sample = Sample([], Counter(), {}, set(), {})
    try:
        body = {"stream_name": stream, "config": config}
        info = await visit.ask(f"{prefix}.CONSUMER.CREATE.{stream}.{name}", body, ConsumerInfo)
        await _read(visit, block, name, info.num_pending, sample)
        await visit.ask(f"{prefix}.CONSUMER.DELETE.{stream}.{name}", None, dict[str, object])
    except (ApiError, RequestFailed, nats.errors.Error, JetStreamError, TimeoutError):
        # No permission, a work queue that has its reader, a link that broke: the store may still tell.
        return sample if sample.message_count else None
    return sample


async def _read(visit: Visit, block: StreamSettings, consumer: str, count: int, sample: Sample) -> None:
    source = block.source
    messages = delivered(visit.client, source.stream, consumer, count, api=api_prefix(source.domain), deadline=PATIENCE)
    intake = Intake(block.sender_rule(), "", DigestRule())
    async with aclosing(messages):
        async for message in messages:
            delivery = delivery_of(message.reply)
            taken = intake.read(
                SourceMessage(message.subject, message.data, message.headers, delivery.sequence, delivery.stored_at)
            )
            if isinstance(taken, Observation):
                sample.sightings.append((taken.sender_id, delivery.stored_at))
                if message_id := (message.headers or {}).get(Header.MSG_ID):
                    if message_id in sample.message_ids:
                        sample.repeated[taken.sender_id] = message_id
                    sample.message_ids.add(message_id)
            elif isinstance(taken, Rejected):
                sample.rejected[taken.reason] += 1
                shown = excerpt(message.data) or "empty"
                sample.examples[taken.reason] = f"message {delivery.sequence} on {visible(message.subject)}: {shown}"
