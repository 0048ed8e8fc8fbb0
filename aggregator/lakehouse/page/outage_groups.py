"""Bring the outages of each incident together. Pure: which outage is part of which, the view ``outages`` has said.

Nothing is read from the senders' names but what the members have in common.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import OutageRow
from aggregator.lakehouse.tables.outage_views import FEWEST_TOGETHER

_SEPARATOR: Final = re.compile(r"[-._:/]")


class OutageGroup(NamedTuple):
    """The outages of one incident. ``ended_at`` is None while members are down."""

    region: str
    site: str
    outages: tuple[OutageRow, ...]

    @property
    def started_at(self) -> int:
        """Give the first last word of a member."""
        return min(outage.started_at for outage in self.outages)

    @property
    def ended_at(self) -> int | None:
        """Give when the last member was heard again."""
        ends = [outage.ended_at for outage in self.outages]
        return None if None in ends else max(end for end in ends if end is not None)

    def length(self, end: int) -> int:
        """Give how long it took, or took until ``end``."""
        return (end if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def sender_ids(self) -> frozenset[str]:
        """Give who fell silent: fewer than the outages are where somebody flaps."""
        return frozenset(outage.sender_id for outage in self.outages)

    @property
    def name_prefix(self) -> tuple[str, int]:
        """Give the longest beginning, up to a separator, that most members' names share, and how many share it.

        ("", 0) where there is none.
        """
        names = self.sender_ids
        begins = Counter(name[: match.end()] for name in names for match in _SEPARATOR.finditer(name))
        most = [(len(prefix), prefix) for prefix, number in begins.items() if number * 5 >= len(names) * 4]
        _, prefix = max(most, default=(0, ""))
        return prefix, begins[prefix]


def group_outages(outages: Sequence[OutageRow]) -> tuple[list[OutageGroup], list[OutageRow]]:
    """Part outages into those of one incident each and the others, both in the order of time.

    Where the period has but a few of an incident's outages, they are among the others.
    """
    members: dict[tuple[str, str, int], list[OutageRow]] = {}
    for outage in outages:
        if outage.incident_started_at is not None:
            members.setdefault((outage.region, outage.site, outage.incident_started_at), []).append(outage)
    groups = [
        OutageGroup(region, site, tuple(sorted(together, key=lambda each: each.sender_id)))
        for (region, site, _), together in members.items()
        if len(together) >= FEWEST_TOGETHER
    ]
    grouped = {outage for group in groups for outage in group.outages}
    return (
        sorted(groups, key=lambda group: (group.started_at, group.site, group.outages[0].sender_id)),
        sorted((each for each in outages if each not in grouped), key=lambda each: (each.started_at, each.sender_id)),
    )
