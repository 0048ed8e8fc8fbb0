"""How fast the tracker decides, without I/O, and what a tick costs, beside msgspec decoding the sender out of 1 kB."""

import time
from collections.abc import Callable

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.tracker import Tracker
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import HOUR, MINUTE, SECOND
from tests.bench.report import Row, Table, median
from tests.bench.stage import Options

START = 1_700_000_000 * SECOND
BATCH = 2_000
TICKS = 2_000
POLICY = Policy(sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=24 * HOUR, blind_after=3 * MINUTE)


class _Registration(msgspec.Struct):
    sender: str


async def tracker_rules(options: Options) -> Table:
    """Measure first and later sightings, a fleet falling silent, and ticks in which nothing falls due."""
    senders, turns = options.size(200_000, 20_000), options.size(5, 1)
    first = _observations(senders, senders, START)
    again = _observations(senders, 1_000, START)

    def first_sightings() -> float:
        return _rate(_tracker(), first)

    def known_sightings() -> float:
        tracker = _tracker()
        _rate(tracker, again[:BATCH])
        return _rate(tracker, again)

    def falls_silent() -> float:
        tracker = _tracker()
        _rate(tracker, first)
        at = first[-1].message.stored_at
        began = time.perf_counter()
        for _ in range(13 * MINUTE // SECOND):
            at += SECOND
            _prove(tracker, at)
        assert tracker.sender_counts() == {"heard": 0, "stale": senders}
        return senders / (time.perf_counter() - began)

    def tick(count: int) -> float:
        tracker = _tracker()
        _rate(tracker, first[:count])
        at = first[count - 1].message.stored_at
        began = time.perf_counter()
        for number in range(TICKS):
            _prove(tracker, at + number * SECOND // 10)
        return 1e6 * (time.perf_counter() - began) / TICKS

    def plain(observations: list[Observation]) -> float:
        decoder = msgspec.json.Decoder(_Registration)
        began = time.perf_counter()
        for observation in observations:
            decoder.decode(observation.message.payload)
        return len(observations) / (time.perf_counter() - began)

    def both(what: str, ours: Callable[[], float]) -> Row:
        figures = [(ours(), plain(first)) for _ in range(turns)]
        return Row(what, "per s", median([each for each, _ in figures]), median([each for _, each in figures]))

    small = senders // 100
    rows = [
        both("first sightings", first_sightings),
        both("sightings of 1,000 senders", known_sightings),
        both(f"stale, {senders:,} at once, ticks of 1 s", falls_silent),
        Row(f"tick, {small:,} senders, none due", "us", median([tick(small) for _ in range(turns)])),
        Row(f"tick, {senders:,} senders, none due", "us", median([tick(senders) for _ in range(turns)])),
    ]
    return Table("tracker", "the rules alone, without I/O", options.command("tracker"), rows, yardstick="decoding")


MEASURES = {"tracker": tracker_rules}


def _tracker() -> Tracker:
    return Tracker(BlockState(SourcePosition("REGISTRATION", Incarnation(START, START // 1000), 0), POLICY))


def _observations(count: int, senders: int, start: int) -> list[Observation]:
    payload = msgspec.json.encode({"sender": "node.example.net", "data": "x" * 940})
    return [
        Observation(
            f"node{number % senders:06}.example.net",
            SourceMessage("registration", payload, None, number + 1, start + number * 1_000),
        )
        for number in range(count)
    ]


def _rate(tracker: Tracker, observations: list[Observation]) -> float:
    began = time.perf_counter()
    for first in range(0, len(observations), BATCH):
        draft = tracker.draft()
        for observation in observations[first : first + BATCH]:
            if not draft.observe(observation):
                raise AssertionError("a batch holds fewer decisions than a draft carries")
        tracker.adopt(draft)
    return len(observations) / (time.perf_counter() - began)


def _prove(tracker: Tracker, at: int) -> None:
    is_done = False
    while not is_done:
        draft = tracker.draft()
        is_done = draft.prove(at)
        tracker.adopt(draft)
