"""The hub's time of messages that tasks read in slices, at once.

A slice is read after the clock that its task is given. The reader of a slice does not know the largest stamp before it,
so it begins with a clock of its own; where the clock turns out to have been set back before or within the slice, the
slice is read once more, after the right clock.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from aggregator.archive.consumer import Messages, Numbers
from aggregator.archive.hub_clock import ClockStep, HubClock
from aggregator.lakehouse.archive.slices import StreamSlices
from aggregator.records.judge import named_by


class ClockReport(msgspec.Struct, frozen=True):
    """What the messages of one slice did to the hub's clock.

    ``least`` is the smallest stamp, 0 where there are no messages; ``ended`` are the steps that ended in the slice.
    """

    before: HubClock
    after: HubClock
    least: int
    ended: tuple[ClockStep, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a report that a task has written as text."""
        return msgspec.json.decode(text, type=cls)

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()

    def is_right_after(self, clock: HubClock) -> bool:
        """Return True if the slice, read after ``clock``, would have the same hub's times."""
        is_behind = 0 < self.least < clock.time or clock.step is not None or self.before.step is not None
        return self.before == clock or not is_behind


class SliceClock:
    """Reads the hub's time of the messages of one slice, in their order."""

    def __init__(self, before: HubClock, choria_region: str) -> None:
        self._before, self._choria_region = before, choria_region
        self._clock, self._ended, self._least = msgspec.structs.replace(before), list[ClockStep](), 0

    @property
    def report(self) -> ClockReport:
        """What the messages read so far did to the clock."""
        return ClockReport(self._before, self._clock, self._least, tuple(self._ended))

    def read(self, messages: Messages) -> Messages:
        """Return the next messages with the hub's time in place of their stamps."""
        subjects, choria_region = messages.subjects, self._choria_region

        def is_about_fleet(place: int) -> bool:
            return named_by(subjects[place], choria_region) is not None

        times = self.read_stamps(messages.sequences, messages.archived_at, is_about_fleet)
        return messages._replace(archived_at=times)

    def read_stamps(self, sequences: Numbers, stamps: Numbers, is_about_fleet: Callable[[int], bool]) -> Numbers:
        """Return the hub's times of the next stamps, at least one; ``is_about_fleet`` says which count, by place."""
        clock, least = self._clock, int(stamps.min())
        self._least = min(self._least or least, least)
        if clock.step is None and least >= clock.time and bool((stamps[1:] >= stamps[:-1]).all()):
            last = next((place for place in range(len(stamps) - 1, -1, -1) if is_about_fleet(place)), None)
            clock.time = clock.time if last is None else int(stamps[last])
            return stamps
        times = stamps.copy()
        for place, (sequence, stamp) in enumerate(zip(sequences.tolist(), stamps.tolist(), strict=True)):
            if is_about_fleet(place):
                self._ended += clock.read(sequence, stamp)
            times[place] = max(stamp, clock.time)
        return times


def clock_report(source: StreamSlices, before: HubClock, sequences: tuple[int, int]) -> ClockReport:
    """Read ``sequences``, both ends included, after the hub's clock ``before``, for what they do to it."""
    clock = SliceClock(before, source.choria_region)
    for messages in source.read(*sequences):
        clock.read(messages)
    return clock.report


class Reading(Protocol):
    """What was read of a slice."""

    @property
    def clock(self) -> ClockReport:
        """What its messages did to the hub's clock."""


R = TypeVar("R", bound=Reading)


class Settled(NamedTuple, Generic[R]):
    """Readings of slices, each after the right clock; the hub's ``clock`` after them, and the ``steps`` that ended."""

    readings: Sequence[R]
    clock: HubClock
    steps: Sequence[ClockStep]


def settled(clock: HubClock, readings: Iterable[R], read_again: Callable[[R, HubClock], R]) -> Settled[R]:
    """Return the readings of slices in their order, the first of which follows the hub's ``clock``.

    ``read_again`` reads a slice after another clock.
    """
    found, steps = list[R](), list[ClockStep]()
    for reading in readings:
        right = reading if reading.clock.is_right_after(clock) else read_again(reading, clock)
        clock = HubClock(max(clock.time, right.clock.after.time), right.clock.after.step)
        found.append(right)
        steps += right.clock.ended
    return Settled(found, clock, steps)
