"""Know of holes in a stream that a reader of a shared consumer may have made, and of requests that others have waiting.

A consumer's own sequence begins at 1 with every reset, whoever resets it. A delivery that belongs to somebody else's
reset may therefore seem to follow the last one: behind our own reset, where none was delivered to us yet, or where as
many went elsewhere as had come here. Messages passed over then show as a hole in the stream's sequences, as does what a
filter keeps back or what was deleted. The rules, for a hole between two deliveries:

1. The first behind a reset is asked about: the stream's leader says whether it holds a message in there.
2. So is one behind which fewer messages wait than waited before it, less the one delivered: some have gone.
3. So is every one, up to ``MOST_ASKED`` between two looks, of a reader without a filter: there, holes are rare.
4. Any other is kept in mind until a look shows that nobody else has a request waiting at the consumer. Where a look, or
   a delivery, shows somebody else, whatever is kept in mind is asked about, and what was passed over is a gap.

Pure, but for the time that the requests are given.
"""

from collections import deque
from typing import NamedTuple

MOST_ASKED = 50
MOST_KEPT = 20_000
"""From so many on a look is due: it asks the consumer once, in place of the stream for each of them."""


class Hole(NamedTuple):
    """The sequences behind ``after`` and before ``before``: none of them was delivered.

    Whoever asks about it may be answered with the message at ``before``, which has ``size`` bytes.
    """

    after: int
    before: int
    size: int


class Elsewhere(NamedTuple):
    """So many deliveries behind a sequence and before another are missing: lost on their way, or somebody else's.

    What was lost comes again after a reset; what somebody else acknowledged does not, where the stream let go of it.
    """

    after: int
    before: int
    missing: int


class Holes:
    """The holes in what came since one reset; without a filter they ``are_rare``."""

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
        """Count those that were found, to forget no others later."""
        return self._dropped_count + len(self._kept)

    @property
    def need_look(self) -> bool:
        return len(self._kept) >= MOST_KEPT

    def forget(self, count: int) -> None:
        """Forget the first ``count``: nobody else had made them."""
        while self._kept and self._dropped_count < count:
            self._kept.popleft()
            self._dropped_count += 1
        self._asked_count = 0

    def kept_before(self, sequence: int) -> list[Hole]:
        """Give those kept in mind whose end has been read, up to ``sequence``."""
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
        """Note that none is listened for any more: the server will have ended those made so far by ``at``."""
        self._end_at = deque(min(each, at) for each in self._end_at)

    def waiting(self, at: float) -> int:
        """Give how many may wait: those whose end was not heard of, and has not come by itself."""
        while self._end_at and self._end_at[0] <= at:
            self._end_at.popleft()
        return len(self._end_at)
