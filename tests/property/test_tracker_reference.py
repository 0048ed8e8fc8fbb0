"""The tracker, for all its columns and queues, decides what the rules say, read slowly by another program."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, BlindCause, CloseCoverage, Copy, Decision, Forward, StreamSeen
from edge_agent.core.draft import Draft
from edge_agent.core.observation import Observation, Rejected, RejectReason, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.tracker import Tracker
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import SECOND
from tests.support.core.reference_tracker import Closed, ReferenceTracker, Sent, Sighting, Told

STARTED_AT = 1_700_000_000 * SECOND
POLICIES = [
    Policy(sample_interval=15, stale_after=20, retire_after=50, blind_after=8, size_trigger=100),
    Policy(sample_interval=30, stale_after=12, retire_after=90, blind_after=5, max_senders=3),
    Policy(sample_interval=10, stale_after=40, retire_after=41, blind_after=10),
]

# Time in microseconds: the rules know no seconds, and small numbers collide.
passing = st.sampled_from([0, 0, 0, 1, 2, 3, 5, 7]) | st.sampled_from([-3, 8, 9, 12, 20, 21, 40, 41, 100])
sightings = st.tuples(
    st.just("see"),
    passing,
    st.sampled_from(["a", "b", "c", "d", "e", "f", None]),
    st.sampled_from([10, 10, 10, 110, 200]),
    st.sampled_from([0, 0, 0, 7]),
    st.sampled_from([False, False, False, True]),
)
proofs = st.tuples(st.just("prove"), passing)
changes = st.tuples(st.just("change"), st.sampled_from(POLICIES))
faults = st.tuples(st.sampled_from(["lose", "epoch", "commit"]))
looks = st.tuples(
    st.just("look"),
    st.sampled_from([False, False, True]),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, None, 0, 5, 30]),
    st.sampled_from([False, False, True]),
    st.sampled_from([False, False, True]),
)
clocks = st.tuples(st.just("clock"), st.sampled_from([False, False, True]))
inputs = sightings | sightings | proofs | proofs | changes | faults | looks | clocks
histories = st.lists(inputs, min_size=20, max_size=120)


class Both:
    """The tracker, committing what it is given at any time and in pieces of any size, beside the reference."""

    def __init__(self, policy: Policy, decision_limit: int) -> None:
        incarnation = Incarnation(STARTED_AT, 0)
        self._tracker = Tracker(BlockState(SourcePosition("REGISTRATION", incarnation, 0), policy))
        self._limit = decision_limit
        self._draft = self._tracker.draft(decision_limit=decision_limit)
        self._sequence = 0
        self._clock = STARTED_AT
        self._epochs = {incarnation: 0}
        self.decided: list[Decision] = []
        self.reference = ReferenceTracker(policy)

    def see(self, passed: int, sender: str | None, size: int, digest: int, forced: bool) -> None:
        self._clock += passed
        self._sequence += 1
        message = SourceMessage("", bytes(size), None, self._sequence, self._clock)
        if sender is None:
            self._give(lambda draft: draft.reject(Rejected(message, RejectReason.NO_SENDER)))
        else:
            self._give(lambda draft: draft.observe(Observation(sender, message, digest, forced)))
        self.reference.see(Sighting(self._sequence, self._clock, sender, size, digest, forced))

    def prove(self, passed: int) -> None:
        self._clock += passed
        self._give(lambda draft: draft.prove(self._clock))
        self.reference.prove(self._clock)

    def change(self, policy: Policy) -> None:
        self._give(lambda draft: draft.change_policy(policy))
        self.reference.change_policy(policy)

    def look(
        self, refuses: bool, awaits_word: bool, narrowed_before: int | None, by_subject: bool, unheard: bool
    ) -> None:
        def give(draft: Draft) -> bool:
            at = draft.observed_through
            narrowed_at = 0 if narrowed_before is None else at - narrowed_before
            seen = StreamSeen(at, self._sequence, refuses, awaits_word, narrowed_at, by_subject)
            return draft.see_stream(seen.unheard_from_here(draft._blind_total) if unheard else seen)

        self._give(give)
        self.reference.look(refuses, awaits_word, narrowed_before, by_subject, unheard)

    def clock(self, is_ahead: bool) -> None:
        self._give(lambda draft: draft.see_clock(is_ahead=is_ahead, reference=self._clock))
        self.reference.see_clock(is_ahead, self._clock)

    def lose(self) -> None:
        self._draft.lose(BlindCause.GAP)
        self.reference.lose()

    def epoch(self) -> None:
        incarnation = Incarnation(STARTED_AT, len(self._epochs))
        self._epochs[incarnation] = len(self._epochs)
        self._give(lambda draft: draft.begin_epoch(incarnation, self._sequence))
        self.reference.begin_epoch()

    def commit(self) -> None:
        self.decided += self._draft.decisions
        self._tracker.adopt(self._draft)
        self._tracker.check_invariants()
        self._draft = self._tracker.draft(decision_limit=self._limit)

    def compared(self) -> list[Told | Sent | Closed]:
        """Give what the tracker decided, in the reference's words."""
        return [self._in_short(decision) for decision in self.decided]

    def _give(self, give: Callable[[Draft], bool]) -> None:
        while not give(self._draft):
            self.commit()

    def _in_short(self, decision: Decision) -> Told | Sent | Closed:
        match decision:
            case Advise():
                opening = (self._epochs[decision.opening_incarnation], decision.opening_sequence)
                return Told(
                    decision.kind,
                    decision.sender_id,
                    decision.at,
                    decision.last_seen_at,
                    decision.sequence,
                    opening,
                    decision.ordinal,
                )
            case Forward():
                return Sent(decision.message.sequence, decision.reason)
            case CloseCoverage():
                return Closed(decision.observed_since, decision.observed_through, decision.ordinal)
            case Copy():
                raise AssertionError("a tracker copies nothing")


@settings(max_examples=500)
@given(policy=st.sampled_from(POLICIES), decision_limit=st.sampled_from([1, 2, 5, 1000]), history=histories)
def test_tracker_decides_what_the_rules_say(policy: Policy, decision_limit: int, history: list[tuple[object]]) -> None:
    both = Both(policy, decision_limit)
    arguments: list[object]
    for what, *arguments in history:
        getattr(both, str(what))(*arguments)
    both.prove(150)
    both.commit()
    assert both.compared() == both.reference.out
