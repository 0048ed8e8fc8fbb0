"""Draw when incidents happened, site by site, and how each one went: who fell silent when, and who came back."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from aggregator.lakehouse.page.figures import Figures
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.outage_groups import OutageGroup
from aggregator.lakehouse.page.period import Period
from aggregator.lakehouse.page.tables import Field, data_table, folded
from aggregator.lakehouse.page.words import Clock, count, duration, percent

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
