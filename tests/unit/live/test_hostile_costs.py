"""The hub's work for hostile records grows no faster than the records, and other tasks run meanwhile."""

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType

import pytest

from aggregator.archive.consumer import StreamConsumer
from aggregator.lakehouse.bronze.records import subject_of
from aggregator.live import feed
from aggregator.live.api import UnknownReason
from aggregator.live.fold.changes import Archived, Changes, StoryEntry
from aggregator.live.fold.coverage import MOST_LIVES
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.senders import LOST, STALE, UP
from aggregator.live.fold.view import Sourcing, View
from aggregator.records.judge import LONGEST_SUBJECT, advisory_subject, named_by
from shared.instants import HOUR, MINUTE, SECOND
from shared.nats.dispatch import DirectClient
from tests.support.lakehouse.hub import Block, Message

START = 1_795_600_000_000_000
LATE = START + 10_000 * HOUR
STEP = 11 * MINUTE
"""The distance between watermarks: after it, the other agent is taken to have ended."""
FEW = 150


def alternating(agents: int) -> Callable[[int], Iterator[Message]]:
    def messages(size: int) -> Iterator[Message]:
        blocks = [Block("eu-west", "dub1", epoch=epoch, boot_id=f"b{epoch}") for epoch in range(1, agents + 1)]
        for number in range(size):
            yield blocks[number % agents].recovered(f"web{number}", START - number)
        for number in range(size):
            block, at = blocks[number % agents], START + number * STEP
            yield block.watermark(START, at)
            yield block.recovered("web0", at)

    return messages


def stores_without_end(size: int) -> Iterator[Message]:
    block = Block("eu-west", "dub1")
    for number in range(size):
        yield block.recovered(f"web{number}", START)
    for number in range(1, size):
        yield block.watermark(START, START + number * SECOND, rebuilt_at=START + number * SECOND)


def advisories_that_never_come(size: int) -> Iterator[Message]:
    blocks = [Block("eu-west", "dub1", epoch=epoch) for epoch in range(1, MOST_LIVES)]
    for block in blocks:
        yield block.recovered("web0", START)
        yield block.watermark(START, START + SECOND)
    # A count that falls, at the end of time: what waits before it is judged each time.
    blocks[-1].ordinal = 9
    yield blocks[-1].watermark(START, START + 9_000 * HOUR)
    blocks[-1].ordinal = 8
    yield blocks[-1].watermark(START, START + 9_001 * HOUR)
    for number in range(size):
        for block in blocks[:-1]:
            block.ordinal += 2
            yield block.watermark(START, START + number * MINUTE)
            block.ordinal += 1
            yield block.recovered("web0", START)


def archived(messages: Iterator[Message], at: int = LATE) -> list[Archived]:
    return [
        Archived(sequence, message.subject.encode(), at + sequence, message.body)
        for sequence, message in enumerate(messages, start=1)
    ]


def calls_of(messages: list[Archived]) -> int:
    """Fold messages, and return the number of function calls."""
    stored, calls = dict[int, StoryEntry](), count()
    fleet = Fleet(history=stored.get)

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            next(calls)

    for begin in range(0, len(messages), 1_000):
        sys.setprofile(counted)
        try:
            changes = fleet.fold(messages[begin : begin + 1_000])
        finally:
            sys.setprofile(None)
        stored |= {entry.sequence: entry for entry in changes.entries}
    fleet.check_invariants()
    return next(calls)


@pytest.mark.parametrize(
    ("drawn", "size"),
    [(alternating(2), FEW), (alternating(3), FEW), (stores_without_end, FEW), (advisories_that_never_come, 1)],
    ids=["two agents alternate", "three agents", "lost stores", "missing advisories"],
)
def test_work_grows_no_faster_than_what_a_site_sends(drawn: Callable[[int], Iterator[Message]], size: int) -> None:
    few, many = archived(drawn(size)), archived(drawn(3 * size))
    assert calls_of(many) / len(many) < 1.5 * calls_of(few) / len(few)
    assert calls_of(many) / len(many) < 6_000


def test_marks_that_wait_are_bounded_for_all_incarnations_of_a_block() -> None:
    fleet = Fleet()
    fleet.fold(archived(advisories_that_never_come(3)))
    assert sum(len(life.waiting) for life in fleet.blocks[0].lives.values()) < 5 * MOST_LIVES


def test_block_of_two_agents_is_unknown_while_its_senders_are_outdated() -> None:
    fleet, changes = Fleet(), Changes()
    earlier, later = Block("eu-west", "dub1"), Block("eu-west", "dub1", epoch=2)
    told = [
        earlier.watermark(START, START + 29 * MINUTE),
        later.watermark(START, START + 30 * MINUTE),
        earlier.stale("web1", START),
        earlier.watermark(START, START + HOUR),
        later.watermark(START, START + 2 * HOUR),
    ]
    messages = archived(iter(told), START + 2 * HOUR)
    sourcing = Sourcing(now=START + 2 * HOUR, caught_up_at=START + 2 * HOUR)
    for _ in fleet.take(messages, changes):
        pass
    assert (fleet.counts[0][STALE], View(fleet, sourcing, MINUTE).reason(0)) == (1, UnknownReason.CONTESTED)
    for _ in fleet.rebuild_outdated(changes):
        pass
    assert (fleet.counts[0][STALE], View(fleet, sourcing, HOUR).reason(0)) == (0, None)


def test_block_of_a_lost_store_is_unknown_while_its_senders_are_outdated() -> None:
    fleet, changes = Fleet(), Changes()
    earlier, later = Block("eu-west", "dub1"), Block("eu-west", "dub1", epoch=2)
    lost_at = START + HOUR
    messages = archived(
        iter([earlier.recovered("web1", START), later.watermark(START, lost_at + HOUR, rebuilt_at=lost_at)]), lost_at
    )
    for _ in fleet.take(messages, changes):
        pass
    view = View(fleet, Sourcing(now=lost_at, caught_up_at=lost_at), HOUR)
    assert (fleet.counts[0][UP], view.reason(0)) == (1, UnknownReason.LOST_STORE)
    for _ in fleet.rebuild_outdated(changes):
        pass
    assert (fleet.counts[0][UP], fleet.counts[0][LOST]) == (0, 1)


async def test_other_tasks_run_after_each_turn() -> None:
    def steps() -> Iterator[None]:
        for _ in range(5):
            ends_at = time.monotonic() + 2 * feed.TURN
            while time.monotonic() < ends_at:
                pass
            yield

    turns = 0

    async def run_on() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(run_on())
    spent = await feed._in_turns(steps())
    running.cancel()
    assert (turns >= 5, spent >= 10 * feed.TURN) == (True, True)


READERS: dict[str, Callable[[bytes], object]] = {
    "advisory_subject": lambda subject: advisory_subject(subject, ""),
    "named_by": lambda subject: named_by(subject, ""),
    "subject_of": subject_of,
    "is_wanted": StreamConsumer(DirectClient(), "", "ARCHIVE", 1, feed.FOLDED_SUBJECTS)._is_wanted,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("ending", ["advisory.new", "watermark", "registration"])
def test_nothing_is_kept_of_subjects_that_no_agent_publishes_on(name: str, ending: str) -> None:
    read, some = READERS[name], range(1_000)
    read(b"fleet.eu-west.dub1.nodes.watermark")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in some:
            read(b"fleet.eu-west.dub1.%d.%b" % (number, ending.encode().rjust(LONGEST_SUBJECT, b"b")))
            read(b"fleet.eu-west.dub1.%b%d.%b" % (b"b" * LONGEST_SUBJECT, number, ending.encode()))
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < len(some) * LONGEST_SUBJECT / 10
