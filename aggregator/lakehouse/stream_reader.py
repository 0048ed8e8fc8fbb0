"""Read ranges of a stream by batched Direct Get: stateless, repeatable, and as fast as nats-py hands over messages.

Source: ADR-31 (Direct Get, batches). ``batch`` counts messages, not sequences, so a range ends where a message beyond
it shows up. Every message names the one before it in its batch, so a loss on the way (a reconnect in mid-batch) shows.

Who answers is not certain: a mirror answers for its origin (nats-server 2.15 lets nobody turn that off), a follower for
its leader, and either may hold less. So a message of another stream is not taken, and the leader has the last word on
whether anything is left.
"""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from aggregator.lakehouse.direct_headers import DirectHeaders, keep_direct_headers
from shared.instants import parse_instant
from shared.nats_connection import ApiError, ConnectionSettings, RequestFailed, api_prefix, connect, request_json

CONNECT_DEADLINE = 20.0
SILENCE = 15.0
"""Seconds without a message after which a batch is asked for again, from where it broke off."""
ATTEMPTS = 5
PAUSE = 1.0
TURNS = 200
"""Answers of other streams in a row after which we stop asking: each time one of those that hold a copy is drawn."""
BATCH_MESSAGES = 5_000
BATCH_BYTES = 8 << 20
_NO_MESSAGE = 10037
_NOTHING_LEFT = "404"
_LOST = "messages were lost on the way"
_ANOTHER_STREAM = "another stream answered each time"
_NOBODY = "nobody answers direct reads: the stream needs allow_direct"
_LAGGING = "whoever answers lags behind the leader"


class ReadFailed(RuntimeError):
    """A stream cannot be read. The text is one line: which, what, why."""


class Message(NamedTuple):
    """One message of a stream."""

    headers: DirectHeaders
    payload: bytes

    @property
    def sequence(self) -> int:
        """Give its position in the stream."""
        return int(self.headers.sequence)


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds. ``created_at`` in microseconds tells one past of the stream from another."""

    name: str
    created_at: int
    first_sequence: int
    last_sequence: int
    message_count: int
    byte_count: int
    direct: bool

    @property
    def message_size(self) -> int:
        """Give the average size of a message in bytes, at least 1."""
        return max(1, self.byte_count // max(1, self.message_count))


class _State(msgspec.Struct):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


class _Config(msgspec.Struct):
    name: str
    allow_direct: bool = False
    mirror_direct: bool = False


class _Info(msgspec.Struct):
    config: _Config
    created: str
    state: _State


class _Place(msgspec.Struct):
    seq: int
    time: str


class _Found(msgspec.Struct):
    message: _Place


class StreamReader:
    """One connection that reads messages of one JetStream domain. Use as an asynchronous context manager."""

    def __init__(self, settings: ConnectionSettings, *, deadline: float) -> None:
        self._settings = settings
        self._deadline = deadline
        self._api = api_prefix(settings.domain)
        self._client: Client

    async def __aenter__(self) -> Self:
        """Connect; raise ConnectFailed."""
        self._client = await connect(self._settings, name="muster-rollup", deadline=self._deadline)
        keep_direct_headers(self._client)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Close the connection: nothing was left at the server."""
        await self._client.close()

    async def state(self, stream: str) -> StreamState:
        """Ask what ``stream`` holds; raise ReadFailed."""
        try:
            info = await request_json(
                self._client, f"{self._api}.STREAM.INFO.{stream}", None, _Info, deadline=self._deadline
            )
        except (ApiError, RequestFailed) as error:
            raise ReadFailed(f"stream {stream}: {error}") from error
        state = info.state
        return StreamState(
            name=info.config.name,
            created_at=parse_instant(info.created),
            first_sequence=state.first_seq,
            last_sequence=state.last_seq,
            message_count=state.messages,
            byte_count=state.bytes,
            direct=info.config.allow_direct,
        )

    async def read(self, stream: str, first: int, last: int) -> AsyncIterator[list[Message]]:
        """Give the messages ``first`` to ``last``, both included, in their order, in lists of some MiB.

        Sequences that the stream does not hold are passed over. Raise ReadFailed when nothing comes for long.
        """
        batches = _Batches(self._client, self._api, stream)
        await batches.open()
        try:
            sequence, failures, turns = first, 0, 0
            while sequence <= last:
                messages, outcome = await batches.fetch(sequence)
                if messages:
                    failures, turns, sequence = 0, 0, messages[-1].sequence + 1
                    while messages and messages[-1].sequence > last:
                        messages.pop()
                    yield messages
                    continue
                if outcome == _NOTHING_LEFT:
                    left = await self.at_or_after(stream, sequence)
                    if left is None or left[0] > last:
                        return
                    outcome = _LAGGING
                turns += 1
                if outcome != _ANOTHER_STREAM:
                    failures += 1
                    await asyncio.sleep(PAUSE)
                if failures == ATTEMPTS or turns == TURNS:
                    raise ReadFailed(f"stream {stream}: reading from sequence {sequence} failed: {outcome}")
        finally:
            await batches.close()

    async def at_or_after(self, stream: str, sequence: int) -> tuple[int, int] | None:
        """Give sequence and time (microseconds) of the first message there is from ``sequence`` on; raise ReadFailed.

        The stream's leader is asked, whom nobody answers for.
        """
        body = {"seq": sequence, "next_by_subj": ">"}
        try:
            found = await request_json(
                self._client, f"{self._api}.STREAM.MSG.GET.{stream}", body, _Found, deadline=self._deadline
            )
        except ApiError as error:
            if error.err_code == _NO_MESSAGE:
                return None
            raise ReadFailed(f"stream {stream}: {error}") from error
        except RequestFailed as error:
            raise ReadFailed(f"stream {stream}: {error}") from error
        return found.message.seq, parse_instant(found.message.time)


class _Batches:
    """One subscription, on which one batch after another is asked for. Each has a reply subject of its own."""

    def __init__(self, client: Client, api: str, stream: str) -> None:
        self._client = client
        self._subject = f"{api}.DIRECT.GET.{stream}"
        self._stream = stream.encode()
        self._inbox = client.new_inbox()
        self._asked = 0
        self._messages: list[Message] = []
        self._ended: asyncio.Future[str]

    async def open(self) -> None:
        # Nothing may be dropped as too slow: what is on its way is bounded by what was asked for.
        self._subscription = await self._client.subscribe(
            f"{self._inbox}.*", cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def close(self) -> None:
        if not self._client.is_closed:
            await self._subscription.unsubscribe()

    async def fetch(self, sequence: int) -> tuple[list[Message], str]:
        """Ask for a batch from ``sequence``; give what came in an unbroken row, and how it ended."""
        self._asked += 1
        self._messages, self._ended = [], asyncio.get_running_loop().create_future()
        request = {"seq": sequence, "batch": BATCH_MESSAGES, "max_bytes": BATCH_BYTES}
        await self._client.publish(self._subject, msgspec.json.encode(request), reply=f"{self._inbox}.{self._asked}")
        outcome = await self._outcome()
        if any(message.headers.stream != self._stream for message in self._messages):
            return [], _ANOTHER_STREAM
        unbroken = _unbroken(self._messages)
        return self._messages[:unbroken], outcome if unbroken == len(self._messages) else _LOST

    async def _outcome(self) -> str:
        received = -1
        while len(self._messages) > received:
            received = len(self._messages)
            await asyncio.wait({self._ended}, timeout=SILENCE)
            if self._ended.done():
                return self._ended.result()
        return f"no answer within {SILENCE:g} s" + ("" if self._client.is_connected else ", the connection is down")

    async def _on_message(self, message: Msg) -> None:
        if not message.subject.endswith(f".{self._asked}"):
            return
        headers: object = message.headers
        if isinstance(headers, DirectHeaders):
            self._messages.append(Message(headers, message.data))
        elif not self._ended.done():
            status = (message.headers or {}).get("Status", "")
            self._ended.set_result(_NOBODY if status == "503" else status)


def _unbroken(messages: list[Message]) -> int:
    """Count the messages up to the first that does not follow the one before it."""
    before = b"0"
    for count, message in enumerate(messages):
        if message.headers.before != before:
            return count
        before = message.headers.sequence
    return len(messages)
