"""Read a JetStream stream through a durable pull consumer whose position is the agent's, not the server's.

The consumer is reset to the committed position on every open, and messages are taken only while the consumer sequence
rises by one: an acknowledge-all would otherwise acknowledge deliveries that died with a connection. Several pull
requests overlap on one subscription; idle heartbeats tell a quiet stream from a dead link. Holes in the stream's own
sequences are normal, unless retention made them while the reader was behind: then it opens anew, to tell of the gap.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import nats.errors
from nats.aio.subscription import Subscription

from edge_agent.core.observation import SourceMessage
from edge_agent.core.resume import PastChange, StreamFacts, is_unread, past_change
from edge_agent.core.resume import is_gap as outran
from edge_agent.ports import Checked, Opened, SourceUnavailable
from edge_agent.probe import Probe
from edge_agent.pull_status import pull_status
from edge_agent.source_api import SourceApi, delivery_numbers
from shared.identifiers import SourcePosition
from shared.nats_client import EdgeClient

PULL_MESSAGES = 1_000
PULLS = 4
PULL_BYTES = 4 << 20
PULL_EXPIRES = 30.0
HEARTBEAT = 2.0
SILENCE_LIMIT = 5.0
OPEN_DEADLINE = 10.0
BATCH_MESSAGES = 2_000
BATCH_BYTES = 8 << 20
LINGER = 0.2
GATHER = 0.02
MUCH = 1_000
"""Messages from which on reading is behind, and not just gathering what has come meanwhile."""


class JetStreamSource:
    """One stream block's reader on an open connection. ``settle`` is in microseconds."""

    def __init__(self, client: EdgeClient, api: SourceApi, settle: int, probe: Probe | None = None) -> None:
        self._probe = probe
        self._newest_stored_at = 0
        self._client = client
        self._api = api
        self._settle = settle
        self._subscription: Subscription | None = None
        self._generation = 0
        self._reset_state()

    def _reset_state(self) -> None:
        self._generation += 1
        self._buffer: deque[tuple[SourceMessage, str]] = deque()
        self._buffered_bytes = 0
        self._pending = 0
        self._arrived = asyncio.Event()
        self._consumer_sequence = 0
        self._read_sequence = 0
        self._requested = 0
        self._awaited = 1
        self._is_oversized = False
        self._continuous_through = 0
        self._hole_after: int | None = None
        self._broken = ""
        self._unacknowledged: deque[tuple[int, str]] = deque()
        self._committed: list[str] = []
        self._acknowledges_each = False
        self._first_sequence = 0
        self._time = asyncio.get_running_loop().time
        self._heard_at = self._time()

    def break_off(self, reason: str) -> None:
        """Let read() raise SourceUnavailable: the connection has changed, deliveries may be lost."""
        self._broken = self._broken or reason
        self._arrived.set()

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation that concerns nothing but probes: reading goes on."""
        return self._probe is not None and self._probe.takes_denial(reason)

    async def comes_back(self, within: float) -> bool:
        """Wait before another open(): True as soon as the connection is back, False after ``within`` seconds."""
        was_down = not self._client.is_settled
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not (was_down and self._client.is_settled):
                    self._arrived.clear()
                    await self._arrived.wait()
                    was_down = was_down or not self._client.is_settled
                return True
        return False

    async def close(self) -> None:
        """Stop listening; what was delivered and not read comes again after the next open()."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self._client.is_closed:
            await subscription.unsubscribe()

    @property
    def delivered_sequence(self) -> int:
        """Give the last sequence that was delivered, read or not."""
        return self._read_sequence

    @property
    def is_behind(self) -> bool:
        """Tell whether much waits behind what was read."""
        return len(self._buffer) + self._pending >= MUCH

    async def resolve_start(self) -> tuple[StreamFacts, int]:
        """Give the stream's facts and the last sequence before the configured start."""
        return await self._api.resolve_start()

    async def open(self, position: SourcePosition, read_through: int, last_stored_at: int) -> Opened:
        """Point the consumer behind ``position``, checking that the past is still the same."""
        if not self._client.is_settled:
            raise SourceUnavailable("the connection to the site's servers is down")
        await self.close()
        self._reset_state()
        self._newest_stored_at = position.stored_at
        if self._probe is not None:
            await self._probe.open(listens=await self._api.listens(self._probe.subject))
        facts = await self._api.facts()
        change = past_change(position, facts)
        if change is None:
            self._acknowledges_each = (await self._api.ensure_consumer()).acknowledges_each
            verifies = position.sequence > 0 and last_stored_at > 0
            first = self._first_sequence = position.sequence if verifies else position.next_sequence
            self._read_sequence = first - 1
            # What a work queue still holds of what was committed goes only when it is acknowledged.
            pending = await self._api.reset(max(facts.first_sequence, 1) if self._acknowledges_each else first)
            facts = await self._api.facts()
            self._continuous_through = 0 if outran(read_through, facts) else read_through
            await self._subscribe()
            await self._request()
            if verifies and await self._is_rewritten(position, pending, last_stored_at):
                change = PastChange.REWRITTEN
        if change is None:
            return Opened(facts, position.sequence, is_gap=outran(read_through, facts))
        await self.close()
        return Opened(facts, await self._api.sequence_after_change(change, last_stored_at, facts), change)

    async def read(self, patience: float) -> Sequence[SourceMessage]:
        """Give the next messages, in order and without a hole; none if none came within ``patience`` seconds."""
        patient_until = self._time() + patience
        await self._request()
        while not self._buffer and not self._broken and self._time() < patient_until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(patient_until, self._heard_at + SILENCE_LIMIT)):
                    await self._next_arrival()
            if self._time() - self._heard_at >= SILENCE_LIMIT:
                self.break_off(f"the server has been silent for {SILENCE_LIMIT:g} s")
        if self._buffer:
            # A batch is a transaction: behind the stream, wait for a large one; at its end, not for long.
            await self._gather(self._time() + (GATHER if self._pending else LINGER))
        if self._hole_after is not None:
            await self._look_into_hole(self._hole_after)
        if self._broken:
            raise SourceUnavailable(self._broken)
        return self._take()

    async def read_on(self) -> Sequence[SourceMessage]:
        """Give what follows closely, where reading is behind the stream: none else, nor where read() has to look."""
        if not self._buffer and not self._pending:
            return []
        await self._request()
        await self._gather(self._time() + GATHER)
        return [] if self._broken or self._hole_after is not None else self._take()

    async def check(self) -> Checked:
        """Ask the stream for its facts, and whether everything stored has been read."""
        facts = await self._api.facts()
        consumer = await self._api.consumer_info()
        if self._broken:
            raise SourceUnavailable(self._broken)
        has_read_all = (
            not self._buffer
            and consumer.num_pending == 0
            and consumer.delivered.consumer_seq == self._consumer_sequence
        )
        if not (has_read_all and await self._could_store(facts)):
            under_way = max(consumer.delivered.consumer_seq - self._consumer_sequence, 0)
            return Checked(facts, pending=consumer.num_pending + under_way + len(self._buffer))
        if self._continuous_through:
            self._continuous_through = max(self._continuous_through, facts.last_sequence)
        return Checked(facts, consumer.at - self._settle, facts.last_sequence)

    async def _could_store(self, facts: StreamFacts) -> bool:
        """Tell whether the stream would have stored what was sent to it lately, and probe it where it is quiet."""
        if self._probe is None:
            return facts.stores
        await self._probe.send_if_due(facts, self._newest_stored_at)
        return facts.stores and self._probe.proves_storing(facts, self._newest_stored_at)

    async def acknowledge(self, through: int | None = None) -> None:
        """Acknowledge what was read, up to a sequence where one is given; call it after the commit."""
        replies = []
        while self._unacknowledged and (through is None or self._unacknowledged[0][0] <= through):
            replies.append(self._unacknowledged.popleft()[1])
        if self._client.is_connected:
            for reply in replies if self._acknowledges_each else replies[-1:]:
                await self._client.publish(reply, b"+ACK")

    async def _gather(self, until: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while len(self._buffer) < BATCH_MESSAGES and not self._broken:
                    await self._next_arrival(BATCH_MESSAGES)

    async def _look_into_hole(self, hole_after: int) -> None:
        """Let reading end at a hole that retention made, so that open() tells of it; others are normal."""
        self._hole_after = None
        if (await self._api.facts()).first_sequence <= hole_after + 1:
            return
        self._hole_after = hole_after
        if self._buffer[0][0].sequence > hole_after:
            self.break_off(f"messages behind {hole_after} were lost to retention before they were read")

    async def _is_rewritten(self, position: SourcePosition, pending: int, last_stored_at: int) -> bool:
        """Look at the first message delivered: it is the committed one, a later one, or shows another past."""
        try:
            async with asyncio.timeout(OPEN_DEADLINE):
                while not self._buffer and not self._broken and self._consumer_sequence < pending:
                    await self._next_arrival()
        except TimeoutError:
            raise SourceUnavailable(f"nothing was delivered within {OPEN_DEADLINE:g} s of a reset") from None
        if self._broken:
            raise SourceUnavailable(self._broken)
        if not self._buffer:
            return False
        message, reply = self._buffer[0]
        if message.sequence > position.sequence:
            return False
        self._buffer.popleft()
        self._buffered_bytes -= len(message.payload)
        self._unacknowledged.append((message.sequence, reply))
        return is_unread(position, message.stored_at, last_stored_at)

    async def _subscribe(self) -> None:
        self._inbox = self._client.new_inbox()
        try:
            receive = partial(self._receive, self._generation)
            self._subscription = await self._client.subscribe_directly(self._inbox, receive)
        except nats.errors.Error as error:
            raise SourceUnavailable(f"cannot listen for messages: {error}") from error

    async def _next_arrival(self, awaited: int = 1) -> None:
        """Wait until as many are there or a status comes, enough asked for; acknowledge what was committed long ago."""
        self._awaited = awaited
        self._arrived.clear()
        replies, self._committed = self._committed, []
        for reply in replies:
            with contextlib.suppress(nats.errors.Error):
                await self._client.publish(reply, b"+ACK")
        await self._request()
        await self._arrived.wait()

    async def _request(self) -> None:
        """Keep enough pull requests under way, within the bounds of what may be buffered."""
        while (
            not self._broken
            and self._requested + len(self._buffer) <= PULL_MESSAGES * (PULLS - 1)
            and self._buffered_bytes < PULL_BYTES * PULLS
        ):
            if not self._requested:
                self._heard_at = self._time()
            # What no pull of the usual size can carry is asked for alone.
            messages, size = (1, 0) if self._is_oversized else (PULL_MESSAGES, PULL_BYTES)
            self._is_oversized = False
            self._requested += messages
            await self._api.pull(self._inbox, messages, size, PULL_EXPIRES, HEARTBEAT)

    def _receive(
        self, generation: int, subject: str, reply: str, payload: bytes, headers: dict[str, str] | None
    ) -> None:
        if generation != self._generation:
            return
        if not reply.startswith("$JS.ACK."):
            self._heard_at = self._time()
            try:
                self._receive_status(headers or {})
            except ValueError as error:
                self.break_off(f"not a status of a pull's: {error}")
            self._arrived.set()
            return
        try:
            consumer_sequence, sequence, stored_at, self._pending = delivery_numbers(reply)
        except ValueError:
            self.break_off(f"not a delivery of a stream's: {reply[:100]!r}")
            return
        self._requested -= 1
        if consumer_sequence != self._consumer_sequence + 1:
            self.break_off(f"delivery {consumer_sequence} came after {self._consumer_sequence}: some were lost")
            return
        self._consumer_sequence = consumer_sequence
        if sequence > self._read_sequence:
            self._note_hole(sequence)
            self._read_sequence = sequence
            self._buffer.append((SourceMessage(subject, payload, headers, sequence, stored_at), reply))
            self._buffered_bytes += len(payload)
        else:
            self._heard_at = self._time()
            if self._acknowledges_each and sequence < self._first_sequence:
                self._committed.append(reply)
        if self._awaited == 1 or len(self._buffer) >= self._awaited or self._committed:
            self._arrived.set()

    def _note_hole(self, sequence: int) -> None:
        through = self._continuous_through
        if sequence > through:
            if 0 < through < sequence - 1 and self._hole_after is None:
                self._hole_after = through
            self._continuous_through = sequence

    def _receive_status(self, headers: Mapping[str, str]) -> None:
        status = pull_status(headers)
        if status.is_end:
            self._requested -= status.left
            self._is_oversized = self._is_oversized or (status.is_too_large and status.left == PULL_MESSAGES)
        elif not status.is_heartbeat:
            self.break_off(f"the server ended the pull: {status.text}")
        elif status.delivered > self._consumer_sequence:
            self.break_off("the server counts deliveries that did not arrive")

    def _take(self) -> list[SourceMessage]:
        taken: list[SourceMessage] = []
        size, reply = 0, ""
        buffer, hole_after = self._buffer, self._hole_after
        while buffer and len(taken) < BATCH_MESSAGES and size < BATCH_BYTES:
            if hole_after is not None and buffer[0][0].sequence > hole_after:
                break
            message, reply = buffer.popleft()
            size += len(message.payload)
            taken.append(message)
            if self._acknowledges_each:
                self._unacknowledged.append((message.sequence, reply))
        if taken:
            self._heard_at = self._time()
            self._newest_stored_at = taken[-1].stored_at
            if not self._acknowledges_each:
                # The last one stands for all before it.
                self._unacknowledged.append((taken[-1].sequence, reply))
        self._buffered_bytes -= size
        return taken
