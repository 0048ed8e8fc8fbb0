"""Replay of another agent's commit from the stream's messages and the recorded inputs alone.

An agent's advisories do not depend on batches, ticks, crashes or restarts: they equal those of one run over the same
inputs. Tests and fault schedules make such a run with these functions and compare byte for byte.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from edge_agent.core.block_mode import MessageIntake
from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import (
    BlindSpan,
    Clamped,
    ClockSeen,
    EpochBegun,
    ObservationBegun,
    PolicyChanged,
    RecordedInput,
    SenderAskedFor,
    SenderRetired,
    StreamSeen,
)
from edge_agent.core.draft import Draft
from edge_agent.core.observation import SourceMessage
from edge_agent.core.tracker import Tracker
from shared.identifiers import SourcePosition

NO_LIMIT = 1 << 62


def holds_before(item: RecordedInput, sequence: int) -> bool:
    return item.sequence <= sequence if isinstance(item, Clamped) else item.sequence < sequence


def apply_recorded(draft: Draft, item: RecordedInput, begins_at: SourcePosition | None = None) -> None:
    """Apply a recorded input to a draft; an epoch begins at ``begins_at`` of the new past, else at its start."""
    match item:
        case ObservationBegun(at):
            draft.prove(at)
        case Clamped(_, counted_at):
            draft.prove(counted_at)
        case BlindSpan():
            draft.pass_blind_span(item)
        case EpochBegun(incarnation, at):
            _prove_if_any(draft, at)
            sequence, stored_at = (begins_at.sequence, begins_at.stored_at) if begins_at else (0, 0)
            draft.begin_epoch(incarnation, sequence, stored_at)
        case PolicyChanged(at, policy):
            _prove_if_any(draft, at)
            draft.change_policy(policy)
        case SenderAskedFor(at, sender_id):
            _prove_if_any(draft, at)
            draft.ask_for(sender_id)
        case SenderRetired(at, sender_id):
            _prove_if_any(draft, at)
            draft.retire(sender_id)
        case StreamSeen(at):
            _prove_if_any(draft, at)
            draft.see_stream(item)
        case ClockSeen(at, _, is_ahead):
            _prove_if_any(draft, at)
            draft.see_clock(is_ahead=is_ahead)


def _prove_if_any(draft: Draft, at: int) -> None:
    """Advance to ``at``; 0 is the time before the first proof."""
    if at:
        draft.prove(at)


_OF_MESSAGES = (
    "position",
    "past_stored_at",
    "policy",
    "policy_at",
    "observed_since",
    "observed_through",
    "blind_total",
    "settling_at",
    "advisory_ordinal",
    "rebuilding",
    "rebuilt_at",
    "seen",
    "batched_at",
    "clock_ahead",
)
"""The fields of a state that follow from messages and recorded inputs; the others depend on checks of the stream."""

_COUNTED = ("valid", "tolerated", "rejected", "probes", "forwarded", "withheld", "advisories", "clamped")


class OutOfStep(Exception):
    """A replay has another result than the other agent's commit; the message names the differences."""


class OtherCommit(msgspec.Struct, frozen=True):
    """One commit of the other agent: its state, its recorded inputs, and the oldest instant that was forwarded."""

    state: BlockState
    recorded: tuple[RecordedInput, ...] = ()
    oldest_forwarded: int = 0


class CommitReplay:
    """The replay of one commit: call take() with the commit's messages in order, then finish()."""

    def __init__(self, tracker: Tracker, intake: MessageIntake[Draft], commit: OtherCommit) -> None:
        self._draft = tracker.draft(decision_limit=NO_LIMIT, detect_blind_spans=False)
        self._intake = intake
        self._commit = commit
        self._waiting = deque(commit.recorded)

    def take(self, messages: Iterable[SourceMessage]) -> Iterator[None]:
        """Apply messages; yield after each that may have taken long to read."""
        draft, waiting, oldest_forwarded = self._draft, self._waiting, self._commit.oldest_forwarded
        intake, slow_count = self._intake, self._intake.slow_count
        for message in messages:
            while waiting and holds_before(waiting[0], message.sequence):
                apply_recorded(draft, waiting.popleft())
            intake.give(draft, message, too_old=message.stored_at < oldest_forwarded)
            if intake.slow_count != slow_count:
                slow_count = intake.slow_count
                yield

    def finish(self) -> Draft:
        """Return the draft that the commit was made of; raise OutOfStep if it differs from the commit.

        The caller adopts it, and sets the tracker's state to the commit's.
        """
        while self._waiting:
            apply_recorded(self._draft, self._waiting.popleft(), self._commit.state.position)
        _reach(self._draft, self._commit.state)
        _compare(self._draft, self._commit)
        return self._draft


def _reach(draft: Draft, state: BlockState) -> None:
    """Advance as far as the other agent did: its commit may have ended in the middle of an instant."""
    if state.settling_at:
        draft.settle_some(state.settling_at, state.advisory_ordinal)
    else:
        # Also if that instant is reached already: a blind span may have passed deadlines within it.
        draft.prove(state.observed_through)


def _compare(draft: Draft, commit: OtherCommit) -> None:
    ours, theirs = draft.state(), commit.state
    different = [name for name in _OF_MESSAGES if getattr(ours, name) != getattr(theirs, name)]
    different += [what for what in _COUNTED if ours.counters.get(what) != theirs.counters.get(what)]
    if tuple(draft.recorded) != commit.recorded:
        different.append("recorded inputs")
    if different:
        raise OutOfStep(f"other {', '.join(different)} up to message {theirs.position.sequence}")
