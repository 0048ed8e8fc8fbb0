"""The outages of the page: those of many senders at once as one incident each, the others one by one.

The view ``outages`` decides which outage is part of which incident. Nothing is read from the senders' names except what
the members have in common.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import OutageRow, PageFigures
from aggregator.lakehouse.page.period import Period
from aggregator.lakehouse.tables.outage_views import FEWEST_TOGETHER

_MOST: Final = 3_000
_PAGE: Final = 200
_INCIDENTS: Final = 20
_LARGEST: Final = 5
_WIDTH: Final = 1000
_HEIGHT: Final = 100
_SEPARATOR: Final = re.compile(r"[-._:/]")


class OutageGroup(NamedTuple):
    """The outages of one incident. ``ended_at`` is None while members are down."""

    region: str
    site: str
    outages: tuple[OutageRow, ...]

    @property
    def started_at(self) -> int:
        """The earliest start of a member."""
        return min(outage.started_at for outage in self.outages)

    @property
    def ends(self) -> list[int]:
        return [outage.ended_at for outage in self.outages if outage.ended_at is not None]

    @property
    def ended_at(self) -> int | None:
        """The instant at which the last member was heard again."""
        return max(self.ends) if len(self.ends) == len(self.outages) else None

    def length(self, end: int) -> int:
        """Return the duration, up to ``end`` if it goes on."""
        return (end if self.ended_at is None else self.ended_at) - self.started_at

    def mean_length(self, end: int) -> int:
        return sum(outage.length(end) for outage in self.outages) // len(self.outages)

    @property
    def sender_ids(self) -> frozenset[str]:
        """The silent senders: fewer than the outages where a sender flaps."""
        return frozenset(outage.sender_id for outage in self.outages)

    @property
    def endings(self) -> list[str]:
        return sorted({outage.ending for outage in self.outages})

    @property
    def name_prefix(self) -> tuple[str, int]:
        """The longest beginning, up to a separator, that most members' names share, and their number.

        ("", 0) where there is none.
        """
        names = self.sender_ids
        begins = Counter(name[: match.end()] for name in names for match in _SEPARATOR.finditer(name))
        most = [(len(prefix), prefix) for prefix, number in begins.items() if number * 5 >= len(names) * 4]
        _, prefix = max(most, default=(0, ""))
        return prefix, begins[prefix]

    def turning_points(self) -> list[tuple[int | None, str]]:
        """Return instants, None for none in the period, and the event at each."""
        ends, last_word = self.ends, max(outage.started_at for outage in self.outages)
        down = len(self.outages) - sum(end <= last_word for end in ends)
        turns: list[tuple[int, str]] = [
            (self.started_at, "the first was heard for the last time"),
            (last_word, f"so was the last: {down:,} down"),
        ]
        if ends:
            turns.append((min(ends), "the first ended its silence"))
        if self.ended_at is not None:
            turns.append((self.ended_at, "the last ended its silence"))
        lasting = {outage.sender_id for outage in self.outages if outage.ended_at is None}
        at_the_end = f"{len(lasting):,} of {len(self.sender_ids):,} were down at the end"
        return [*sorted(turns, key=lambda turn: turn[0]), *([(None, at_the_end)] if lasting else [])]

    def course(self, period_end: int) -> str:
        """Return a path through the number of members that are down, no finer than the picture can show."""
        changes = Counter(outage.started_at for outage in self.outages)
        changes.subtract(self.ends)
        downs = list(accumulate(change for _, change in sorted(changes.items())))
        # In two blocks one sender may be down twice.
        size, length = max(len(self.sender_ids), *downs), max(self.length(period_end), 1)
        steps = {
            (at - self.started_at) * _WIDTH // length: down for at, down in zip(sorted(changes), downs, strict=True)
        }
        drawn = "".join(f"H{x}V{_HEIGHT - down * _HEIGHT // size}" for x, down in steps.items() if x <= _WIDTH)
        return f"M0 {_HEIGHT}{drawn}H{_WIDTH}V{_HEIGHT}Z"

    def strip(self, period: Period) -> str:
        """Return the style of its bar on a strip of the period."""
        until = period.ended_at if self.ended_at is None else self.ended_at
        return period.strip_style(max(self.started_at, period.started_at), min(until, period.ended_at))


class Outages:
    """The incidents and the other outages of a page; where there are too many, the longest are ``kept``."""

    def __init__(self, figures: PageFigures) -> None:
        self.groups, self.singles = group_outages(figures.outages)
        longest = sorted(figures.outages, key=lambda each: -each.length(figures.period.ended_at))
        self.kept = set(longest[:_MOST])
        ended = [(outage.length(0), outage) for outage in figures.outages if outage.ended_at is not None]
        self.longest_ended = max(ended)[1] if ended else None
        self.left_out = len(figures.outages) - len(self.kept)
        self.sizes = {(site.region, site.site): site.sender_count for site in figures.sites}
        self.sites = sorted({(group.region, group.site) for group in self.groups})
        self.largest: Sequence[OutageGroup] = ()
        if len(self.groups) > _INCIDENTS:
            self.largest = sorted(self.groups, key=lambda group: len(group.sender_ids), reverse=True)[:_LARGEST]

    @property
    def pages(self) -> list[tuple[int, list[OutageRow]]]:
        """The single outages that are kept, in parts as long as a table may be, each with the number of its first."""
        singles = [outage for outage in self.singles if outage in self.kept]
        return [(first + 1, singles[first : first + _PAGE]) for first in range(0, len(singles), _PAGE)]


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
