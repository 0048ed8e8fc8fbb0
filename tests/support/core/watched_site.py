"""A site for hand-computed cases: its tracker commits after every input. Instants are seconds after START."""

from collections.abc import Callable

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, BlindCause, Decision, Forward, RecordedInput
from edge_agent.core.draft import DECISIONS_PER_DRAFT, Draft
from edge_agent.core.observation import Observation, Rejected, RejectReason, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.stream_past import StreamFacts, StreamTakes
from edge_agent.core.tracker import Tracker
from shared.identifiers import AdvisoryKind, Incarnation, SourcePosition
from shared.instants import DAY, SECOND
from shared.wire import ForwardReason

START = 1_700_000_000 * SECOND
PAST = Incarnation(created_at=START - DAY, epoch_ms=1_700_000_000_000)
OTHER_PAST = Incarnation(created_at=START - DAY, epoch_ms=1_700_000_100_000)
POLICY = Policy(
    sample_interval=60 * SECOND,
    stale_after=20 * SECOND,
    retire_after=50 * SECOND,
    blind_after=8 * SECOND,
    size_trigger=100,
)


def instant(seconds: float) -> int:
    return START + round(seconds * SECOND)


def message(sequence: int, at: float, *, size: int = 10) -> SourceMessage:
    return SourceMessage("registration.dub1", b"x" * size, None, sequence, instant(at))


def position(sequence: int, at: float, incarnation: Incarnation = PAST) -> SourcePosition:
    return SourcePosition("REGISTRATION", incarnation, sequence, instant(at))


def forwarded(sender_id: str, sequence: int, at: float, reason: ForwardReason, *, size: int = 10) -> Forward:
    return Forward(sender_id, message(sequence, at, size=size), reason)


def advised(
    kind: AdvisoryKind,
    sender_id: str,
    at: float,
    *,
    seen: float,
    sequence: int,
    ordinal: int,
    opening: int = 1,
    incarnation: Incarnation = PAST,
    opening_incarnation: Incarnation = PAST,
) -> Advise:
    return Advise(
        kind=kind,
        sender_id=sender_id,
        at=instant(at),
        last_seen_at=instant(seen),
        incarnation=incarnation,
        sequence=sequence,
        opening_incarnation=opening_incarnation,
        opening_sequence=opening,
        ordinal=ordinal,
    )


def advisories_in(decisions: list[Decision]) -> list[tuple[str, str, float]]:
    """Shorten decisions to what was said of whom, and since when in seconds after START."""
    return [
        (str(decision.kind), decision.sender_id, (decision.at - START) / SECOND)
        for decision in decisions
        if isinstance(decision, Advise)
    ]


def reasons(decisions: list[Decision]) -> list[ForwardReason]:
    return [decision.reason for decision in decisions if isinstance(decision, Forward)]


class WatchedSite:
    """Every method gives what was decided, in order; ``recorded`` collects the inputs beside the stream."""

    def __init__(
        self, policy: Policy = POLICY, *, decision_limit: int = DECISIONS_PER_DRAFT, rebuilding: bool = False
    ) -> None:
        began_at = SourcePosition("REGISTRATION", PAST, 0)
        self.tracker = Tracker(BlockState(began_at, policy, rebuilding=rebuilding))
        self.recorded: list[RecordedInput] = []
        self.commit_count = 0
        self._decision_limit = decision_limit
        self._sequence = 0

    @property
    def state(self) -> BlockState:
        return self.tracker.state

    def draft(self) -> Draft:
        return self.tracker.draft(decision_limit=self._decision_limit)

    def gives(self, give: Callable[[Draft], bool]) -> list[Decision]:
        """Give one input to as many drafts as it takes, each adopted."""
        decisions: list[Decision] = []
        is_taken = False
        while not is_taken:
            draft = self.draft()
            is_taken = give(draft)
            self.adopts(draft)
            decisions += draft.decisions
        return decisions

    def adopts(self, draft: Draft) -> None:
        self.recorded += draft.recorded
        self.tracker.adopt(draft)
        self.tracker.check_invariants()
        self.commit_count += 1

    def next_message(self, at: float, *, size: int = 10) -> SourceMessage:
        self._sequence += 1
        return message(self._sequence, at, size=size)

    def hears(
        self, sender_id: str, at: float, *, size: int = 10, digest: int = 0, forced: bool = False, too_old: bool = False
    ) -> list[Decision]:
        observation = Observation(sender_id, self.next_message(at, size=size), digest, forced)
        return self.gives(lambda draft: draft.observe(observation, too_old=too_old))

    def rejects(self, at: float, *, too_old: bool = False) -> list[Decision]:
        rejected = Rejected(self.next_message(at), RejectReason.NO_SENDER)
        return self.gives(lambda draft: draft.reject(rejected, too_old=too_old))

    def proves(self, at: float) -> list[Decision]:
        return self.gives(lambda draft: draft.prove(instant(at)))

    def watches(self, until: float) -> list[Decision]:
        """Prove every five seconds from where it stands, and at last ``until``."""
        decisions: list[Decision] = []
        through = (self.state.observed_through - START) / SECOND
        while (through := min(through + 5, until)) < until:
            decisions += self.proves(through)
        return decisions + self.proves(until)

    def loses(self, cause: BlindCause) -> None:
        draft = self.draft()
        draft.lose(cause)
        self.adopts(draft)

    def finds_thinned(self, *, thinned: bool) -> list[Decision]:
        return self.gives(lambda draft: draft.find_thinned(thinned=thinned))

    def looks(
        self, at: float, takes: StreamTakes, *, refuses: bool = False, by_subject: bool = False
    ) -> list[Decision]:
        """See what the stream takes, and whether it refuses what is sent to it."""
        facts = StreamFacts(START, 1, self._sequence, instant(at), takes=takes, refuses_by_subject=by_subject)
        return self.gives(lambda draft: draft.look_at(facts, refuses=refuses))

    def sees_clock(self, *, is_ahead: bool, reference: float = 0) -> list[Decision]:
        """See the stream's clock ahead of the others, which show ``reference``; or no more."""
        return self.gives(lambda draft: draft.see_clock(is_ahead=is_ahead, reference=instant(reference)))

    def begins_epoch(self, incarnation: Incarnation = OTHER_PAST, sequence: int = 0) -> list[Decision]:
        self._sequence = sequence
        return self.gives(lambda draft: draft.begin_epoch(incarnation, sequence))

    def changes_policy(self, policy: Policy) -> list[Decision]:
        return self.gives(lambda draft: draft.change_policy(policy))
