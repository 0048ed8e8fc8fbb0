"""One subscription with overlapping pull requests, from one reset of the consumer to the next.

Every open() makes new Pulls: late deliveries reach older ones, which are not read. Messages are accepted only while the
consumer sequence rises by one: an acknowledge-all would otherwise acknowledge deliveries that were lost with a
connection. Idle heartbeats distinguish a quiet stream from a dead link.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping

import nats.errors
from nats.aio.subscription import Subscription

from edge_agent.core.observation import SourceMessage
from edge_agent.source.api import SourceApi
from edge_agent.source.consumer import PULL_BYTES, PULL_EXPIRES, PULL_MESSAGES
from edge_agent.source.holes import Elsewhere, Hole, Holes, Requests
from edge_agent.source.port import SourceUnavailable
from edge_agent.source.replies import pull_status
from shared.nats.client import EdgeClient
from shared.nats.stream_messages import delivery_numbers

PULLS = 4
LONG_UNASKED = PULL_EXPIRES + 10.0
HEARTBEAT = 2.0
SILENCE_LIMIT = 5.0
BATCH_MESSAGES = 2_000
BATCH_BYTES = 8 << 20
LINGER = 0.2
GATHER = 0.02
MUCH = 1_000
"""Unread messages from which on reading counts as behind the stream."""


class Pulls:
    """The deliveries after one reset, in order and without a loss; ``broken`` is the reason if that has ended.

    take() stops at ``hole_after`` if that is not None, since retention may have made the hole behind it, and at a
    doubtful hole. ``is_disturbed`` means that another reader may have received deliveries or reset the consumer.
    """

    def __init__(self, client: EdgeClient, api: SourceApi, requests: Requests) -> None:
        self._client = client
        self._api = api
        self._requests = requests
        self.holes = Holes(are_rare=not api.address.filter_subject)
        self._subscription: Subscription | None = None
        self._inbox = client.new_inbox()
        self._buffer: deque[tuple[SourceMessage, str]] = deque()
        self._buffered_bytes = 0
        self.largest_size = 0
        """The largest payload of a taken message, in bytes."""
        self._pending = 0
        self._arrived = asyncio.Event()
        self.consumer_sequence = 0
        self.delivered_sequence = 0
        self._requested = 0
        self._awaits_batch = False
        self._is_oversized = False
        self._continuous_through = 0
        self.hole_after: int | None = None
        self.broken = ""
        self.is_disturbed = False
        self.elsewhere: Elsewhere | None = None
        self._unacknowledged: deque[tuple[int, str]] = deque()
        self._committed: list[str] = []
        self._acknowledges_each = False
        self._first_sequence = self._committed_at = 0
        self.is_rewritten = False
        self._time = asyncio.get_running_loop().time
        self._heard_at = self._asked_at = self._time()

    async def begin(
        self, first_sequence: int, continuous_through: int, *, acknowledges_each: bool, committed_at: int
    ) -> None:
        """Subscribe, and request deliveries; messages before ``first_sequence`` were committed.

        A message before it that was stored later than ``committed_at`` sets ``is_rewritten``: it belongs to another
        past and is unread. Holes are noted behind ``continuous_through``; none if that is 0.
        """
        self._first_sequence, self.delivered_sequence = first_sequence, first_sequence - 1
        self._committed_at = committed_at
        self._continuous_through, self._acknowledges_each = continuous_through, acknowledges_each
        try:
            self._subscription = await self._client.subscribe_directly(self._inbox, self._receive)
        except nats.errors.Error as error:
            raise SourceUnavailable(f"cannot listen for messages: {error}") from error
        await self._request()

    async def close(self) -> None:
        """Unsubscribe; messages delivered and not taken are delivered again after the next reset."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self._client.is_closed:
            await subscription.unsubscribe()

    def break_off(self, reason: str, *, is_disturbed: bool = False) -> None:
        """End every wait: deliveries may be lost."""
        if not self.broken:
            # Losses after a cut of the connection come from the cut, not from another reader.
            self.broken, self.is_disturbed = reason, is_disturbed
        self._arrived.set()

    @property
    def is_begun(self) -> bool:
        return self._subscription is not None

    @property
    def first(self) -> SourceMessage | None:
        """The next message to be taken; None if none is buffered."""
        return self._buffer[0][0] if self._buffer else None

    @property
    def buffered_count(self) -> int:
        return len(self._buffer)

    @property
    def is_behind(self) -> bool:
        return len(self._buffer) + self._pending >= MUCH

    @property
    def _is_batch_full(self) -> bool:
        """True if one of the two bounds of a batch is reached: large messages fill its bytes long before its count."""
        return len(self._buffer) >= BATCH_MESSAGES or self._buffered_bytes >= BATCH_BYTES

    async def await_first(self, pending: int, patience: float) -> None:
        """Wait for a message that was not committed, until all ``pending`` ones were delivered.

        Raise TimeoutError if nothing arrives for ``patience`` seconds; committed messages count as arrivals.
        """
        while not (self._buffer or self.broken or self.is_rewritten) and self.consumer_sequence < pending:
            async with asyncio.timeout(patience):
                await self._next_arrival()

    async def gather(self, patience: float) -> None:
        """Wait for messages for at most ``patience`` seconds, then for those that follow; break off a silent link."""
        patient_until = self._time() + patience
        await self._request()
        while not self._buffer and not self.broken and self._time() < patient_until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(patient_until, self._heard_at + SILENCE_LIMIT)):
                    await self._next_arrival()
            if self._time() - self._heard_at >= SILENCE_LIMIT:
                self.break_off(f"the server has been silent for {SILENCE_LIMIT:g} s")
        if self._buffer:
            # A batch is a transaction: behind the stream, wait for a large one; at its end, not for long.
            await self._gather(self._time() + (GATHER if self._pending else LINGER))

    async def gather_on(self) -> None:
        """Wait a moment for messages that follow closely, if any are pending."""
        if self._buffer or self._pending:
            await self._request()
            await self._gather(self._time() + GATHER)

    async def _gather(self, until: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not (self._is_batch_full or self.broken):
                    await self._next_arrival(awaits_batch=True)

    def take(self) -> list[SourceMessage]:
        """Return the buffered messages, up to a batch."""
        taken: list[SourceMessage] = []
        size, largest, reply = 0, self.largest_size, ""
        buffer, hole_after = self._buffer, self.stops_after
        while buffer and len(taken) < BATCH_MESSAGES and size < BATCH_BYTES:
            if hole_after is not None and buffer[0][0].sequence > hole_after:
                break
            message, reply = buffer.popleft()
            length = len(message.payload)
            size += length
            # Once for every message: comparing costs a third of calling max().
            if length > largest:  # noqa: PLR1730
                largest = length
            taken.append(message)
            if self._acknowledges_each:
                self._unacknowledged.append((message.sequence, reply))
        if taken:
            self._heard_at = self._time()
            if not self._acknowledges_each:
                # Acknowledge-all: the last one acknowledges those before it.
                self._unacknowledged.append((taken[-1].sequence, reply))
        self.largest_size = largest
        self._buffered_bytes -= size
        return taken

    @property
    def stops_after(self) -> int | None:
        """The last sequence that may be taken before a hole is checked; None without such a hole."""
        unexplained = self.holes.unexplained
        if not unexplained:
            return self.hole_after
        return unexplained[0].after if self.hole_after is None else min(unexplained[0].after, self.hole_after)

    def expect_behind(self, sequence: int) -> None:
        """Treat messages up to ``sequence`` as committed before the reset."""
        self._first_sequence, self.delivered_sequence = sequence + 1, max(self.delivered_sequence, sequence)

    def pass_over_first(self) -> None:
        """Count the first message as taken: it was committed before the reset."""
        message, reply = self._buffer.popleft()
        self._buffered_bytes -= len(message.payload)
        # At once: a consumer with a small max_ack_pending would deliver nothing else.
        self._committed.append(reply)

    def note_examined(self, through: int) -> None:
        """Note holes only behind ``through``: everything up to it was read."""
        if self._continuous_through:
            self._continuous_through = max(self._continuous_through, through)

    async def acknowledge(self, through: int | None) -> None:
        replies = []
        while self._unacknowledged and (through is None or self._unacknowledged[0][0] <= through):
            replies.append(self._unacknowledged.popleft()[1])
        if self._client.is_connected:
            for reply in replies if self._acknowledges_each else replies[-1:]:
                await self._client.publish(reply, b"+ACK")

    async def _next_arrival(self, *, awaits_batch: bool = False) -> None:
        """Request messages, acknowledge the ones committed before the reset, and wait for a status or for messages.

        Without ``awaits_batch``, the first message ends the wait.
        """
        self._awaits_batch = awaits_batch
        self._arrived.clear()
        replies, self._committed = self._committed, []
        for reply in replies:
            with contextlib.suppress(nats.errors.Error):
                await self._client.publish(reply, b"+ACK")
        await self._request()
        await self._arrived.wait()

    async def _request(self) -> None:
        """Keep enough pull requests under way, within the bounds of the buffer."""
        while (
            not self.broken
            and self._requested + len(self._buffer) <= PULL_MESSAGES * (PULLS - 1)
            and self._buffered_bytes < PULL_BYTES * PULLS
        ):
            if not self._requested:
                if self.consumer_sequence and self._time() - self._asked_at > LONG_UNASKED:
                    # No request waited at the server: another reader may have taken the consumer for unused.
                    self.break_off("nothing was asked for in a long while")
                    return
                self._heard_at = self._time()
            # A message larger than a pull's max_bytes is requested alone, without max_bytes.
            messages, size = (1, 0) if self._is_oversized else (PULL_MESSAGES, PULL_BYTES)
            self._is_oversized = False
            self._requested += messages
            self._asked_at = self._time()
            self._requests.make(self._asked_at)
            await self._api.pull(self._inbox, messages, size, PULL_EXPIRES, HEARTBEAT)

    def _receive(self, subject: str, reply: str, payload: bytes, headers: dict[str, str] | None) -> None:
        if not reply.startswith("$JS.ACK."):
            self._heard_at = self._time()
            try:
                self._receive_status(headers or {})
            except ValueError as error:
                self.break_off(f"not a status of a pull's: {error}")
            self._arrived.set()
            return
        try:
            consumer_sequence, sequence, stored_at, pending = delivery_numbers(reply)
        except ValueError:
            self.break_off(f"not a delivery of a stream's: {reply[:100]!r}")
            return
        self._requested -= 1
        if consumer_sequence != self.consumer_sequence + 1:
            text = (
                f"delivery {consumer_sequence} came after {self.consumer_sequence}: some were lost, or went elsewhere"
            )
            if not self.broken and consumer_sequence > self.consumer_sequence:
                count = consumer_sequence - self.consumer_sequence - 1
                self.elsewhere = Elsewhere(self.delivered_sequence, sequence, count)
            self.break_off(text, is_disturbed=True)
            return
        waited, self._pending = self._pending, pending
        self.consumer_sequence = consumer_sequence
        if sequence > self.delivered_sequence:
            if sequence > self.delivered_sequence + 1:
                hole = Hole(self.delivered_sequence, sequence, len(payload))
                self.holes.take(hole, waited, pending, is_first=consumer_sequence == 1)
            self._note_hole(sequence)
            self.delivered_sequence = sequence
            self._buffer.append((SourceMessage(subject, payload, headers, sequence, stored_at), reply))
            self._buffered_bytes += len(payload)
        else:
            self._heard_at = self._time()
            if sequence < self._first_sequence:
                self._take_committed(stored_at, reply)
        if not self._awaits_batch or self._is_batch_full or self._committed:
            self._arrived.set()

    def _take_committed(self, stored_at: int, reply: str) -> None:
        if stored_at > self._committed_at > 0:
            self.is_rewritten = True
        elif self._acknowledges_each:
            self._committed.append(reply)

    def _note_hole(self, sequence: int) -> None:
        through = self._continuous_through
        if sequence > through:
            if 0 < through < sequence - 1 and self.hole_after is None:
                self.hole_after = through
            self._continuous_through = sequence

    def _receive_status(self, headers: Mapping[str, str]) -> None:
        status = pull_status(headers)
        if status.is_end:
            self._requests.end()
            self._requested -= status.left
            self._is_oversized = self._is_oversized or (status.is_too_large and status.left == PULL_MESSAGES)
        elif not status.is_heartbeat:
            self.break_off(f"the server ended the pull: {status.text}")
        elif status.delivered > self.consumer_sequence:
            self.break_off("the server counts deliveries that did not arrive", is_disturbed=True)
