"""Draft of the modes that do not track senders, copy and relay: position, clock and counters.

Time has no deadlines here, and coverage means only how far the stream was read.
"""

from edge_agent.core.block_state import BlockState, sum_counters
from edge_agent.core.decisions import BlindCause, Counters, Decision, EpochBegun, RecordedInput, Restriction
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.core.senders import NO_CHANGES, SenderChanges
from edge_agent.core.stream_past import StreamFacts
from shared.identifiers import Incarnation, SourcePosition


class PositionDraft:
    """Inputs applied, not yet adopted. The source's batches bound a draft, so it takes every input."""

    def __init__(self, state: BlockState) -> None:
        self._before = state
        self.decisions: list[Decision] = []
        self.recorded: list[RecordedInput] = []
        self._position, self._past_stored_at = state.position, state.past_stored_at
        self._last: SourceMessage | None = None
        self._policy = state.policy
        self._policy_at = state.policy_at
        self._revisions = state.revisions
        self._since = state.observed_since
        self._through = state.observed_through
        self._source_clock = state.source_clock
        self._examined = state.examined_sequence
        self._pending_blind = state.pending_blind
        self._was_ahead = self.clock_ahead = state.clock_ahead
        self._counts: Counters = {}

    # Inputs

    def prove(self, at: int, examined_sequence: int = 0) -> bool:
        self._advance(at)
        return self.examine(examined_sequence)

    def look_at(self, _facts: StreamFacts, *, refuses: bool) -> bool:  # noqa: ARG002 - senders are not tracked
        return True

    def lifts(self, _facts: StreamFacts, *, refuses: bool) -> set[Restriction]:  # noqa: ARG002 - as above
        return set()

    def find_thinned(self, *, thinned: bool) -> bool:  # noqa: ARG002 - as above
        return True

    def pass_unproven(self, started_at: int, ended_at: int) -> bool:  # noqa: ARG002 - as above
        return True

    def see_clock(self, *, is_ahead: bool, reference: int = 0) -> bool:
        if is_ahead and not self._through:
            self._advance(reference)
        self.clock_ahead = is_ahead
        return True

    def examine(self, sequence: int) -> bool:
        self._examined = max(self._examined, sequence)
        return True

    def lose(self, cause: BlindCause) -> None:
        """Count that messages before the next one were never seen."""
        if self._pending_blind not in (cause, BlindCause.NEW_EPOCH):
            self._pending_blind = cause
            self._count("blind", cause)

    def begin_epoch(self, incarnation: Incarnation, sequence: int, stored_at: int = 0) -> bool:
        reached = self._reached()
        self.recorded.append(EpochBegun(incarnation, self._through, reached.sequence))
        self._past_stored_at = reached.stored_at or self._past_stored_at
        self._position, self._last = SourcePosition(reached.stream, incarnation, sequence, stored_at), None
        self._source_clock = self._examined = 0
        self.lose(BlindCause.NEW_EPOCH)
        return True

    def change_policy(self, policy: Policy) -> bool:
        self._policy, self._policy_at = policy, self._through
        return True

    def ask_for(self, _sender_id: str) -> bool:
        """Count the order: no senders are tracked here."""
        self._count("policy", "unknown_sender")
        return True

    retire = ask_for

    def note_revisions(self, revisions: PolicyRevisions, what: str) -> None:
        self._revisions = revisions
        self._count("policy", what)

    def steps_back(self, at: int) -> bool:
        return at < self._source_clock - self._policy.blind_after

    def skip(self, message: SourceMessage, what: str, cause: str) -> bool:
        """Read a message that is not forwarded, and count it by outcome and cause."""
        self._read(message)
        self._count(what, cause)
        return True

    # Results

    @property
    def changes_nothing(self) -> bool:
        """True if only time advanced: no message was read, nothing counted or recorded."""
        policy_is_as_before = self._policy is self._before.policy
        is_quiet = not (self._last or self._counts or self.recorded) and self.clock_ahead == self._was_ahead
        return is_quiet and policy_is_as_before

    def state(self) -> BlockState:
        return BlockState(
            position=self._reached(),
            policy=self._policy,
            policy_at=self._policy_at,
            revisions=self._revisions,
            observed_since=self._since,
            observed_through=self._through,
            source_clock=self._source_clock,
            past_stored_at=self._past_stored_at,
            examined_sequence=self._examined,
            pending_blind=self._pending_blind,
            clock_ahead=self.clock_ahead,
            mode=self._before.mode,
            counters=sum_counters(self._before.counters, self._counts),
        )

    def changes(self) -> SenderChanges:
        return NO_CHANGES

    # Rules

    def _read(self, message: SourceMessage) -> None:
        self._last = message
        self._advance(message.stored_at)

    def _advance(self, at: int) -> None:
        if self.clock_ahead:
            return
        # Once for every message: comparing costs a third of calling max().
        if at > self._source_clock:  # noqa: PLR1730
            self._source_clock = at
        if at > self._through:  # noqa: PLR1730
            self._through = at
        if self._pending_blind is not None or not self._since:
            self._since, self._pending_blind = self._through, None

    def _reached(self) -> SourcePosition:
        last, position = self._last, self._position
        if last is None:
            return position
        return SourcePosition(position.stream, position.incarnation, last.sequence, last.stored_at)

    def _count(self, what: str, cause: str, count: int = 1) -> None:
        causes = self._counts.setdefault(what, {})
        causes[cause] = causes.get(cause, 0) + count
