"""State of one stream block, except for its senders; committed with every batch and loaded at the start."""

import msgspec

from edge_agent.core.decisions import BlindCause, Counters, StreamSeen
from edge_agent.core.observation import Rejections
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.core.stream_past import StreamTakes
from edge_agent.core.unproven import Spans
from shared.decoding import Decoder
from shared.identifiers import SourcePosition

UNSTEADY = "stored nothing for long parts of the time"
"""The ``loss`` of a stream of which too much time is unproven."""


class PairMark(msgspec.Struct, frozen=True):
    """A state's place in the log of a redundant pair: the last entry behind it, and the log's ``generation``."""

    generation: str
    sequence: int


class BlockState(msgspec.Struct, frozen=True, rename={"revisions": "standing"}):
    """One block's position, coverage and counters. Instants are microseconds; 0 means that there was none yet.

    ``past_stored_at`` is the stream's own time of the last message that was read before its past changed.
    ``examined_sequence`` is the stream's last sequence when the reader was caught up: with a filter it lies beyond
    the position. ``source_clock`` is the stream's own time as last shown, before any clamping: a step back against
    it is a changed past, while ``observed_through`` never goes back. ``blind_total`` is the length of all blind
    spans: the observed clock is the stream's time less that. ``pending_blind`` makes the next proof close a blind
    span, however short. ``settling_at`` is an instant whose deadlines a commit of limited size left half settled: they
    are finished before anything else happens. ``rebuilt_at`` is the first proof of a store that replaced a lost one;
    ``rebuilding`` holds until there was one. ``store_began_at`` is the server's time at which the store began with the
    block; 0 in a store of an older agent. ``policy`` holds since ``policy_at``; ``revisions`` are the applied ones of
    the hub's policy, which has asked for the next sightings of the senders ``asked_for``. ``mode`` is the block's mode.
    ``takes`` is what the stream's configuration let it take at the last check, ``took`` what it took before it began
    to take less; ``took`` is None if no sender is missed because of that. Senders retired as unheard count as missed
    through ``unheard_until``. ``seen`` are the stream's restrictions. ``clock_ahead`` is True while the stream's clock
    is ahead of the others and not followed: no time passes. ``rejections`` (of a mode that tracks senders) are the
    latest ones, and ``largest_size`` is that of the largest message read in such a mode, in bytes. ``mark`` is set by
    members of a redundant pair only.
    ``batched_at`` is the instant of the last message that holds registrations of several senders and was read as one.
    ``unproven`` are the spans of the last ``stale_after`` in which the stream stored too little to be proven to store.
    """

    position: SourcePosition
    policy: Policy
    policy_at: int = 0
    revisions: PolicyRevisions = PolicyRevisions()
    asked_for: tuple[str, ...] = ()
    observed_since: int = 0
    observed_through: int = 0
    source_clock: int = 0
    past_stored_at: int = 0
    examined_sequence: int = 0
    blind_total: int = 0
    pending_blind: BlindCause | None = None
    settling_at: int = 0
    advisory_ordinal: int = 0
    rebuilding: bool = False
    rebuilt_at: int = 0
    store_began_at: int = 0
    mode: str = "sample"
    counters: Counters = {}
    takes: StreamTakes | None = None
    took: StreamTakes | None = None
    unheard_until: int = 0
    seen: StreamSeen = StreamSeen(0, 0)
    clock_ahead: bool = False
    rejections: Rejections = {}
    largest_size: int = 0
    mark: PairMark | None = None
    batched_at: int = 0
    unproven: Spans = ()

    @property
    def is_learning(self) -> bool:
        """True until every sender that a lost store may have held is heard or due to be retired."""
        through, retire_after = self.observed_through, self.policy.retire_after
        return self.rebuilding or may_be_relearned(through, self.rebuilt_at, self.blind_total, retire_after)

    @property
    def is_suspended(self) -> bool:
        """True while time passes without being covered, since the stream may lack messages sent to it."""
        return self.seen.is_suspending

    @property
    def loss(self) -> str:
        """A clause on messages that the stream no longer takes or has deleted unread, if senders may be missed."""
        if self.seen.thinned:
            return "let go of messages before they were read"
        if self.seen.batch and not self.seen.awaits_word:
            return "has messages of several senders, which [stream.sender] does not open"
        if self.seen.unsteady and not self.seen.awaits_word:
            return UNSTEADY
        return self.took.lost_in(self.takes) if self.took and self.takes else ""

    @property
    def read_through(self) -> int:
        """The last sequence that is done, whether it passed the filter or not."""
        return max(self.position.sequence, self.examined_sequence)

    @property
    def last_stored_at(self) -> int:
        """The stream's own time of the last message that was read, in any past; 0 if none was."""
        return self.position.stored_at or self.past_stored_at

    @property
    def latest_stored_at(self) -> int:
        """The latest of the stream's own times that was seen: its clock may have gone back a little since."""
        return max(self.last_stored_at, self.source_clock)


decode_block_state = Decoder(BlockState, "a block's state")


def may_be_relearned(at: int, rebuilt_at: int, blind_total: int, retire_after: int) -> bool:
    """Return True if a lost store, replaced at ``rebuilt_at``, may have held a sender first heard ``at``.

    It would have retired the sender after ``retire_after`` of observed time.
    """
    return rebuilt_at > 0 and at - rebuilt_at - blind_total <= retire_after


def sum_counters(counters: Counters, additions: Counters) -> Counters:
    """Return the sum of two sets of counters, by outcome and cause."""
    total = {what: dict(causes) for what, causes in counters.items()}
    for what, causes in additions.items():
        sums = total.setdefault(what, {})
        for cause, count in causes.items():
            sums[cause] = sums.get(cause, 0) + count
    return total
