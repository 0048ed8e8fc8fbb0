"""Apply inputs to copies of one block's state and senders, by the rules in ``edge_agent.core.tracker``."""

from itertools import islice

import msgspec

from edge_agent.core.block_state import BlockState, may_be_relearned, sum_counters
from edge_agent.core.decisions import (
    BlindCause,
    BlindSpan,
    Clamped,
    ClockSeen,
    CloseCoverage,
    EpochBegun,
    Ledger,
    ObservationBegun,
    PolicyChanged,
    Restriction,
    SenderAskedFor,
    SenderRetired,
    StreamSeen,
)
from edge_agent.core.observation import Batch, Observation, ProbeSighting, Rejected, SourceMessage, Unopened
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.core.senders import (
    NO_SLOT,
    DeadlineQueue,
    SenderChanges,
    SenderPhase,
    SenderState,
    SenderTable,
    reason_to_forward,
)
from edge_agent.core.stream_past import StreamFacts, StreamTakes
from edge_agent.core.unproven import exceeds_bound, with_span
from shared.identifiers import AdvisoryKind, Incarnation, SourcePosition
from shared.wire import ForwardReason

DECISIONS_PER_DRAFT = 10_000


class Draft:
    """Inputs applied to copies, adopted when their commit has begun. It implements ``BlockDraft``."""

    def __init__(self, state: BlockState, senders: SenderTable, decision_limit: int, detect_blind_spans: bool) -> None:
        self._before = state
        self._senders, self._sender_count = senders, len(senders)
        self._decision_limit = decision_limit
        self._detects = detect_blind_spans
        self._ledger = ledger = Ledger(state.advisory_ordinal, state.rejections)
        self.decisions, self.recorded = ledger.decisions, ledger.recorded
        self.observed_through, self.incarnation = state.observed_through, state.position.incarnation
        self._position, self._past_stored_at = state.position, state.past_stored_at
        self._last: SourceMessage | None = None
        self._touched: dict[str, SenderState] = {}
        self._heard = DeadlineQueue(senders, senders.heard, self._touched, "last_seen_at")
        self._stale = DeadlineQueue(senders, senders.stale, self._touched, "stale_observed_at")
        self._policy, self._policy_at = state.policy, state.policy_at
        self._revisions, self._asked_for = state.revisions, set(state.asked_for)
        self._since, self._settling_at, self.clock_ahead = state.observed_since, state.settling_at, state.clock_ahead
        self._source_clock, self._examined = state.source_clock, state.examined_sequence
        self._blind_total, self._pending_blind = state.blind_total, state.pending_blind
        self._rebuilding, self._rebuilt_at, self._seen = state.rebuilding, state.rebuilt_at, state.seen
        self._takes, self._took, self._unheard_until = state.takes, state.took, state.unheard_until
        self._largest, self._batched_at, self._unproven = state.largest_size, state.batched_at, state.unproven
        self._quiet_until = self._next_deadline = self._valid = 0

    def observe(self, observation: Observation, *, too_old: bool = False) -> bool:
        """Settle the deadlines before a sighting, then count it; one that is ``too_old`` is not forwarded."""
        at = observation.message.stored_at
        # The first steps of _advance() and _touch(), written out: for most messages there are no others.
        is_quiet = self.observed_through <= at <= self._quiet_until
        if len(self.decisions) >= self._decision_limit or not (is_quiet or self._advance(at)):
            return False
        if is_quiet:
            self.observed_through = at
        at = self._read(observation.message)
        reason = self._sight(observation, at)
        if reason is not None and too_old:
            self._ledger.count("withheld", "max_age")
        elif reason is not None:
            self._ledger.forward(self._touched[observation.sender_id], observation, reason, at)
            self._asked_for.discard(observation.sender_id)
        return True

    def observe_batch(self, batch: Batch, *, too_old: bool = False) -> bool:
        """Count a sighting of each sender of a message; forward the message once if there is a reason for one of them.

        All sightings belong to one draft, since the position behind the message covers them together. A message that
        names no sender is forwarded like any other message without one.
        """
        if len(self.decisions) >= self._decision_limit or not self._advance(batch.message.stored_at):
            return False
        at = self._read(batch.message)
        reasons = [self._sight(each, at) for each in batch.observations]
        self._ledger.count_parts(batch, at)
        reason = next(filter(None, reasons), ForwardReason.COPY if batch.rejected and not reasons else None)
        if reason is not None and too_old:
            self._ledger.count("withheld", "max_age")
        elif reason is not None:
            self._ledger.forward_batch(batch, self._touched, reason, at)
            self._asked_for.difference_update(each.sender_id for each in batch.observations)
        self._meet_batch(batch.unopened)
        return True

    def _sight(self, observation: Observation, at: int) -> ForwardReason | None:
        """Count a sighting at ``at``; return the reason to forward it, None if there is none."""
        message, sender_id = observation.message, observation.sender_id
        state = self._touched.get(sender_id) or self._touch(sender_id)
        reason: ForwardReason | None
        if state is None or state.retired:
            if self._sender_count >= self._policy.max_senders:
                self._ledger.turn_away(message, at, observation.count)
                return None
            state = self._open_episode(sender_id, message.sequence, at, state.slot if state else NO_SLOT)
            reason = ForwardReason.NEW
        elif state.phase is SenderPhase.STALE:
            self._ledger.advise(
                AdvisoryKind.RECOVERED, state, at, incarnation=self.incarnation, sequence=message.sequence
            )
            self._stale.discard(sender_id)
            state.phase = SenderPhase.HEARD
            reason = ForwardReason.RECOVERED
        elif sender_id in self._asked_for:
            reason = ForwardReason.POLICY
        else:
            reason = reason_to_forward(self._policy, state, observation, at)
        self._valid += observation.count
        if self._seen.awaits_word or observation.deviation is not None:
            self._note_exceptions(observation)
        state.last_seen_at, state.last_sequence = at, message.sequence
        self._heard.put_last(state)
        return reason

    def _note_exceptions(self, observation: Observation) -> None:
        if self._seen.awaits_word and observation.message.stored_at >= self._seen.narrowed_at:
            # The stream takes less than before, but still takes some senders.
            self._seen = msgspec.structs.replace(self._seen, awaits_word=False)
        if observation.deviation is not None:
            self._ledger.count("tolerated", observation.deviation)
        self._meet_batch(observation.unopened)

    def _meet_batch(self, unopened: Unopened | None) -> None:
        """Apply rule 8 behind a message with unread senders; in a replay the suspension is a recorded input."""
        if unopened is not None:
            self._batched_at = self.observed_through
        if unopened is not None and self._detects and unopened > self._seen.batch:
            self.see_stream(self._seen.changed(self.observed_through, self.position.sequence, batch=str(unopened)))

    def reject(self, rejected: Rejected, *, too_old: bool = False) -> bool:
        """Count a message without a sender as rejected and as a proof of time; forward it unless ``too_old``."""
        if len(self.decisions) >= self._decision_limit or not self._advance(rejected.message.stored_at):
            return False
        self._ledger.refuse(rejected.message, rejected.reason, self._read(rejected.message))
        if too_old:
            self._ledger.count("withheld", "max_age")
        else:
            self._ledger.pass_on(rejected.message)
        self._meet_batch(rejected.unopened)
        return True

    def pass_over(self, probe: ProbeSighting) -> bool:
        """Count a probe: a proof of time like any message, not a sighting of a sender, and never forwarded."""
        if not self._advance(probe.message.stored_at):
            return False
        self._read(probe.message)
        self._ledger.count("probes", probe.cause)
        return True

    def prove(self, at: int, examined_sequence: int = 0) -> bool:
        if not self._advance(at):
            return False
        if not self.clock_ahead:
            self._source_clock = max(self._source_clock, at)
        return self.examine(examined_sequence)

    def examine(self, sequence: int) -> bool:
        self._examined = max(self._examined, sequence)
        return True

    def settle_some(self, at: int, ordinal: int) -> None:
        """Settle deadlines through ``at``, and stop behind the advisory of ``ordinal``, as a full draft does."""
        self._decision_limit = len(self.decisions) + ordinal - self._ledger.ordinal
        self._advance(at + 1)

    def lose(self, cause: BlindCause) -> None:
        """Make the next proof close a blind span, however short: messages before that proof were never seen."""
        if self._pending_blind not in (cause, BlindCause.NEW_EPOCH):
            self._pending_blind, self._quiet_until = cause, 0
            self._ledger.count("blind", cause)

    def pass_unproven(self, started_at: int, ended_at: int) -> bool:
        """Apply rule 9 to a span in which nothing was stored; call it before any other input at its end."""
        policy, through = self._policy, self.observed_through
        is_blind = self._pending_blind or ended_at - through > policy.blind_after
        if self.clock_ahead or not through or (is_blind and not self._seen.is_suspending):
            return True
        self._unproven = with_span(self._unproven, started_at, ended_at, policy)
        if self._seen.unsteady or not exceeds_bound(self._unproven, self._since, ended_at, policy):
            return True
        if not self._finish_settling():
            return False
        return self.see_stream(self._seen.changed(self.observed_through, self.position.sequence, unsteady=True))

    def look_at(self, facts: StreamFacts, *, refuses: bool) -> bool:
        """Compare the stream's configuration (``facts``, as of now) with the last one, and apply rule 7 to changes."""
        seen, takes, took = self._seen, self._takes, self._took
        at, last = self.observed_through, self.position.sequence
        now = msgspec.structs.replace(seen, at=at, sequence=last, refuses=refuses, by_subject=facts.refuses_by_subject)
        if takes != facts.takes or took is not None:
            now, took = self._compare(now, facts)
        if facts.refuses_by_subject and not seen.by_subject:
            now = now.unheard_from_here(self._blind_total)
        if not now.has_same_restrictions(seen):
            if not self._finish_settling():
                return False
            self.see_stream(msgspec.structs.replace(now, at=self.observed_through))
        self._takes, self._took = facts.takes, took
        return True

    def lifts(self, facts: StreamFacts, *, refuses: bool) -> set[Restriction]:
        """Return the restrictions that no longer hold at the instant of ``facts``, which may lie ahead of the draft."""
        now = msgspec.structs.replace(self._seen, refuses=refuses, by_subject=facts.refuses_by_subject)
        return self._seen.lifted_in(self._compare(now, facts)[0])

    def _compare(self, now: StreamSeen, facts: StreamFacts) -> tuple[StreamSeen, StreamTakes | None]:
        """Return the changed restrictions, and the earlier configuration if its senders may be missed."""
        takes, took = self._takes, self._took
        earliest_seen_at = self._heard.first_instant()
        # A subject that no sender was heard on is not missed.
        used = takes if took is None else took if takes is None or now.awaits_word else took.union(takes)
        # A sender retired as unheard counts as missed until retire_after would have retired it: for messages only.
        is_waited_for = now.awaits_word or earliest_seen_at < now.narrowed_at
        is_missed = is_waited_for or self.observed_through < self._unheard_until
        if took is not None and used is not None and not used.lost_in(facts.takes):
            if not is_waited_for:
                return now, None
            return now.unnarrowed(), None
        if takes is not None and takes.lost_in(facts.takes) and self._sender_count:
            # While the stream's clock is not followed, a sender heard now counts as heard before this instant.
            at = self.observed_through + 1 if self.clock_ahead else facts.server_at
            narrowed = msgspec.structs.replace(now, awaits_word=True, narrowed_at=at)
            return narrowed.unheard_from_here(self._blind_total), used
        return now, took if is_missed else None

    def see_stream(self, seen: StreamSeen) -> bool:
        """Suspend coverage, or resume it, by rule 7."""
        if not self._finish_settling():
            return False
        before, self._seen = self._seen, seen
        self._quiet_until = self._next_deadline = 0
        self.recorded.append(seen)
        is_restored = seen.narrowed_at < before.narrowed_at or (before.by_subject and not seen.by_subject)
        if seen.is_suspending and not before.is_suspending:
            if self._pending_blind is not BlindCause.NEW_EPOCH:
                self._pending_blind = None
                if self.observed_through:
                    self._close_coverage(self.observed_through)
            self._since = self.observed_through
            self._ledger.count("blind", seen.cause)
        elif seen.thinned and not before.thinned:  # lost while time is suspended already
            self._ledger.count("blind", BlindCause.GAP)
        elif (before.is_suspending or is_restored) and not seen.is_suspending:
            # The blind span gives every sender the full time to be heard, from the next proof on.
            self._pending_blind = self._pending_blind or before.cause
        return True

    def find_thinned(self, *, thinned: bool) -> bool:
        if self._seen.thinned is thinned or (thinned and (self._pending_blind or not self.observed_through)):
            # What comes next ends a blind span, or begins observation, anyway.
            return True
        if not self._finish_settling():
            return False
        return self.see_stream(self._seen.changed(self.observed_through, self.position.sequence, thinned=thinned))

    def see_clock(self, *, is_ahead: bool, reference: int = 0) -> bool:
        """Apply rule 10. Observation begins at ``reference``, the other clocks' time, if it has not begun yet."""
        if not self._finish_settling():
            return False
        if is_ahead == self.clock_ahead:
            return True
        if is_ahead and not self.observed_through:
            self._begin_coverage(reference)
        self.clock_ahead = is_ahead
        self._quiet_until = self._next_deadline = 0
        self.recorded.append(ClockSeen(self.observed_through, self.position.sequence, is_ahead))
        if is_ahead:
            self._ledger.count("blind", BlindCause.CLOCK_AHEAD)
        else:
            self._pending_blind = self._pending_blind or BlindCause.CLOCK_AHEAD
        return True

    def begin_epoch(self, incarnation: Incarnation, sequence: int, stored_at: int = 0) -> bool:
        """Continue behind ``sequence`` of a changed past, read up to ``stored_at``; ordinals start at 1 again."""
        if not self._finish_settling():
            return False
        is_closed = self._seen.is_suspending or self._pending_blind is BlindCause.NEW_EPOCH
        if self.observed_through and not is_closed:
            self._close_coverage(self.observed_through)
        self.recorded.append(EpochBegun(incarnation, self.observed_through, self.position.sequence))
        self._past_stored_at = self.position.stored_at or self._past_stored_at
        self._position, self._last = SourcePosition(self._position.stream, incarnation, sequence, stored_at), None
        self.incarnation = incarnation
        self._ledger.ordinal = self._source_clock = self._examined = 0
        self.lose(BlindCause.NEW_EPOCH)
        return True

    def pass_blind_span(self, span: BlindSpan) -> bool:
        """Settle the deadlines before the span, close coverage at its start, and reopen it at its end."""
        if not (self._finish_settling() and self._settle(span.started_at)):
            return False
        if span.cause is not BlindCause.NEW_EPOCH:
            # The epoch closed it when it began: with the ordinals of the past in which it was seen.
            self._close_coverage(span.started_at)
        self.recorded.append(span)
        self._blind_total += span.ended_at - span.started_at
        self._since = self.observed_through = span.ended_at
        self._pending_blind = None
        self._quiet_until = self._next_deadline = 0
        return True

    def steps_back(self, at: int) -> bool:
        return at < self._source_clock - self._policy.blind_after

    # Results

    @property
    def position(self) -> SourcePosition:
        last, before = self._last, self._position
        if last is None:
            return before
        return SourcePosition(before.stream, before.incarnation, last.sequence, last.stored_at)

    @property
    def changes_nothing(self) -> bool:
        """True if only time advanced: no message was read, nothing decided, counted or recorded."""
        is_quiet = not (self.decisions or self.recorded or self._ledger.counts)
        return is_quiet and self.position == self._before.position

    def state(self) -> BlockState:
        additions = dict(self._ledger.counts)
        if self._valid:
            additions["valid"] = {"registrations": self._valid}
        return BlockState(
            position=self.position,
            policy=self._policy,
            policy_at=self._policy_at,
            revisions=self._revisions,
            asked_for=tuple(sorted(self._asked_for)),
            observed_since=self._since,
            observed_through=self.observed_through,
            source_clock=self._source_clock,
            past_stored_at=self._past_stored_at,
            examined_sequence=self._examined,
            blind_total=self._blind_total,
            pending_blind=self._pending_blind,
            settling_at=self._settling_at,
            advisory_ordinal=self._ledger.ordinal,
            rebuilding=self._rebuilding,
            rebuilt_at=self._rebuilt_at,
            store_began_at=self._before.store_began_at,
            takes=self._takes,
            took=self._took,
            unheard_until=self._unheard_until,
            seen=self._seen,
            largest_size=self._largest,
            clock_ahead=self.clock_ahead,
            batched_at=self._batched_at,
            unproven=self._unproven,
            counters=sum_counters(self._before.counters, additions),
            rejections=self._ledger.rejections,
        )

    def changes(self) -> SenderChanges:
        """Return the touched senders; new ones get their slots here."""
        heard, stale = list(self._heard.own.values()), list(self._stale.own.values())
        nameless = [state for state in (*heard, *stale) if state.slot == NO_SLOT]
        for state, slot in zip(nameless, islice(self._senders.free_slots(), len(nameless)), strict=True):
            state.slot = slot
        retired = [state for state in self._touched.values() if state.retired and state.slot != NO_SLOT]
        return SenderChanges(heard, stale, retired)

    def _touch(self, sender_id: str) -> SenderState | None:
        state = self._touched.get(sender_id)
        if state is None:
            slot = self._senders.slots.get(sender_id)
            if slot is not None:
                state = self._touched[sender_id] = self._senders.load(slot)
        return state

    def _advance(self, at: int) -> bool:
        if self.observed_through <= at <= self._quiet_until:
            self.observed_through = at
            return True
        if not self._finish_settling():
            return False
        through = self.observed_through
        if self._detects and not self.clock_ahead and (self._seen.batch or self._seen.unsteady):
            self._resume(at)
        if self.clock_ahead or through == 0 or self._seen.is_suspending:
            if not self.clock_ahead:
                self._begin_coverage(at)
            return True
        if self._detects and (self._pending_blind or at - through > self._policy.blind_after):
            is_found, cause = self._pending_blind is None, self._pending_blind or BlindCause.UNPROVEN
            if not self.pass_blind_span(BlindSpan(through, max(at, through), cause, self.position.sequence)):
                return False
            if is_found:
                self._ledger.count("blind", cause)
        if at > self._next_deadline and not self._settle(at):
            return False
        self._reach(at)
        self._quiet_until = min(self._next_deadline, self.observed_through + self._policy.blind_after)
        return True

    def _resume(self, at: int) -> None:
        """End a suspension of coverage by rules 8 and 9, if its cause has been over for long enough at ``at``."""
        seen, policy = self._seen, self._policy
        batch = seen.batch if at <= self._batched_at + policy.stale_after else ""
        unsteady = seen.unsteady and at < self._unproven[-1][1] + policy.blind_after
        if (batch, unsteady) != (seen.batch, seen.unsteady):
            self.see_stream(seen.changed(self.observed_through, self.position.sequence, batch=batch, unsteady=unsteady))

    def _begin_coverage(self, at: int) -> None:
        """Begin coverage at a proof: the very first one, or each one while coverage is suspended."""
        through = self.observed_through
        if through == 0:
            self.recorded.append(ObservationBegun(at, self.position.sequence))
            if self._rebuilding:
                self._rebuilding, self._rebuilt_at = False, at
        else:
            self._blind_total += max(at - through, 0)
        self._since = self.observed_through = max(at, through)
        self._pending_blind = None

    def _read(self, message: SourceMessage) -> int:
        at = message.stored_at
        if self.clock_ahead:
            self._ledger.count("clamped", "stored_ahead")
            self._last = message
            return self.observed_through
        # Once for every message: comparing costs a third of calling max().
        if at > self._source_clock:  # noqa: PLR1730
            self._source_clock = at
        if at < self.observed_through:
            at = self.observed_through
            self.recorded.append(Clamped(message.sequence, at))
            self._ledger.count("clamped", "stored_earlier")
        self._last = message
        size = len(message.payload)
        if size > self._largest:  # noqa: PLR1730 - as above
            self._largest = size
        return at

    def _settle(self, at: int) -> bool:
        """Decide everything that falls due strictly before ``at``; return False if the decision limit came first."""
        # Looked up once: settling changes none of them, and a whole fleet may fall silent.
        since, policy, policy_at, blind_total = self._since, self._policy, self._policy_at, self._blind_total

        def falls_stale_at(last_seen_at: int) -> int:
            return policy.stale_at(last_seen_at, since, policy_at)

        unheard_since, unheard_observed = self._seen.unheard_since, self._seen.unheard_observed

        def is_retired_at(stale_observed_at: int) -> int:
            if unheard_since and stale_observed_at <= unheard_observed:
                return max(unheard_since, since)
            return policy.retired_at(stale_observed_at, blind_total, since, policy_at)

        while True:
            heard_due = falls_stale_at(self._heard.first_instant())
            stale_due = is_retired_at(self._stale.first_instant())
            due = min(heard_due, stale_due)
            if due >= at:
                # A sender heard from now on cannot fall stale sooner either.
                self._next_deadline = min(due, falls_stale_at(self.observed_through))
                return True
            room = self._decision_limit - len(self.decisions)
            if room <= 0:
                self.observed_through = max(self.observed_through, due)
                self._settling_at = due
                return False
            if heard_due == due:
                for sender_id in self._heard.due_together(falls_stale_at, due, room):
                    self._fall_stale(sender_id, due)
            else:
                for sender_id in self._stale.due_together(is_retired_at, due, room):
                    self._forget_stale(sender_id, due)

    def _finish_settling(self) -> bool:
        """Finish an instant that the last commit left half settled: recorded inputs follow whole instants only."""
        at, self._settling_at = self._settling_at, 0
        return not at or self._settle_through(at)

    def _settle_through(self, at: int) -> bool:
        """Settle ``at`` too, and advance behind it; while coverage is suspended nothing falls due."""
        if self._seen.is_suspending:
            self._begin_coverage(at + 1)
            return True
        if not self._settle(at + 1):
            return False
        self._reach(at + 1)
        return True

    def _reach(self, at: int) -> None:
        # Where coverage has ended it begins again at the next proof, and at nothing that is settled before.
        is_closed = self._pending_blind is not None and self._since == self.observed_through
        self.observed_through = max(self.observed_through, at)
        if is_closed:
            self._since = self.observed_through

    def _close_coverage(self, at: int) -> None:
        self.decisions.append(CloseCoverage(self._since, at, self._ledger.ordinal, self.position))

    def _fall_stale(self, sender_id: str, at: int) -> None:
        state = self._touch(sender_id)
        assert state is not None, f"{sender_id} is queued but not tracked"
        if self._seen.by_subject or state.last_seen_at < self._seen.narrowed_at:
            self._retire(sender_id, at, unheard_until=state.last_seen_at + self._policy.retire_after)
            return
        state.phase = SenderPhase.STALE
        state.stale_observed_at = at - self._blind_total
        self._heard.discard(sender_id)
        self._stale.put_last(state)
        self._ledger.advise(AdvisoryKind.STALE, state, at, incarnation=self.incarnation, sequence=state.last_sequence)

    def _forget_stale(self, sender_id: str, at: int) -> None:
        state, seen = self._touch(sender_id), self._seen
        assert state is not None, f"{sender_id} is queued but not tracked"
        is_unheard = seen.unheard_since > 0 and state.stale_observed_at <= seen.unheard_observed
        self._retire(sender_id, at, unheard_until=at + self._policy.retired_after_stale if is_unheard else 0)

    def _retire(self, sender_id: str, at: int, *, by_operator: bool = False, unheard_until: int = 0) -> None:
        state = self._touch(sender_id)
        assert state is not None, f"{sender_id} is queued but not tracked"
        state.retired = True
        self._unheard_until = max(self._unheard_until, unheard_until)
        self._sender_count -= 1
        self._heard.discard(sender_id)
        self._stale.discard(sender_id)
        self._asked_for.discard(sender_id)
        self._ledger.retire(state, at, self.incarnation, by_operator=by_operator, unheard_until=unheard_until)

    def _open_episode(self, sender_id: str, sequence: int, at: int, slot: int) -> SenderState:
        incarnation = self.incarnation
        state = SenderState(sender_id, slot, SenderPhase.HEARD, at, sequence, incarnation, sequence)
        self._touched[sender_id] = state
        self._sender_count += 1
        rebuilt = may_be_relearned(at, self._rebuilt_at, self._blind_total, self._policy.retire_after)
        self._ledger.advise(AdvisoryKind.NEW, state, at, incarnation=incarnation, sequence=sequence, rebuilt=rebuilt)
        return state

    # Orders of operators: none falls before ``observed_through``, and each is a recorded input

    def change_policy(self, policy: Policy) -> bool:
        if not self._finish_settling():
            return False
        self._policy, self._policy_at = policy, self.observed_through
        self._quiet_until = self._next_deadline = 0
        self.recorded.append(PolicyChanged(self._policy_at, policy, self.position.sequence))
        return True

    def ask_for(self, sender_id: str) -> bool:
        """Forward a sender's next sighting; an unknown sender's first one is forwarded anyway."""
        if not self._finish_settling():
            return False
        if self._find_sender(sender_id) is not None:
            self._asked_for.add(sender_id)
            self.recorded.append(SenderAskedFor(self.observed_through, sender_id, self.position.sequence))
        return True

    def retire(self, sender_id: str) -> bool:
        """Retire a sender at ``observed_through`` by an operator's order.

        Never at an instant at which it was heard: readers order the advisories of one instant by their kinds, and would
        put its end before its beginning. That instant is settled first, and time advances by one microsecond.
        """
        if len(self.decisions) >= self._decision_limit or not self._finish_settling():
            return False
        state = self._find_sender(sender_id)
        if state is not None:
            if state.last_seen_at >= self.observed_through and not self._settle_through(self.observed_through):
                return False
            self._retire(sender_id, self.observed_through, by_operator=True)
            self.recorded.append(SenderRetired(self.observed_through, sender_id, self.position.sequence))
        return True

    def note_revisions(self, revisions: PolicyRevisions, what: str) -> None:
        self._revisions = revisions
        self._ledger.count("policy", what)

    def _find_sender(self, sender_id: str) -> SenderState | None:
        state = self._touch(sender_id)
        if state is None or state.retired:
            self._ledger.count("policy", "unknown_sender")
            return None
        return state
