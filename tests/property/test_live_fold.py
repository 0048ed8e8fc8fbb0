"""The live state is a function of the archive: however it is cut and restarted, and what the tables' account says."""

import random
from pathlib import Path

import msgspec
import pytest

from aggregator.live.alerts.incident_book import IncidentBook
from aggregator.live.alerts.incidents import Cause, Rules
from aggregator.live.fold.changes import Archived, Changes
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.senders import LOST, RETIRED, STALE, UNHEARD, UP
from aggregator.live.fold.view import Sourcing, View
from aggregator.live.store import LiveStore, Origin
from shared.instants import DAY, HOUR, parse_instant
from tests.support.lakehouse.random_fleet import BlockHistory, draw_block
from tests.support.live.archived_history import archived, archived_at_once, has_disputes, known_until, sender_truths

START = parse_instant("2026-02-27T00:00:00Z")
ORIGIN = Origin("ARCHIVE", 1)
FORGOTTEN_AFTER = DAY
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


def folded(messages: list[Archived]) -> Fleet:
    """Fold all at once, with the whole story at hand."""
    changes = Changes()
    fleet = Fleet(history=lambda sequence: next((each for each in changes.entries if each.sequence == sequence), None))
    fleet.kept = FORGOTTEN_AFTER
    fleet.fold(messages, changes)
    return fleet


def contested(fleet: Fleet, histories: list[BlockHistory]) -> set[int]:
    """Number the blocks in which two agents speak at once, at any time: days are years here."""
    disputed = (fleet.number_of(("eu-west", each.site, each.block)) for each in histories if has_disputes(each))
    return {number for number in disputed if number is not None}


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


@pytest.mark.parametrize("seed", range(40))
def test_batches_duplicates_and_restarts_give_one_state_which_is_what_the_account_says(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    histories = [
        draw_block(draw, site, block, START, START + 6 * DAY) for site, block in (("dub1", "a"), ("ber1", "b"))
    ]
    messages = archived(draw, histories)
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
                store.prune(database, fleet.known_through - DAY, contested(fleet, histories))
        if draw.random() < 0.2:
            store.close()
            store = LiveStore(tmp_path / "live.db")
            fleet = store.load(ORIGIN) or Fleet(history=store.entry)
            fleet.kept = FORGOTTEN_AFTER
        fleet.check_invariants()
    with store.transaction() as database:
        store.prune(database, fleet.known_through, contested(fleet, histories))
        count = database.execute("SELECT count(*) FROM story").fetchone()[0]
    # What came last of each sender is kept, and what was stored in the last instant.
    assert len(fleet.senders) <= count
    assert contested(fleet, histories) or count <= len(fleet.senders) + 3
    assert state_of(fleet) == state_of(whole)
    assert not due_to_be_forgotten(fleet, store)
    has_forgotten_plain = any(block.forgotten_count and not block.lives for block in fleet.blocks)
    if not contested(fleet, histories) and not has_forgotten_plain:
        # Whoever sends everything once more, also what is kept no more, says nothing new.
        states, known = bytes(fleet.senders.state), [block.known_until for block in fleet.blocks]
        archived_at = fleet.known_through
        fleet.fold(each._replace(sequence=fleet.sequence + 1, archived_at=archived_at) for each in messages)
        assert (bytes(fleet.senders.state), [block.known_until for block in fleet.blocks]) == (states, known)
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
            assert (sender_id, STATES[senders.state[sender]], since) == (sender_id, *truth)
        block = fleet.blocks[number]
        if not has_disputes(history):
            assert block.known_until == known_until(history)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_shown_again_is_what_a_first_look_shows(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    histories = [draw_block(draw, site, "a", START, START + 6 * DAY) for site in ("dub1", "ber1", "ams1")]
    messages = archived(draw, histories)
    store = LiveStore(tmp_path / "live.db")
    books = [IncidentBook(tmp_path / name, Rules()) for name in ("going-on.db", "anew.db")]
    fleet, view, begin = Fleet(history=store.entry), None, 0
    while begin < len(messages):
        end = begin + draw.randrange(1, 30)
        with store.transaction() as database:
            store.write(database, ORIGIN, fleet, fleet.fold(messages[begin:end]))
        begin = end
        loaded = store.load(ORIGIN)
        assert loaded is not None
        now = fleet.known_through + draw.randrange(2 * HOUR)
        sourcing = Sourcing(fleet.sequence, now, now)
        view, anew = View(fleet, sourcing, HOUR, view), View(loaded, sourcing, HOUR)
        assert (view.sites, view.whole) == (anew.sites, anew.whole)
        stale = [
            [msgspec.to_builtins(each) for each in book.look(shown) if each.cause is Cause.STALE]
            for book, shown in zip(books, (view, anew), strict=True)
        ]
        assert stale[0] == stale[1]
    for book in books:
        book.close()
    store.close()


# Of the first ones, another agent's words come when all that they contradict had vouched, and not all of them.
@pytest.mark.parametrize("seed", [227, 962, 1220, *range(100)])
def test_block_is_known_as_far_as_the_account_says_whichever_agents_words_came_first(seed: int) -> None:
    draw = random.Random(seed)
    drawn = draw_block(draw, "dub1", "a", START, START + 6 * DAY)
    messages, history = archived_at_once(draw, drawn, START + 100 * DAY)
    fleet = folded(messages)
    for block in fleet.blocks:
        is_contested = block.known_until < block.contested_until
        if block.heard_at and not is_contested:
            assert block.known_until == known_until(history)
