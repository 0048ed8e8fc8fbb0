"""Keep slots of a table of senders in the order of their deadlines, linked by columns, not by objects."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

NOBODY = -1
"""The slot of nobody: a list's end."""


class DueOrder:
    """Senders whose deadlines fall on one instant, in the order in which they are settled; ``first`` is not yet."""

    def __init__(self, at: int, sender_ids: list[str]) -> None:
        self.at = at
        self.sender_ids = sender_ids
        self.first = 0

    def skip(self, is_established: Callable[[str], bool]) -> None:
        """Leave those behind that commits have settled: always the first."""
        while self.first < len(self.sender_ids) and is_established(self.sender_ids[self.first]):
            self.first += 1


class SenderList:
    """A doubly linked list of slots; its links live in two columns that the lists of a table share."""

    def __init__(self, previous: "array[int]", following: "array[int]") -> None:
        self._previous = previous
        self._following = following
        self.head = NOBODY
        self._tail = NOBODY
        self.count = 0
        # Not state: what drafts have found out about it, and the next one would again.
        self.order: DueOrder | None = None

    def append(self, slot: int) -> None:
        """Put a slot that is in no list at the end."""
        self._previous[slot] = self._tail
        self._following[slot] = NOBODY
        if self._tail == NOBODY:
            self.head = slot
        else:
            self._following[self._tail] = slot
        self._tail = slot
        self.count += 1

    def extend(self, slots: range) -> None:
        """Put slots that follow each other, and are in no list, at the end."""
        first, last = slots[0], slots[-1]
        self._previous[first : last + 1] = array("i", [self._tail, *slots[:-1]])
        self._following[first : last + 1] = array("i", [*slots[1:], NOBODY])
        if self._tail == NOBODY:
            self.head = first
        else:
            self._following[self._tail] = first
        self._tail = last
        self.count += len(slots)

    def remove(self, slot: int) -> None:
        """Take a slot out of this list."""
        before, after = self._previous[slot], self._following[slot]
        if before == NOBODY:
            self.head = after
        else:
            self._following[before] = after
        if after == NOBODY:
            self._tail = before
        else:
            self._previous[after] = before
        self.count -= 1

    def fill(self, slots: Sequence[int]) -> None:
        """Make slots that are in no list all of an empty one, in their order."""
        if not slots:
            return
        for before, slot in pairwise(slots):
            self._following[before] = slot
            self._previous[slot] = before
        self.head, self._tail, self.count = slots[0], slots[-1], len(slots)
        self._previous[self.head] = self._following[self._tail] = NOBODY

    def after(self, slot: int) -> int:
        """Give the slot that follows, or NOBODY."""
        return self._following[slot]

    def __iter__(self) -> Iterator[int]:
        slot = self.head
        while slot != NOBODY:
            yield slot
            slot = self._following[slot]
