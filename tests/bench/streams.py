"""Fill streams fast, and look at them: how many messages, when the first and the last came, how far a reader is."""

import asyncio
from collections.abc import Iterable

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.instants import parse_instant
from shared.nats.jetstream_api import request_json
from tests.bench.report import RecordsLost

ANSWERED = 500
WINDOW = 8
API_DEADLINE = 60.0
FILL_DEADLINE = 60.0


class StreamState(msgspec.Struct, frozen=True):
    """A stream's state; instants as the server writes them."""

    messages: int
    bytes: int
    first_ts: str
    last_ts: str
    last_seq: int
    subjects: dict[str, int] = {}

    @property
    def seconds(self) -> float:
        """Give the time from the first to the last message."""
        return (parse_instant(self.last_ts) - parse_instant(self.first_ts)) / 1e6

    def count(self, part: str) -> int:
        """Count the messages whose subjects have ``part`` in them; needs stream_state(subjects=...)."""
        return sum(count for subject, count in self.subjects.items() if part in subject)


class _StreamInfo(msgspec.Struct):
    state: StreamState


class _Floor(msgspec.Struct):
    stream_seq: int = 0


class _ConsumerInfo(msgspec.Struct):
    ack_floor: _Floor


class _Consumers(msgspec.Struct):
    consumers: list[str] | None = None


async def connected(url: str) -> Client:
    """Connect as whoever fills and looks at streams; it comes back, whatever becomes of its server."""

    async def expected(_error: Exception) -> None:
        """Say nothing of attempts in vain: a request that fails says so itself."""

    return await nats.connect(url, pending_size=64 << 20, max_reconnect_attempts=-1, error_cb=expected)


async def make_stream(client: Client, name: str, subject: str) -> None:
    """Make a stream for everything below a subject, kept on disk, that takes atomic batches as FLEET does."""
    await _ask_for_stream(client, "CREATE", name, subjects=[f"{subject}.>"])


async def change_stream(client: Client, name: str, subject: str, **changed: object) -> None:
    """Let such a stream have other settings than it was made with, and nothing else."""
    await _ask_for_stream(client, "UPDATE", name, **{"subjects": [f"{subject}.>"], **changed})


async def _ask_for_stream(client: Client, how: str, name: str, **settings: object) -> None:
    config = {
        "name": name,
        "retention": "limits",
        "duplicate_window": 120 * 10**9,
        "allow_atomic": True,
        **settings,
    }
    await request_json(client, f"$JS.API.STREAM.{how}.{name}", config, dict[str, object], deadline=API_DEADLINE)


async def fill(client: Client, stream: str, subject: str, payloads: Iterable[bytes]) -> int:
    """Store messages as fast as the server takes them, a few acknowledgements under way; give how many there are now.

    Raise RecordsLost where the stream holds another number of them than was sent.
    """
    before = (await stream_state(client, stream)).messages
    room = asyncio.Semaphore(WINDOW)

    async def answered(_message: Msg) -> None:
        room.release()

    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, cb=answered)
    sent = 0
    async with asyncio.timeout(None) as patience:
        for sent, payload in enumerate(payloads, 1):
            if sent % ANSWERED:
                await client.publish(subject, payload)
            else:
                patience.reschedule(asyncio.get_running_loop().time() + FILL_DEADLINE)
                await room.acquire()
                await client.publish(subject, payload, reply=inbox)
        await client.flush(int(FILL_DEADLINE))
    await subscription.unsubscribe()
    stored = 0
    give_up_at = asyncio.get_running_loop().time() + FILL_DEADLINE
    while stored < before + sent and asyncio.get_running_loop().time() < give_up_at:
        stored = (await stream_state(client, stream)).messages
    if stored != before + sent:
        raise RecordsLost(f"{stream}: {stored} messages where {before + sent} were sent")
    return stored


async def stream_state(client: Client, stream: str, subjects: str = "") -> StreamState:
    """Ask for a stream's state; ``subjects`` counts by subject, of those that match."""
    body = {"subjects_filter": subjects} if subjects else None
    info = await request_json(client, f"$JS.API.STREAM.INFO.{stream}", body, _StreamInfo, deadline=API_DEADLINE)
    return info.state


async def acknowledged_through(client: Client, stream: str) -> int:
    """Give how far the stream's only consumer has acknowledged; 0 where there is none yet."""
    names = await consumers(client, stream)
    if not names:
        return 0
    subject = f"$JS.API.CONSUMER.INFO.{stream}.{names[0]}"
    return (await request_json(client, subject, None, _ConsumerInfo, deadline=API_DEADLINE)).ack_floor.stream_seq


async def acknowledged_of(client: Client, stream: str, count: int) -> int:
    """Give how many of a stream's first ``count`` messages, which probes follow, its only consumer has acknowledged."""
    return min(await acknowledged_through(client, stream), count)


async def consumers(client: Client, stream: str) -> list[str]:
    """Name a stream's consumers."""
    found = await request_json(client, f"$JS.API.CONSUMER.NAMES.{stream}", None, _Consumers, deadline=API_DEADLINE)
    return found.consumers or []


async def forget_readers(client: Client, stream: str) -> None:
    """Remove a stream's consumers: the next reader begins at its beginning."""
    for name in await consumers(client, stream):
        await client.jetstream().delete_consumer(stream, name)
