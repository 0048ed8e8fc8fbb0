"""Read ranges of a stream: repeatable, and a batch at a time, column by column.

Whoever answers (``consumer.py``, ``direct_gets.py``) may hold less than the stream's leader. So the leader has the
last word on whether anything is left, and what broke off is asked for again behind what came.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Self, TypeVar

import msgspec
import numpy as np

from aggregator.archive.consumer import NOTHING_LEFT, Messages, StreamConsumer
from aggregator.archive.direct_gets import DirectGets
from aggregator.config import Reading
from shared.decoding import Count, ReportedInstant
from shared.nats.connection import ApiError, ConnectionSettings, RequestFailed, api_prefix, connect, request_json
from shared.nats.dispatch import DirectClient
from shared.nats.jetstream_api import NO_SUCH_MESSAGE, NO_SUCH_STREAM
from shared.nats.stream_messages import MessageReply

CONNECT_DEADLINE = 20.0
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts: a cluster that elects a leader refuses at once, and needs some seconds."""
_UNAVAILABLE = 503
"""The code of "JetStream system temporarily unavailable", which is what servers say where there is no leader."""
_LAGGING = "whoever answers lags behind the leader"

T = TypeVar("T")


def batches_of(
    client: DirectClient, api: str, stream: str, deadline: float, reading: Reading, subjects: Sequence[str] = ()
) -> StreamConsumer | DirectGets:
    """Read ``stream`` in batches, in the way that the key allows.

    A consumer gives what is on ``subjects`` alone (none: all); direct gets give all: the reader passes over the rest.
    """
    if reading == "direct":
        return DirectGets(client, api, stream)
    return StreamConsumer(client, api, stream, deadline, subjects)


class ReadFailed(RuntimeError):
    """A stream cannot be read. The text is one line: which, what, why."""


def explain_refusal(stream: str, error: ApiError | RequestFailed) -> str:
    """Return in one line why the hub does not answer about a stream of its own."""
    if isinstance(error, ApiError) and error.err_code == NO_SUCH_STREAM:
        return f"the hub has no stream {stream}: muster-aggregator apply makes it"
    return f"stream {stream}: {error}"


class StreamContents(msgspec.Struct, frozen=True):
    """What a stream holds. ``created_at`` in microseconds tells one past of the stream from another.

    ``first_at`` is when the first message that is left was stored, at its origin where this is a mirror; 0 for none.
    ``mirror_of`` names that origin, "" for a stream of its own.
    """

    name: str
    created_at: int
    first_sequence: int
    last_sequence: int
    message_count: int
    byte_count: int
    first_at: int
    mirror_of: str = ""

    @property
    def message_size(self) -> int:
        """Give the average size of a message in bytes, at least 1."""
        return max(1, self.byte_count // max(1, self.message_count))

    @property
    def first_kept(self) -> int:
        """Give the first sequence that can still be read; of an empty stream the next one to come."""
        return self.first_sequence if self.message_count else self.last_sequence + 1

    @property
    def has_holes(self) -> bool:
        """Tell whether sequences are missing between the first and the last one."""
        return 0 < self.message_count <= self.last_sequence - self.first_sequence


class _StreamCounts(msgspec.Struct):
    messages: Count = 0
    bytes: Count = 0
    first_seq: Count = 0
    last_seq: Count = 0
    first_ts: ReportedInstant = 0


class _Origin(msgspec.Struct):
    name: str


class _Config(msgspec.Struct):
    name: str
    mirror: _Origin | None = None


class _FoundStream(msgspec.Struct):
    config: _Config
    created: ReportedInstant
    state: _StreamCounts


class StreamReader:
    """One connection that reads messages of one JetStream domain. Use as an asynchronous context manager."""

    def __init__(self, settings: ConnectionSettings, *, deadline: float, reading: Reading = "consumer") -> None:
        self._settings = settings
        self._reading = reading
        self._deadline = deadline
        self._api = api_prefix(settings.domain)
        self._client: DirectClient

    async def __aenter__(self) -> Self:
        """Connect; raise ConnectFailed."""
        self._client = await connect(self._settings, name="muster-rollup", deadline=self._deadline)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._client.close()

    async def state(self, stream: str, pauses: Collection[float] = ()) -> StreamContents:
        """Ask what ``stream`` holds, and again after ``pauses`` (seconds) where nobody answers; raise ReadFailed."""
        try:
            info = await self._ask(f"STREAM.INFO.{stream}", None, _FoundStream, pauses)
        except (ApiError, RequestFailed) as error:
            raise ReadFailed(explain_refusal(stream, error)) from error
        state = info.state
        return StreamContents(
            name=info.config.name,
            created_at=info.created,
            first_sequence=state.first_seq,
            last_sequence=state.last_seq,
            message_count=state.messages,
            byte_count=state.bytes,
            first_at=state.first_ts if state.messages else 0,
            mirror_of=info.config.mirror.name if info.config.mirror else "",
        )

    async def read(self, stream: str, first: int, last: int) -> AsyncGenerator[Messages, None]:
        """Give the messages ``first`` to ``last``, both included, in their order, some MiB at a time.

        Sequences that the stream does not hold are passed over. Raise ReadFailed when nothing comes for long.
        Whoever leaves early closes it before the reader, or its consumer stays for a while.
        """
        following, failures = first, 0
        async with batches_of(self._client, self._api, stream, self._deadline, self._reading) as batches:
            while following <= last:
                messages, wrong = await batches.fetch(following, last - following + 1)
                if messages is not None:
                    failures, following = 0, int(messages.sequences[-1]) + 1
                    wanted = int(np.searchsorted(messages.sequences, last, side="right"))
                    if wanted:
                        yield messages.part(0, wanted)
                    continue
                if wrong == NOTHING_LEFT:
                    left = await self.at_or_after(stream, following)
                    if left is None or left[0] > last:
                        return
                    wrong = _LAGGING
                if failures == len(PAUSES):
                    raise ReadFailed(f"stream {stream}: reading from sequence {following} failed: {wrong}")
                await asyncio.sleep(PAUSES[failures])
                failures += 1

    async def at_or_after(self, stream: str, sequence: int) -> tuple[int, int] | None:
        """Give sequence and time (microseconds) of the first message there is from ``sequence`` on; raise ReadFailed.

        The stream's leader is asked, whom nobody answers for: again after ``PAUSES`` where there is none.
        """
        body = {"seq": sequence, "next_by_subj": ">"}
        try:
            found = (await self._ask(f"STREAM.MSG.GET.{stream}", body, MessageReply, PAUSES)).message
        except ApiError as error:
            if error.err_code == NO_SUCH_MESSAGE:
                return None
            raise ReadFailed(f"stream {stream}: {error}") from error
        except RequestFailed as error:
            raise ReadFailed(f"stream {stream}: {error}") from error
        return found.seq, found.time

    async def _ask(self, subject: str, body: object, model: type[T], pauses: Collection[float]) -> T:
        """Ask once more after each pause while there is no answer; raise ApiError, RequestFailed.

        Who waited for an answer for as long as all pauses take is not asked again: a permission may be missing.
        """
        patient_until = time.monotonic() + sum(pauses)
        for pause in pauses:
            try:
                return await self._ask_once(subject, body, model)
            except RequestFailed:
                if time.monotonic() > patient_until:
                    raise
            except ApiError as error:
                if error.code != _UNAVAILABLE:
                    raise
            await asyncio.sleep(pause)
        return await self._ask_once(subject, body, model)

    async def _ask_once(self, subject: str, body: object, model: type[T]) -> T:
        return await request_json(self._client, f"{self._api}.{subject}", body, model, deadline=self._deadline)
