"""Why a block is unknown now, and what is counted meanwhile; whatever is not known is never called down."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from aggregator.live.alerts.incident_book import IncidentBook, SiteSnapshot, ended_maintenance
from aggregator.live.alerts.incidents import Incident, IncidentCause, IncidentRules
from aggregator.live.api import Counts, State, UnknownReason
from aggregator.live.fold.changes import Changes
from aggregator.live.fold.coverage import MOST_LIVES, Life
from aggregator.live.fold.fleet import KEPT, Fleet
from aggregator.live.fold.senders import LIVING, LOST, RETIRED, UP
from aggregator.live.fold.view import Source, Sourcing, View
from aggregator.live.service.answers import sender_row
from aggregator.live.store import ArchiveId, LiveStore, StoredSender, StoreReader
from aggregator.records.judge import SKEW, QuarantineReason
from shared.identifiers import Incarnation
from shared.instants import DAY, HOUR, LATEST, MINUTE, SECOND
from shared.policy import CancelMaintenance, DeclareMaintenance, Scope
from tests.support.lakehouse.hub import Block, Message, said
from tests.support.live.told import AFTER, KNOWN_UNTIL, LATE, START, Told, restatement


def test_a_site_is_known_until_its_watermark_is_late_and_silent_then(told: Told) -> None:
    known, late = told.view(LATE - 1), told.view(LATE)
    assert (known.reason(0), known.counts(0)) == (None, Counts(up=1, stale=1))
    assert (late.reason(0), late.counts(0)) == (UnknownReason.AGENT_SILENT, Counts(unknown=2))
    site = late.site("eu-west", "dub1")
    assert (site.state, site.since_us) == (State.UNKNOWN, KNOWN_UNTIL)
    assert known.site("eu-west", "dub1").since_us == START + SECOND


@pytest.mark.parametrize(
    "source", [Source(silent_us=AFTER + 1), Source(silent_us=-1), Source(error="no such stream")], ids=str
)
def test_what_the_archive_does_not_get_is_the_regions_fault_and_not_the_sites(told: Told, source: Source) -> None:
    late = told.view(LATE, eu_west=source)
    assert late.reason(0) is UnknownReason.REGION_BEHIND
    assert late.whole.trust == "nothing new comes from eu-west"
    assert late.whole.regions[0].is_behind
    assert told.view(LATE, us_east=source).reason(0) is UnknownReason.AGENT_SILENT


def test_who_reads_the_hub_late_knows_nothing_and_says_that_first(told: Told) -> None:
    behind = told.view(LATE, caught_up_at=LATE - AFTER - 1, eu_west=Source(error="cut"))
    assert behind.reason(0) is UnknownReason.HUB_BEHIND
    assert behind.whole.counts == Counts(unknown=2)
    assert behind.whole.trust.startswith("not to be trusted")


def test_how_far_to_trust_is_said_of_no_site_of_one_and_of_a_hub_that_was_never_read_through(told: Told) -> None:
    assert told.view(LATE - 1).whole.trust == "its one site is current"
    assert told.view(LATE).whole.trust == "no site is current"
    assert Told().view(LATE).whole.trust == "no site has been heard of"
    for never in (told.view(LATE, caught_up_at=0), Told().view(0, caught_up_at=0)):
        assert never.whole.trust == "not to be trusted: the hub was not read through yet"


def test_before_anything_was_read_nothing_is_known(told: Told) -> None:
    early = View(told.fleet, Sourcing(), AFTER)
    assert early.reason(0) is UnknownReason.HUB_BEHIND
    assert early.whole.trust.startswith("not to be trusted")


def test_a_site_that_is_told_of_after_a_look_is_not_in_it(told: Told) -> None:
    view, block = told.view(KNOWN_UNTIL), Block("eu-west", "ber1")
    told.at(KNOWN_UNTIL, block.new("web1", START))
    assert (view.whole.counts, view.whole.site_count, len(view.sites)) == (Counts(up=1, stale=1), 1, 1)


def test_a_clock_that_is_ahead_vouches_no_further_than_the_hub_has_come(told: Told) -> None:
    block = Block("eu-west", "ahead")
    told.at(KNOWN_UNTIL + SECOND, block.new("web1", START), block.watermark(START, KNOWN_UNTIL + HOUR))
    assert told.fleet.blocks[1].known_until == KNOWN_UNTIL + SECOND
    holed = Block("eu-west", "holed", ordinal=1)
    told.at(KNOWN_UNTIL + SECOND, holed.watermark(START, KNOWN_UNTIL + SECOND + SKEW + 1))
    assert told.view(KNOWN_UNTIL + MINUTE).reason(2) is UnknownReason.CLOCK


def test_a_site_whose_first_watermark_vouches_for_no_time_is_not_missed_at_once(told: Told, tmp_path: Path) -> None:
    block, begun_at = Block("eu-west", "fresh"), KNOWN_UNTIL + MINUTE
    book = IncidentBook(tmp_path / "incidents.db", IncidentRules())
    # A service that has read for a while.
    book.look(told.view(begun_at - 30 * SECOND))
    told.at(begun_at + SECOND, block.watermark(begun_at, begun_at))
    view = told.view(begun_at + 2 * SECOND)
    assert (told.fleet.blocks[1].known_until, view.reason(1), book.look(view)) == (0, None, [])
    missed = told.view(begun_at + SECOND + AFTER + 1)
    assert missed.reason(1) is UnknownReason.AGENT_SILENT
    assert missed.site("eu-west", "fresh").since_us == begun_at
    told.at(begun_at + 10 * SECOND, block.watermark(begun_at, begun_at + 10 * SECOND))
    view = told.view(begun_at + 10 * SECOND)
    assert (told.fleet.blocks[1].known_until, view.reason(1)) == (begun_at + 10 * SECOND, None)
    assert not [each for each in book.look(view) if each.site == "fresh"]
    book.close()


def test_an_agent_that_catches_up_is_behind_and_not_silent(told: Told) -> None:
    block = Block("eu-west", "late")
    told.at(LATE, block.new("web1", START), block.watermark(START, START + MINUTE))
    assert told.view(LATE).reason(1) is UnknownReason.AGENT_BEHIND


def test_a_hole_in_the_ordinals_is_named_and_filled_by_the_advisory_that_lacked(told: Told) -> None:
    block = Block("eu-west", "holed")
    first, second, third = (block.new(f"web{number}", START) for number in range(3))
    told.at(LATE, first, third, block.watermark(START, LATE))
    view = told.view(LATE)
    assert (view.reason(1), view.block(1).missing_count) == (UnknownReason.ORDINALS_MISSING, 1)
    told.at(LATE, second)
    view = told.view(LATE)
    assert (view.reason(1), view.block(1).missing_count, view.counts(1)) == (None, 0, Counts(up=3))


def test_two_agents_that_speak_at_once_are_contested_until_one_is_silent(told: Told) -> None:
    one, other = Block("eu-west", "two"), Block("eu-west", "two", epoch=2, agent="other")
    told.at(START, one.new("web1", START), one.watermark(START, START + MINUTE))
    told.at(START, other.new("web1", START + 2 * MINUTE), other.watermark(START, START + 2 * MINUTE))
    at = START + 30 * MINUTE
    told.at(at, one.watermark(START, START + 29 * MINUTE), other.watermark(START, START + 29 * MINUTE))
    assert told.view(at).reason(1) is UnknownReason.CONTESTED
    assert told.view(at + HOUR).reason(1) is UnknownReason.AGENT_SILENT
    told.at(at + HOUR, one.watermark(START, at + HOUR))
    assert told.view(at + HOUR).reason(1) is None


def test_a_contest_is_forgotten_once_the_archive_tells_that_another_agent_went_on_for_longer(told: Told) -> None:
    one, other, between = (Block("eu-west", "three", epoch=epoch) for epoch in (1, 3, 2))
    at = START + 3 * HOUR
    told.at(at, one.new("web1", START), one.watermark(START, START + MINUTE))
    told.at(at + 1, other.watermark(START, START + 10 * MINUTE))
    told.at(at + 2, other.watermark(START, START + HOUR + 5 * MINUTE), one.watermark(START, START + HOUR))
    assert told.view(at + 2).reason(1) is UnknownReason.CONTESTED
    told.at(at + 3, between.watermark(START, START + 5 * MINUTE), between.watermark(START, START + 2 * HOUR))
    block = told.fleet.blocks[1]
    assert (block.contested_from, block.contested_until, block.silent) == (0, 0, {})


def test_a_blind_time_is_still_unknown_when_all_that_another_agents_late_words_lacked_has_come(told: Told) -> None:
    block, other = Block("eu-west", "ams1"), Block("eu-west", "ams1", epoch=2)
    blind_until = START + 10 * MINUTE
    told.at(KNOWN_UNTIL, block.watermark(START, START + 5 * MINUTE), block.watermark(blind_until, KNOWN_UNTIL))
    lacked = other.new("web1", START)
    told.at(LATE, other.watermark(START, START + MINUTE))
    state = told.fleet.blocks[1]
    assert state.known_until == 0
    told.at(LATE, lacked)
    assert (state.known_since, state.known_until) == (blind_until, KNOWN_UNTIL)


def test_maintenance_stands_before_unknown_and_stale_and_ends_when_it_is_over_or_taken_back(told: Told) -> None:
    window = DeclareMaintenance(START, LATE + HOUR, "new switch")
    told.at(KNOWN_UNTIL, said(Scope("eu-west"), 1, START, window))
    late = told.view(LATE)
    assert (late.counts(0), late.site("eu-west", "dub1").state) == (Counts(maintenance=2), State.MAINTENANCE)
    seen = SiteSnapshot(late, "eu-west", "dub1", ended_maintenance(told.fleet, LATE))
    assert (seen.maintained, seen.planned_count, seen.stale_count, seen.expected_count) == (True, 1, 1, 2)
    over = told.view(LATE + HOUR)
    seen = SiteSnapshot(over, "eu-west", "dub1", ended_maintenance(told.fleet, LATE + HOUR))
    assert (over.maintenance(0), seen.maintained_until_us) == (None, LATE + HOUR)
    told.at(KNOWN_UNTIL, said(Scope("eu-west"), 2, START, CancelMaintenance(1)))
    assert told.view(LATE).counts(0) == Counts(unknown=2)


def test_a_lost_store_makes_unknown_whom_it_has_not_told_of_since(told: Told) -> None:
    again, rebuilt_at = Block("eu-west", "dub1", epoch=2), KNOWN_UNTIL + MINUTE
    told.at(rebuilt_at + MINUTE, again.new("web2", rebuilt_at + SECOND, rebuilt=True))
    told.at(rebuilt_at + MINUTE, again.watermark(rebuilt_at, rebuilt_at + MINUTE, rebuilt_at=rebuilt_at))
    view = told.view(rebuilt_at + MINUTE)
    assert view.counts(0) == Counts(up=1, unknown=1)
    state = told.fleet.senders.state[told.fleet.members[0]["web1"]]
    assert view.shown(0, state, "web1") == (State.UNKNOWN, UnknownReason.LOST_STORE)


@pytest.mark.parametrize("first_store", [0, START])
@pytest.mark.parametrize("reads_from", [START + MINUTE, KNOWN_UNTIL + MINUTE], ids=["backlog", "now"])
def test_sender_that_the_store_of_a_new_host_has_not_heard_is_unknown(first_store: int, reads_from: int) -> None:
    told, block, again = Told(), Block("eu-west", "dub1"), Block("eu-west", "dub1", epoch=2, agent="other")
    told.at(START, *(block.new(name, START) for name in ("stays", "died", "silent")))
    told.at(KNOWN_UNTIL, block.stale("silent", START), block.watermark(START, KNOWN_UNTIL, store=first_store))
    at = KNOWN_UNTIL + 2 * MINUTE
    told.at(at, again.new("stays", reads_from), again.watermark(reads_from, at, store=KNOWN_UNTIL + MINUTE))
    states = {name: told.fleet.senders.state[sender] for name, sender in told.fleet.members[0].items()}
    assert states == {"stays": UP, "died": LOST, "silent": LOST}
    assert told.fleet.blocks[0].lost_at == KNOWN_UNTIL
    # The stream is created again: the store is the same, and a sender that is heard is known.
    later = Block("eu-west", "dub1", epoch=3, agent="other")
    told.at(at + MINUTE, later.new("died", at + MINUTE), later.watermark(at, at + MINUTE, store=KNOWN_UNTIL + MINUTE))
    states = {name: told.fleet.senders.state[sender] for name, sender in told.fleet.members[0].items()}
    assert states == {"stays": UP, "died": UP, "silent": LOST}


def test_sender_is_known_to_the_last_store_however_often_the_stream_is_created_again() -> None:
    told, store, at = Told(), KNOWN_UNTIL + SECOND, KNOWN_UNTIL
    first = Block("eu-west", "dub1")
    told.at(at, first.new("died", START), first.watermark(START, at, store=START))
    block = Block("eu-west", "dub1", epoch=2)
    told.at(store, block.new("stays", store))
    for epoch in range(2, 2 * MOST_LIVES):
        at, block.incarnation = at + MINUTE, Incarnation(1, epoch)
        told.at(at, block.watermark(at - SECOND, at, store=store))
        block.ordinal = 0
    states = {name: told.fleet.senders.state[sender] for name, sender in told.fleet.members[0].items()}
    assert states == {"died": LOST, "stays": UP}
    assert told.at(at + SECOND, block.watermark(at, at + SECOND, store=store)).senders == set()


def test_sender_is_known_again_to_the_store_to_which_an_operator_returns() -> None:
    told = Told()
    first, other, again = (Block("eu-west", "dub1", epoch=epoch) for epoch in (1, 2, 3))
    told.at(KNOWN_UNTIL, first.new("quiet", START), first.watermark(START, KNOWN_UNTIL, store=START))
    at = KNOWN_UNTIL + MINUTE
    told.at(at, other.new("other", at), other.watermark(at - SECOND, at, store=at))
    told.at(at + MINUTE, again.new("late", at + MINUTE), again.watermark(at, at + MINUTE, store=START))
    states = {name: told.fleet.senders.state[sender] for name, sender in told.fleet.members[0].items()}
    assert (states, told.fleet.blocks[0].lost_at) == ({"quiet": UP, "other": LOST, "late": UP}, at)


def states_of(told: Told) -> dict[str, int]:
    return {name: told.fleet.senders.state[sender] for name, sender in told.fleet.members[0].items()}


def test_store_that_was_cut_off_comes_before_its_successor() -> None:
    told, at = Told(), KNOWN_UNTIL + 2 * MINUTE
    cut_off, successor = (Block("eu-west", "dub1", epoch=epoch, agent=f"host{epoch}") for epoch in (1, 2))
    told.at(at, *(successor.new(name, at - MINUTE) for name in ("stays", "came")))
    told.at(at, successor.watermark(at - MINUTE, at, store=at - MINUTE))
    outbox = [cut_off.new(name, START) for name in ("stays", "died")]
    told.at(at + SECOND, *outbox, cut_off.watermark(START, KNOWN_UNTIL, store=START))
    assert states_of(told) == {"stays": UP, "came": UP, "died": LOST}
    assert told.fleet.blocks[0].lost_at == KNOWN_UNTIL
    # The operator returns to it: what it has announced is known, and what only the other one has is not.
    told.at(at + HOUR, cut_off.watermark(KNOWN_UNTIL, at + HOUR, store=START))
    assert states_of(told) == {"stays": UP, "came": LOST, "died": UP}
    assert told.fleet.blocks[0].lost_at == at


@pytest.mark.parametrize("is_late", [False, True], ids=["earlier store first", "earlier store late"])
def test_sender_of_an_evicted_incarnation_of_the_last_store_is_known(*, is_late: bool) -> None:
    told, store, at = Told(), KNOWN_UNTIL + SECOND, KNOWN_UNTIL
    earlier, block = Block("eu-west", "dub1"), Block("eu-west", "dub1", epoch=2 * MOST_LIVES)
    outbox = [earlier.new("died", START), earlier.watermark(START, at, store=START)]
    if not is_late:
        told.at(at, *outbox)
        for epoch in range(2, MOST_LIVES):
            earlier.incarnation, earlier.ordinal = Incarnation(1, epoch), 0
            told.at(at + epoch, earlier.watermark(at + epoch - 1, at + epoch, store=START))
    told.at(store, block.new("stays", store), block.watermark(store, store, store=store))
    for epoch in range(1, MOST_LIVES if is_late else 4):
        at, block.incarnation, block.ordinal = store + epoch * MINUTE, Incarnation(1, store // 1_000 + epoch), 0
        # The first record of an incarnation does not name its store.
        told.at(at, block.new(f"node{epoch}", at), block.watermark(at - SECOND, at, store=store))
    if is_late:
        told.at(at + SECOND, *outbox)
    unknown = [name for name, state in states_of(told).items() if state == LOST]
    assert unknown == ["died"]


@pytest.mark.parametrize("ahead", [5 * SECOND, 30 * SECOND, 5 * MINUTE], ids=lambda ahead: f"{ahead // SECOND}s")
@pytest.mark.parametrize("late", ["nothing", "watermark", "first of two lives"])
def test_of_a_clock_ahead_whoever_a_new_store_has_told_of_is_known_and_nobody_else(
    told: Told, ahead: int, late: str
) -> None:
    lost_at, anew = KNOWN_UNTIL + MINUTE, [Block("eu-west", "dub1", epoch=epoch) for epoch in (2, 3)]
    # web2 is not heard of again.
    names, marks = [f"node{number}" for number in range(20)], list[Message]()
    told.at(lost_at, *(Block("eu-west", "dub1", ordinal=3).new(name, START) for name in names))
    for number, name in enumerate(["web1", *names], start=1):
        block, at = anew[number > 10], lost_at + number * SECOND
        told.at(at, block.new(name, at + ahead, rebuilt=True))
        if number in (10, 21):
            marks.append(block.watermark(lost_at + ahead, at + ahead, rebuilt_at=lost_at + ahead))
        if late == "nothing":
            told.at(at, *marks)
            marks.clear()
    told.at(lost_at + 40 * SECOND, *marks[:: -1 if late == "first of two lives" else 1])
    fleet = told.fleet
    unknown = [name for name, sender in fleet.members[0].items() if fleet.senders.state[sender] == LOST]
    assert (unknown, told.view(lost_at + MINUTE).counts(0).unknown) == (["web2"], 1)


def test_of_a_clock_ahead_an_agent_that_is_believed_has_spoken_since_the_hub_heard_of_it(told: Told) -> None:
    leaving, staying = Block("eu-west", "two"), Block("eu-west", "two", epoch=2, agent="other")
    at, ahead = KNOWN_UNTIL, 30 * SECOND
    told.at(at, *(leaving.new(name, at) for name in ("both", "gone")), leaving.watermark(START, at))
    told.at(at + SECOND, *(staying.new(name, at + SECOND + ahead) for name in ("both", "came")))
    for minute in range(1, 21):
        at += MINUTE
        told.at(at, staying.watermark(KNOWN_UNTIL + SECOND + ahead, at + ahead))
        if minute < 5:
            told.at(at, leaving.watermark(START, at))
    fleet = told.fleet
    assert fleet.blocks[1].silent == {"1-1": KNOWN_UNTIL + SECOND}
    unknown = [name for name, sender in fleet.members[1].items() if fleet.senders.state[sender] == LOST]
    assert unknown == ["gone"]


def test_of_a_lost_store_that_had_been_put_back_no_later_store_is_accused(told: Told) -> None:
    lost, lost_at = Block("eu-west", "lost"), START + 5 * MINUTE
    told.at(lost_at, lost.new("web1", START), lost.watermark(START, START + MINUTE))
    told.at(lost_at, lost.stale("web1", START), lost.watermark(START, lost_at))
    block, at = Block("eu-west", "lost", epoch=2), START + 20 * MINUTE
    told.at(at, block.new("web1", at, rebuilt=True), block.watermark(lost_at, at, rebuilt_at=lost_at))
    lost.ordinal = 1
    told.at(at, lost.recovered("web1", START + MINUTE))
    told_twice = told.fleet.blocks[1]
    assert (told_twice.known_since, told_twice.known_until, told_twice.put_back) == (START, at, False)
    at += MINUTE
    assert told.at(at, block.watermark(lost_at, at, rebuilt_at=lost_at)).gaps == []
    assert told_twice.known_until == at


def test_a_copy_older_than_all_marks_that_are_kept_makes_unknown_for_good(told: Told) -> None:
    block, at = Block("eu-west", "aged"), START
    for number in range(100):
        at += 10 * SECOND
        told.at(at, block.new(f"web{number}", at), block.watermark(START, at))
    block.ordinal = 20
    for number in range(30):
        at += 10 * SECOND
        told.at(at, block.new(f"other{number}", at), block.watermark(START, at))
        assert told.view(at + 2 * MINUTE).reason(1) is UnknownReason.PUT_BACK


def test_who_was_unheard_is_unknown_until_then_and_gone_afterwards(told: Told) -> None:
    block = Block("eu-west", "narrow")
    until = KNOWN_UNTIL + 30 * MINUTE
    told.at(KNOWN_UNTIL, block.new("web1", START), block.retired_unheard("web1", START + SECOND, until))
    told.at(KNOWN_UNTIL, block.watermark(START, KNOWN_UNTIL))
    assert told.view(KNOWN_UNTIL).counts(1) == Counts(unknown=1)
    told.at(until, block.watermark(START, until))
    assert told.view(until).counts(1) == Counts(retired=1)


def test_an_advisory_that_never_comes_costs_each_later_watermark_the_same(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, lacks = Counter[str](), Life.lacks

    def counted(life: Life, reached: int, *, is_first: bool) -> bool:
        looked["lacks"] += 1
        return lacks(life, reached, is_first=is_first)

    monkeypatch.setattr(Life, "lacks", counted)
    holed = Block("eu-west", "holed", ordinal=1)
    told.at(START, holed.new("web1", START))
    holed.ordinal += 1
    for minute in range(1, 200):
        at = START + minute * MINUTE
        told.at(at, holed.stale("web1", at) if minute % 2 else holed.recovered("web1", at), holed.watermark(START, at))
    assert 200 < looked["lacks"] < 4 * 200


@pytest.mark.parametrize("epochs", [(1,), (1, 2)])
def test_an_advisory_that_never_comes_keeps_few_marks_waiting_and_one_that_comes_late_makes_all_vouch(
    told: Told, epochs: tuple[int, ...]
) -> None:
    at = lacks_another_from = START
    most, blocks = 0, [Block("eu-west", "holed", epoch=epoch) for epoch in epochs]
    first = blocks[0]
    told.at(at, first.new("web1", at), first.watermark(at - MINUTE, at))
    lacking = another = first.stale("web1", at)
    for block in blocks:
        begun_at = at
        for _ in range(300):
            at += MINUTE
            late = block.stale("web1", at)
            # Its watermark is there before it, and so are some that count it.
            told.at(at, block.watermark(begun_at, at), block.recovered("web1", at), block.watermark(begun_at, at))
            told.at(at, late)
            if (block, block.ordinal) == (first, 200):
                another, lacks_another_from = block.stale("web2", at), at
        most = max(most, *(len(life.waiting) for life in told.fleet.blocks[1].lives.values()))
    (_, holed) = told.fleet.blocks
    assert (holed.known_until, most) == (START, 64)
    assert len(msgspec.json.encode(holed)) < 10_000
    assert told.at(at, lacking).gaps == []
    assert holed.known_until == lacks_another_from
    changes = told.at(at, another)
    assert (holed.known_since, holed.known_until, changes.gaps) == (START - MINUTE, at, [])
    assert not any(life.waiting for life in holed.lives.values())


@pytest.mark.parametrize("name", ["advisory_ordinal", "stale_after", "blind_after", "policy_revision", "sequence"])
def test_a_watermark_with_a_number_that_no_store_holds_is_refused(told: Told, name: str) -> None:
    message = Block("eu-west", "large").watermark(START, START + MINUTE)
    body = msgspec.json.decode(message.body) | {name: 1 << 64}
    told.at(START + MINUTE, message._replace(body=msgspec.json.encode(body)))
    assert (told.fleet.refused, len(told.fleet.blocks)) == ({QuarantineReason.NOT_DECODABLE: 1}, 1)


def test_who_is_blind_for_a_moment_accuses_nobody_behind_it(told: Told) -> None:
    # The source of the region was heard last, and the archive read last, when the site's watermark was not late yet.
    moment = Source(silent_us=MINUTE)
    assert told.view(LATE, eu_west=moment).reason(0) is None
    assert told.view(LATE, caught_up_at=LATE - MINUTE).reason(0) is None
    assert told.view(LATE + MINUTE, eu_west=moment).reason(0) is UnknownReason.AGENT_SILENT
    assert told.view(LATE + MINUTE + 1, eu_west=Source(silent_us=AFTER + 1)).reason(0) is UnknownReason.REGION_BEHIND


def test_a_site_whose_senders_are_all_retired_is_not_missed_when_it_falls_silent(told: Told) -> None:
    old = Block("eu-west", "old")
    told.at(KNOWN_UNTIL, old.new("db1", START), old.watermark(START, KNOWN_UNTIL))
    assert told.view(LATE).site("eu-west", "old").state is State.UNKNOWN
    told.at(KNOWN_UNTIL, old.retired("db1", KNOWN_UNTIL, START), old.watermark(START, KNOWN_UNTIL))
    late = told.view(LATE)
    site = late.site("eu-west", "old")
    assert (site.state, site.reason, site.counts) == (State.RETIRED, None, Counts(retired=1))
    assert (site.blocks[0].is_gone, site.blocks[0].reason) == (True, UnknownReason.AGENT_SILENT)
    assert (late.whole.unknown_site_count, late.whole.regions[0].unknown_site_count) == (1, 1)
    assert SiteSnapshot(late, "eu-west", "old", {}).gone
    told.at(LATE, old.new("db2", LATE))
    assert told.view(LATE).site("eu-west", "old").state is State.UNKNOWN


def test_a_block_of_which_nobody_is_expected_makes_its_site_no_less_known(told: Told) -> None:
    renamed = Block("eu-west", "dub1", "before")
    told.at(START + MINUTE, renamed.new("web1", START), renamed.retired("web1", START + MINUTE, START + MINUTE))
    known = told.view(LATE - 1)
    site = known.site("eu-west", "dub1")
    assert (site.state, site.reason, site.known_until_us) == (State.STALE, None, KNOWN_UNTIL)
    seen = SiteSnapshot(known, "eu-west", "dub1", {})
    assert (seen.gone, seen.unknown, seen.known_until_us, seen.retired_count) == (False, None, KNOWN_UNTIL, 1)


def test_a_site_that_an_operator_has_closed_is_expected_no_more_until_that_is_taken_back(told: Told) -> None:
    closed = DeclareMaintenance(LATE, LATEST, "torn down")
    planned = DeclareMaintenance(START, LATE + HOUR, "new switch")
    told.at(LATE, said(Scope("eu-west", "dub1"), 1, LATE, planned), said(Scope("eu-west", "dub1"), 2, LATE, closed))
    late = told.view(LATE)
    site = late.site("eu-west", "dub1")
    assert (site.state, site.since_us, site.counts) == (State.RETIRED, LATE, Counts(retired=2))
    assert late.whole.trust == "no site is expected to be heard"
    up = StoredSender(0, "web2", UP, UP, START, START, START, 0)
    assert (sender_row(late, up).state, sender_row(late, up).since_us) == (State.RETIRED, LATE)
    assert (late.is_closed("eu-west", "dub1"), late.is_closed("eu-west", "ber1")) == (True, False)
    assert late.stored_states(0, State.RETIRED) == LIVING | {RETIRED}
    assert all(not late.stored_states(0, state) for state in State if state is not State.RETIRED)
    assert late.shown(0, told.fleet.senders.state[0], "web1") == (State.RETIRED, None)
    assert (late.whole.unknown_site_count, late.block(0).maintenance) == (0, late.closing(0))
    told.at(LATE, said(Scope("eu-west", "dub1"), 3, LATE, CancelMaintenance(2)))
    assert told.view(LATE).counts(0) == Counts(maintenance=2)


def test_a_state_that_is_made_anew_opens_no_incident_of_what_was_before_it_was_read(told: Told, tmp_path: Path) -> None:
    book = IncidentBook(tmp_path / "incidents.db", IncidentRules(unknown_after=MINUTE))
    book.look(told.view(KNOWN_UNTIL))
    again = Told()
    again.fleet.fold(told.archived)
    # All of it is read again at once, and the site's watermarks have not come yet.
    assert (book.look(again.view(LATE)), book.look(again.view(LATE + MINUTE - 1))) == ([], [])
    assert [each.started_at_us for each in book.look(again.view(LATE + MINUTE))] == [KNOWN_UNTIL]
    book.close()


def test_a_part_of_a_wider_incident_is_told_to_nobody_and_its_end_to_whom_its_beginning_was(tmp_path: Path) -> None:
    book = IncidentBook(tmp_path / "incidents.db", IncidentRules())
    book.introduce("ops")
    common = {
        "region": "eu", "cause": IncidentCause.UNKNOWN, "reason": "", "started_at_us": START, "known_until_us": START,
        "node_count": 1, "expected_count": 1, "most_count": 1, "nodes": (),
    }  # fmt: skip
    first = Incident(incident_id="1", site="dub1", **common)  # type: ignore[arg-type]
    book.save([first])
    book.acknowledge("ops", book.pending("ops"))
    wide = Incident(incident_id="2", site="", **common)  # type: ignore[arg-type]
    second = Incident(incident_id="3", site="ber1", within="2", **common)  # type: ignore[arg-type]
    book.save([msgspec.structs.replace(first, within="2"), wide, second])
    assert [(each.incident.incident_id, each.event) for each in book.pending("ops")] == [("2", "began")]
    book.acknowledge("ops", book.pending("ops"))
    over = [msgspec.structs.replace(each, within="2", ended_at_us=START + 1) for each in (first, second)]
    book.save(over)
    assert [(each.incident.incident_id, each.event) for each in book.pending("ops")] == [("1", "ended")]
    book.save([msgspec.structs.replace(second, within="")])
    assert [(each.incident.incident_id, each.event) for each in book.pending("ops")] == [("3", "began"), ("1", "ended")]
    book.close()


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("stream_not_storing", UnknownReason.NOT_STORED),
        ("time_unproven", UnknownReason.NOT_STORED),
        ("clock_ahead", UnknownReason.CLOCK),
        ("link_down", UnknownReason.NOT_READ),
        ("what a later agent says", UnknownReason.NOT_READ),
    ],
)
def test_what_the_agent_says_to_keep_it_from_knowing_more_is_the_reason(
    told: Told, condition: str, reason: UnknownReason
) -> None:
    dub1 = Block("eu-west", "dub1", ordinal=3)
    before = msgspec.to_builtins(told.fleet.blocks[0])
    told.at(LATE, restatement(dub1, KNOWN_UNTIL, condition))
    said_so = told.view(LATE)
    assert (said_so.reason(0), said_so.block(0).condition) == (reason, condition)
    # It vouches for nothing, and is no word of who speaks for the block.
    after = msgspec.to_builtins(told.fleet.blocks[0])
    assert {name for name in after if after[name] != before[name]} == {"heard_at", "condition"}
    assert told.view(LATE + AFTER + 1).reason(0) is UnknownReason.AGENT_SILENT
    told.at(LATE + MINUTE, dub1.watermark(START, LATE + MINUTE))
    assert (told.view(LATE + MINUTE).reason(0), told.fleet.blocks[0].condition) == (None, "")


def test_what_a_clock_ahead_says_again_vouches_for_no_more_than_when_it_was_said_first(told: Told) -> None:
    ahead, at = Block("eu-west", "ahead"), KNOWN_UNTIL
    first = ahead.watermark(START, at + HOUR)
    told.at(at, first)
    told.at(at + MINUTE, ahead.new("web1", at + HOUR), ahead.watermark(START, at + HOUR + MINUTE))
    block = told.fleet.blocks[1]
    # It is not read any further; and what was sent before is sent once more.
    told.at(at + 3 * MINUTE, restatement(ahead, at + HOUR + MINUTE, "link_down"), first)
    assert (block.known_until, block.put_back) == (at + MINUTE, False)
    assert told.view(at + 3 * MINUTE + AFTER).reason(1) is UnknownReason.CLOCK


def test_a_planned_stop_is_named_until_an_agent_speaks_again(told: Told) -> None:
    dub1, again = Block("eu-west", "dub1", ordinal=3), Block("eu-west", "dub1", boot_id="next", ordinal=3)
    told.at(KNOWN_UNTIL, restatement(dub1, KNOWN_UNTIL, "stopping"))
    # What the run before had still on its way takes nothing back.
    told.at(KNOWN_UNTIL + SECOND, dub1.watermark(START, KNOWN_UNTIL + SECOND))
    assert told.view(LATE).reason(0) is None
    assert told.view(LATE + MINUTE).reason(0) is UnknownReason.AGENT_STOPPED
    told.at(LATE + HOUR, again.watermark(START, KNOWN_UNTIL + MINUTE))
    assert told.view(LATE + HOUR).reason(0) is UnknownReason.AGENT_BEHIND
    assert told.view(LATE + 2 * HOUR).reason(0) is UnknownReason.AGENT_SILENT


def test_a_site_all_of_whose_senders_were_retired_stays_gone_when_they_are_forgotten(tmp_path: Path) -> None:
    dub1, ber1, store = Block("eu-west", "dub1"), Block("eu-west", "ber1"), LiveStore(tmp_path / "live.db")
    told, again_at = Told(Fleet(history=store.entry)), START + HOUR + KEPT + DAY

    def at(archived_at: int, *messages: Message) -> None:
        changes = told.at(archived_at, *messages)
        with store.transaction() as database:
            store.write(database, ArchiveId("ARCHIVE", 1), told.fleet, changes)

    at(START, dub1.new("web1", START), ber1.new("db1", START))
    at(START + HOUR, dub1.stale("web1", START), dub1.watermark(START, START + HOUR))
    at(START + HOUR, dub1.retired("web1", START + HOUR, START))
    at(START + HOUR + KEPT, ber1.stale("db1", START))
    assert told.view(START + HOUR + KEPT).site("eu-west", "dub1").counts.retired == 1
    at(again_at, ber1.recovered("db1", again_at))
    site = told.view(again_at + DAY).site("eu-west", "dub1")
    assert (site.state, site.reason, site.counts.total, site.counts.retired) == (State.RETIRED, None, 0, 0)
    assert len(told.fleet.senders) == 1

    # The next one may have its number, and nothing of its story.
    at(again_at, ber1.new("db2", again_at))
    loaded = store.load(ArchiveId("ARCHIVE", 1))
    store.close()
    reader = StoreReader(tmp_path / "live.db")
    assert [sender for _, _, sender in reader.entries_before(0, 10)] == ["db2", "db1", "db1", "db1"]
    reader.close()
    assert loaded is not None
    loaded.check_invariants()
    assert loaded.senders.names == told.fleet.senders.names == ["db2", "db1"]


def test_who_was_unheard_is_forgotten_long_after_that_ended_and_late_words_do_not_bring_it_back(tmp_path: Path) -> None:
    block, store = Block("eu-west", "dub1"), LiveStore(tmp_path / "live.db")
    told, until = Told(Fleet(history=store.entry)), START + 29 * DAY

    def at(archived_at: int, *messages: Message) -> list[str]:
        changes = told.at(archived_at, *messages)
        with store.transaction() as database:
            store.write(database, ArchiveId("ARCHIVE", 1), told.fleet, changes)
        return [told.fleet.senders.names[sender] for sender in told.fleet.senders.numbers]

    at(START, block.new("web1", START), block.new("web2", START))
    late = block.stale("web1", START)
    at(START + HOUR, block.retired_unheard("web1", START, until))
    assert at(until + 2 * DAY, block.recovered("web2", until)) == ["web1", "web2"]
    assert at(START + KEPT + 2 * DAY, block.recovered("web2", START + KEPT)) == ["web1", "web2"]
    assert at(until + KEPT + 2 * DAY, block.recovered("web2", until + KEPT)) == ["web2"]
    assert at(until + KEPT + 2 * DAY, late) == ["web2"]
    store.close()


def test_a_site_that_was_closed_stays_so_after_a_restart(told: Told, tmp_path: Path) -> None:
    closed = DeclareMaintenance(LATE, LATEST, "torn down")
    told.at(LATE, said(Scope("eu-west", "dub1"), 1, LATE, closed))
    store, changes = LiveStore(tmp_path / "live.db"), Changes()
    fleet = Fleet(history=store.entry)
    fleet.fold(told.archived, changes)
    with store.transaction() as database:
        store.write(database, ArchiveId("ARCHIVE", 1), fleet, changes)
    loaded = store.load(ArchiveId("ARCHIVE", 1))
    store.close()
    assert loaded is not None
    again = View(loaded, Sourcing(0, LATE, LATE), AFTER)
    assert again.site("eu-west", "dub1") == told.view(LATE).site("eu-west", "dub1")
    assert again.is_closed("eu-west", "dub1")
