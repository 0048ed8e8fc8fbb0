"""Write every outage: those of many senders at once as one incident each, the others one by one."""

from collections.abc import Sequence
from typing import Final

from aggregator.lakehouse.page.figures import Figures, OutageRow
from aggregator.lakehouse.page.incident_timeline import incident_course, incident_strips
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.outage_groups import OutageGroup
from aggregator.lakehouse.page.tables import Field, data_table, folded, section
from aggregator.lakehouse.page.words import Clock, count, duration

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
