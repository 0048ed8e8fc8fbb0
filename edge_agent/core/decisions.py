"""Decisions about messages and senders, and the recorded inputs, other than messages, that they depend on."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from edge_agent.core.observation import (
    Batch,
    Observation,
    ProofCause,
    Rejections,
    RejectReason,
    SourceMessage,
    with_another,
)
from edge_agent.core.policy import Policy
from edge_agent.core.senders import SenderState
from shared.identifiers import AdvisoryKind, Incarnation, SourcePosition
from shared.wire import ForwardReason

Counters = dict[str, dict[str, int]]


class Advise(msgspec.Struct, frozen=True, gc=False):
    """Decision that a sender became ``kind`` at ``at``; ``ordinal`` counts the block's advisories in its incarnation.

    ``sequence`` is the last sighting's; ``last_seen_at`` that of the sighting before for ``recovered``. ``by_operator``
    is set if the hub's policy retired the sender. ``unheard_until`` is set if the sender is retired because the stream
    may no longer take its registrations: whether it is up is not observable from its last sighting (from ``at`` if it
    was stale) until that instant.
    """

    kind: AdvisoryKind
    sender_id: str
    at: int
    last_seen_at: int
    incarnation: Incarnation
    sequence: int
    opening_incarnation: Incarnation
    opening_sequence: int
    ordinal: int
    rebuilt: bool = False
    by_operator: bool = False
    unheard_until: int = 0


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Decision to forward a message; one without a ``sender_id`` is never replaced by a newer one."""

    sender_id: str
    message: SourceMessage
    reason: ForwardReason


class CloseCoverage(msgspec.Struct, frozen=True):
    """Decision to confirm ``[observed_since, observed_through]`` a last time: a blind span starts at its end.

    ``position`` and ``ordinal`` are the last ones of that coverage: an epoch that begins there restarts both.
    """

    observed_since: int
    observed_through: int
    ordinal: int
    position: SourcePosition


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Decision to copy a message to ``subject``, unsampled."""

    message: SourceMessage
    subject: str


Decision = Advise | Forward | CloseCoverage | Copy


class BlindCause(StrEnum):
    """Why the time between two proofs is not observable."""

    UNPROVEN = "unproven"
    GAP = "gap"
    NEW_EPOCH = "new_epoch"
    REFUSED = "refused"
    NARROWED = "narrowed"
    CLOCK_AHEAD = "clock_ahead"
    BATCH = "batch"

    @property
    def meaning(self) -> str:
        """The cause as a clause about the stream, to follow a colon."""
        return _MEANINGS[self]


_MEANINGS = {
    BlindCause.UNPROVEN: "nothing proved that it could be seen: agent, link or server was away",
    BlindCause.GAP: "it let go of messages before they were read: retention, or a damaged file",
    BlindCause.NEW_EPOCH: "its past turned out to have changed",
    BlindCause.REFUSED: "it had refused what was sent to it, or lacked what it copies",
    BlindCause.NARROWED: "it had not taken what some had sent",
    BlindCause.CLOCK_AHEAD: "its server's clock was ahead of the others, and was not followed",
    BlindCause.BATCH: "registrations of several senders came in one message, which the settings do not open",
}

# Each recorded input names its place among the messages: those up to ``sequence`` were read before it.


class ObservationBegun(msgspec.Struct, frozen=True, tag="begun"):
    """The first proof: nothing before ``at`` was seen by this store."""

    at: int
    sequence: int


class BlindSpan(msgspec.Struct, frozen=True, tag="blind_span"):
    """The time between two consecutive proofs in which the stream was not observable."""

    started_at: int
    ended_at: int
    cause: BlindCause
    sequence: int


class EpochBegun(msgspec.Struct, frozen=True, tag="epoch"):
    """The stream's past turned out to have changed (or this store is new) after ``sequence`` of the old one."""

    incarnation: Incarnation
    at: int
    sequence: int


class PolicyChanged(msgspec.Struct, frozen=True, tag="policy"):
    """From ``at`` on other thresholds hold; no changed deadline falls before it."""

    at: int
    policy: Policy
    sequence: int


class SenderAskedFor(msgspec.Struct, frozen=True, tag="asked_for"):
    """The hub's policy ordered at ``at`` to forward the sender's next sighting."""

    at: int
    sender_id: str
    sequence: int


class SenderRetired(msgspec.Struct, frozen=True, tag="retired"):
    """The hub's policy retired the sender at ``at``."""

    at: int
    sender_id: str
    sequence: int


class Restriction(StrEnum):
    """Why a stream may lack some of the messages sent to it while it holds others."""

    REFUSES = "refuses"
    BY_SUBJECT = "by subject"
    TAKES_LESS = "takes less"


class StreamSeen(msgspec.Struct, frozen=True, tag="stream"):
    """The stream's restrictions from ``at`` on: it refuses messages, or takes less than before, or neither.

    It ``refuses``; or it took less and no sender was heard since (``awaits_word``); or it is ``thinned``: messages are
    missing from among those that wait to be read. No time is covered meanwhile.
    The stream may no longer take a sender that was last heard before ``narrowed_at`` (0: no such instant), nor any
    sender while it refuses ``by_subject``. A sender that fell stale before ``unheard_since`` (by the observed clock,
    ``unheard_observed``) may have come back unheard; 0: no such instant.

    ``batch`` is the form of messages that hold registrations of several senders and are read as one; "" if there are
    none. No time is covered while they arrive, nor while the stream is ``unsteady``: too much of a ``stale_after`` is
    unproven.
    """

    at: int
    sequence: int
    refuses: bool = False
    awaits_word: bool = False
    narrowed_at: int = 0
    by_subject: bool = False
    unheard_since: int = 0
    unheard_observed: int = 0
    thinned: bool = False
    batch: str = ""
    unsteady: bool = False

    @property
    def is_suspending(self) -> bool:
        return self.refuses or self.awaits_word or self.thinned or bool(self.batch) or self.unsteady

    @property
    def cause(self) -> BlindCause:
        """The cause for which no time is covered, or may be."""
        if self.refuses:
            return BlindCause.REFUSED
        if self.awaits_word:
            return BlindCause.NARROWED
        if self.thinned:
            return BlindCause.GAP
        if self.batch:
            return BlindCause.BATCH
        return BlindCause.UNPROVEN if self.unsteady else BlindCause.NARROWED

    def changed(self, at: int, sequence: int, **changes: Any) -> "StreamSeen":
        """Return a copy as of ``at``, behind the message ``sequence``, with changes."""
        return msgspec.structs.replace(self, at=at, sequence=sequence, **changes)

    def unnarrowed(self) -> "StreamSeen":
        """Return a copy for a stream that takes everything again that it took before."""
        return msgspec.structs.replace(self, awaits_word=False, narrowed_at=0, unheard_since=0, unheard_observed=0)

    def unheard_from_here(self, blind_total: int) -> "StreamSeen":
        """Return a copy in which senders stale at ``at`` may come back unheard; ``blind_total``: of all blind spans."""
        return msgspec.structs.replace(self, unheard_since=self.at, unheard_observed=self.at - blind_total)

    def lifted_in(self, later: "StreamSeen") -> set[Restriction]:
        is_lifted = {
            Restriction.REFUSES: self.refuses and not later.refuses,
            Restriction.BY_SUBJECT: self.by_subject and not later.by_subject,
            Restriction.TAKES_LESS: later.narrowed_at < self.narrowed_at,
        }
        return {each for each, lifted in is_lifted.items() if lifted}

    def has_same_restrictions(self, other: "StreamSeen") -> bool:
        return msgspec.structs.replace(self, at=other.at, sequence=other.sequence) == other


class ClockSeen(msgspec.Struct, frozen=True, tag="clock"):
    """From ``at`` on the stream's clock is ahead of other clocks and not followed, or is followed again."""

    at: int
    sequence: int
    is_ahead: bool


class Clamped(msgspec.Struct, frozen=True, tag="clamped"):
    """The message at ``sequence``, stored before ``observed_through``, counts at ``counted_at``."""

    sequence: int
    counted_at: int


RecordedInput = (
    ObservationBegun
    | BlindSpan
    | EpochBegun
    | PolicyChanged
    | SenderAskedFor
    | SenderRetired
    | StreamSeen
    | ClockSeen
    | Clamped
)


class Ledger:
    """One draft's decisions so far. ``ordinal`` is that of the last advisory, in this incarnation."""

    def __init__(self, ordinal: int, rejections: Rejections) -> None:
        self.ordinal = ordinal
        self.rejections = rejections
        self.decisions: list[Decision] = []
        self.recorded: list[RecordedInput] = []
        self.counts: Counters = {}

    def advise(
        self,
        kind: AdvisoryKind,
        state: SenderState,
        at: int,
        *,
        incarnation: Incarnation,
        sequence: int,
        rebuilt: bool = False,
    ) -> None:
        """Add an advisory; ``state`` is as it was before the sighting of ``sequence``, if a sighting caused it."""
        self.ordinal += 1
        self.count("advisories", kind)
        self.decisions.append(
            Advise(
                kind,
                state.sender_id,
                at,
                state.last_seen_at,
                incarnation,
                sequence,
                state.opening_incarnation,
                state.opening_sequence,
                self.ordinal,
                rebuilt,
            )
        )

    def retire(
        self,
        state: SenderState,
        at: int,
        incarnation: Incarnation,
        *,
        by_operator: bool = False,
        unheard_until: int = 0,
    ) -> None:
        """Retire a sender: for its silence, by an operator's order, or since the stream may no longer take it."""
        self.advise(AdvisoryKind.RETIRED, state, at, incarnation=incarnation, sequence=state.last_sequence)
        if by_operator or unheard_until:
            self.decisions[-1] = msgspec.structs.replace(
                self.decisions[-1], by_operator=by_operator, unheard_until=unheard_until
            )

    def forward(self, state: SenderState, observation: Observation, reason: ForwardReason, at: int) -> None:
        """Forward a sighting, and note it as its sender's last forwarded one."""
        note_forward(state, observation, at)
        self.count("forwarded", reason)
        self.decisions.append(Forward(state.sender_id, observation.message, reason))

    def forward_batch(self, batch: Batch, states: Mapping[str, SenderState], reason: ForwardReason, at: int) -> None:
        """Forward a message of several senders once, and note it for each sender that is tracked."""
        for each in batch.observations:
            state = states.get(each.sender_id)
            if state is not None and not state.retired:
                note_forward(state, each, at)
        self.pass_on(batch.message, reason)

    def pass_on(self, message: SourceMessage, reason: ForwardReason = ForwardReason.COPY) -> None:
        """Forward a message that belongs to no single sender: no newer message replaces it."""
        self.count("forwarded", reason)
        self.decisions.append(Forward("", message, reason))

    def refuse(self, message: SourceMessage, reason: RejectReason, at: int, number: int = 1) -> None:
        """Count ``number`` registrations of a message as rejected."""
        self.count("rejected", reason, number)
        self.rejections = with_another(self.rejections, message, reason, at, number)

    def count_parts(self, batch: Batch, at: int) -> None:
        """Count the parts of a message that are not sightings: goodbyes and, by cause, parts without a sender."""
        if batch.goodbyes:
            self.count("probes", ProofCause.GOODBYE, batch.goodbyes)
        last = {each.reason: each.message for each in batch.rejected}
        for cause, number in Counter(each.reason for each in batch.rejected).items():
            self.refuse(last[cause], cause, at, number)

    def turn_away(self, message: SourceMessage, at: int, number: int = 1) -> None:
        """Reject registrations of a sender beyond ``max_senders``; they are not forwarded: any number may follow."""
        self.refuse(message, RejectReason.TOO_MANY_SENDERS, at, number)
        self.count("withheld", RejectReason.TOO_MANY_SENDERS, number)

    def count(self, what: str, cause: str, number: int = 1) -> None:
        causes = self.counts.get(what)
        if causes is None:
            causes = self.counts[what] = {}
        causes[cause] = causes.get(cause, 0) + number


def note_forward(state: SenderState, observation: Observation, at: int) -> None:
    state.first_interval = not state.last_forwarded_at
    state.last_forwarded_at = at
    state.forwarded_size = len(observation.message.payload)
    state.forwarded_digest = observation.digest
