"""What ``explain`` and ``senders`` predict is what the tracker then does."""

import pytest

from edge_agent.core.decisions import Advise
from edge_agent.core.policy import Policy
from edge_agent.inspection.blocks import KnownBlock
from shared.identifiers import AdvisoryKind, BlockId
from shared.instants import SECOND
from tests.support.core.watched_site import POLICY, START, WatchedSite, instant

BLOCK_ID = BlockId("eu-west", "dub1", "nodes")


def known(site: WatchedSite) -> KnownBlock:
    return KnownBlock(1, BLOCK_ID, site.state, is_read=True)


def predicted(site: WatchedSite, sender_id: str) -> int:
    state = site.tracker.senders.load(site.tracker.senders.slots[sender_id])
    block = known(site)
    return block.retired_at(state.stale_observed_at) if state.phase else block.stale_at(state.last_seen_at)


def next_instant(site: WatchedSite, kind: AdvisoryKind) -> int:
    """Watch until the sender's next advisory; give when that became true."""
    at = (site.state.observed_through - START) / SECOND
    decided = [each for each in site.watches(at + 200) if isinstance(each, Advise)]
    assert decided[0].kind is kind
    return decided[0].at


def test_the_instant_at_which_a_heard_sender_falls_stale_is_foreseen() -> None:
    site = WatchedSite()
    site.hears("a", 1)
    expected = predicted(site, "a")
    assert next_instant(site, AdvisoryKind.STALE) == expected == instant(1) + POLICY.stale_after


def test_a_blind_span_moves_the_foreseen_instant_as_it_moves_the_deadline() -> None:
    site = WatchedSite()
    site.hears("a", 1)
    site.proves(15)
    assert predicted(site, "a") == instant(15) + POLICY.stale_after
    assert next_instant(site, AdvisoryKind.STALE) == instant(15) + POLICY.stale_after


def test_the_instant_of_retirement_is_foreseen_without_the_time_that_nobody_watched() -> None:
    site = WatchedSite()
    site.hears("a", 1)
    site.watches(22)
    site.proves(42)
    expected = predicted(site, "a")
    assert next_instant(site, AdvisoryKind.RETIRED) == expected == instant(1 + 50 + 20)


@pytest.mark.parametrize("stale_after", [5, 60])
def test_changed_thresholds_move_the_foreseen_instant_never_before_they_hold(stale_after: int) -> None:
    site = WatchedSite()
    site.hears("a", 1)
    site.watches(14)
    policy = Policy(60 * SECOND, stale_after * SECOND, 300 * SECOND, 8 * SECOND)
    site.gives(lambda draft: draft.change_policy(policy))
    expected = predicted(site, "a")
    assert next_instant(site, AdvisoryKind.STALE) == expected == instant(max(14, 1 + stale_after))


def test_the_sighting_from_which_on_a_sample_is_due_is_foreseen() -> None:
    site = WatchedSite(Policy(60 * SECOND, 600 * SECOND, 900 * SECOND, 8 * SECOND))
    site.hears("a", 0)
    for _ in range(2):
        state = site.tracker.senders.load(site.tracker.senders.slots["a"])
        due = known(site).forwarded_again_at("a", state.last_forwarded_at, state.first_interval)
        seconds = (due - START) / SECOND
        site.watches(seconds - 0.001)
        assert not site.hears("a", seconds - 0.001)
        assert site.hears("a", seconds)
