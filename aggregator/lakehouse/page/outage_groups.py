"""Find the outages that belong together: many senders of a site that fell silent, and came back, as one. Pure.

Senders that die at one instant are heard for the last time within one registration interval of each other, since each
registers at a time of its own, and so are those that come back. Where more than a few share both, it was a rack or a
site; nothing is read from their names but what the members have in common.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from aggregator.lakehouse.page.figures import Outage

FEWEST_TOGETHER: Final = 4
_FOREVER: Final = 1 << 62
_SEPARATOR: Final = re.compile(r"[-._:/]")
T = TypeVar("T")


class OutageGroup(NamedTuple):
    """Outages of one site that began together and ended together. ``ended_at`` is None while members are down."""

    region: str
    site: str
    outages: tuple[Outage, ...]

    @property
    def started_at(self) -> int:
        """Give the first last word of a member."""
        return min(outage.started_at for outage in self.outages)

    @property
    def ended_at(self) -> int | None:
        """Give when the last member was heard again."""
        ends = [outage.ended_at for outage in self.outages]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def name_prefix(self) -> tuple[str, int]:
        """Give the longest beginning, up to a separator, that most members' names share, and how many share it.

        ("", 0) where there is none.
        """
        begins = Counter(
            outage.sender_id[: match.end()]
            for outage in self.outages
            for match in _SEPARATOR.finditer(outage.sender_id)
        )
        most = [(len(prefix), prefix) for prefix, number in begins.items() if number * 5 >= len(self.outages) * 4]
        _, prefix = max(most, default=(0, ""))
        return prefix, begins[prefix]


def group_outages(outages: Sequence[Outage], spread: int) -> tuple[list[OutageGroup], list[Outage]]:
    """Part outages into those that happened together and the others, each in the order of time.

    ``spread`` (microseconds) is how far the starts, and the ends, of one group may lie apart.
    """
    groups: list[OutageGroup] = []
    for (region, site), members in groupby(sorted(outages, key=_place), key=lambda each: (each.region, each.site)):
        for began_together in _clusters(list(members), lambda each: each.started_at, spread):
            groups += [
                OutageGroup(region, site, tuple(sorted(together, key=lambda each: each.sender_id)))
                for together in _clusters(began_together, _end, spread)
            ]
    grouped = {outage for group in groups for outage in group.outages}
    return (
        sorted(groups, key=lambda group: (group.started_at, group.site, group.outages[0].sender_id)),
        sorted((each for each in outages if each not in grouped), key=lambda each: (each.started_at, *each)),
    )


def _place(outage: Outage) -> tuple[str, str, int]:
    return outage.region, outage.site, outage.started_at


def _end(outage: Outage) -> int:
    return _FOREVER if outage.ended_at is None else outage.ended_at


def _clusters(items: Sequence[T], at: Callable[[T], int], spread: int) -> Iterator[list[T]]:
    """Cut clusters of ``FEWEST_TOGETHER`` and more, no wider than ``spread``, out of the items: the largest first.

    Every pass takes all clusters of one size, so there are no more passes than sizes.
    """
    pending = [sorted(items, key=at)]
    while pending:
        part = pending.pop()
        sizes = [last + 1 - first for first, last in _windows(part, at, spread)]
        largest = max(sizes, default=0)
        if largest < FEWEST_TOGETHER:
            continue
        taken = 0
        for last, size in enumerate(sizes):
            if size == largest and last + 1 - size >= taken:
                yield part[last + 1 - size : last + 1]
                pending.append(part[taken : last + 1 - size])
                taken = last + 1
        pending.append(part[taken:])


def _windows(part: Sequence[T], at: Callable[[T], int], spread: int) -> Iterator[tuple[int, int]]:
    """Give for each item the first one that lies no more than ``spread`` before it."""
    first = 0
    for last, item in enumerate(part):
        while at(item) - at(part[first]) > spread:
            first += 1
        yield first, last
