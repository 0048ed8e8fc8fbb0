"""Slices that are read at once have the hub's times of one reading."""

import random
from typing import NamedTuple

import numpy as np
import pytest

from aggregator.archive.consumer import Messages
from aggregator.archive.hub_clock import ClockStep, HubClock
from aggregator.lakehouse.archive.hub_time import ClockReport, SliceClock, settled
from aggregator.lakehouse.archive.slices import cut
from shared.instants import SECOND

SUBJECTS = (b"fleet.eu.dub1.nodes.watermark", b"fleet.eu.dub1.nodes.advisory.stale", b"muster.policy.eu.region")
REGISTRATION = b"fleet.eu.dub1.nodes.registration"


class Slice(NamedTuple):
    """What was read of a slice, and the hub's times in it."""

    sequences: tuple[int, int]
    clock: ClockReport
    times: list[int]


def drawn(draw: random.Random, count: int) -> Messages:
    """Draw messages whose stamps rise but where the clock is set, of which some are about no sender."""
    now, stamps = 10**15, list[int]()
    for _ in range(count):
        now += draw.randrange(SECOND)
        if draw.random() < 0.03:
            now += draw.choice((-1, -1, 1)) * draw.choice((1, SECOND // 2, 5 * SECOND, 28 * SECOND, 600 * SECOND))
        stamps.append(now)
    subjects = [draw.choice((*SUBJECTS, REGISTRATION, b"other")) for _ in stamps]
    nothing = [b""] * count
    return Messages(np.arange(1, count + 1), subjects, np.array(stamps), nothing, nothing)


def one_by_one(messages: Messages, clock: HubClock) -> tuple[list[int], list[ClockStep]]:
    """Give the hub's time of each message, and the steps that end, with no look at more than one at once."""
    times, ended = list[int](), list[ClockStep]()
    for sequence, subject, stamp in zip(messages.sequences, messages.subjects, messages.archived_at, strict=True):
        if subject in SUBJECTS:
            ended += clock.read(int(sequence), int(stamp))
        times.append(max(int(stamp), clock.time))
    return times, ended


@pytest.mark.parametrize("seed", range(100))
def test_slices_have_the_times_and_the_steps_of_one_reading(seed: int) -> None:
    draw = random.Random(seed)
    messages, clock = drawn(draw, draw.randrange(1, 200)), HubClock(draw.choice((0, 10**15 + 60 * SECOND)))

    def read(sequences: tuple[int, int], before: HubClock) -> Slice:
        reader, times = SliceClock(before, ""), list[int]()
        begin, end = sequences[0] - 1, sequences[1]
        while begin < end:
            batch = min(end, begin + draw.randrange(1, 20))
            times += reader.read(messages.part(begin, batch)).archived_at.tolist()
            begin = batch
        return Slice(sequences, reader.report, times)

    first, *others = cut(1, len(messages.subjects), draw.randrange(1, 12))
    readings = [read(first, clock), *(read(sequences, HubClock()) for sequences in others)]
    found = settled(clock, readings, lambda reading, before: read(reading.sequences, before))
    again = HubClock(clock.time)
    times, steps = one_by_one(messages, again)
    assert [time for reading in found.readings for time in reading.times] == times
    assert (found.clock, found.steps) == (again, steps)
