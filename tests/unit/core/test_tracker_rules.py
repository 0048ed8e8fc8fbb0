"""The tracker's rules, case by case: who is new, stale, recovered or retired, and which registrations go on.

Thresholds of ``POLICY``: stale after 20 s, retired after 50 s, blind after 8 s, forwarded every 60 s.
"""

import msgspec
import pytest

from edge_agent.core.observation import Observation
from shared.identifiers import AdvisoryKind
from shared.tolerant_json import Deviation
from shared.wire import ForwardReason
from tests.support.core.watched_site import POLICY, WatchedSite, advised, advisories_in, forwarded, message, reasons

NEW, STALE, RECOVERED, RETIRED = (AdvisoryKind.NEW, AdvisoryKind.STALE, AdvisoryKind.RECOVERED, AdvisoryKind.RETIRED)


# A sighting first settles the deadlines strictly earlier than it, then counts


def test_unknown_sender_is_new_and_forwarded() -> None:
    assert WatchedSite().hears("a", 0) == [
        advised(NEW, "a", 0, seen=0, sequence=1, ordinal=1),
        forwarded("a", 1, 0, ForwardReason.NEW),
    ]


def test_stale_sender_is_recovered_and_forwarded_at_once() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(21)
    assert site.hears("a", 22) == [
        advised(RECOVERED, "a", 22, seen=0, sequence=2, ordinal=3),
        forwarded("a", 2, 22, ForwardReason.RECOVERED),
    ]


def test_sighting_settles_its_own_senders_deadline_first() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(19)
    assert advisories_in(site.hears("a", 21)) == [("stale", "a", 20), ("recovered", "a", 21)]


def test_sighting_settles_other_senders_deadlines_first() -> None:
    site = WatchedSite()
    site.hears("b", 0)
    site.watches(19)
    assert advisories_in(site.hears("a", 21)) == [("stale", "b", 20), ("new", "a", 21)]


def test_sighting_at_the_very_deadline_keeps_its_sender_heard() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(19)
    assert site.hears("a", 20) == []
    assert advisories_in(site.watches(41)) == [("stale", "a", 40)]


def test_deadline_is_not_settled_before_time_has_passed_it() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    assert site.watches(20) == []
    assert advisories_in(site.proves(20.000001)) == [("stale", "a", 20)]


# Stale and retired


def test_stale_falls_stale_after_the_last_sighting() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.hears("a", 7)
    assert site.watches(30) == [advised(STALE, "a", 27, seen=7, sequence=2, ordinal=2)]


def test_retired_falls_retire_after_the_last_sighting() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.hears("a", 7)
    site.watches(30)
    assert site.watches(60) == [advised(RETIRED, "a", 57, seen=7, sequence=2, ordinal=3)]


def test_retired_sender_is_new_when_it_is_heard_again() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(55)
    assert site.hears("a", 56) == [
        advised(NEW, "a", 56, seen=56, sequence=2, opening=2, ordinal=4),
        forwarded("a", 2, 56, ForwardReason.NEW),
    ]


def test_recovered_sender_keeps_its_episode() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(21)
    site.hears("a", 22)
    assert site.watches(43) == [advised(STALE, "a", 42, seen=22, sequence=2, opening=1, ordinal=4)]


# Deadlines that fall on one instant


def test_senders_that_fall_stale_together_come_by_their_ids() -> None:
    site = WatchedSite()
    for sender_id in ("c", "a", "b"):
        site.hears(sender_id, 0)
    assert advisories_in(site.watches(21)) == [("stale", "a", 20), ("stale", "b", 20), ("stale", "c", 20)]


def test_senders_that_retire_together_come_by_their_ids() -> None:
    site = WatchedSite()
    for sender_id in ("c", "a", "b"):
        site.hears(sender_id, 0)
    site.watches(21)
    assert advisories_in(site.watches(51)) == [("retired", "a", 50), ("retired", "b", 50), ("retired", "c", 50)]


def test_at_one_instant_stale_comes_before_retired_whatever_the_ids() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    site.watches(29)
    site.hears("z", 30)
    assert advisories_in(site.watches(51)) == [("stale", "z", 50), ("retired", "a", 50)]


# Forwarding


def test_heard_sender_is_not_forwarded_before_its_interval() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    assert site.hears("a", 7) == []


def test_only_the_first_interval_is_shortened_by_the_senders_hash() -> None:
    """crc32("a") is 0xe8b7be43; 0xbe43 + 1 of 65536 parts of 60 s are 44.593505 s."""
    site = WatchedSite()
    seconds = [*range(0, 44, 4), 44.593504, 44.593505, *range(48, 104, 4), 104.593504, 104.593505]
    went_on = {at: reasons(site.hears("a", at)) for at in seconds}
    assert {at: found for at, found in went_on.items() if found} == {
        0: [ForwardReason.NEW],
        44.593505: [ForwardReason.INTERVAL],
        104.593505: [ForwardReason.INTERVAL],
    }


def test_first_interval_ends_with_whatever_was_forwarded_next() -> None:
    site = WatchedSite()
    site.hears("a", 0)
    assert reasons(site.hears("a", 5, forced=True)) == [ForwardReason.FORCED]
    went_on = {at: reasons(site.hears("a", at)) for at in range(10, 66, 5)}
    assert {at: found for at, found in went_on.items() if found} == {65: [ForwardReason.INTERVAL]}


@pytest.mark.parametrize(("size", "found"), [(400, ["size"]), (401, []), (599, []), (600, ["size"])])
def test_size_that_moved_by_the_trigger_either_way_is_forwarded(size: int, found: list[str]) -> None:
    site = WatchedSite()
    site.hears("a", 0, size=500)
    assert reasons(site.hears("a", 5, size=size)) == found


def test_size_that_creeps_is_measured_from_what_was_forwarded() -> None:
    site = WatchedSite()
    sizes = [(0, 500), (2, 560), (4, 610), (6, 660), (8, 710)]
    assert [reasons(site.hears("a", at, size=size)) for at, size in sizes] == [["new"], [], ["size"], [], ["size"]]


def test_changed_digest_is_forwarded_once() -> None:
    site = WatchedSite()
    found = [reasons(site.hears("a", at, digest=digest)) for at, digest in [(0, 7), (2, 7), (4, 8), (6, 8)]]
    assert found == [["new"], [], ["changed"], []]


def test_forced_sighting_is_forwarded_every_time() -> None:
    site = WatchedSite()
    assert [reasons(site.hears("a", at, forced=True)) for at in (0, 2, 4)] == [["new"], ["forced"], ["forced"]]


def test_message_that_is_too_old_is_a_sighting_and_is_not_forwarded() -> None:
    site = WatchedSite()
    assert site.hears("a", 0, too_old=True) == [advised(NEW, "a", 0, seen=0, sequence=1, ordinal=1)]
    assert site.state.counters["withheld"] == {"max_age": 1}


def test_sender_of_whom_nothing_was_forwarded_is_forwarded_as_new() -> None:
    site = WatchedSite()
    site.hears("a", 0, too_old=True)
    assert site.hears("a", 5) == [forwarded("a", 2, 5, ForwardReason.NEW)]


def test_message_without_a_sender_is_forwarded_unsampled() -> None:
    site = WatchedSite()
    assert site.rejects(0) == [forwarded("", 1, 0, ForwardReason.COPY)]
    assert site.rejects(1) == [forwarded("", 2, 1, ForwardReason.COPY)]


def test_message_without_a_sender_that_is_too_old_is_only_counted() -> None:
    site = WatchedSite()
    assert site.rejects(0, too_old=True) == []
    assert site.state.counters == {"rejected": {"no_sender": 1}, "withheld": {"max_age": 1}}


# No more senders than max_senders


def test_sender_that_is_one_too_many_is_turned_away_and_accused_of_nothing() -> None:
    site = WatchedSite(msgspec.structs.replace(POLICY, max_senders=2))
    site.hears("a", 0)
    site.hears("b", 0)
    assert site.hears("c", 1) == []
    assert advisories_in(site.watches(30)) == [("stale", "a", 20), ("stale", "b", 20)]
    assert site.state.counters["rejected"] == site.state.counters["withheld"] == {"too_many_senders": 1}
    assert site.state.counters["valid"] == {"registrations": 2}


def test_who_is_known_is_heard_however_many_are_turned_away() -> None:
    site = WatchedSite(msgspec.structs.replace(POLICY, max_senders=1))
    site.hears("a", 0)
    for second in range(1, 25):
        site.hears("a" if second == 19 else f"c{second}", second)
    assert advisories_in(site.watches(40)) == [("stale", "a", 39)]


def test_place_of_who_retires_is_taken_by_the_next_also_within_one_draft() -> None:
    site = WatchedSite(msgspec.structs.replace(POLICY, max_senders=1))
    draft = site.draft()
    for sequence, (sender_id, second) in enumerate([("a", 0), ("b", 1), *(("b", at) for at in range(5, 60, 5))], 1):
        assert draft.observe(Observation(sender_id, message(sequence, second)))
    assert advisories_in(draft.decisions) == [
        ("new", "a", 0),
        ("stale", "a", 20),
        ("retired", "a", 50),
        ("new", "b", 55),
    ]
    site.adopts(draft)


def test_tolerated_registration_is_valid_and_counted_by_its_deviation() -> None:
    site = WatchedSite()
    observation = Observation("a", site.next_message(0), deviation=Deviation.VALUE)
    site.gives(lambda draft: draft.observe(observation))
    assert site.state.counters["valid"] == {"registrations": 1}
    assert site.state.counters["tolerated"] == {"value": 1}
