"""Read what a stream holds on a subject, message by message, through a consumer that goes away by itself."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client

from aggregator.topology.found import StreamKey
from aggregator.topology.jetstream import REQUEST_DEADLINE
from shared.instants import format_instant
from shared.jetstream_api import RequestFailed, request_json

_BATCH = 1_000
_FORGOTTEN_AFTER = 60_000_000_000


class Read(NamedTuple):
    """One message."""

    subject: str
    body: bytes
    sequence: int


class _Created(msgspec.Struct, frozen=True):
    name: str
    num_pending: int = 0


async def read_messages(
    client: Client, stream: StreamKey, subject: str, since: int | None = None
) -> AsyncIterator[Read]:
    """Give what a stream holds on ``subject``, since an instant or from the start; raise RequestFailed, ApiError."""
    place, name = stream
    config: dict[str, Any] = {
        "filter_subject": subject,
        "ack_policy": "none",
        "mem_storage": True,
        "inactive_threshold": _FORGOTTEN_AFTER,
        "deliver_policy": "all" if since is None else "by_start_time",
    }
    if since is not None:
        config["opt_start_time"] = format_instant(since)
    body = {"stream_name": name, "config": config}
    api = f"{place.api}.CONSUMER"
    created = await request_json(client, f"{api}.CREATE.{name}", body, _Created, deadline=REQUEST_DEADLINE)
    try:
        async for message in _delivered(client, stream, created):
            yield message
    except (nats.errors.Error, TimeoutError) as error:
        raise RequestFailed(f"{name}: reading {subject} took too long: {error}") from error
    finally:
        delete = f"{api}.DELETE.{name}.{created.name}"
        await request_json(client, delete, None, dict[str, Any], deadline=REQUEST_DEADLINE)


async def _delivered(client: Client, stream: StreamKey, consumer: _Created) -> AsyncIterator[Read]:
    left = consumer.num_pending
    if not left:
        return
    jetstream = client.jetstream(domain=stream[0].domain or None)
    subscription = await jetstream.pull_subscribe_bind(consumer.name, stream[1])
    while left > 0:
        for message in await subscription.fetch(min(_BATCH, left), timeout=REQUEST_DEADLINE):
            left -= 1
            yield Read(message.subject, message.data, message.metadata.sequence.stream)
    await subscription.unsubscribe()
