"""Holes in a stream that another reader of the same consumer may have made, and this reader's waiting requests.

A consumer's own sequence begins at 1 with every reset, also with another reader's. A delivery of another reader's reset
may therefore seem to follow our last one: directly after our own reset, or if as many messages went to the other reader
as had come to us. Messages passed over then show as a hole in the stream's sequences, as filtered or deleted messages
do. The rules, for a hole between two deliveries:

1. The first hole behind a reset is asked about: the stream's leader says whether it holds a message within it.
2. So is a hole behind which fewer messages are pending than before it, less the one delivered: some were delivered.
3. So is every hole, up to ``MOST_ASKED`` between two checks, of a reader without a filter: there, holes are rare.
4. Any other hole is kept until a check shows that no other reader has a request waiting at the consumer. If a check or
   a delivery shows another reader, every kept hole is asked about, and passed-over messages are a gap.

No I/O: instants are arguments.
"""

from collections import deque
from typing import NamedTuple

MOST_ASKED = 50
MOST_KEPT = 20_000
"""Kept holes from which on a check is due: it asks the consumer once, instead of the stream for each hole."""


class Hole(NamedTuple):
    """The sequences behind ``after`` and before ``before``: none of them was delivered.

    The answer to a question about it may be the message at ``before``, which has ``size`` bytes.
    """

    after: int
    before: int
    size: int


class Elsewhere(NamedTuple):
    """``missing`` deliveries between two sequences did not arrive: lost on their way, or another reader's.

    Lost ones are delivered again after a reset; those that another reader acknowledged may be deleted.
    """

    after: int
    before: int
    missing: int


class Holes:
    """The holes in the deliveries since one reset; without a filter they ``are_rare``."""

    def __init__(self, *, are_rare: bool) -> None:
        self._are_rare = are_rare
        self._asked_count = 0
        self._kept: deque[Hole] = deque()
        self._dropped_count = 0
        self.unexplained: deque[Hole] = deque()

    def take(self, hole: Hole, waited: int, waits: int, *, is_first: bool) -> None:
        """Note a hole; ``waited`` messages were pending at the delivery before it, ``waits`` at the one behind it."""
        if is_first or waits < waited - 1 or (self._are_rare and self._asked_count < MOST_ASKED):
            self._asked_count += 1
            self.unexplained.append(hole)
        else:
            self._kept.append(hole)

    @property
    def count(self) -> int:
        """The number of kept holes so far, an argument for forget()."""
        return self._dropped_count + len(self._kept)

    @property
    def need_check(self) -> bool:
        return len(self._kept) >= MOST_KEPT

    def forget(self, count: int) -> None:
        """Drop the first ``count``: no other reader had made them."""
        while self._kept and self._dropped_count < count:
            self._kept.popleft()
            self._dropped_count += 1
        self._asked_count = 0

    def kept_before(self, sequence: int) -> list[Hole]:
        """Return the kept holes that end at ``sequence`` or before."""
        return [hole for hole in self._kept if hole.before <= sequence]


class Requests:
    """The pull requests of one reader that may wait at the server, each for ``expires`` seconds at most."""

    def __init__(self, expires: float) -> None:
        self._expires = expires
        self._end_at: deque[float] = deque()
        self.made_count = 0

    def make(self, at: float) -> None:
        self._end_at.append(at + self._expires)
        self.made_count += 1

    def end(self) -> None:
        if self._end_at:
            self._end_at.popleft()

    def end_by(self, at: float) -> None:
        """Note that the requests so far have no listener any more: the server ends them by ``at``."""
        self._end_at = deque(min(end_at, at) for end_at in self._end_at)

    def waiting(self, at: float) -> int:
        """Return how many may wait: neither their end was received nor their time is over."""
        while self._end_at and self._end_at[0] <= at:
            self._end_at.popleft()
        return len(self._end_at)
