"""Read what a stream holds on a subject: one message, when it was stored, how many, or message by message.

For the latter three through a consumer that goes away by itself.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from aggregator.topology.desired.model import Config, StreamKey
from aggregator.topology.observed.connections import REQUEST_DEADLINE
from shared.decoding import ReportedInstant, WireError
from shared.identifiers import parse_number
from shared.instants import format_instant, parse_instant
from shared.nats import stream_messages
from shared.nats.jetstream_api import RequestFailed, request, request_json
from shared.nats.stream_messages import (
    Delivery,
    StoredMessage,
    TemporaryConsumer,
    delivered,
    delivery_of,
    temporary_consumer,
)


class StreamMessage(NamedTuple):
    """One message."""

    subject: str
    body: bytes
    sequence: int


class MessagePlace(NamedTuple):
    """Which message there is, and when its stream stored it, in microseconds."""

    sequence: int
    stored_at: int


class _StreamEnds(msgspec.Struct, frozen=True):
    subjects: dict[str, int] | None = None


class _StreamInfo(msgspec.Struct, frozen=True):
    state: _StreamEnds
    ts: ReportedInstant


async def count_by_subject(client: Client, stream: StreamKey, subjects: str) -> tuple[int, dict[str, int]]:
    """Give the server's clock, and how many messages each of ``subjects`` has; raise RequestFailed, ApiError."""
    place, name = stream
    asked = {"subjects_filter": subjects}
    info = await request_json(client, f"{place.api}.STREAM.INFO.{name}", asked, _StreamInfo, deadline=REQUEST_DEADLINE)
    return info.ts, info.state.subjects or {}


async def get_message(client: Client, stream: StreamKey, request: dict[str, object]) -> StoredMessage | None:
    """Give one message, asked for in MSG.GET's own words, None where there is none; raise RequestFailed, ApiError."""
    place, name = stream
    return await stream_messages.get_message(client, name, request, api=place.api, deadline=REQUEST_DEADLINE)


async def see_message(
    client: Client, stream: StreamKey, config: Config, subject: str, start: int | None = None
) -> MessagePlace | None:
    """Find the first message on ``subject`` from a sequence on, without it the last one; None where there is none.

    Its body stays where it is: MSG.GET writes that in base64, and an answer that is larger than the servers'
    ``max_payload`` breaks the leaf link that it comes over. ``config`` is the stream's. Raise RequestFailed, ApiError.
    """
    if config.get("retention") == "workqueue":
        # Beside the one who works there, a server takes no other consumer.
        asked: dict[str, Any] = {"last_by_subj": subject} if start is None else {"seq": start, "next_by_subj": subject}
        return await _see_directly(client, stream, asked, may=bool(config.get("allow_direct")))
    begins = {"deliver_policy": "last"} if start is None else _from_sequence(start)
    async with _consumer(client, stream, subject, begins | {"headers_only": True}) as created:
        if not created.num_pending:
            return None
        api = f"{stream[0].api}.CONSUMER.MSG.NEXT.{stream[1]}.{created.name}"
        answer = await request(client, api, b'{"batch":1,"no_wait":true}', REQUEST_DEADLINE)
        if "Status" in (answer.headers or {}):
            return None
        found = _delivery(answer, stream)
        return MessagePlace(found.sequence, found.stored_at)


async def _see_directly(client: Client, stream: StreamKey, asked: dict[str, Any], *, may: bool) -> MessagePlace | None:
    """Read the message with its body: directly, where the stream lets us, since that is not written in base64."""
    if not may:
        stored = await get_message(client, stream, asked)
        return MessagePlace(stored.seq, stored.time) if stored is not None else None
    subject = f"{stream[0].api}.DIRECT.GET.{stream[1]}"
    try:
        answer = await request(client, subject, msgspec.json.encode(asked), REQUEST_DEADLINE)
    except (nats.errors.Error, TimeoutError) as error:
        raise RequestFailed(f"{subject}: no answer: {error}") from error
    headers = answer.headers or {}
    if "Nats-Sequence" not in headers:
        return None
    try:
        return MessagePlace(parse_number(headers["Nats-Sequence"]), parse_instant(headers.get("Nats-Time-Stamp", "")))
    except ValueError as error:
        raise RequestFailed(f"{subject}: the answer is not a message: {error}") from error


async def count_messages(client: Client, stream: StreamKey, subject: str, start: int) -> int:
    """Count what a stream holds on ``subject`` from a sequence on; raise RequestFailed, ApiError."""
    async with _consumer(client, stream, subject, _from_sequence(start)) as created:
        return created.num_pending


async def read_messages(
    client: Client, stream: StreamKey, subject: str, since: int | None = None
) -> AsyncIterator[StreamMessage]:
    """Give what a stream holds on ``subject``, since an instant or from the start; raise RequestFailed, ApiError."""
    start = {"deliver_policy": "all"}
    if since is not None:
        start = {"deliver_policy": "by_start_time", "opt_start_time": format_instant(since)}
    async with _consumer(client, stream, subject, start) as created:
        async for message in _delivered(client, stream, created.name, created.num_pending):
            yield message


async def read_some(
    client: Client, stream: StreamKey, subject: str, start: int, count: int
) -> AsyncIterator[StreamMessage]:
    """Give the first ``count`` of what a stream holds on ``subject`` from a sequence on; raises as the others."""
    async with _consumer(client, stream, subject, _from_sequence(start)) as created:
        async for message in _delivered(client, stream, created.name, min(count, created.num_pending)):
            yield message


def _from_sequence(sequence: int) -> dict[str, Any]:
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence}


@asynccontextmanager
async def _consumer(
    client: Client, stream: StreamKey, subject: str, start: dict[str, Any]
) -> AsyncIterator[TemporaryConsumer]:
    place, name = stream
    config = {"filter_subject": subject, **start}
    async with temporary_consumer(client, name, config, api=place.api, deadline=REQUEST_DEADLINE) as created:
        try:
            yield created
        except (nats.errors.Error, TimeoutError) as error:
            raise RequestFailed(f"{name}: reading {subject} took too long: {error}") from error


async def _delivered(client: Client, stream: StreamKey, consumer: str, count: int) -> AsyncIterator[StreamMessage]:
    place, name = stream
    messages = delivered(client, name, consumer, count, api=place.api, deadline=REQUEST_DEADLINE)
    async with aclosing(messages):
        async for message in messages:
            yield StreamMessage(message.subject, message.data, _delivery(message, stream).sequence)


def _delivery(message: Msg, stream: StreamKey) -> Delivery:
    """Return the delivery that the reply subject of a message names; raise RequestFailed if it names none."""
    try:
        return delivery_of(message.reply)
    except WireError as error:
        raise RequestFailed(f"{stream[1]}: {error}") from error
