"""How fast the tracker decides, without I/O, against msgspec decoding the sender out of the same 1 kB."""

import time

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.tracker import Tracker
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import HOUR, MINUTE, SECOND
from tests.bench.report import Measure, in_turns

START = 1_700_000_000 * SECOND
BATCH = 2_000
POLICY = Policy(sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=24 * HOUR, blind_after=3 * MINUTE)


class _Registration(msgspec.Struct):
    sender: str


async def bench_tracker(quick: bool) -> list[Measure]:
    """Measure first sightings, sightings of known senders, and a whole fleet falling silent."""
    senders, turns = (50_000, 3) if quick else (200_000, 5)
    first = _observations(senders, senders, START)
    again = _observations(senders, 1_000, START)

    async def first_sightings() -> float:
        return _rate(_tracker(), first)

    async def known_sightings() -> float:
        tracker = _tracker()
        _rate(tracker, again[:BATCH])
        return _rate(tracker, again)

    async def falls_silent() -> float:
        tracker = _tracker()
        _rate(tracker, first)
        at = first[-1].message.stored_at
        began = time.perf_counter()
        for _ in range(13 * MINUTE // SECOND):
            at += SECOND
            _prove(tracker, at)
        assert tracker.sender_counts() == {"heard": 0, "stale": senders}
        return senders / (time.perf_counter() - began)

    async def plain(observations: list[Observation]) -> float:
        decoder = msgspec.json.Decoder(_Registration)
        began = time.perf_counter()
        for observation in observations:
            decoder.decode(observation.message.payload)
        return len(observations) / (time.perf_counter() - began)

    yardstick = "msgspec decoding 1 kB"
    return [
        Measure(
            "first sightings", "per s", *_with(yardstick, await in_turns(first_sightings, lambda: plain(first), turns))
        ),
        Measure(
            "sightings of 1,000 senders",
            "per s",
            *_with(yardstick, await in_turns(known_sightings, lambda: plain(again), turns)),
        ),
        Measure(
            f"stale, {senders:,} at once, ticks of 1 s",
            "per s",
            *_with(yardstick, await in_turns(falls_silent, lambda: plain(first), turns)),
        ),
    ]


def _with(yardstick: str, figures: tuple[float, float]) -> tuple[float, str, float]:
    return figures[0], yardstick, figures[1]


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
