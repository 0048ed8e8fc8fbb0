"""The live state is a function of the archive: however it is cut and restarted, and what the tables' account says."""

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import msgspec
import pytest

from aggregator.live.alerts.incident_book import IncidentBook
from aggregator.live.alerts.incidents import IncidentRules
from aggregator.live.fold import coverage
from aggregator.live.fold import fleet as fold
from aggregator.live.fold.changes import Archived, Changes, Revision, StoryEntry
from aggregator.live.fold.fleet import KEPT, Fleet
from aggregator.live.fold.senders import LOST, RETIRED, STALE, UNHEARD, UP
from aggregator.live.fold.view import Source, Sourcing, View
from aggregator.live.store import ArchiveId, LiveStore
from aggregator.records import judge
from shared.instants import DAY, HOUR, LATEST, MINUTE, SECOND, parse_instant
from shared.policy import CancelMaintenance, DeclareMaintenance, Scope
from tests.support.lakehouse.hub import Block, Message
from tests.support.lakehouse.random_fleet import BlockHistory, draw_block
from tests.support.live.archived_history import (
    archived,
    archived_at_once,
    as_arrived,
    has_disputes,
    known_until,
    sender_truths,
    unknown_times,
)

START = parse_instant("2026-02-27T00:00:00Z")
ORIGIN = ArchiveId("ARCHIVE", 1)
FORGOTTEN_AFTER = DAY
UNHEARD_FOR = 20 * HOUR
"""At most, as drawn here: whoever is unheard is told of for longer."""
STATES = {UP: "up", STALE: "down", RETIRED: "absent", UNHEARD: "unknown", LOST: "unknown"}


def state_of(fleet: Fleet) -> object:
    """Give all of a fleet's state, to be compared."""
    senders = fleet.senders
    return (
        fleet.sequence,
        fleet.known_through,
        [msgspec.to_builtins(block) for block in fleet.blocks],
        fleet.counts,
        senders.records(senders.numbers),
        fleet.revisions,
    )


def folded(messages: list[Archived], kept: int = FORGOTTEN_AFTER) -> Fleet:
    """Fold all at once, with the whole story at hand."""
    changes = Changes()
    fleet = Fleet(history=lambda sequence: next((each for each in changes.entries if each.sequence == sequence), None))
    fleet.kept = kept
    fleet.fold(messages, changes)
    return fleet


def drawn_block(draw: random.Random, site: str, block: str) -> BlockHistory:
    # An agent that reads again writes about days that are forgotten here already.
    history = draw_block(draw, site, block, START, START + 6 * DAY, reads_again=0)
    return history._replace(
        said=[
            each._replace(unheard_until=each.unheard_until and min(each.unheard_until, each.at + UNHEARD_FOR))
            for each in history.said
        ]
    )


def contested(fleet: Fleet, histories: list[BlockHistory]) -> set[int]:
    """Number the blocks in which two agents speak at once, at any time: days are years here."""
    disputed = (fleet.number_of(("eu-west", each.site, each.block)) for each in histories if has_disputes(each))
    return {number for number in disputed if number is not None}


def kept_whole(fleet: Fleet, histories: list[BlockHistory]) -> set[int]:
    """Return the blocks that are contested, or of which watermarks arrive when their store's advisories are deleted."""
    late = (
        fleet.number_of(("eu-west", each.site, each.block))
        for each in histories
        if any(mark.archived_at > mark.through + FORGOTTEN_AFTER for mark in each.marks)
    )
    return contested(fleet, histories) | {number for number in late if number is not None}


def due_to_be_forgotten(fleet: Fleet, store: LiveStore) -> list[str]:
    """Name the retired senders that should have been forgotten when the last day began."""
    last_told = {sender: store.entry(fleet.senders.head[sender]) for sender in fleet.senders.numbers}
    before = fleet.known_through // DAY * DAY - FORGOTTEN_AFTER
    return [
        fleet.senders.names[sender]
        for sender, last in last_told.items()
        if fleet.senders.word[sender] == RETIRED and last is not None and last.archived_at < before
        if not fleet.blocks[fleet.senders.block[sender]].contested_until
    ]


@pytest.fixture(autouse=True)
def no_clock_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the drawn clocks of the hub and of sites, which are off by hours, be no further off than clocks may be."""
    for module in (fold, judge):
        monkeypatch.setattr(module, "SKEW", 8 * HOUR)


@pytest.fixture
def few_marks_wait(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so few marks wait, with every other seed, that some do as one."""
    monkeypatch.setattr(coverage, "_MOST_WAITING", 2 if seed % 2 else 64)


# Of the seeds that are named, another agent's late words lack some, or of a store put back some come twice.
@pytest.mark.usefixtures("few_marks_wait")
@pytest.mark.parametrize("seed", [*range(40), 891, 1220, 11469, 12882, 20566])
@pytest.mark.parametrize("steps", [False, True], ids=["clock right", "clock set"])
def test_batches_duplicates_and_restarts_give_one_state_which_is_what_the_account_says(
    seed: int, steps: bool, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    histories = [drawn_block(draw, site, block) for site, block in (("dub1", "a"), ("ber1", "b"))]
    messages = archived(draw, histories, steps=steps)
    histories = [as_arrived(each, messages) for each in histories]
    whole = folded(messages)
    store, begin = LiveStore(tmp_path / "live.db"), 0
    fleet = Fleet(history=store.entry)
    fleet.kept = FORGOTTEN_AFTER
    while begin < len(messages):
        # A batch begins before the last one ended: after a restart, and where a server sends again.
        begin, end = max(0, begin - draw.randrange(3)), begin + draw.randrange(1, 60)
        changes = fleet.fold(messages[begin:end])
        with store.transaction() as database:
            store.write(database, ORIGIN, fleet, changes)
        begin = end
        if draw.random() < 0.3:
            with store.transaction() as database:
                before = fleet.known_through - FORGOTTEN_AFTER - UNHEARD_FOR
                store.prune(database, before, kept_whole(fleet, histories))
        if draw.random() < 0.2:
            store.close()
            store = LiveStore(tmp_path / "live.db")
            fleet = store.load(ORIGIN) or Fleet(history=store.entry)
            fleet.kept = FORGOTTEN_AFTER
        fleet.check_invariants()
    with store.transaction() as database:
        store.prune(database, fleet.known_through, kept_whole(fleet, histories))
        count = database.execute("SELECT count(*) FROM story").fetchone()[0]
    # What came last of each sender is kept, and what was stored in the last instant.
    assert len(fleet.senders) <= count
    assert kept_whole(fleet, histories) or count <= len(fleet.senders) + 3
    assert state_of(fleet) == state_of(whole)
    assert not due_to_be_forgotten(fleet, store)
    has_forgotten_plain = any(block.forgotten_count and not block.lives for block in fleet.blocks)
    if not contested(fleet, histories) and not has_forgotten_plain:
        check_that_all_once_more_says_nothing_new(fleet, store, messages, histories)
    store.close()

    for history in histories:
        number = fleet.number_of(("eu-west", history.site, history.block))
        is_plain = any(each.ordinal is None for each in history.said)
        if number is None or is_plain:
            continue
        senders, members = fleet.senders, fleet.members[number]
        for sender_id, truth in sender_truths(history, fleet.known_through).items():
            sender = members.get(sender_id)
            if sender is None:
                assert (truth.state, fleet.blocks[number].forgotten_count > 0) == ("absent", True)
                continue
            since = senders.since[sender] if truth.state in ("up", "down") else truth.since
            assert (sender_id, STATES[senders.state[sender]], since) == (sender_id, truth.state, truth.since)
        block = fleet.blocks[number]
        if not has_disputes(history):
            assert block.known_until == known_until(history, unknown_times(messages))


# With the seeds that are named, somebody retired has never lived.
@pytest.mark.parametrize("seed", [*range(300), 368, 1230, 2295])
def test_what_a_sender_is_and_whether_it_has_lived_is_what_the_account_says(seed: int) -> None:
    draw = random.Random(seed)
    history = draw_block(draw, "dub1", "a", START, START + 6 * DAY)
    messages = archived(draw, [history])
    fleet, truths = folded(messages, kept=KEPT), sender_truths(as_arrived(history, messages), messages[-1].archived_at)
    senders, members = fleet.senders, fleet.members[0]
    if fleet.blocks[0].heard_at:
        states = {
            name: (STATES.get(senders.state[sender], ""), senders.since[sender]) for name, sender in members.items()
        }
        for name, truth in truths.items():
            state, since = states[name]
            assert (name, state, since if state in ("up", "down") else 0) == (
                name, truth.state, truth.since if truth.state in ("up", "down") else 0
            )  # fmt: skip
    retired = [each for each in senders.numbers if senders.state[each] == RETIRED and fleet.blocks[0].heard_at]
    assert [fleet.has_lived(each) for each in retired] == [truths[senders.names[each]].has_lived for each in retired]


def check_that_all_once_more_says_nothing_new(
    fleet: Fleet, store: LiveStore, messages: list[Archived], histories: list[BlockHistory]
) -> None:
    """Have somebody send everything once more, also what is kept no more."""
    again = store.load(ORIGIN)
    assert again is not None
    again.kept, archived_at = FORGOTTEN_AFTER, fleet.known_through
    again.fold(each._replace(sequence=again.sequence + 1, archived_at=archived_at) for each in messages)
    assert [block.known_until for block in again.blocks] == [block.known_until for block in fleet.blocks]
    # Clocks are ahead by more than lies between two words here, and of those kept no more nobody knows when they came.
    if not any(each.archived_at < each.at for history in histories for each in history.said):
        assert again.counts == fleet.counts


def drawn_sourcing(draw: random.Random, fleet: Fleet, now: int) -> Sourcing:
    """Draw what the hub says of itself: now and then it is behind, or hears nothing of the region."""
    source = Source(silent_us=draw.choice([0, 0, 3 * HOUR]), error=draw.choice(["", "", "stalled"]))
    return Sourcing(fleet.sequence, now, now - draw.choice([0, 0, 2 * HOUR]), {"eu-west": source})


def drawn_order(draw: random.Random, now: int, names: list[str]) -> DeclareMaintenance | CancelMaintenance:
    """Draw a maintenance of everybody or of two, which may never end, or the end of one."""
    if draw.random() < 0.3:
        return CancelMaintenance(draw.randrange(1, 20))
    began_at = now + draw.randrange(-DAY, DAY // 4)
    ended_at = LATEST if draw.random() < 0.1 else began_at + draw.randrange(HOUR, DAY)
    return DeclareMaintenance(began_at, ended_at, "as drawn", tuple(draw.sample(names, draw.choice([0, 2]))))


def what_is_seen(book: IncidentBook) -> list[object]:
    """Give all that a book has seen of each site."""
    seen = [site for _, site in book._seen.values()]
    ranks = [(site.stale_at(1), site.silent_at(1), site.stale_senders(100)) for site in seen if site.stale_count]
    return [ranks, [{name: is_ for name, is_ in vars(site).items() if not name.startswith("_")} for site in seen]]


@pytest.mark.parametrize("seed", range(16))
def test_what_is_shown_again_is_what_a_first_look_shows(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    places = [("dub1", "a"), ("dub1", "b"), ("ber1", "a"), ("ams1", "a")]
    histories = [draw_block(draw, *place, START, START + 6 * DAY) for place in places]
    names = sorted({said.sender_id for history in histories for said in history.said})
    messages, told = archived(draw, histories), dict[int, StoryEntry]()
    book, first_looks = (IncidentBook(tmp_path / name, IncidentRules()) for name in ("again.db", "first.db"))
    fleet, begin, again = Fleet(history=told.get), 0, 0
    view = View(fleet, Sourcing(), HOUR)
    fleet.kept = FORGOTTEN_AFTER
    while begin < len(messages):
        end = begin + draw.randrange(1, 30)
        told |= {entry.sequence: entry for entry in fleet.fold(messages[begin:end]).entries}
        begin, now = end, fleet.known_through + draw.randrange(2 * HOUR)
        if draw.random() < 0.2:
            scope = Scope("eu-west", *draw.choice([(), ("dub1",), ("dub1", "b"), ("ams1",)]))
            number = len(fleet.revisions) + 1
            fleet.revisions[1, number] = Revision(1, number, scope, now, "draw", drawn_order(draw, now, names))
        for _ in range(2):
            sourcing = drawn_sourcing(draw, fleet, now)
            seen_before = dict(view.seen_sites)
            view, anew = View(fleet, sourcing, HOUR, view), View(fleet, sourcing, HOUR)
            assert (view.sites, view.whole) == (anew.sites, anew.whole)
            again += sum(seen_before.get((site.region, site.site), (None, None))[1] is site for site in view.sites)
            book.look(view)
            first_looks._seen.clear()
            first_looks.look(anew)
            assert book.open == first_looks.open
            assert what_is_seen(book) == what_is_seen(first_looks)
            now += draw.choice([0, SECOND, 3 * HOUR])
    assert again
    first_looks.close()
    replaced, fleet = ref(fleet), Fleet()
    view = anew = View(fleet, Sourcing(), HOUR)
    # A state that is made anew is not looked at before it has been read: no two are held meanwhile.
    gc.collect()
    assert replaced() is None
    book.close()


# Of the first ones, another agent's words come when all that they contradict had vouched, and not all of them.
# Of one, only a mark that vouches for no time counts an ordinal that comes twice.
@pytest.mark.parametrize("seed", [227, 368, 962, 1220, 4960, *range(100)])
def test_block_is_known_as_far_as_the_account_says_whichever_agents_words_came_first(seed: int) -> None:
    draw = random.Random(seed)
    drawn = draw_block(draw, "dub1", "a", START, START + 6 * DAY)
    messages = archived_at_once(draw, drawn, START + 100 * DAY)
    fleet, history = folded(messages), as_arrived(drawn, messages)
    for block in fleet.blocks:
        is_contested = block.known_until < block.contested_until
        if block.heard_at and not is_contested:
            assert block.known_until == known_until(history)


def with_holes(draw: random.Random) -> list[Archived]:
    """Draw what one or two lives of a store said, some of it at no time, some late; what each mark counts goes on."""
    messages, at = list[tuple[int, Message]](), START
    for epoch in range(1, draw.choice([2, 3])):
        block = Block("eu-west", "dub1", epoch=epoch, ordinal=draw.choice([0, 5]))
        seen = at = at - draw.choice([0, 0, at - START])
        for _ in range(30):
            at += MINUTE
            for _ in range(draw.randrange(3)):
                late = draw.choice([0, 0, 0, draw.randrange(15 * MINUTE)])
                said = block.recovered(f"web{draw.randrange(3)}", at)
                messages += [(at + late, said)] if draw.random() < 0.99 else []
            messages.append((at + 1, block.watermark(at - SECOND if draw.random() < 0.1 else seen, at)))
            seen = at
    messages.sort(key=lambda each: each[0])
    return [
        Archived(sequence, message.subject.encode(), archived_at, message.body)
        for sequence, (archived_at, message) in enumerate(messages, start=1)
    ]


@pytest.mark.parametrize("seed", range(200))
def test_marks_that_wait_as_one_vouch_for_no_more_and_in_the_end_for_as_long(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets, known = {2: Fleet(), 1_000: Fleet()}, {2: set[int](), 1_000: set[int]()}

    def noted(lives: list[coverage.Life]) -> Iterator[coverage.Mark]:
        for span in coverage.settle(lives):
            minutes = range(START + MINUTE // 2, span.through, MINUTE)
            known[coverage._MOST_WAITING].update(at for at in minutes if at > span.since)
            yield span

    monkeypatch.setattr(fold, "settle", noted)
    for message in with_holes(random.Random(seed)):
        for most, fleet in fleets.items():
            monkeypatch.setattr(coverage, "_MOST_WAITING", most)
            fleet.fold([message])
        assert known[2] <= known[1_000]
    few, all_ = (fleet.blocks[0] for fleet in fleets.values())
    assert max(len(life.waiting) for life in few.lives.values()) <= 2
    if not any(life.waiting for life in all_.lives.values()):
        assert few.known_until == all_.known_until
