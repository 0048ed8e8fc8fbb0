"""Write the tables of sites, of the senders that were worst off, and of the times that nobody watched."""

from collections.abc import Mapping, Sequence
from typing import Final

from aggregator.lakehouse.page.figures import Figures, Group, Sender, Site, Unwatched
from aggregator.lakehouse.page.heat_map import title_of
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.period import Period
from aggregator.lakehouse.page.summary import CAUSES
from aggregator.lakehouse.page.tables import Field, data_table, folded, section, time_columns
from aggregator.lakehouse.page.words import Clock, count, duration
from aggregator.lakehouse.tables.causes import Cause

_WORST: Final = 20
_MOST_ROWS: Final = 2_000


def groups_section(figures: Figures, clock: Clock) -> Html:
    """Write a row for each group that the map shows, and where that is no site, one for each site too."""
    noun = figures.grouping.noun
    by_site = [site.group for site in figures.sites]
    columns = _group_columns(noun, clock, by_site=figures.grouping.is_by_site)
    tables = [data_table(columns, figures.groups)]
    if not figures.grouping.is_by_site:
        tables += [element("h3", "By site"), data_table(_group_columns("site", clock, by_site=True), by_site)]
    return section(
        "sites",
        f"By {noun}",
        "Availability is of the time that somebody watched; known says how much of all the time that was. Times add up"
        f" over a {noun}'s senders.",
        *tables,
    )


def _group_columns(noun: str, clock: Clock, *, by_site: bool) -> list[Field[Group]]:
    def watched_until(group: Group) -> Html | str:
        return "at no time" if group.heard_through is None else clock.time(group.heard_through)

    return [
        Field[Group](noun, lambda group: element("b", title_of(group))),
        *([Field[Group]("region", lambda group: group.place)] if by_site else []),
        Field[Group]("senders", lambda each: f"{each.sender_count:,}", lambda each: each.sender_count, number=True),
        *time_columns(),
        Field[Group]("outages", lambda each: f"{each.outage_count:,}", lambda each: each.outage_count, number=True),
        Field[Group]("watched until (UTC)", watched_until, lambda group: group.heard_through or 0),
    ]


def worst_senders_section(figures: Figures) -> Html:
    """Write the senders with the lowest availability among those of whose time at least half is known."""
    ranked = [sender for sender in figures.senders if 2 * sender.times.known >= sender.times.lived]
    shown, barely_known = ranked[:_WORST], len(figures.senders) - len(ranked)

    def bound(sender: Sender) -> int:
        return 2 * figures.registration_interval * sender.noticed_count

    def exact_to(sender: Sender) -> str:
        # Of what was imported there is no bound.
        noticed = [f"± {duration(bound(sender))}"] if sender.noticed_count else []
        return " and ".join([*noticed, *(["as imported"] if sender.noticed_count < sender.outage_count else [])])

    columns = [
        Field[Sender]("sender", lambda sender: element("b", sender.sender_id)),
        Field[Sender]("site", lambda sender: sender.site),
        *time_columns(),
        Field[Sender]("outages", lambda each: f"{each.outage_count:,}", lambda each: each.outage_count, number=True),
        Field[Sender]("exact to", exact_to, bound, number=True),
    ]
    lead = (
        f"The {count(len(shown), 'sender')} with the lowest availability, of"
        f" {count(len(figures.senders), 'sender')} that had an outage."
    )
    if barely_known:
        lead += f" {barely_known:,} of whom less than half of the time is known are not ranked."
    return section(
        "worst", "Senders that were worst off", lead if shown else "No sender had an outage.",
        data_table(columns, shown) if shown else None,
    )  # fmt: skip


def unwatched_section(figures: Figures, clock: Clock) -> Html:
    """Draw when each site was watched, and list the times when it was not."""
    end = figures.period.ended_at
    columns = [
        Field[Unwatched]("site", lambda span: element("b", span.site)),
        Field[Unwatched]("from (UTC)", lambda span: clock.time(span.started_at), lambda span: span.started_at),
        Field[Unwatched](
            "to (UTC)",
            lambda span: clock.time(span.ended_at) if span.ended_at < end else "the end",
            lambda span: span.ended_at,
        ),
        Field[Unwatched]("for", lambda span: duration(_length(span)), _length, number=True),
        Field[Unwatched](
            "unknown, all senders", lambda span: duration(span.unknown), lambda span: span.unknown, number=True
        ),
        Field[Unwatched]("why", lambda span: CAUSES.get(span.cause, span.cause)),
    ]
    spans = figures.unwatched
    listed = sorted(sorted(spans, key=_length)[-_MOST_ROWS:], key=lambda span: (span.started_at, span.site, span.block))
    imported = any(span.cause == Cause.UNWATCHED for span in spans)
    absent = " In those of an imported history, its senders are absent." if imported else ""
    left_out = (
        f" The longest {_MOST_ROWS:,} of {len(spans):,} are listed; the table site_coverage has them all."
        if len(spans) > _MOST_ROWS
        else ""
    )
    title = f"The table behind these strips: {count(len(spans), 'time')} that nobody watched"
    absences = {(site.region, site.site): _absences(site, figures.period) for site in figures.sites}
    empty = "; of what is empty nothing is told, and its senders are absent" if any(absences.values()) else ""
    return section(
        "unwatched",
        "When somebody watched",
        f"Solid is watched, hatched is not{empty}. What happened in the hatched parts is unknown, not down: no sender"
        f" is blamed for it.{absent}{left_out}",
        _strips(figures, absences),
        folded(title, data_table(columns, listed), is_open=len(listed) <= _WORST) if spans else None,
    )


def _length(span: Unwatched) -> int:
    return span.ended_at - span.started_at


def _absences(site: Site, period: Period) -> list[Period]:
    """Give the spans of the period in which nothing is told of a site: before its first word, after an import's end."""
    found, at = [], period.started_at
    for block in sorted(site.blocks, key=lambda block: block.started_at):
        if block.started_at > at:
            found.append(Period(at, block.started_at))
        at = max(at, block.ended_at)
    return [*found, Period(at, period.ended_at)] if at < period.ended_at else found


def _strips(figures: Figures, absences: Mapping[tuple[str, str], Sequence[Period]]) -> Html:
    strips = []
    for site in figures.sites:
        name = site.region, site.site
        gaps = (_part(each, figures.period) for each in figures.unwatched if (each.region, each.site) == name)
        empty = (_part(each, figures.period, "absent") for each in absences[name])
        strips.append(join(element("dt", site.site), element("dd", *gaps, *empty)))
    return element("dl", *strips, class_="strips", aria_hidden="true")


def _part(span: Unwatched | Period, period: Period, class_: str | None = None) -> Html:
    return element("i", class_=class_, style=period.strip_style(span.started_at, span.ended_at))
