"""What the hub says is laid over a block's settings; what contradicts them is refused, and the rest holds."""

import msgspec
import pytest

from edge_agent.config.stream import StreamSettings
from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import (
    Advise,
    Decision,
    Forward,
    PolicyChanged,
    RecordedInput,
    SenderAskedFor,
    SenderRetired,
)
from edge_agent.core.draft import Draft
from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.policy import PolicyRevisions
from edge_agent.core.tracker import Tracker
from edge_agent.policy.orders import PolicyOrders, effective
from shared.identifiers import AdvisoryKind, BlockId, Incarnation, SourcePosition
from shared.instants import HOUR, MINUTE, SECOND
from shared.policy import ForwardSender, Order, RetireSender, Revision, Scope, ScopedRevision, SetThresholds
from shared.thresholds import Thresholds
from shared.wire import ForwardReason
from tests.support.core.straight_replay import replay

BLOCK_ID = BlockId("eu-west", "dub1", "nodes")
EU, DUB1, NODES = Scope("eu-west"), Scope("eu-west", "dub1"), Scope("eu-west", "dub1", "nodes")
SETTINGS = msgspec.convert(
    {"name": "nodes", "source": {"servers": ["nats://a"], "stream": "R"}, "sender": {"json_path": "sender"}},
    StreamSettings,
)
BEGAN_AT = 1_700_000_000 * SECOND
STATE = BlockState(
    SourcePosition("R", Incarnation(1, BEGAN_AT // 1000), 0), SETTINGS.policy.policy(), observed_through=0
)


class Hub:
    """Says things, one after the other."""

    def __init__(self, created_at: int = 1) -> None:
        self._created_at = created_at
        self._orders: list[ScopedRevision] = []

    def orders(self) -> list[ScopedRevision]:
        return self._orders

    def says(self, scope: Scope, order: Order, given_at: int = BEGAN_AT + HOUR) -> None:
        number = len(self._orders) + 1
        revision = Revision(
            revision=number, stream_created_us=self._created_at, given_at_us=given_at, author="ops", order=order
        )
        self._orders.append(ScopedRevision(scope, revision))

    def is_restored(self, through: int) -> None:
        """Go back to an older copy of the stream, in which revisions end at ``through``."""
        del self._orders[through:]


class Site:
    """A tracked block that hears the hub."""

    def __init__(self, hub: Hub) -> None:
        self.refused = ""
        self.orders = PolicyOrders(BLOCK_ID, SETTINGS, hub, self._refuse)
        self.tracker = Tracker(STATE)
        self.read: list[Observation] = []
        self.decisions: list[Decision] = []
        self.recorded: list[RecordedInput] = []

    def _refuse(self, reason: str) -> None:
        self.refused = reason

    def hears(self, sender_id: str, seconds: int) -> None:
        at = BEGAN_AT + seconds * SECOND
        message = SourceMessage(f"registration.{sender_id}", b"{}", None, len(self.read) + 1, at)
        self.read.append(Observation(sender_id, message))
        draft = self.tracker.draft()
        assert draft.observe(self.read[-1])
        self._adopt(draft)

    def obeys(self, hub: Hub | None = None) -> None:
        orders = self.orders if hub is None else PolicyOrders(BLOCK_ID, SETTINGS, hub, self._refuse)
        draft = self.tracker.draft()
        assert all(give(draft) for give in list(orders.inputs(self.tracker.state)))
        self._adopt(draft)

    def _adopt(self, draft: Draft) -> None:
        self.decisions += draft.decisions
        self.recorded += draft.recorded
        self.tracker.adopt(draft)
        self.tracker.check_invariants()

    def told(self) -> list[tuple[str, str]]:
        return [
            (str(each.kind) if isinstance(each, Advise) else str(each.reason), each.sender_id)
            for each in self.decisions
            if isinstance(each, Advise | Forward)
        ]


def test_what_a_hub_says_anew_under_numbers_that_a_restored_stream_uses_again_is_obeyed() -> None:
    hub = Hub()
    site = Site(hub)
    for number, minutes in enumerate((60, 70, 80, 90)):
        hub.says(DUB1, SetThresholds(Thresholds(stale_after=minutes * MINUTE)), BEGAN_AT + number * HOUR)
    site.obeys()
    hub.is_restored(2)
    site.obeys()
    assert site.tracker.state.policy.stale_after == 90 * MINUTE, "what was taken holds until something else is said"
    hub.says(DUB1, SetThresholds(Thresholds(stale_after=33 * MINUTE)), BEGAN_AT + 100 * HOUR)
    site.obeys()
    assert (site.tracker.state.policy.stale_after, site.tracker.state.revisions.revision) == (33 * MINUTE, 3)
    orders = site.recorded.copy()
    site.obeys()
    assert site.recorded == orders, "once"


def test_what_an_earlier_version_has_taken_is_not_obeyed_again_whenever_it_was_given() -> None:
    """It kept when the last revision was given, which the hub's clock may have put before others."""
    hub = Hub()
    hub.says(DUB1, SetThresholds(Thresholds(stale_after=60 * MINUTE)), BEGAN_AT + 9 * HOUR)
    ((_, first),) = hub.orders()
    assert PolicyRevisions(stream_created_at=1, revision=2, given_at=BEGAN_AT + HOUR).has(first)
    assert not PolicyRevisions(stream_created_at=1, revision=2, given_at=BEGAN_AT + HOUR, knows_latest=True).has(first)


def test_a_revision_given_while_the_hubs_clock_was_set_back_is_obeyed_once() -> None:
    hub = Hub()
    site = Site(hub)
    hub.says(DUB1, SetThresholds(Thresholds(stale_after=60 * MINUTE)), BEGAN_AT + 9 * HOUR)
    hub.says(DUB1, SetThresholds(Thresholds(stale_after=70 * MINUTE)), BEGAN_AT + 1 * HOUR)
    site.obeys()
    orders = site.recorded.copy()
    site.obeys()
    assert site.recorded == orders
    assert site.tracker.state.policy.stale_after == 70 * MINUTE


def test_the_smaller_scope_holds_and_blind_after_follows_stale_after() -> None:
    hub, site = Hub(), Site(Hub())
    hub.says(NODES, SetThresholds(Thresholds(stale_after=20 * MINUTE)))
    hub.says(EU, SetThresholds(Thresholds(sample_interval=5 * MINUTE, stale_after=30 * MINUTE)))
    hub.says(Scope("eu-west", "lon1"), SetThresholds(Thresholds(sample_interval=MINUTE)))
    site.obeys(hub)
    policy = site.tracker.state.policy
    assert (policy.sample_interval, policy.stale_after, policy.blind_after) == (5 * MINUTE, 20 * MINUTE, 5 * MINUTE)
    assert policy.revision == 2, "the third is another site's"


def test_what_contradicts_the_settings_is_refused_and_the_rest_holds() -> None:
    hub, site = Hub(), Site(Hub())
    hub.says(EU, SetThresholds(Thresholds(sample_interval=5 * MINUTE)))
    hub.says(DUB1, SetThresholds(Thresholds(stale_after=30 * HOUR)))
    site.obeys(hub)
    assert site.refused == "policy for eu-west.dub1: stale_after (1d 6h) must be shorter than retire_after (1d)"
    assert site.tracker.state.policy.sample_interval == 5 * MINUTE
    assert site.tracker.state.policy.stale_after == SETTINGS.policy.stale_after


@pytest.mark.parametrize(
    ("thresholds", "line"),
    [
        (Thresholds(blind_after=5 * SECOND), "source.settle (5s) must be shorter than policy.blind_after (5s)"),
        (Thresholds(stale_after=16 * SECOND), "source.settle (5s) must be shorter than policy.blind_after (4s)"),
    ],
)
def test_a_site_is_not_made_blind(thresholds: Thresholds, line: str) -> None:
    orders = PolicyRevisions(1, 1, thresholds={"eu-west": thresholds})
    assert line in effective(BLOCK_ID, SETTINGS, orders).refused[0]


def test_a_sender_asked_for_is_forwarded_once_and_a_retired_one_is_new_again() -> None:
    hub = Hub()
    site = Site(hub)
    site.hears("web1", 0)
    site.hears("web2", 1)
    hub.says(DUB1, ForwardSender("web1"))
    hub.says(DUB1, RetireSender("web2"))
    hub.says(DUB1, RetireSender("nobody"))
    site.obeys()
    for seconds in (2, 3):
        site.hears("web1", seconds)
    site.hears("web2", 4)
    assert site.told()[4:] == [("retired", "web2"), ("policy", "web1"), ("new", "web2"), ("new", "web2")]
    retired = next(each for each in site.decisions if isinstance(each, Advise) and each.kind is AdvisoryKind.RETIRED)
    assert retired.by_operator
    assert retired.at == BEGAN_AT + SECOND + 1, "behind the sighting that is the last thing read"
    assert site.tracker.state.counters["policy"] == {"forward": 1, "retire": 2, "unknown_sender": 1}
    assert site.tracker.state.asked_for == ()


def test_an_order_to_forward_a_sender_ends_when_the_sender_is_retired() -> None:
    hub = Hub()
    site = Site(hub)
    site.hears("web1", 0)
    hub.says(DUB1, ForwardSender("web1"))
    site.obeys()
    assert "web1" in site.tracker.state.asked_for
    hub.says(DUB1, RetireSender("web1"))
    site.obeys()
    assert "web1" not in site.tracker.state.asked_for


def test_a_straight_run_with_the_recorded_inputs_decides_the_same() -> None:
    hub = Hub()
    site = Site(hub)
    site.hears("web1", 0)
    hub.says(DUB1, ForwardSender("web1"))
    hub.says(DUB1, SetThresholds(Thresholds(sample_interval=MINUTE)))
    site.obeys()
    site.hears("web1", 10)
    hub.says(DUB1, RetireSender("web1"))
    site.obeys()
    site.hears("web1", 20)
    assert [type(each) for each in site.recorded[1:]] == [
        SenderAskedFor, PolicyChanged, PolicyChanged, SenderRetired, PolicyChanged
    ]  # fmt: skip
    incarnation = STATE.position.incarnation
    straight = replay(
        STATE,
        [(incarnation, each) for each in site.read],
        site.recorded,
        site.tracker.state.observed_through,
    )
    assert straight == site.decisions
    assert ForwardReason.POLICY in [each.reason for each in straight if isinstance(each, Forward)]


def test_orders_from_before_the_store_began_are_void() -> None:
    """A store that was lost reads all of the policy again: whoever was retired then may live now."""
    hub = Hub()
    hub.says(DUB1, RetireSender("web1"), given_at=BEGAN_AT - HOUR)
    hub.says(DUB1, SetThresholds(Thresholds(sample_interval=MINUTE)), given_at=BEGAN_AT - MINUTE)
    site = Site(hub)
    site.hears("web1", 0)
    site.obeys()
    assert ("retired", "web1") not in site.told()
    assert site.tracker.state.policy.sample_interval == MINUTE
    assert site.tracker.state.counters["policy"]["too_old"] == 1


def test_a_stream_made_anew_begins_anew_and_old_orders_are_not_obeyed_twice() -> None:
    hub, anew = Hub(), Hub(created_at=2)
    hub.says(EU, SetThresholds(Thresholds(sample_interval=MINUTE)), given_at=BEGAN_AT + 1)
    hub.says(DUB1, RetireSender("web1"), given_at=BEGAN_AT + 2)
    site = Site(hub)
    site.hears("web1", 0)
    site.obeys()
    site.hears("web1", 1)
    anew.says(DUB1, RetireSender("web1"), given_at=BEGAN_AT + 2)
    site.obeys(anew)
    state = site.tracker.state
    assert (state.revisions.stream_created_at, state.revisions.revision) == (2, 1)
    assert state.policy.sample_interval == SETTINGS.policy.sample_interval
    assert [kind for kind, _ in site.told()].count("retired") == 1


def test_what_was_taken_is_not_taken_again() -> None:
    hub = Hub()
    hub.says(DUB1, SetThresholds(Thresholds(sample_interval=MINUTE)))
    site = Site(hub)
    site.obeys()
    restarted = msgspec.json.decode(msgspec.json.encode(site.tracker.state), type=BlockState)
    assert restarted == site.tracker.state
    assert not list(site.orders.inputs(restarted))
