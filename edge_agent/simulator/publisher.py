"""Publisher to JetStream that does not wait for each answer, and counts the outcome of each message.

Rules:
1. At most ``window`` messages wait for their answer; a caller asks ``has_room``, or waits for it.
2. A message ends acknowledged or failed, once, within ``deadline`` of its publish.
3. While the connection is down nothing is held for later: a message published then has failed.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.nats.jetstream_api import decode_pub_ack, tells_of_nobody

_SWEEP_INTERVAL = 0.2


class PublishFailed(msgspec.Struct, frozen=True):
    """A message was not acknowledged, and why, in a few words."""

    reason: str


class UndeliveredHistory(Exception):
    """The region's stream did not take a record after many attempts. The text says why."""


NO_CONNECTION = PublishFailed("no connection")
NO_ANSWER = PublishFailed("no answer")
NO_STREAM = PublishFailed("no stream takes the subject")

OnEnd = Callable[[PublishFailed | None], None]


class _Waiting(NamedTuple):
    """A message that waits for its answer, and the connection (counted) that alone may bring it."""

    ends_at: float
    connection: int
    on_end: OnEnd


class PipelinedPublisher:
    """Publish over one connection that was opened with ``pending_size=0``. An async context manager.

    ``deadline`` is in seconds. Leaving the context waits for no answers: ``drain`` does.
    """

    def __init__(self, client: Client, *, window: int, deadline: float) -> None:
        self._client = client
        self._window = window
        self._deadline = deadline
        self._inbox = client.new_inbox()
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._room = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_answer)
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        with suppress(nats.errors.Error):
            await self._subscription.unsubscribe()

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._window

    @property
    def _connection(self) -> int:
        return self._client.stats["reconnects"]

    async def room(self) -> None:
        """Wait until one more message may be published; at most the deadline, since every message ends."""
        while not self.has_room:
            self._room.clear()
            await self._room.wait()

    async def drain(self) -> None:
        """Wait until every message has ended; at most the deadline."""
        while self._waiting:
            self._room.clear()
            await self._room.wait()

    async def publish(
        self, subject: str, payload: bytes, on_end: OnEnd, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send one message; ``on_end`` is called with None once it is acknowledged, or with why it was not."""
        if not self._client.is_connected:
            on_end(NO_CONNECTION)
            return
        self._number += 1
        number = self._number
        ends_at = asyncio.get_running_loop().time() + self._deadline
        self._waiting[number] = _Waiting(ends_at, self._connection, on_end)
        try:
            await self._client.publish(
                subject, payload, reply=f"{self._inbox}.{number}", headers=dict(headers) if headers else None
            )
        except (nats.errors.OutboundBufferLimitError, nats.errors.ConnectionClosedError, OSError):
            self._end(number, NO_CONNECTION)
        except nats.errors.Error as error:
            self._end(number, PublishFailed(str(error).removeprefix("nats: ")))

    async def _on_answer(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        if tells_of_nobody(message):
            self._end(number, NO_STREAM)
        elif b'"error"' not in message.data:
            self._end(number, None)
        else:
            error = decode_pub_ack(message.data).error
            self._end(number, PublishFailed(error.description if error else "refused"))

    async def _sweep(self) -> None:
        """End the messages whose answer is overdue (the oldest come first), or cannot come any more."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL)
            while self._waiting:
                number, oldest = next(iter(self._waiting.items()))
                may_come = self._client.is_connected and oldest.connection == self._connection
                if may_come and oldest.ends_at > loop.time():
                    break
                self._end(number, NO_ANSWER)

    def _end(self, number: int, failure: PublishFailed | None) -> None:
        """Report how a message ended, unless that was reported before (an answer may come after the deadline)."""
        ended = self._waiting.pop(number, None)
        self._room.set()
        if ended is not None:
            ended.on_end(failure)
