"""The outages of the page: those of many senders at once as one incident each, drawn by site, the others one by one.

The view ``outages`` decides which outage is part of which incident. Nothing is read from the senders' names except what
the members have in common.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import Figures, OutageRow
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.period import Period
from aggregator.lakehouse.page.tables import Field, data_table, folded, section
from aggregator.lakehouse.page.words import Clock, count, duration, percent
from aggregator.lakehouse.tables.outage_views import FEWEST_TOGETHER

_MOST: Final = 3_000
_PAGE: Final = 200
_INCIDENTS: Final = 20
_LARGEST: Final = 5
_ENDINGS: Final = {
    "recovered": "came back",
    "new": "came back as a new sender",
    "rebuilt": "was there when a lost store was rebuilt",
    "retired": "never came back: forgotten",
    "lost_store": "unknown: its agent lost its store",
    "unheard": "unknown: its stream no longer listens where it publishes",
    "stale": "fell silent again",
    "import_gap": "unknown: what was imported has a gap here",
    "import_end": "down to the end of what was imported",
}


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
    def ended_at(self) -> int | None:
        """The instant at which the last member was heard again."""
        ends = [outage.ended_at for outage in self.outages]
        return None if None in ends else max(end for end in ends if end is not None)

    def length(self, end: int) -> int:
        """Return the duration, up to ``end`` if it goes on."""
        return (end if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def sender_ids(self) -> frozenset[str]:
        """The silent senders: fewer than the outages where a sender flaps."""
        return frozenset(outage.sender_id for outage in self.outages)

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


def outages_section(
    figures: Figures, groups: Sequence[OutageGroup], singles: Sequence[OutageRow], clock: Clock
) -> Html:
    """Write the section; where there are too many for a page, the longest."""
    sizes = {(site.region, site.site): site.sender_count for site in figures.sites}
    end = figures.period.ended_at
    kept = set(sorted(figures.outages, key=lambda each: -each.length(end))[:_MOST])
    left_out = len(figures.outages) - len(kept)

    def written(group: OutageGroup) -> Html:
        return _incident(group, sizes[group.region, group.site], figures, kept, clock)

    incidents = [written(group) for group in groups]
    if len(incidents) > _INCIDENTS:
        largest = sorted(groups, key=lambda group: len(group.sender_ids), reverse=True)[:_LARGEST]
        incidents = [
            *(written(group) for group in largest),
            folded(f"All {len(groups):,} incidents, in the order of time", *incidents),
        ]
    lead = "From the last word of a sender before it fell silent to the first word after."
    if figures.noticed_count < len(figures.outages):
        lead = f"{lead} Imported ones are" if figures.noticed_count else "All were imported, and are"
        lead += " as their source told of them."
    if left_out:
        lead += f" The longest {len(kept):,} of {len(figures.outages):,} are listed; the view outages has them all."
    return section(
        "outages",
        "Outages",
        lead if figures.outages else "No outage was seen.",
        element("h3", _incidents_title(groups)) if incidents else None,
        incident_strips(figures, groups, clock) if incidents else None,
        *incidents,
        element("h3", "One by one") if singles and incidents else None,
        _pages([outage for outage in singles if outage in kept], figures, clock),
    )


def _incidents_title(groups: Sequence[OutageGroup]) -> str:
    largest = f": the {_LARGEST} largest" if len(groups) > _INCIDENTS else ""
    return f"Incidents, in which many senders of a site went at once{largest}"


def _incident(group: OutageGroup, sender_count: int, figures: Figures, kept: set[OutageRow], clock: Clock) -> Html:
    size, outage_count = len(group.sender_ids), len(group.outages)
    whom = f"all {size:,} senders" if size == sender_count else f"{size:,} of {count(sender_count, 'sender')}"
    flapping = f", {outage_count:,} outages" if outage_count > size else ""
    prefix, sharing = group.name_prefix
    names = f", {'' if sharing == size else f'{sharing:,} of them '}{prefix}…" if prefix else ""
    until = group.ended_at
    length = group.length(figures.period.ended_at)
    end = join(" to ", clock.time(until)) if until is not None else join(", not over at the end")
    each = duration(sum(outage.length(figures.period.ended_at) for outage in group.outages) // outage_count)
    endings = sorted({_ending(outage) for outage in group.outages})
    summary = join(
        element("b", f"{group.site}: {whom}"),
        f"{names}{flapping}",
        element(
            "span",
            clock.time(group.started_at),
            end,
            f" ({duration(length)}; {each} each), {', '.join(endings)}",
            class_="when",
        ),
    )
    members = [outage for outage in group.outages if outage in kept]
    course = incident_course(group, figures.period.ended_at, clock)
    return folded(summary, course, data_table(_columns(figures, clock), members))


def _pages(outages: Sequence[OutageRow], figures: Figures, clock: Clock) -> Html:
    """Write one table, or where it would be long, folded parts of it in the order of time."""
    columns = _columns(figures, clock)
    if len(outages) <= _PAGE:
        return data_table(columns, outages) if outages else join()
    parts = []
    for first in range(0, len(outages), _PAGE):
        part = outages[first : first + _PAGE]
        title = f"{first + 1:,} to {first + len(part):,}: from "
        summary = join(title, clock.time(part[0].started_at), " to ", clock.time(part[-1].started_at))
        parts.append(folded(summary, data_table(columns, part)))
    return join(*parts)


def _columns(figures: Figures, clock: Clock) -> list[Field[OutageRow]]:
    end = figures.period.ended_at

    def until(outage: OutageRow) -> Html | str:
        return clock.time(outage.ended_at) if outage.ended_at is not None else "not over"

    def how_long(outage: OutageRow) -> str:
        return f"{'' if outage.ended_at is not None else 'so far '}{duration(outage.length(end))}"

    return [
        Field("sender", lambda outage: element("b", outage.sender_id)),
        Field("site", lambda outage: outage.site),
        Field("from (UTC)", lambda outage: clock.time(outage.started_at), lambda outage: outage.started_at),
        Field("to (UTC)", until, lambda outage: end + 1 if outage.ended_at is None else outage.ended_at),
        Field("for", how_long, lambda outage: outage.length(end), number=True),
        Field("how it ended", _ending),
    ]


def _ending(outage: OutageRow) -> str:
    if outage.ended_at is None:
        return "still down at the end"
    return _ENDINGS.get(outage.ended_by or "", outage.ended_by or "")


_SEPARATOR: Final = re.compile(r"[-._:/]")


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


_WIDTH: Final = 1000
_HEIGHT: Final = 100

Turn = tuple[int | None, str]
"""When something happened, None: at no time in the period, and what."""


def incident_strips(figures: Figures, groups: Sequence[OutageGroup], clock: Clock) -> Html:
    """Draw a strip of the period for each site that had an incident, with the table behind the strips."""
    period = figures.period
    strips = []
    for region, site in sorted({(group.region, group.site) for group in groups}):
        bars = (
            element(
                "i",
                style=period.strip_style(*_cut(group, period)),
                title=f"{clock.instant(group.started_at)}: {count(len(group.sender_ids), 'sender')} of {site}",
            )
            for group in groups
            if (group.region, group.site) == (region, site)
        )
        strips.append(join(element("dt", site), element("dd", *bars)))
    ends = element("dd", *(element("span", clock.time(at)) for at in period), class_="ends")
    title = f"The table behind these strips: {count(len(groups), 'incident')}"
    return join(
        element("dl", *strips, element("dt"), ends, class_="strips incidents", aria_hidden="true"),
        folded(title, data_table(_incident_columns(figures, clock), groups)),
    )


def _incident_columns(figures: Figures, clock: Clock) -> list[Field[OutageGroup]]:
    sizes = {(site.region, site.site): site.sender_count for site in figures.sites}
    end = figures.period.ended_at

    def until(group: OutageGroup) -> Html | str:
        return "not over" if group.ended_at is None else clock.time(group.ended_at)

    def length(group: OutageGroup) -> int:
        return group.length(end)

    def senders(group: OutageGroup) -> int:
        return len(group.sender_ids)

    def share(group: OutageGroup) -> str:
        return percent(senders(group), sizes[group.region, group.site])

    return [
        Field[OutageGroup]("site", lambda group: element("b", group.site)),
        Field[OutageGroup]("from (UTC)", lambda group: clock.time(group.started_at), lambda group: group.started_at),
        Field[OutageGroup]("to (UTC)", until, lambda group: end + 1 if group.ended_at is None else group.ended_at),
        Field[OutageGroup]("for", lambda group: duration(length(group)), length, number=True),
        Field[OutageGroup]("senders", lambda group: f"{senders(group):,}", senders, number=True),
        Field[OutageGroup]("of the site's", share, number=True),
    ]


def incident_course(group: OutageGroup, end: int, clock: Clock) -> Html:
    """Draw how many of a group were down, and tell its turning points; ``end`` is the end of the period."""
    until = group.ended_at
    started_at, ended_at = group.started_at, end if until is None else until
    changes = Counter(outage.started_at for outage in group.outages)
    changes.subtract(outage.ended_at for outage in group.outages if outage.ended_at is not None)
    return join(
        element(
            "svg",
            element(
                "path",
                d=_path(sorted(changes.items()), len(group.sender_ids), started_at, ended_at),
                class_="band-down",
            ),
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            preserveAspectRatio="none",
            class_="course",
            role="img",
            aria_label="How many were down over time: each one is in the table below",
        ),
        data_table(_turn_columns(clock), _turning_points(group), sortable=False),
    )


def _turn_columns(clock: Clock) -> list[Field[Turn]]:
    def when(turn: Turn) -> Html | str:
        return "not over" if turn[0] is None else clock.time(turn[0])

    return [Field("time (UTC)", when), Field("what happened", lambda turn: turn[1])]


def _turning_points(group: OutageGroup) -> list[Turn]:
    size = len(group.outages)
    ends = [outage.ended_at for outage in group.outages if outage.ended_at is not None]
    last_word = max(outage.started_at for outage in group.outages)
    down = size - sum(end <= last_word for end in ends)
    turns = [
        (group.started_at, "the first was heard for the last time"),
        (last_word, f"so was the last: {down:,} down"),
    ]
    if ends:
        turns.append((min(ends), "the first ended its silence"))
    if len(ends) == size:
        turns.append((max(ends), "the last ended its silence"))
    told: list[Turn] = [*sorted(turns, key=lambda turn: turn[0])]
    still_down = {outage.sender_id for outage in group.outages if outage.ended_at is None}
    if still_down:
        told.append((None, f"{len(still_down):,} of {len(group.sender_ids):,} were down at the end"))
    return told


def _path(changes: Sequence[tuple[int, int]], size: int, started_at: int, ended_at: int) -> str:
    """Step through the number of those that are down, no finer than the picture can show."""
    length = max(ended_at - started_at, 1)
    downs = list(accumulate(change for _, change in changes))
    # In two blocks one sender may be down twice.
    size = max(size, *downs)
    steps = {(at - started_at) * _WIDTH // length: down for (at, _), down in zip(changes, downs, strict=True)}
    drawn = "".join(f"H{x}V{_HEIGHT - down * _HEIGHT // size}" for x, down in steps.items() if x <= _WIDTH)
    return f"M0 {_HEIGHT}{drawn}H{_WIDTH}V{_HEIGHT}Z"


def _cut(group: OutageGroup, period: Period) -> tuple[int, int]:
    until = period.ended_at if group.ended_at is None else group.ended_at
    return max(group.started_at, period.started_at), min(until, period.ended_at)
