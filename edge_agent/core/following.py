"""Decide once more what another agent has decided, commit by commit: from the same messages and its recorded inputs.

What comes out is held against what the other says came out. Where that differs, the two have not seen the same: a
message was gone when it was to be read, or the settings are not the same.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from edge_agent.core.block_mode import MessageIntake
from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import RecordedInput
from edge_agent.core.draft import Draft
from edge_agent.core.observation import SourceMessage
from edge_agent.core.replay import NO_LIMIT, apply_recorded, holds_before
from edge_agent.core.tracker import Tracker

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
    "clock_ahead",
)
"""What follows from messages and recorded inputs; the rest of a state, from looking at the stream."""

_COUNTED = ("valid", "tolerated", "rejected", "probes", "forwarded", "withheld", "advisories", "clamped")


class OutOfStep(Exception):
    """What another agent decided cannot be decided here once more; the text says why."""


class OtherCommit(msgspec.Struct, frozen=True):
    """One commit of the other agent's: the state it led to, what was recorded, and what was too old to be forwarded."""

    state: BlockState
    recorded: tuple[RecordedInput, ...] = ()
    oldest_forwarded: int = 0


class Following:
    """One commit, decided once more: let it take the commit's messages in order, then finish it."""

    def __init__(self, tracker: Tracker, intake: MessageIntake, commit: OtherCommit) -> None:
        self._draft = tracker.draft(decision_limit=NO_LIMIT, detect_blind_spans=False)
        self._intake = intake
        self._commit = commit
        self._waiting = deque(commit.recorded)

    def take(self, messages: Iterable[SourceMessage]) -> Iterator[None]:
        """Take messages; stop behind each that may have taken long to read."""
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
        """Give the draft that the commit was made of; raise OutOfStep where it comes out another.

        Adopt it, and let the tracker's state be the commit's.
        """
        while self._waiting:
            apply_recorded(self._draft, self._waiting.popleft(), self._commit.state.position)
        _reach(self._draft, self._commit.state)
        _compare(self._draft, self._commit)
        return self._draft


def _reach(draft: Draft, state: BlockState) -> None:
    """Let time go on as far as it did for the other, whose commit may have ended in the middle of an instant."""
    if state.settling_at:
        draft.settle_some(state.settling_at, state.advisory_ordinal)
    else:
        # Also where no time is left to go: a blind span may have passed what fell due within it.
        draft.prove(state.observed_through)


def _compare(draft: Draft, commit: OtherCommit) -> None:
    ours, theirs = draft.state(), commit.state
    different = [name for name in _OF_MESSAGES if getattr(ours, name) != getattr(theirs, name)]
    different += [what for what in _COUNTED if ours.counters.get(what) != theirs.counters.get(what)]
    if tuple(draft.recorded) != commit.recorded:
        different.append("recorded inputs")
    if different:
        raise OutOfStep(f"other {', '.join(different)} up to message {theirs.position.sequence}")
