"""What a site or a policy may say that no honest one would: it stops nothing, and what it costs is bounded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aggregator.live.alerts.incident_book import SiteSnapshot, ended_maintenance
from aggregator.live.fold.changes import Archived, Changes, StoryEntry
from aggregator.live.fold.coverage import MOST_LIVES
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.view import Sourcing, View
from aggregator.live.known_senders import unheard_of
from aggregator.live.service.answers import sender_row, story
from aggregator.live.store import ArchiveId, LiveStore, StoreReader
from aggregator.records.judge import SKEW, QuarantineReason
from shared.instants import HOUR, MINUTE
from shared.policy import Scope
from shared.subjects import BLOCKS_PER_SITE
from tests.support.lakehouse.hostile import START, honest, hostile
from tests.support.lakehouse.hub import Block, Message

ORIGIN = ArchiveId("ARCHIVE", 1)


@pytest.mark.parametrize("kind", [kind for kind, _ in honest()])
def test_no_value_of_any_field_stops_the_fold_the_store_or_what_is_shown(kind: str, tmp_path: Path) -> None:
    first = Block("eu-west", "dub1")
    messages = [first.new("web1", START), *hostile(kind)]
    messages.append(first.watermark(START, START + 2 * MINUTE))
    archived = [
        Archived(sequence, each.subject.encode(), START + HOUR, each.body)
        for sequence, each in enumerate(messages, start=1)
    ]
    store = LiveStore(tmp_path / "live.db")
    fleet = Fleet(history=store.entry)
    for each in archived:
        changes = fleet.fold([each])
        with store.transaction() as database:
            store.write(database, ORIGIN, fleet, changes)
    fleet.check_invariants()
    assert fleet.sequence == len(archived)
    loaded = store.load(ORIGIN)
    assert loaded is not None
    view = View(loaded, Sourcing(now=START + HOUR, caught_up_at=START + HOUR), MINUTE)
    reader = StoreReader(tmp_path / "live.db")
    msgspec.json.encode([view.whole, view.sites])
    for number in range(view.block_count):
        SiteSnapshot(
            view, loaded.blocks[number].region, loaded.blocks[number].site, ended_maintenance(loaded, view.now)
        )
        for name in loaded.members[number]:
            stored = reader.sender(number, name)
            assert stored is not None
            told = story(view, reader, ("eu-west", "dub1", "nodes", name))
            msgspec.json.encode([sender_row(view, stored), told])
    reader.close()
    store.close()


def test_a_sender_whose_name_has_a_nul_is_known_by_it(tmp_path: Path) -> None:
    store = LiveStore(tmp_path / "live.db")
    fleet = Fleet(history=store.entry)
    message = Block("eu-west", "dub1").new("a\0b", START)
    changes = fleet.fold([Archived(1, message.subject.encode(), START, message.body)])
    with store.transaction() as database:
        store.write(database, ORIGIN, fleet, changes)
    store.close()
    asked = tmp_path / "live.db", Scope("eu-west", "dub1")
    assert unheard_of(*asked, ["a\0b"]) == ""
    assert "has heard of 'a\\x00c' as of" in unheard_of(*asked, ["a\0b", "a\0c"])


def test_blocks_without_end_cost_a_site_no_more_than_count() -> None:
    fleet, messages = Fleet(), list[Message]()
    for number in range(3 * BLOCKS_PER_SITE):
        block = Block("eu-west", "dub1", f"b{number}")
        messages += [block.new("web1", START), block.watermark(START, START + MINUTE)]
    messages.append(Block("eu-west", "ams1").new("web1", START))
    for sequence, message in enumerate(messages, start=1):
        fleet.fold([Archived(sequence, message.subject.encode(), START + HOUR, message.body)])
    assert [each.block for each in fleet.blocks] == [*(f"b{number}" for number in range(BLOCKS_PER_SITE)), "nodes"]
    assert fleet.refused == {QuarantineReason.TOO_MANY_BLOCKS: 4 * BLOCKS_PER_SITE}
    assert fleet.site_blocks.refused == {("eu-west", "dub1"): 4 * BLOCKS_PER_SITE}


def test_incarnations_without_end_cost_a_block_no_more_than_the_last_ones() -> None:
    fleet, at = Fleet(), START
    honest_one = Block("eu-west", "dub1")
    messages = [honest_one.new("web1", START), honest_one.watermark(START, START + MINUTE)]
    for epoch in range(2, 3 * MOST_LIVES):
        block = Block("eu-west", "dub1", epoch=epoch)
        messages += [block.stale(f"web{epoch}", START), block.watermark(START, START + epoch * MINUTE)]
    for sequence, message in enumerate(messages, start=1):
        at += MINUTE
        fleet.fold([Archived(sequence, message.subject.encode(), at, message.body)])
    (block_state,) = fleet.blocks
    assert len(block_state.lives) == MOST_LIVES
    assert list(block_state.lives)[-1] == f"1-{3 * MOST_LIVES - 1}"
    assert (fleet.refused, len(fleet.senders)) == ({}, 3 * MOST_LIVES - 1)


def test_holes_without_end_cost_a_block_no_more_than_the_last_ones() -> None:
    fleet, block, at = Fleet(), Block("eu-west", "dub1"), START
    for sequence in range(1, 10_000, 2):
        at += MINUTE
        block.ordinal += 1
        for number, message in enumerate((block.recovered("web1", at), block.watermark(START, at))):
            fleet.fold([Archived(sequence + number, message.subject.encode(), at, message.body)])
    (block_state,) = fleet.blocks
    assert len(msgspec.json.encode(block_state)) < 20_000
    assert (block_state.known_until, block_state.missing_count > 4_900) == (START + MINUTE, True)


class CountedEntries(list[StoryEntry]):
    """Entries that count how often one was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __iter__(self) -> Iterator[StoryEntry]:
        self.reads += len(self)
        return super().__iter__()

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize(
    ("ordinal_of", "ahead"),
    [(lambda _number: 1, 0), (lambda number: 4_000 - number, 0), (lambda _number: 1, 2 * SKEW)],
    ids=["one ordinal", "each a smaller one", "in time to come"],
)
def test_advisories_of_ordinals_that_were_there_before_cost_no_more_the_more_came_before(
    ordinal_of: Callable[[int], int], ahead: int
) -> None:
    count, reads, stored = 4_000, 0, dict[int, StoryEntry]()

    def history(sequence: int) -> StoryEntry | None:
        nonlocal reads
        reads += 1
        return stored.get(sequence)

    block, fleet = Block("eu-west", "dub1"), Fleet(history=history)
    messages = [block.new("web1", START), *(block.recovered("web2", START) for _ in range(count))]
    for number in range(1, count):
        block.ordinal = ordinal_of(number) - 1
        messages.append(block.recovered("web1", START + number + ahead))
    archived = [
        Archived(sequence, message.subject.encode(), START + sequence, message.body)
        for sequence, message in enumerate(messages, start=1)
    ]
    half = len(archived) - count // 2
    stored = {entry.sequence: entry for entry in fleet.fold(archived[:half]).entries}
    changes = Changes()
    changes.entries = entries = CountedEntries()
    fleet.fold(archived[half:], changes)
    assert len(entries) == count // 2
    assert (reads + entries.reads) / len(entries) < 1_000
