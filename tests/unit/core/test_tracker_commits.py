"""Nothing is decided before it is committed, and how much one commit carries does not show in what is decided."""

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import BlindCause, Clamped, CloseCoverage, ObservationBegun, PolicyChanged
from edge_agent.core.observation import Observation, Rejected, Rejection, RejectReason
from shared.identifiers import AdvisoryKind, SourcePosition
from shared.instants import SECOND
from shared.wire import ForwardReason
from tests.support.core.watched_site import (
    PAST,
    POLICY,
    WatchedSite,
    advised,
    advisories_in,
    instant,
    message,
    position,
    reasons,
)

NEVER_BLIND = msgspec.structs.replace(POLICY, blind_after=1000 * SECOND)


def test_what_was_not_committed_was_not_forwarded() -> None:
    site = WatchedSite()
    lost = site.draft()
    assert lost.observe(Observation("a", message(1, 0)))
    assert reasons(lost.decisions) == [ForwardReason.NEW]
    again = site.draft()
    again.observe(Observation("a", message(1, 0)))
    assert again.decisions == lost.decisions


def test_draft_that_is_dropped_leaves_nothing_behind() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    before = site.state
    lost = site.draft()
    lost.observe(Observation("b", message(2, 21)))
    assert advisories_in(lost.decisions) != []
    assert site.state == before
    assert site.tracker.sender_counts() == {"heard": 1, "stale": 0}
    assert advisories_in(site.watches(21)) == [("stale", "a", 20)]


def test_state_after_a_commit_is_whole() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.rejects(1)
    site.hears("a", 3)
    assert site.state == BlockState(
        position=position(3, 3),
        policy=POLICY,
        observed_since=instant(0),
        observed_through=instant(3),
        source_clock=instant(3),
        advisory_ordinal=1,
        counters={
            "valid": {"registrations": 2},
            "rejected": {"no_sender": 1},
            "advisories": {"new": 1},
            "forwarded": {"new": 1, "copy": 1},
        },
        rejections={
            "no_sender registration.dub1": Rejection(
                "registration.dub1", RejectReason.NO_SENDER, 1, instant(1), instant(1), 2, "xxxxxxxxxx"
            )
        },
        largest_size=10,
    )


def test_first_proof_is_recorded_behind_the_start_position() -> None:
    site = WatchedSite()
    site.proves(3)
    assert site.recorded == [ObservationBegun(instant(3), 0)]
    assert (site.state.observed_since, site.state.observed_through) == (instant(3), instant(3))


def test_proof_that_only_moves_time_needs_no_commit() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    draft = site.draft()
    draft.prove(instant(5), examined_sequence=9)
    assert draft.changes_nothing


@pytest.mark.parametrize("did", ["read", "decided", "was blind", "lost"])
def test_draft_that_did_more_than_move_time_needs_a_commit(did: str) -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(20)
    draft = site.draft()
    match did:
        case "read":
            draft.observe(Observation("a", message(2, 20)))
        case "decided":
            draft.prove(instant(21))
        case "was blind":
            draft.prove(instant(29))
        case "lost":
            draft.lose(BlindCause.GAP)
    assert not draft.changes_nothing


def test_caught_up_check_remembers_what_it_has_examined() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.gives(lambda draft: draft.prove(instant(1), examined_sequence=40))
    assert (site.state.position, site.state.read_through) == (SourcePosition("REGISTRATION", PAST, 1, instant(0)), 40)


# Many inputs in one draft


def test_sender_may_retire_and_return_within_one_draft() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(49)
    draft = site.draft()
    draft.observe(Observation("a", message(2, 51)))
    site.adopts(draft)
    assert advisories_in(draft.decisions) == [("retired", "a", 50), ("new", "a", 51)]
    assert site.tracker.sender_counts() == {"heard": 1, "stale": 0}


def test_sender_born_and_retired_within_one_draft_leaves_nothing() -> None:
    site = WatchedSite(NEVER_BLIND)
    draft = site.draft()
    draft.observe(Observation("a", message(1, 0)))
    draft.prove(instant(51))
    site.adopts(draft)
    assert advisories_in(draft.decisions) == [("new", "a", 0), ("stale", "a", 20), ("retired", "a", 50)]
    assert site.tracker.sender_counts() == {"heard": 0, "stale": 0}


def test_sender_heard_within_a_draft_falls_stale_within_it() -> None:
    site = WatchedSite(NEVER_BLIND)
    draft = site.draft()
    draft.prove(instant(0))
    draft.prove(instant(1))
    draft.observe(Observation("a", message(1, 2)))
    draft.prove(instant(23))
    assert advisories_in(draft.decisions) == [("new", "a", 2), ("stale", "a", 22)]


def test_sender_that_fell_stale_and_recovered_within_a_draft_is_heard() -> None:
    site = WatchedSite(NEVER_BLIND)
    site.hears("a", 0)
    draft = site.draft()
    draft.prove(instant(21))
    draft.observe(Observation("a", message(2, 40)))
    draft.prove(instant(55))
    site.adopts(draft)
    assert advisories_in(draft.decisions) == [("stale", "a", 20), ("recovered", "a", 40)]
    assert site.tracker.sender_counts() == {"heard": 1, "stale": 0}


def test_sender_heard_within_a_draft_does_not_fall_stale_with_those_seen_beside_it_before() -> None:
    site = WatchedSite()
    for sender_id in "cab":
        site.hears(sender_id, 0)
    site.watches(19)
    draft = site.draft()
    draft.observe(Observation("a", message(4, 20)))
    draft.prove(instant(21))
    site.adopts(draft)
    assert advisories_in(draft.decisions) == [("stale", "b", 20), ("stale", "c", 20)]


# Few decisions in one commit


def test_draft_stops_where_it_holds_as_many_decisions_as_one_commit_carries() -> None:
    site = WatchedSite(decision_limit=2)
    for sender_id in "edcba":
        site.hears(sender_id, 0)
    site.watches(20)
    draft = site.draft()
    assert draft.prove(instant(21)) is False
    assert advisories_in(draft.decisions) == [("stale", "a", 20), ("stale", "b", 20)]
    assert draft.state().settling_at == instant(20)


def test_draft_takes_no_sighting_beyond_what_one_commit_carries() -> None:
    site = WatchedSite(decision_limit=5)
    draft = site.draft()
    # A first sighting is two decisions: the third one reaches the limit.
    taken = [draft.observe(Observation(sender_id, message(n, n))) for n, sender_id in enumerate("abcd", 1)]
    assert taken == [True, True, True, False]
    assert len(draft.decisions) == 6
    assert draft.position == position(3, 3)
    rejected = Rejected(message(4, 4), RejectReason.NO_SENDER)
    assert not draft.reject(rejected)


@pytest.mark.parametrize(("decision_limit", "commit_count"), [(1, 24), (2, 20), (1000, 17)])
def test_limit_changes_how_many_commits_it_takes_and_nothing_else(decision_limit: int, commit_count: int) -> None:
    site = WatchedSite(decision_limit=decision_limit)
    for sender_id in "edcba":
        site.hears(sender_id, 0)
    assert advisories_in([*site.watches(21), *site.hears("b", 22), *site.watches(51)]) == [
        *(("stale", sender_id, 20) for sender_id in "abcde"),
        ("recovered", "b", 22),
        ("stale", "b", 42),
        *(("retired", sender_id, 50) for sender_id in "acde"),
    ]
    assert site.recorded == [ObservationBegun(instant(0), 0)]
    assert site.commit_count == commit_count


def half_settled() -> WatchedSite:
    """The agent ended between two commits: of three senders due at 20 s, two have fallen stale."""
    site = WatchedSite(decision_limit=2)
    for sender_id in "cba":
        site.hears(sender_id, 0)
    site.watches(20)
    draft = site.draft()
    draft.prove(instant(21))
    site.adopts(draft)
    return site


def test_instant_left_half_settled_is_finished_before_a_sighting_at_that_instant() -> None:
    site = half_settled()
    assert advisories_in(site.hears("a", 20)) == [("stale", "c", 20), ("recovered", "a", 20.000001)]
    assert site.recorded[-1] == Clamped(sequence=4, counted_at=instant(20.000001))


def test_instant_left_half_settled_is_finished_before_thresholds_change() -> None:
    site = half_settled()
    assert advisories_in(site.changes_policy(POLICY)) == [("stale", "c", 20)]
    assert site.recorded[-1] == PolicyChanged(instant(20.000001), POLICY, 3)


def test_instant_left_half_settled_is_finished_before_an_epoch_begins() -> None:
    site = half_settled()
    assert site.begins_epoch() == [
        advised(AdvisoryKind.STALE, "c", 20, seen=0, sequence=1, ordinal=6),
        CloseCoverage(instant(0), instant(20.000001), 6, position(3, 0)),
    ]


def test_senders_that_share_an_instant_fall_stale_once_each_in_order_whatever_drafts_were_dropped() -> None:
    site = WatchedSite(decision_limit=3)
    names = ["d", "a", "e", "c", "b", "g", "f"]
    for second, sender_id in enumerate(names):
        site.hears(sender_id, second / 10)
    site.hears("living", 500)
    site.watches(520)
    decided = []
    is_taken = False
    while not is_taken:
        # Every commit fails once: its draft is dropped, and decides the same again.
        drafts = [site.draft(), site.draft()]
        taken = {draft.prove(instant(521)) for draft in drafts}
        assert len(taken) == 1
        assert drafts[0].decisions == drafts[1].decisions
        site.adopts(drafts[1])
        decided += advisories_in(drafts[1].decisions)
        is_taken = taken.pop()
    assert [sender_id for kind, sender_id, _ in decided if kind == "stale"] == [*sorted(names), "living"]
