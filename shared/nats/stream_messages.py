"""Read what a stream holds: one message, or many through a pull consumer that acknowledges nothing.

Source: ADR-13 (pull requests); ``inactive_threshold`` has the server forget a consumer that nobody deleted.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.decoding import Count, ReportedInstant, WireError
from shared.identifiers import LARGEST_NUMBER
from shared.nats.jetstream_api import NO_SUCH_MESSAGE, ApiError, domain_of, request_json

BATCH = 1_000
UNUSED_SECONDS = 60
_NANOSECONDS = 1_000_000_000


class StoredMessage(msgspec.Struct, frozen=True):
    """One message as STREAM.MSG.GET gives it; ``time`` is when it was stored (microseconds)."""

    seq: Count
    subject: str
    time: ReportedInstant
    data: bytes = b""
    hdrs: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        lines = self.hdrs.decode(errors="replace").split("\r\n")[1:]
        found = (line.partition(":") for line in lines if ":" in line)
        return {name: value.strip() for name, _, value in found}


class MessageReply(msgspec.Struct, frozen=True):
    """The answer of STREAM.MSG.GET."""

    message: StoredMessage


async def get_message(
    client: Client, stream: str, which: Mapping[str, object], *, api: str, deadline: float
) -> StoredMessage | None:
    """Ask the stream's leader for one message, in the API's own words for which; None where there is none.

    ``api`` and ``deadline`` as below. Raise ApiError, RequestFailed.
    """
    try:
        subject = f"{api}.STREAM.MSG.GET.{stream}"
        return (await request_json(client, subject, which, MessageReply, deadline=deadline)).message
    except ApiError as error:
        if error.err_code != NO_SUCH_MESSAGE:
            raise
        return None


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A delivered message as its reply subject names it: ``stored_at`` in microseconds, ``pending`` behind it."""

    consumer_sequence: int
    sequence: int
    stored_at: int
    pending: int


def delivery_of(reply: str) -> Delivery:
    """Return the delivery that a reply subject names; raise WireError if it names none."""
    try:
        return Delivery(*delivery_numbers(reply))
    except ValueError as error:
        raise WireError(f"not a delivery: {reply[:100]!r}") from error


def delivery_numbers(reply: str) -> tuple[int, int, int, int]:
    """Return the numbers in the reply subject of a delivery, unnamed, as this is called for each message.

    Raise ValueError if it is the subject of none.

    ``$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<ns>.<pending>``
    """
    tokens = reply.split(".")
    sequence, consumer_sequence, stored_at, pending = tokens[5:] if len(tokens) == 9 else tokens[7:11]
    first, second, third, fourth = numbers = int(consumer_sequence), int(sequence), int(stored_at) // 1000, int(pending)
    most = LARGEST_NUMBER
    # The store keeps 64 bits.
    if 0 <= first <= most and 0 <= second <= most and 0 <= third <= most and 0 <= fourth <= most:
        return numbers
    raise ValueError(f"numbers outside 0 to 2^53: {numbers}")


class TemporaryConsumer(msgspec.Struct, frozen=True):
    """A consumer as the server made it; ``num_pending`` messages wait for it."""

    name: str
    num_pending: Count = 0


async def create_consumer(
    client: Client,
    stream: str,
    config: Mapping[str, Any],
    *,
    api: str,
    deadline: float,
    unused_seconds: int = UNUSED_SECONDS,
) -> TemporaryConsumer:
    """Make a consumer that lives in memory; ``config`` says where it begins. Raise ApiError, RequestFailed.

    ``api`` is the prefix of the stream's JetStream API, ``deadline`` is in seconds.
    """
    config = {
        "ack_policy": "none",
        "mem_storage": True,
        "inactive_threshold": unused_seconds * _NANOSECONDS,
        **config,
    }
    body = {"stream_name": stream, "config": config}
    return await request_json(client, f"{api}.CONSUMER.CREATE.{stream}", body, TemporaryConsumer, deadline=deadline)


@asynccontextmanager
async def temporary_consumer(
    client: Client, stream: str, config: Mapping[str, Any], *, api: str, deadline: float
) -> AsyncIterator[TemporaryConsumer]:
    """Make a consumer as ``create_consumer`` does, and delete it at the end."""
    created = await create_consumer(client, stream, config, api=api, deadline=deadline)
    try:
        yield created
    finally:
        delete = f"{api}.CONSUMER.DELETE.{stream}.{created.name}"
        await request_json(client, delete, None, dict[str, Any], deadline=deadline)


async def delivered(
    client: Client, stream: str, consumer: str, count: int, *, api: str, deadline: float
) -> AsyncGenerator[Msg, None]:
    """Give the next ``count`` messages of a consumer that has as many; raise TimeoutError, nats.errors.Error."""
    if count <= 0:
        return
    jetstream = client.jetstream(domain=domain_of(api) or None)
    subscription = await jetstream.pull_subscribe_bind(consumer, stream)
    try:
        while count > 0:
            for message in await subscription.fetch(min(BATCH, count), timeout=deadline):
                count -= 1
                yield message
    finally:
        await subscription.unsubscribe()


async def every_message(client: Client, stream: str, *, api: str, deadline: float) -> AsyncGenerator[Msg, None]:
    """Give all that a stream holds now, in order."""
    async with temporary_consumer(client, stream, {"deliver_policy": "all"}, api=api, deadline=deadline) as consumer:
        async for message in delivered(client, stream, consumer.name, consumer.num_pending, api=api, deadline=deadline):
            yield message
