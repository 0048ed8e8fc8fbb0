"""Read ranges of a stream by batched Direct Get: stateless, repeatable, and a batch at a time, column by column.

Source: ADR-31 (Direct Get, batches). ``batch`` counts messages, not sequences, so a range ends where a message beyond
it shows up. Every message names the one before it in its batch, so a loss on the way (a reconnect in mid-batch) shows.

Who answers is not certain: a mirror answers for its origin (nats-server 2.15 lets nobody turn that off), a follower for
its leader, and either may hold less. So a message of another stream is not taken, and the leader has the last word on
whether anything is left.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from aggregator.lakehouse.direct_headers import recognize, recognize_all, status_of
from shared.instants import parse_instant
from shared.nats_connection import ApiError, ConnectionSettings, RequestFailed, api_prefix, connect, request_json
from shared.nats_direct import DirectClient

CONNECT_DEADLINE = 20.0
SILENCE = 15.0
"""Seconds without a message after which a batch is asked for again, from where it broke off."""
ATTEMPTS = 5
PAUSE = 1.0
TURNS = 200
"""Answers of other streams in a row after which we stop asking: each time one of those that hold a copy is drawn."""
BATCH_MESSAGES = 10_000
BATCH_BYTES = 8 << 20
_NO_MESSAGE = 10037
_NOTHING_LEFT = "404"
_LOST = "messages were lost on the way"
_ANOTHER_STREAM = "another stream answered each time"
_NOBODY = "nobody answers direct reads: the stream needs allow_direct"
_LAGGING = "whoever answers lags behind the leader"


class ReadFailed(RuntimeError):
    """A stream cannot be read. The text is one line: which, what, why."""


class Messages(NamedTuple):
    """Messages of a stream in their order, at least one: a column for each thing known of them, as the server wrote it.

    ``headers`` are all there are of a message, in one block.
    """

    sequences: list[int]
    subjects: Sequence[bytes]
    archived_at: Sequence[bytes]
    headers: list[bytes]
    payloads: list[bytes]

    def part(self, begin: int, end: int) -> "Messages":
        """Give those from the index ``begin`` on, before ``end``."""
        return self._each(lambda column: column[begin:end])

    def at(self, indices: Sequence[int]) -> "Messages":
        """Give those at ``indices``."""
        return self._each(lambda column: [column[index] for index in indices])

    def _each(self, chosen: Callable[[Any], Any]) -> "Messages":
        return Messages(*map(chosen, self))


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
        self._client: DirectClient

    async def __aenter__(self) -> Self:
        """Connect; raise ConnectFailed."""
        self._client = await connect(self._settings, name="muster-rollup", deadline=self._deadline)
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

    async def read(self, stream: str, first: int, last: int) -> AsyncIterator[Messages]:
        """Give the messages ``first`` to ``last``, both included, in their order, some MiB at a time.

        Sequences that the stream does not hold are passed over. Raise ReadFailed when nothing comes for long.
        """
        batches = _Batches(self._client, self._api, stream)
        await batches.open()
        try:
            sequence, failures, turns = first, 0, 0
            while sequence <= last:
                messages, outcome = await batches.fetch(sequence)
                if messages is not None:
                    failures, turns, sequence = 0, 0, messages.sequences[-1] + 1
                    wanted = bisect_right(messages.sequences, last)
                    if wanted:
                        yield messages.part(0, wanted)
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

    def __init__(self, client: DirectClient, api: str, stream: str) -> None:
        self._client = client
        self._subject = f"{api}.DIRECT.GET.{stream}"
        self._stream = stream.encode()
        self._inbox = client.new_inbox()
        self._asked = 0
        self._reply = b""
        self._headers: list[bytes] = []
        self._payloads: list[bytes] = []
        self._ended: asyncio.Future[str]

    async def open(self) -> None:
        self._subscription = await self._client.subscribe_frames(f"{self._inbox}.*", self._on_frame)

    async def close(self) -> None:
        if not self._client.is_closed:
            await self._subscription.unsubscribe()

    async def fetch(self, sequence: int) -> tuple[Messages | None, str]:
        """Ask for a batch from ``sequence``; give what came in an unbroken row, None for nothing, and how it ended."""
        self._asked += 1
        self._headers, self._payloads = [], []
        self._ended = asyncio.get_running_loop().create_future()
        reply = f"{self._inbox}.{self._asked}"
        self._reply = reply.encode()
        request = {"seq": sequence, "batch": BATCH_MESSAGES, "max_bytes": BATCH_BYTES}
        await self._client.publish(self._subject, msgspec.json.encode(request), reply=reply)
        outcome = await self._outcome()
        headers, payloads = self._headers, self._payloads
        found = recognize_all(headers)
        if not found:
            # What is neither a message nor an end: nothing of it is taken.
            return None, outcome if found is not None else _LOST
        streams, subjects, sequences, archived_at, before = zip(*found, strict=True)
        if streams.count(self._stream) < len(streams):
            return None, _ANOTHER_STREAM
        unbroken = _unbroken(sequences, before)
        if not unbroken:
            return None, _LOST
        messages = Messages(list(map(int, sequences)), subjects, archived_at, headers, payloads)
        return messages.part(0, unbroken), outcome if unbroken == len(headers) else _LOST

    async def _outcome(self) -> str:
        received = -1
        while len(self._headers) > received:
            received = len(self._headers)
            await asyncio.wait({self._ended}, timeout=SILENCE)
            if self._ended.done():
                return self._ended.result()
        return f"no answer within {SILENCE:g} s" + ("" if self._client.is_connected else ", the connection is down")

    def _on_frame(self, subject: bytes, header: bytes, payload: bytes) -> None:
        if subject != self._reply:
            return
        if not payload and not recognize(header):
            if not self._ended.done():
                status = status_of(header)
                self._ended.set_result(_NOBODY if status == "503" else status)
            return
        self._headers.append(header)
        self._payloads.append(payload)


def _unbroken(sequences: Sequence[bytes], before: Sequence[bytes]) -> int:
    """Count the messages up to the first that does not follow the one before it."""
    follows = (b"0", *sequences[:-1])
    if follows == before:
        return len(sequences)
    return next(count for count, (mine, wanted) in enumerate(zip(before, follows, strict=True)) if mine != wanted)
