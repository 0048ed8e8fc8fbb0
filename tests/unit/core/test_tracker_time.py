"""Time, as the tracker counts it: proofs, blind spans and clamped messages.

Thresholds of ``POLICY``: stale after 20 s, retired after 50 s, blind after 8 s.
"""

import pytest

from edge_agent.core.decisions import (
    Advise,
    BlindCause,
    BlindSpan,
    Clamped,
    ClockSeen,
    CloseCoverage,
    ObservationBegun,
)
from edge_agent.core.stream_past import StreamFacts, StreamTakes
from shared.identifiers import AdvisoryKind
from tests.support.core.watched_site import START, WatchedSite, advised, advisories_in, instant, position

BEGUN = ObservationBegun(instant(0), 0)

# Blind spans


def test_proofs_as_far_apart_as_blind_after_leave_no_blind_span() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    assert site.proves(8) == []
    assert site.state.observed_since == instant(0)


def test_proofs_further_apart_enclose_a_blind_span_that_closes_coverage_at_its_start() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.proves(3)
    assert site.proves(11.000001) == [CloseCoverage(instant(0), instant(3), 1, position(1, 0))]
    assert site.recorded == [BEGUN, BlindSpan(instant(3), instant(11.000001), BlindCause.UNPROVEN, 1)]
    assert site.state.observed_since == site.state.observed_through == instant(11.000001)
    assert site.state.counters["blind"] == {"unproven": 1}


def test_backlog_whose_messages_follow_closely_is_proof_of_itself() -> None:
    site = WatchedSite()
    for at in range(0, 80, 8):
        site.hears("a", at)
    assert site.recorded == [BEGUN]
    assert site.state.observed_since == instant(0)


def test_message_without_a_sender_is_a_proof() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.rejects(6)
    site.proves(12)
    assert site.recorded == [BEGUN]


def test_blind_observer_accuses_nobody() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.proves(5)
    site.proves(25)
    assert site.watches(46) == [advised(AdvisoryKind.STALE, "a", 45, seen=0, sequence=1, ordinal=2)]


def test_deadline_before_a_blind_span_is_established_before_it_is_closed() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(20)
    site.proves(20.5)
    decisions = site.proves(40)
    assert advisories_in(decisions) == []
    assert decisions == [CloseCoverage(instant(0), instant(20.5), 2, position(1, 0))]


def test_deadline_at_the_very_start_of_a_blind_span_was_not_seen() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(20)
    assert advisories_in(site.proves(30)) == []
    assert advisories_in(site.watches(51)) == [("stale", "a", 50)]


def test_blind_time_does_not_count_towards_retirement() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(25)
    site.proves(45)
    assert advisories_in(site.watches(71)) == [("retired", "a", 70)]


def test_blind_time_before_the_stale_instant_counts_once() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.proves(5)
    site.proves(25)
    site.watches(46)
    assert advisories_in(site.watches(76)) == [("retired", "a", 75)]


def test_retirement_at_the_very_start_of_a_blind_span_falls_at_its_end() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(50)
    assert advisories_in(site.proves(70)) == []
    assert advisories_in(site.watches(71)) == [("retired", "a", 70)]


def test_sender_heard_at_the_end_of_a_blind_span_is_not_accused() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    assert advisories_in(site.hears("a", 100)) == []
    assert advisories_in(site.watches(121)) == [("stale", "a", 120)]


def test_replay_takes_blind_spans_as_they_are_told() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    draft = site.tracker.draft(detect_blind_spans=False)
    draft.prove(instant(15))
    assert (draft.decisions, draft.recorded) == ([], [])


# A gap


def test_gap_is_a_blind_span_however_soon_the_next_proof_comes() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.loses(BlindCause.GAP)
    assert site.proves(1) == [CloseCoverage(instant(0), instant(0), 1, position(1, 0))]
    assert site.recorded[1:] == [BlindSpan(instant(0), instant(1), BlindCause.GAP, 1)]
    assert site.state.counters["blind"] == {"gap": 1}
    assert advisories_in(site.watches(22)) == [("stale", "a", 21)]


def test_gap_that_grows_before_the_next_proof_is_one() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    for _ in range(3):
        site.loses(BlindCause.GAP)
    site.proves(1)
    assert site.state.counters["blind"] == {"gap": 1}
    site.loses(BlindCause.GAP)
    site.begins_epoch()
    for cause in (BlindCause.GAP, BlindCause.NEW_EPOCH):
        site.loses(cause)
    site.proves(2)
    assert site.state.counters["blind"] == {"gap": 2, "new_epoch": 1}


def test_gap_before_a_message_stored_earlier_is_a_blind_span_without_length() -> None:
    site = WatchedSite()
    site.hears("a", 5)
    site.loses(BlindCause.GAP)
    site.hears("a", 3)
    assert site.recorded[1:] == [
        BlindSpan(instant(5), instant(5), BlindCause.GAP, 1),
        Clamped(sequence=2, counted_at=instant(5)),
    ]


# Clamped messages


def test_message_stored_before_observed_through_counts_at_it() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.proves(5)
    site.hears("a", 3)
    assert site.recorded == [BEGUN, Clamped(sequence=2, counted_at=instant(5))]
    assert site.state.counters["clamped"] == {"stored_earlier": 1}
    assert advisories_in(site.watches(26)) == [("stale", "a", 25)]


def test_position_remembers_a_clamped_message_by_its_own_time() -> None:
    site = WatchedSite()
    site.proves(5)
    site.hears("a", 3)
    assert site.state.position == position(1, 3)
    assert (site.state.observed_through, site.state.source_clock) == (instant(5), instant(5))


def test_proof_that_comes_late_takes_nothing_back() -> None:
    site = WatchedSite()
    site.proves(5)
    assert site.proves(2) == []
    assert site.state.observed_through == instant(5)


@pytest.mark.parametrize(("at", "answer"), [(12, False), (11.999999, True)])
def test_stream_steps_back_when_its_time_falls_further_than_blind_after(at: float, answer: bool) -> None:
    site = WatchedSite()
    site.hears("a", 20)
    assert site.draft().steps_back(instant(at)) is answer


# What the stream takes

EVERYTHING, A_PART = StreamTakes(("registration.>",)), StreamTakes(("registration.dub1",))


def test_time_in_which_the_stream_refuses_is_not_covered_though_some_of_it_gets_through() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(2, EVERYTHING)
    assert site.looks(4, EVERYTHING, refuses=True) == [CloseCoverage(instant(0), instant(0), 1, position(1, 0))]
    for at in range(5, 60, 5):
        assert advisories_in(site.hears("b", at)) == ([("new", "b", 5)] if at == 5 else [])
    assert site.state.observed_since == site.state.observed_through == instant(55)
    assert site.state.is_suspended
    site.looks(56, EVERYTHING)
    site.proves(57)
    assert site.state.observed_since == instant(57)
    assert advisories_in(site.watches(78)) == [("stale", "a", 77), ("stale", "b", 77)]
    assert site.state.blind_total == instant(57) - instant(0)
    assert site.state.counters["blind"] == {"refused": 1}


def test_nothing_is_covered_after_the_stream_took_less_until_somebody_is_heard() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, A_PART)
    site.watches(40)
    assert (site.state.is_suspended, site.state.loss) == (True, "no longer listens on registration.>")
    site.hears("b", 41)
    assert (site.state.is_suspended, site.state.observed_since) == (False, instant(41))


def test_who_was_heard_before_the_stream_took_less_is_retired_unheard_and_who_was_heard_since_is_stale() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, A_PART)
    site.hears("b", 3)
    (unheard, stale) = [each for each in site.watches(25) if isinstance(each, Advise)]
    # Both had their full time from the first word on, at which coverage began again.
    assert (unheard.kind, unheard.sender_id, unheard.at) == (AdvisoryKind.RETIRED, "a", instant(23))
    assert unheard.unheard_until == instant(50)
    assert (stale.kind, stale.sender_id, stale.unheard_until) == (AdvisoryKind.STALE, "b", 0)
    assert not site.looks(26, A_PART)
    assert site.state.loss == "no longer listens on registration.>", "a is missed"
    assert advisories_in(site.hears("a", 27)) == [("new", "a", 27)]


def test_a_stream_that_took_less_is_told_of_until_whoever_is_unheard_would_be_forgotten() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, A_PART)
    for at in range(3, 49):
        site.hears("b", at)
    site.looks(49, A_PART)
    assert site.state.loss == "no longer listens on registration.>"
    site.hears("b", 50)
    site.looks(51, A_PART)
    assert site.state.loss == ""


def test_subjects_that_come_back_after_all_were_retired_unheard_leave_no_blind_span() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, A_PART)
    for at in range(3, 30):
        site.hears("b", at)
    site.looks(30, EVERYTHING)
    site.hears("b", 31)
    assert (site.state.loss, site.state.observed_since) == ("", instant(3))


def test_a_stream_that_takes_again_what_it_took_gives_everybody_the_full_time() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, A_PART)
    site.hears("b", 3)
    site.watches(12)
    site.looks(12, EVERYTHING)
    site.proves(13)
    assert advisories_in(site.watches(35)) == [("stale", "a", 33), ("stale", "b", 33)]


def test_subjects_that_nobody_was_heard_on_are_not_missed() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, StreamTakes(("elsewhere.>",)))
    site.looks(4, StreamTakes(("nowhere.>",)))
    assert site.state.is_suspended
    site.looks(6, EVERYTHING)
    site.proves(6)
    assert (site.state.is_suspended, site.state.loss) == (False, "")
    assert advisories_in(site.watches(30)) == [("stale", "a", 26)]


def test_what_was_used_in_between_is_missed_as_well() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, A_PART)
    site.hears("b", 3)
    site.looks(4, StreamTakes(("elsewhere.>",)))
    assert site.state.loss == "no longer listens on registration.>, registration.dub1"
    site.looks(5, A_PART)
    site.hears("c", 6)
    assert advisories_in(site.watches(30)) == [("retired", "a", 26), ("retired", "b", 26), ("stale", "c", 26)]


def test_nobody_is_stale_in_a_stream_that_does_not_show_which_of_its_subjects_are_full() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING, by_subject=True)
    assert advisories_in(site.watches(25)) == [("retired", "a", 20)]


def test_a_look_that_finds_what_was_there_changes_nothing() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    draft = site.draft()
    assert draft.look_at(StreamFacts(START, 1, 1, instant(2), takes=EVERYTHING), refuses=False)
    assert draft.changes_nothing


def test_time_from_which_messages_are_gone_is_not_covered_and_accuses_nobody() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.hears("b", 1)
    site.finds_thinned(thinned=True)
    assert (site.state.is_suspended, site.state.loss) == (True, "let go of messages before they were read")
    for at in range(5, 60, 5):
        assert advisories_in(site.hears("b", at)) == []
    site.finds_thinned(thinned=False)
    site.hears("b", 60)
    assert (site.state.is_suspended, site.state.observed_since) == (False, instant(60))
    assert advisories_in(site.watches(81)) == [("stale", "a", 80), ("stale", "b", 80)]
    assert site.state.counters["blind"] == {"gap": 1}


def test_what_is_gone_before_anything_was_read_changes_nothing() -> None:
    site = WatchedSite()
    site.finds_thinned(thinned=True)
    site.hears("a", 0)
    assert not site.state.is_suspended


def test_whom_an_operator_retires_before_coverage_begins_again_covers_no_time() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(1, EVERYTHING)
    site.looks(2, A_PART)
    site.looks(3, EVERYTHING)
    assert [kind for kind, _, _ in advisories_in(site.gives(lambda draft: draft.retire("a")))] == ["retired"]
    (closed,) = [each for each in site.proves(5) if isinstance(each, CloseCoverage)]
    assert closed.observed_since == closed.observed_through


# A clock that is ahead of the others

YEAR = 365 * 86_400


def test_no_time_passes_by_a_clock_that_is_not_followed() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.proves(3)
    site.sees_clock(is_ahead=True)
    assert site.hears("b", YEAR)[0] == advised(AdvisoryKind.NEW, "b", 3, seen=3, sequence=2, ordinal=2, opening=2)
    assert site.proves(YEAR + 5) == []
    assert (site.state.observed_through, site.state.source_clock) == (instant(3), instant(3))
    assert site.state.counters["clamped"] == {"stored_ahead": 1}


def test_time_in_which_the_clock_was_not_followed_is_a_blind_span_and_accuses_nobody() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.proves(3)
    site.sees_clock(is_ahead=True)
    site.hears("a", YEAR)
    assert site.state.counters["blind"] == {"clock_ahead": 1}, "it is counted when it begins"
    site.sees_clock(is_ahead=False)
    assert site.proves(5) == [CloseCoverage(instant(0), instant(3), 1, position(2, YEAR))]
    assert site.recorded == [
        BEGUN,
        ClockSeen(instant(3), 1, is_ahead=True),
        ClockSeen(instant(3), 2, is_ahead=False),
        BlindSpan(instant(3), instant(5), BlindCause.CLOCK_AHEAD, 2),
    ]
    assert not site.draft().steps_back(instant(5)), "what was not followed is no past"
    assert site.watches(25.000001) == [advised(AdvisoryKind.STALE, "a", 25, seen=3, sequence=2, ordinal=2)]


def test_observation_that_begins_by_a_clock_that_is_not_followed_begins_at_what_the_others_show() -> None:
    site = WatchedSite()
    site.sees_clock(is_ahead=True, reference=7)
    assert site.hears("a", YEAR)[0] == advised(AdvisoryKind.NEW, "a", 7, seen=7, sequence=1, ordinal=1)
    assert site.recorded == [ObservationBegun(instant(7), 0), ClockSeen(instant(7), 0, is_ahead=True)]
    assert site.state.observed_since == site.state.observed_through == instant(7)


def test_stream_that_takes_less_while_its_clock_is_not_followed_makes_nobody_unknown_for_a_year() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.looks(0, StreamTakes(("a", "b")))
    site.sees_clock(is_ahead=True)
    site.looks(YEAR, StreamTakes(("a",)))
    site.hears("a", YEAR)
    site.sees_clock(is_ahead=False)
    site.hears("a", 2)
    assert site.watches(23)[-1] == advised(AdvisoryKind.STALE, "a", 22, seen=2, sequence=3, ordinal=2)
