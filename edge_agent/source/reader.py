"""Pull-consumer reader of one stream block. The position that counts is the committed one, not the server's.

The consumer is reset to the committed position on every open. Holes in the stream's own sequences are normal, unless
retention made them while the reader was behind: then the reader opens again, and reports the gap.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.stream_past import PastChange, StreamFacts, is_gap, is_unread, past_change
from edge_agent.source.api import SourceApi
from edge_agent.source.consumer import PULL_EXPIRES, ConsumerInfo, pause_of, read_by_others
from edge_agent.source.holes import Elsewhere, Hole, Requests
from edge_agent.source.own_messages import Probe
from edge_agent.source.port import (
    ConsumerPaused,
    ConsumerShared,
    ConsumerState,
    OpenResult,
    SourceUnavailable,
    StreamCheck,
    is_denied,
)
from edge_agent.source.pulls import Pulls
from shared.identifiers import SourcePosition
from shared.nats.client import EdgeClient
from shared.tasks import Interrupted, unless_set


class StreamLeader(Protocol):
    """The server that leads a stream, asked on ``message_subject``."""

    @property
    def message_subject(self) -> str: ...

    async def next_behind(self, sequence: int) -> int | None:
        """Return the first message behind a sequence that passes the filter, if any; raise SourceUnavailable."""


class MayNotAsk(Exception):
    """The agent may not ask the stream's leader for single messages."""


class Completeness:
    """Check that the server that delivers one stream holds all of it; each open() makes a new one.

    ``_complete`` are the facts of the last check that found nothing missing.
    """

    def __init__(self, leader: StreamLeader) -> None:
        self._leader = leader
        self._complete: StreamFacts | None = None
        self._is_asking = False
        self._denied = asyncio.Event()

    def takes_denial(self, reason: str) -> bool:
        """Return True if a question to the leader has caused a permission violation: reading continues."""
        is_ours = self._is_asking and is_denied(self._leader.message_subject, reason)
        if is_ours:
            self._denied.set()
        return is_ours

    async def storage_fault(self, facts: StreamFacts, server: str, delivered: int) -> str:
        """Return why ``server`` may lack messages behind ``delivered``, as a clause; "" if it holds all.

        Raise SourceUnavailable if the stream's leader does not answer.
        """
        if not facts.leader or facts.is_empty or facts.last_sequence <= delivered or facts.holds_what(self._complete):
            return ""
        try:
            if await self.next_behind(delivered) is not None:
                return f"is not complete on {server}, which delivers it"
        except MayNotAsk:
            return f"may hold more than it delivers: not permitted: publish on {self._leader.message_subject}"
        self._complete = facts
        return ""

    async def next_behind(self, sequence: int) -> int | None:
        """Return the leader's first message behind a sequence; raise MayNotAsk or SourceUnavailable."""
        if self._denied.is_set():
            raise MayNotAsk
        self._is_asking = True
        try:
            return await unless_set(self._denied, self._leader.next_behind(sequence))
        except Interrupted:
            raise MayNotAsk from None
        finally:
            self._is_asking = False


log = logging.getLogger("muster.agent")

OPEN_DEADLINE = 10.0
REQUESTS_END = 3.0
"""Seconds within which a server drops requests without a listener: 2 across leaf nodes."""

LARGEST_ASKED = 512 << 10
"""The answer to a question is a third larger than the message, in bytes, and must pass leaf links."""

QUIET = 10.0
"""Seconds without another reader before this reader takes the consumer: a reader that restarts is back sooner."""

SHORT_STREAM_DELAY = 1.0
"""Seconds after which a stream that ends before the committed position is asked again."""


class JetStreamSource:
    """One stream block's reader on an open connection. ``settle`` is in microseconds."""

    def __init__(self, client: EdgeClient, api: SourceApi, settle: int, probe: Probe | None = None) -> None:
        self._probe = probe
        self._newest_stored_at = self._read_through = 0
        self._probed: tuple[tuple[str, ...], bool, bool] = ((), False, False)
        self._client = client
        self._api = api
        self._settle = settle
        self._link_changed = asyncio.Event()
        self._time = asyncio.get_running_loop().time
        # Shared by all resets: requests of an earlier one may still wait at the server.
        self._requests = Requests(PULL_EXPIRES + REQUESTS_END)
        self._pulls = Pulls(client, api, self._requests)
        self._completeness = Completeness(api)
        self._others_at = float("-inf")
        self._is_cut, self._cut_at = False, float("-inf")
        self._disturbed: list[Hole] | None = None
        self._elsewhere: Elsewhere | None = None
        self._opened_at = self._time()
        self._has_passed_over = False

    def break_off(self, reason: str) -> None:
        """Make read() raise SourceUnavailable: the connection has changed, deliveries may be lost."""
        self._pulls.break_off(reason)
        self._is_cut, self._cut_at = True, self._time()
        self._link_changed.set()

    def takes_denial(self, reason: str) -> bool:
        """Return True if a permission violation concerns only probes or completeness checks: reading continues."""
        is_probe = self._probe is not None and self._probe.takes_denial(reason)
        return is_probe or self._completeness.takes_denial(reason)

    async def await_reconnect(self, within: float) -> bool:
        was_down = not self._client.is_established
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not (was_down and self._client.is_established):
                    self._link_changed.clear()
                    await self._link_changed.wait()
                    was_down = was_down or not self._client.is_established
                return True
        return False

    @property
    def delivered_sequence(self) -> int:
        return self._pulls.delivered_sequence

    @property
    def holds_unread(self) -> bool:
        return bool(self._pulls.buffered_count)

    @property
    def is_behind(self) -> bool:
        return self._pulls.is_behind

    async def resolve_start(self) -> tuple[StreamFacts, int]:
        return await self._api.resolve_start()

    async def open(self, state: BlockState) -> OpenResult:
        position, read_through, last_stored_at = state.position, state.read_through, state.last_stored_at
        if not self._client.is_established:
            raise SourceUnavailable("the connection to the site's servers is down")
        await self._pulls.close()
        before, was_cut, self._is_cut = self._pulls, self._is_cut, False
        if not was_cut:
            # After a cut the server may still hold the old connection for alive, with its requests.
            self._requests.end_by(self._time() + REQUESTS_END)
        if before.is_disturbed:
            self._disturbed = [*(self._disturbed or ()), *before.holes.kept_before(position.sequence)]
            self._elsewhere = before.elsewhere or self._elsewhere
        is_disturbed = self._disturbed is not None and self._time() - self._cut_at > PULL_EXPIRES + REQUESTS_END
        # Made before the first request: a change of the connection during a request must break them.
        pulls = self._pulls = Pulls(self._client, self._api, self._requests)
        self._completeness = Completeness(self._api)
        self._newest_stored_at, self._read_through = position.stored_at, read_through
        if self._probe is not None:
            self._probe.note_size(state.largest_size)
        facts = await self._facts()
        await self._open_probe(facts)
        change = past_change(position, facts)
        if change is PastChange.SHORTENED:
            # A server that has just come to lead a replicated stream may not have applied the last messages yet.
            await asyncio.sleep(SHORT_STREAM_DELAY)
            facts = await self._facts()
            change = past_change(position, facts)
        if change is None:
            consumer = await self._api.ensure_consumer()
            # A paused consumer would not deliver the message that shows whether the past is the same.
            _refuse_paused(consumer)
            consumer = await self._await_sole_use(consumer, is_disturbed=is_disturbed)
            deletes_acknowledged = facts.awaits_consumers or consumer.acknowledges_each
            await self._check_disturbed_holes(deletes_acknowledged=deletes_acknowledged)
            verifies = position.sequence > 0 and last_stored_at > 0
            first = position.sequence if verifies else position.next_sequence
            pending = await self._api.reset(_first_sequence(facts, consumer, first))
            facts = await self._facts()
            continuous_through = 0 if is_gap(read_through, facts) else read_through
            each, latest = consumer.acknowledges_each, state.latest_stored_at
            await pulls.begin(first, continuous_through, acknowledges_each=each, committed_at=latest)
            if verifies and await self._is_rewritten(position, pending, last_stored_at):
                change = PastChange.REWRITTEN
            elif state.mode == "sample" and await self._api.is_forgotten(position, consumer, facts):
                await pulls.close()
                return OpenResult(facts, position.sequence, PastChange.FORGOTTEN)
        if change is None:
            has_passed_over, self._has_passed_over = self._has_passed_over, False
            self._opened_at = self._time()
            return OpenResult(facts, position.sequence, is_gap=has_passed_over or is_gap(read_through, facts))
        await pulls.close()
        return OpenResult(facts, await self._api.sequence_after_change(change, last_stored_at, facts), change)

    async def _await_sole_use(self, consumer: ConsumerInfo, *, is_disturbed: bool) -> ConsumerInfo:
        """Return once no other reader has requests at the consumer; raise ConsumerShared if one has.

        If the last reading ``is_disturbed``, wait for the end of this reader's own requests too.
        """
        give_up_at = self._time() + REQUESTS_END
        while consumer.num_waiting > (0 if is_disturbed else self._requests.waiting(self._time())):
            if self._time() >= give_up_at:
                self._others_at = self._time()
                break
            await asyncio.sleep(0.1)
            consumer = await self._api.consumer_info()
        if self._time() - self._others_at < QUIET:
            raise ConsumerShared(read_by_others(self._api.address))
        return consumer

    async def _check_disturbed_holes(self, *, deletes_acknowledged: bool) -> None:
        """Report a gap if another reader was delivered messages from holes behind which this reader has read.

        A stream that ``deletes_acknowledged`` messages no longer holds those: then any such hole is a gap.
        """
        holes, self._disturbed = self._disturbed, None
        if holes is None:
            return
        self._elsewhere = self._elsewhere if deletes_acknowledged else None
        has_seen_others = self._others_at > self._opened_at
        if deletes_acknowledged:
            self._has_passed_over = self._has_passed_over or (has_seen_others and bool(holes))
        for hole in () if deletes_acknowledged else holes:
            if await self._passed_over(hole, if_denied=hole.before if has_seen_others else None) is not None:
                self._has_passed_over = True
                break
        if self._has_passed_over:
            self._report_gap()

    def _count_redelivered(self, taken: Sequence[SourceMessage]) -> None:
        """Break off, and report a gap, if fewer messages are delivered again than another reader was delivered."""
        assert self._elsewhere is not None
        after, before, missing = self._elsewhere
        missing -= sum(after < message.sequence < before for message in taken)
        self._elsewhere = Elsewhere(after, before, missing) if missing > 0 and taken[-1].sequence < before else None
        if self._elsewhere is None and missing > 0:
            self._has_passed_over = True
            self._report_gap()
            self._pulls.break_off("somebody else was delivered what does not come again")

    def _report_gap(self) -> None:
        log.warning(
            "consumer %s of stream %s was read by somebody else, too: what went there counts as a gap",
            self._api.address.consumer,
            self._api.address.stream,
        )

    async def _passed_over(self, hole: Hole, if_denied: int | None = None) -> int | None:
        """Return a message that the stream holds within a hole, None if none; ``if_denied`` if it cannot be asked."""
        if hole.size > LARGEST_ASKED:
            return if_denied
        try:
            sequence = await self._completeness.next_behind(hole.after)
        except MayNotAsk:
            return if_denied
        return sequence if sequence is not None and sequence < hole.before else None

    async def _facts(self) -> StreamFacts:
        facts = await self._api.facts()
        return facts if self._probe is None else self._probe.with_limit(facts)

    async def _open_probe(self, facts: StreamFacts) -> None:
        self._probed = facts.takes.subjects, facts.copies, facts.refuses_by_subject
        if self._probe is not None:
            await self._probe.open(facts)

    async def _is_rewritten(self, position: SourcePosition, pending: int, last_stored_at: int) -> bool:
        """Return True if the first message delivered, or one after it, shows that the past is another one."""
        pulls = self._pulls
        try:
            await pulls.await_first(pending, OPEN_DEADLINE)
        except TimeoutError:
            raise SourceUnavailable(f"nothing was delivered within {OPEN_DEADLINE:g} s of a reset") from None
        if pulls.broken:
            raise SourceUnavailable(pulls.broken)
        if pulls.is_rewritten:
            return True
        first = pulls.first
        if first is None:
            # The committed message is deleted, or the server that delivers does not hold it yet.
            pulls.expect_behind(position.sequence)
        if first is None or first.sequence > position.sequence:
            return False
        pulls.pass_over_first()
        return is_unread(position, first.stored_at, last_stored_at)

    async def read(self, patience: float) -> Sequence[SourceMessage]:
        pulls = self._pulls
        await pulls.gather(patience)
        if pulls.hole_after is not None:
            await self._check_retention_hole(pulls.hole_after)
        await self._check_doubtful_holes()
        if pulls.holes.need_check:
            await self._check_for_others()
        if pulls.is_rewritten:
            pulls.break_off("the stream's past has changed")
        if pulls.broken:
            raise SourceUnavailable(pulls.broken)
        return self._take()

    async def read_on(self) -> Sequence[SourceMessage]:
        """Return messages that follow closely, if reading is behind the stream; none if read() has holes to check."""
        pulls = self._pulls
        await pulls.gather_on()
        must_check = pulls.stops_after is not None or pulls.holes.need_check
        return [] if pulls.broken or must_check else self._take()

    def _take(self) -> Sequence[SourceMessage]:
        taken = self._pulls.take()
        if taken:
            if self._elsewhere is not None:
                self._count_redelivered(taken)
            self._newest_stored_at = taken[-1].stored_at
            if self._probe is not None:
                self._probe.note_size(self._pulls.largest_size)
                self._probe.note_read(taken)
        return taken

    async def _check_retention_hole(self, hole_after: int) -> None:
        """Break off at a hole that retention made, so that open() reports it; other holes are normal."""
        pulls = self._pulls
        pulls.hole_after = None
        if (await self._api.facts()).first_sequence <= hole_after + 1:
            return
        pulls.hole_after = hole_after
        if pulls.first is not None and pulls.first.sequence > hole_after:
            pulls.break_off(f"messages behind {hole_after} were lost to retention before they were read")

    async def _check_doubtful_holes(self) -> None:
        """Break off if the stream holds a message within a doubtful hole: it is delivered again after a reset."""
        pulls, unexplained = self._pulls, self._pulls.holes.unexplained
        while unexplained and not pulls.broken:
            found = await self._passed_over(unexplained[0])
            if found is not None:
                text = f"message {found} was passed over: somebody else reads with the consumer, or has reset it"
                pulls.break_off(text, is_disturbed=True)
            unexplained.popleft()

    async def _check_for_others(self) -> ConsumerInfo:
        """Return the consumer's progress; break off if another reader has requests there or has reset it."""
        pulls, requests = self._pulls, self._requests
        hole_count, received = pulls.holes.count, pulls.consumer_sequence
        waiting, made_count = requests.waiting(self._time()), requests.made_count
        consumer = await self._api.consumer_info()
        if consumer.num_waiting > waiting + requests.made_count - made_count:
            self._others_at = self._time()
            pulls.break_off("somebody else asks there, too", is_disturbed=True)
            raise ConsumerShared(read_by_others(self._api.address))
        if consumer.delivered.consumer_seq < received:
            pulls.break_off("somebody else has reset the consumer", is_disturbed=True)
        else:
            pulls.holes.forget(hole_count)
        return consumer

    async def check(self, blind_after: int) -> StreamCheck:
        if self._probe is not None:
            await self._probe.poll_limit(blind_after)
        facts = await self._facts()
        publish_error = await self._publish_error(facts, blind_after)
        consumer = await self._check_for_others()
        _refuse_paused(consumer)
        pulls = self._pulls
        if pulls.broken:
            raise SourceUnavailable(pulls.broken)
        delivered, delivered_sequence = consumer.delivered.consumer_seq, pulls.delivered_sequence
        has_read_all = not pulls.buffered_count and not consumer.num_pending and delivered == pulls.consumer_sequence
        state = self._state_of(consumer, facts)
        if not has_read_all:
            return StreamCheck(facts, publish_error=publish_error, consumer=state)
        if storage_fault := await self._completeness.storage_fault(facts, consumer.cluster.leader, delivered_sequence):
            uncertain = msgspec.structs.replace(facts, storage_fault=facts.storage_fault or storage_fault)
            return StreamCheck(uncertain, publish_error=publish_error, consumer=state)
        pulls.note_examined(facts.last_sequence)
        has_stored_lately = abs(facts.server_at - self._newest_stored_at) <= blind_after
        if facts.storage_fault or publish_error or not has_stored_lately:
            return StreamCheck(
                facts, examined_sequence=facts.last_sequence, publish_error=publish_error, consumer=state
            )
        # In a cluster, the consumer's server may lack messages that arrived after the stream's leader was asked.
        is_of_one = not (facts.unheard_for or facts.leader)
        heard_through = consumer.at if is_of_one else facts.server_at - facts.unheard_for
        return StreamCheck(facts, heard_through - self._settle, facts.last_sequence, consumer=state)

    async def poll(self) -> StreamCheck:
        consumer, facts = await self._api.consumer_info(), await self._api.facts()
        return StreamCheck(facts, consumer=self._state_of(consumer, facts))

    def _state_of(self, consumer: ConsumerInfo, facts: StreamFacts) -> ConsumerState:
        """Return the consumer's state with the number of unread messages: waiting, under way and buffered."""
        pulls, delivered = self._pulls, consumer.delivered
        reached = max(pulls.delivered_sequence, self._read_through)
        if pulls.is_begun and not pulls.broken and delivered.consumer_seq >= pulls.consumer_sequence:
            under_way = delivered.consumer_seq - pulls.consumer_sequence
        else:
            # Deliveries after another reader's reset did not come to us: count by the stream's sequences.
            under_way = max(delivered.stream_seq - reached, 0)
        pending = min(consumer.num_pending + under_way, max(facts.last_sequence - reached, 0)) + pulls.buffered_count
        return ConsumerState(pending, consumer.expires_after, consumer.unacknowledged)

    async def _publish_error(self, facts: StreamFacts, blind_after: int) -> str | None:
        """Send a probe if one is due; return StreamCheck.publish_error."""
        if self._probe is not None:
            await self._probe_stream(facts, blind_after)
        error = facts.publish_error or (self._probe.publish_error if self._probe is not None else "")
        # A stream that gathers from several places may still receive what it missed of one.
        return None if not error and facts.gathers and facts.storage_fault else error

    async def _probe_stream(self, facts: StreamFacts, blind_after: int) -> None:
        assert self._probe is not None
        if (facts.takes.subjects, facts.copies, facts.refuses_by_subject) != self._probed:
            await self._open_probe(facts)
        await self._probe.send_if_due(facts, self._newest_stored_at, blind_after)

    async def acknowledge(self, through: int | None = None) -> None:
        await self._pulls.acknowledge(through)


def _refuse_paused(consumer: ConsumerInfo) -> None:
    if consumer.paused:
        raise ConsumerPaused(pause_of(consumer.paused_until))


def _first_sequence(facts: StreamFacts, consumer: ConsumerInfo, first: int) -> int:
    """Return the sequence to reset to so that ``first`` is delivered and the stream deletes no unread message.

    A work queue deletes committed messages only when they are acknowledged, so they are delivered again. A stream that
    awaits its consumers deletes everything before a reset, which is unread if another past uses the sequences again.
    """
    if consumer.acknowledges_each:
        return max(facts.first_sequence, 1)
    return min(first, consumer.ack_floor.stream_seq + 1) if facts.awaits_consumers else first
