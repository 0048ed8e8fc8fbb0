"""The hub's time of archived messages, which never falls where the hub's clock is set back.

A stream stamps each message with the clock of the server that leads it. That clock falls behind earlier stamps where an
operator or NTP sets it back, where a virtual machine resumes, and where a leader follows whose clock is behind. The
hub's time of a message is therefore the largest stamp up to its sequence, among the messages about the fleet
(``judge.named_by``): the live service reads no others, and the tables must come to the same time.

While the clock is behind, the hub's time stands still. It is then only a lower bound of when a message was stored, so
the time between the two stamps around such a step is unknown for every block. Pure: the live fleet and the tables read
stamps with the same clock.
"""

from collections.abc import Iterator, Sequence
from typing import Self

import msgspec

from shared.instants import SECOND, format_duration, format_instant

SMALLEST_STEP = SECOND
"""Leaders of one stream differ by less: such a fall is neither reported, nor does it make time unknown."""


class ClockStep(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One step back of the hub's clock; instants in microseconds.

    ``first_sequence`` is the first message that was stamped earlier than ``stepped_at``, the largest stamp before it;
    ``fell_to`` is the smallest stamp since. The message ``resumed_sequence`` was stamped ``resumed_at``, not earlier
    than ``stepped_at``; both are 0 while the clock is still behind.
    """

    first_sequence: int
    stepped_at: int
    fell_to: int
    resumed_sequence: int = 0
    resumed_at: int = 0

    @property
    def length(self) -> int:
        """By how much the clock was set back."""
        return self.stepped_at - self.fell_to

    def __str__(self) -> str:
        since = f"set back by {format_duration(self.length)} at {format_instant(self.stepped_at)}"
        if not self.resumed_at:
            return (
                f"the hub's clock was {since} and is behind since: nothing later is known; set it right, or, if it was "
                "ahead before, wait for that instant; use NTP"
            )
        return f"the hub's clock was {since}: the time until {format_instant(self.resumed_at)} is unknown; use NTP"

    @property
    def before_its_end(self) -> Self:
        """The step as it was known before the clock had made up for it."""
        return msgspec.structs.replace(self, resumed_sequence=0, resumed_at=0)


class HubClock(msgspec.Struct):
    """The hub's time after some messages; ``step`` is the step that the clock has not made up for yet."""

    time: int = 0
    step: ClockStep | None = None

    def read(self, sequence: int, stamp: int) -> Sequence[ClockStep]:
        """Read the stamp of the next message about the fleet; return the step that ends with it, if any."""
        if stamp < self.time:
            if self.step is not None:
                self.step = msgspec.structs.replace(self.step, fell_to=min(self.step.fell_to, stamp))
            elif stamp <= self.time - SMALLEST_STEP:
                self.step = ClockStep(sequence, self.time, stamp)
            return ()
        ended = self.step
        self.time, self.step = stamp, None
        if ended is None:
            return ()
        return (msgspec.structs.replace(ended, resumed_sequence=sequence, resumed_at=stamp),)


def without_steps(steps: Sequence[ClockStep], since: int, through: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span that lie under none of ``steps``, which are in order."""
    for step in steps:
        if since < step.resumed_at and step.stepped_at < through:
            if since < step.stepped_at:
                yield since, step.stepped_at
            since = step.resumed_at
    if since < through:
        yield since, through
