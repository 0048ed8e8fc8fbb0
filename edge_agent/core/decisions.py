"""Name what is decided of messages and senders, and the inputs beside the stream that its decisions depend on."""

from enum import StrEnum

import msgspec

from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy
from shared.identifiers import AdvisoryKind, Incarnation, SourcePosition
from shared.wire import ForwardReason


class Advise(msgspec.Struct, frozen=True, gc=False):
    """Say that a sender became ``kind`` at ``at``; ``ordinal`` counts the block's advisories in its incarnation.

    ``sequence`` is the last sighting's; ``last_seen_at`` that of the sighting before for ``recovered``. ``by_operator``
    where a sender is retired because the hub's policy says so; ``unheard_until`` where it is because nobody could hear
    it: whether it lives is not known from its last sighting until then (from ``at`` where it was stale).
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
    """Forward a message; an unidentified one (``sender_id`` empty) is never replaced by a newer one."""

    sender_id: str
    message: SourceMessage
    reason: ForwardReason


class CloseCoverage(msgspec.Struct, frozen=True):
    """Vouch for ``[observed_since, observed_through]`` a last time: a blind span starts at its end.

    ``position`` and ``ordinal`` are those that the coverage ends with: an epoch that begins there counts anew.
    """

    observed_since: int
    observed_through: int
    ordinal: int
    position: SourcePosition


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Copy a message to ``subject``, unsampled."""

    message: SourceMessage
    subject: str


Decision = Advise | Forward | CloseCoverage | Copy


class BlindCause(StrEnum):
    """Why nobody can know what happened between two proofs."""

    UNPROVEN = "unproven"
    GAP = "gap"
    NEW_EPOCH = "new_epoch"
    REFUSED = "refused"
    NARROWED = "narrowed"
    CLOCK_AHEAD = "clock_ahead"

    @property
    def meaning(self) -> str:
        """Say it of the stream, in words that follow a colon."""
        return _MEANINGS[self]


_MEANINGS = {
    BlindCause.UNPROVEN: "nothing proved that it could be seen: agent, link or server was away",
    BlindCause.GAP: "its retention removed messages before they were read",
    BlindCause.NEW_EPOCH: "its past turned out to have changed",
    BlindCause.REFUSED: "it had refused what was sent to it",
    BlindCause.NARROWED: "it had not taken what some had sent",
    BlindCause.CLOCK_AHEAD: "its server's clock was ahead of the others, and was not followed",
}

# Each recorded input says behind which message it holds: those of ``sequence`` and before were read before it.


class ObservationBegun(msgspec.Struct, frozen=True, tag="begun"):
    """The first proof: nothing before ``at`` was seen by this store."""

    at: int
    sequence: int


class BlindSpan(msgspec.Struct, frozen=True, tag="blind_span"):
    """The time between two consecutive proofs in which nothing vouches for the stream."""

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
    """At ``at`` the hub's policy asked for the sender's next sighting."""

    at: int
    sender_id: str
    sequence: int


class SenderRetired(msgspec.Struct, frozen=True, tag="retired"):
    """At ``at`` the hub's policy ended the sender's life."""

    at: int
    sender_id: str
    sequence: int


class StreamSeen(msgspec.Struct, frozen=True, tag="stream"):
    """At ``at`` the stream was seen to refuse what is sent to it, to take less than before, or neither any more.

    It ``refuses``, or, where ``awaits_word``, took less and nobody was heard since, or is ``thinned``: from among what
    waits to be read, messages are gone. No time is covered meanwhile.
    Whoever was heard last before ``narrowed_at`` (0: nobody) may be one whom the stream does not take any more, and so
    may anybody while it refuses ``by_subject``. Who had fallen stale before ``unheard_since`` (by the observed clock,
    ``unheard_observed``) may have come back unheard; 0: nobody.
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

    @property
    def is_suspending(self) -> bool:
        """Tell whether no time is covered."""
        return self.refuses or self.awaits_word or self.thinned

    @property
    def cause(self) -> BlindCause:
        """Give why no time is covered, or may be."""
        if self.refuses or not self.thinned:
            return BlindCause.REFUSED if self.refuses else BlindCause.NARROWED
        return BlindCause.NARROWED if self.awaits_word else BlindCause.GAP

    def says_as(self, other: "StreamSeen") -> bool:
        """Tell whether another look has found the same."""
        return msgspec.structs.replace(self, at=other.at, sequence=other.sequence) == other


class ClockSeen(msgspec.Struct, frozen=True, tag="clock"):
    """At ``at`` the stream's clock was seen to be ahead of what other clocks allow, and is not followed; or no more."""

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
