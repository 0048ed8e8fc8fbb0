"""What may change under the tracker: the stream's past, the thresholds, the store.

Thresholds of ``POLICY``: stale after 20 s, retired after 50 s, blind after 8 s.
"""

import msgspec

from edge_agent.core.decisions import (
    Advise,
    BlindCause,
    BlindSpan,
    Clamped,
    CloseCoverage,
    EpochBegun,
    ObservationBegun,
    PolicyChanged,
)
from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from tests.support.core.watched_site import (
    OTHER_PAST,
    PAST,
    POLICY,
    WatchedSite,
    advised,
    advisories_in,
    instant,
    position,
)

BEGUN = ObservationBegun(instant(0), 0)
HASTY = msgspec.structs.replace(POLICY, stale_after=10 * SECOND, retire_after=30 * SECOND, blind_after=4 * SECOND)
PATIENT = msgspec.structs.replace(POLICY, stale_after=40 * SECOND, retire_after=100 * SECOND)


# A past that changed


def test_epoch_closes_coverage_and_counts_ordinals_anew() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.gives(lambda draft: draft.prove(instant(3), examined_sequence=40))
    assert site.begins_epoch() == [CloseCoverage(instant(0), instant(3), 1, position(1, 0))]
    assert site.recorded == [BEGUN, EpochBegun(OTHER_PAST, instant(3), 1)]
    assert (site.state.advisory_ordinal, site.state.source_clock, site.state.examined_sequence) == (0, 0, 0)
    assert advisories_in(site.hears("b", 4)) == [("new", "b", 4)]
    assert site.recorded[2:] == [BlindSpan(instant(3), instant(4), BlindCause.NEW_EPOCH, 0)]
    assert site.state.position == position(1, 4, OTHER_PAST)
    assert site.state.advisory_ordinal == 1


def test_sender_known_from_the_past_before_keeps_its_episode() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.begins_epoch(sequence=40)
    assert site.hears("a", 4) == []
    assert site.watches(25) == [
        advised(
            AdvisoryKind.STALE,
            "a",
            24,
            seen=4,
            sequence=41,
            ordinal=1,
            incarnation=OTHER_PAST,
            opening_incarnation=PAST,
        )
    ]


def test_epoch_that_follows_another_closes_nothing_more() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    assert site.begins_epoch() != []
    assert site.begins_epoch(PAST) == []


def test_when_the_last_message_was_stored_is_known_however_often_the_past_changes_before_the_next() -> None:
    site = WatchedSite()
    assert site.state.last_stored_at == 0
    site.hears("a", 1)
    for _ in range(2):
        site.begins_epoch(sequence=0)
        assert (site.state.position.stored_at, site.state.last_stored_at) == (0, instant(1))
    site.hears("a", 0.5)
    assert site.state.last_stored_at == instant(0.5)


def test_epoch_behind_a_message_that_is_still_there_keeps_when_that_was_stored() -> None:
    site = WatchedSite()
    site.hears("a", 1)
    site.gives(lambda draft: draft.begin_epoch(OTHER_PAST, 1, instant(1)))
    assert site.state.position == position(1, 1, OTHER_PAST)


def test_epoch_outranks_a_gap() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.loses(BlindCause.GAP)
    site.begins_epoch()
    site.loses(BlindCause.GAP)
    assert site.proves(1) == []
    assert site.recorded[-1] == BlindSpan(instant(0), instant(1), BlindCause.NEW_EPOCH, 0)


def test_epoch_before_the_first_proof_has_nothing_to_close() -> None:
    site = WatchedSite()
    assert site.begins_epoch() == []
    assert [*site.proves(5), *site.proves(6)] == []
    assert site.recorded == [EpochBegun(OTHER_PAST, 0, 0), ObservationBegun(instant(5), 0)]


def test_message_of_a_past_that_was_set_back_counts_at_observed_through() -> None:
    site = WatchedSite()
    site.hears("a", 100)
    site.begins_epoch()
    site.hears("a", 10)
    assert site.recorded[-2:] == [
        BlindSpan(instant(100), instant(100), BlindCause.NEW_EPOCH, 0),
        Clamped(sequence=1, counted_at=instant(100)),
    ]
    assert site.state.source_clock == instant(10)


# Thresholds that change


def test_shorter_thresholds_accuse_nobody_before_they_took_effect() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.hears("b", 2)
    site.watches(15)
    assert site.changes_policy(HASTY) == []
    assert site.recorded == [BEGUN, PolicyChanged(instant(15), HASTY, 2)]
    assert advisories_in(site.proves(16)) == [("stale", "a", 15), ("stale", "b", 15)]


def test_shorter_thresholds_retire_nobody_before_they_took_effect() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(45)
    site.changes_policy(HASTY)
    assert advisories_in(site.proves(46)) == [("retired", "a", 45)]


def test_longer_thresholds_move_deadlines_that_have_not_fallen() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(15)
    site.changes_policy(PATIENT)
    assert advisories_in(site.watches(41)) == [("stale", "a", 40)]


def test_other_thresholds_hold_from_the_same_draft_on() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(14)
    draft = site.draft()
    draft.prove(instant(15))
    draft.change_policy(HASTY)
    draft.prove(instant(16))
    assert advisories_in(draft.decisions) == [("stale", "a", 15)]
    assert (draft.state().policy, draft.state().policy_at) == (HASTY, instant(15))


# A store that was lost


def test_senders_that_a_lost_store_may_have_known_are_new_and_rebuilt() -> None:
    site = WatchedSite(rebuilding=True)
    site.proves(10)
    for at in range(15, 60, 5):
        site.proves(at)
    decisions = [*site.hears("a", 60), *site.hears("b", 60.000001)]
    assert {each.sender_id: each.rebuilt for each in decisions if isinstance(each, Advise)} == {"a": True, "b": False}
    assert (site.state.rebuilding, site.state.rebuilt_at) == (False, instant(10))


def test_blind_time_does_not_count_towards_the_end_of_rebuilding() -> None:
    site = WatchedSite(rebuilding=True)
    site.proves(10)
    site.proves(110)
    site.watches(155)
    # A hundred seconds of it were blind.
    decisions = [*site.hears("a", 160), *site.hears("b", 160.000001)]
    assert {each.sender_id: each.rebuilt for each in decisions if isinstance(each, Advise)} == {"a": True, "b": False}


def test_only_new_is_ever_rebuilt() -> None:
    site = WatchedSite(rebuilding=True)
    decisions = [*site.hears("a", 0), *site.watches(21), *site.hears("a", 22)]
    assert [(each.kind, each.rebuilt) for each in decisions if isinstance(each, Advise)] == [
        ("new", True),
        ("stale", False),
        ("recovered", False),
    ]
