"""Say in plain words what the page shows, first of all: who, how available, how much is known, how exact."""

from collections.abc import Sequence
from typing import Final

from aggregator.lakehouse.page.figures import Figures, Site
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.outages import OutageGroup
from aggregator.lakehouse.page.words import Clock, count, duration, listed, percent, rest

CAUSES: Final = {
    "unobserved": "nobody was watching (an agent, its server or the link to it was down, or its word is still to come)",
    "advisories_missing": "reports of the site's agent are still missing at the hub",
    "contested": "two agents that know nothing of each other spoke for a site at once",
    "hub_clock": "the hub's clock was set back",
    "put_back": "an older copy of an agent's store was put back, and its reports contradict each other",
    "unwatched": "the imported history says that its source did not watch then",
    "import_gap": "the imported history does not say what they were",
    "lost": "an operator gave up archived messages as lost",
    "lost_store": "an agent lost its store, or another took its place, and has not heard these senders since",
    "unheard": "their site's stream no longer listens where these senders published",
}
"""Why time is unknown, by the tables' words for it."""


def summary_section(figures: Figures, groups: Sequence[OutageGroup], clock: Clock) -> Html:
    """Write the figures that count, large, and below them what they mean."""
    # Where nobody was, there is nothing to be available, watched or exact.
    has_lived = figures.times.lived > 0
    about_senders = (_availability, _whole_period, _coverage, _maintenance) if has_lived else (_nobody,)
    sentences = (
        *(sentence(figures) for sentence in about_senders),
        _outages(figures, groups) if has_lived or figures.outages else None,
        _silent_sites(figures, clock),
        _ended_histories(figures, clock),
        _known_time(figures, clock),
        _exactness(figures) if has_lived else None,
    )
    return element(
        "section",
        _tiles(figures),
        element("ul", *(element("li", sentence) for sentence in sentences if sentence), class_="summary"),
        id="summary",
    )


def _tiles(figures: Figures) -> Html:
    times = figures.times
    lasting = _lasting(figures)
    exact = f"; exact to {_bound(figures)}" if figures.noticed_count and times.known else ""
    if exact and figures.imported:
        exact += ", what was imported aside"
    tiles = (
        ("Availability", percent(times.up, times.known), f"of the time that somebody watched, senders were up{exact}"),
        ("Coverage", percent(times.known, times.lived), "of all the time of all senders, somebody watched"),
        (
            "Outages",
            f"{len(figures.outages):,}",
            f"of {count(len(figures.senders), 'sender')}{f'; {lasting:,} not over at the end' if lasting else ''}",
        ),
        (
            "Senders",
            f"{figures.sender_count:,}",
            f"at {count(len(figures.sites), 'site')} in {count(len(figures.regions), 'region')}",
        ),
    )
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value), element("dd", note, class_="note"), class_="tile")
            for name, value, note in tiles
        ),
        class_="tiles",
    )


def _nobody(figures: Figures) -> Html:
    if figures.times.maintenance:
        return join(
            element("b", "All of this time was maintenance: "), "declared so, and left out of every figure here."
        )
    return join(element("b", "No sender is known to have been there: "), "there is nothing to tell of this time.")


def _availability(figures: Figures) -> Html:
    times = figures.times
    if not times.known:
        return join(element("b", "Nothing is known of this time: "), "nobody watched.")
    return join(
        "While somebody watched, senders were up ",
        element("b", percent(times.up, times.known)),
        f" of the time: up for {duration(times.up)} and down for {duration(times.down)}, added up over all senders:"
        " two senders that are down for an hour are two hours.",
    )


def _whole_period(figures: Figures) -> Html | None:
    """Tell the lowest figure that anybody may come to, where many senders did not live through the period."""
    times, length = figures.times, figures.period.ended_at - figures.period.started_at
    whole = figures.sender_count * length - times.maintenance
    if times.lived >= whole:
        return None
    return join(
        "Of the whole period, senders were up ",
        element("b", percent(times.up, whole)),
        f" of the time, where each of the {count(figures.sender_count, 'sender')} counts as down before it first came,"
        " after it left for good, and while nobody watched.",
    )


def _coverage(figures: Figures) -> Html:
    times = figures.times
    if not times.unknown:
        return join(
            element("b", "Everything is known: "), "somebody watched every sender all the time.", _imported(figures)
        )
    reasons = [
        f"{duration(unknown) + ' ' if len(figures.unknown_by_cause) > 1 else ''}because {CAUSES.get(cause, cause)}"
        for cause, unknown in figures.unknown_by_cause.items()
    ]
    worst_case = f" Had it all been down, {percent(times.up, times.lived)} would have been up." if times.known else ""
    return join(
        "Of all the time, ",
        element("b", f"{rest(times.known, times.lived)} is unknown"),
        f" ({duration(times.unknown)}): {listed(reasons)}. What nobody saw counts neither as up nor"
        f" as down.{worst_case}",
        f" {percent(figures.assumed, times.known)} of what is known is assumed: it rests on advisories of other"
        " software, which say nothing of when they watched."
        if figures.assumed
        else None,
        _imported(figures),
    )


def _imported(figures: Figures) -> str | None:
    if not figures.imported:
        return None
    share = "All" if figures.imported == figures.times.known else percent(figures.imported, figures.times.known)
    return f" {share} of what is known is history imported from other monitoring."


def _maintenance(figures: Figures) -> Html | None:
    planned = figures.times.maintenance
    if not planned:
        return None
    return join(
        element("b", f"{duration(planned)} of it was maintenance"), ": declared so, and left out of every figure here."
    )


def _outages(figures: Figures, groups: Sequence[OutageGroup]) -> Html:
    if not figures.outages:
        return join(element("b", "No outage was seen."))
    together, lasting = sum(len(group.outages) for group in groups), _lasting(figures)
    text = f" of {count(len(figures.senders), 'sender')} {'was' if len(figures.outages) == 1 else 'were'} seen"
    if groups:
        text += f", {together:,} of them in {count(len(groups), 'incident')} that took many senders of a site at once"
    ended = [(outage.ended_at - outage.started_at, outage) for outage in figures.outages if outage.ended_at is not None]
    if ended:
        length, outage = max(ended)
        text += f". The longest that ended took {duration(length)} ({outage.sender_id} at {outage.site})"
    if lasting:
        text += f". At the end, {lasting:,} {'was' if lasting == 1 else 'were'} not over"
    return join(element("b", count(len(figures.outages), "outage")), text + ".")


def _lasting(figures: Figures) -> int:
    return sum(outage.ended_at is None for outage in figures.outages)


def _bound(figures: Figures) -> str:
    """Write by how much availability may be off, as percentage points."""
    known = figures.times.known
    bound = min(2 * figures.registration_interval * figures.noticed_count, known)
    # Shares are cut: what is left of them is a promise that holds.
    return f"± {rest(known - bound, known).removesuffix(' %')} percentage points"


def _silent_sites(figures: Figures, clock: Clock) -> Html | None:
    # Between two watermarks a site is silent for a moment: that is no news.
    patience = figures.stale_after[0] if figures.stale_after else 0
    until = figures.period.ended_at - patience
    silent = [site for site in figures.sites if not site.imported and (site.heard_through or 0) < until]
    if not silent:
        return None
    verb = "is" if len(silent) == 1 else "are"
    return join(
        element("b", f"{count(len(silent), 'site')} {verb} not watched any more: "),
        f"{_until_when(silent, clock)}.",
        f" Since then {'its' if len(silent) == 1 else 'their'} senders are unknown." if figures.times.lived else None,
    )


def _ended_histories(figures: Figures, clock: Clock) -> Html | None:
    # A time in which its source did not watch is told of, too: there a history goes on.
    told = [(site.site, max(block.ended_at for block in site.blocks)) for site in figures.sites if site.imported]
    ended = [f"{site} (until {clock.instant(at)})" for site, at in told if at < figures.period.ended_at]
    if not ended:
        return None
    verb, whose = ("ends", "its") if len(ended) == 1 else ("end", "their")
    return join(
        element("b", f"The imported history of {count(len(ended), 'site')} {verb} earlier: "),
        f"{listed(ended)}. After that {whose} senders are absent, and count in no figure.",
    )


def _until_when(sites: Sequence[Site], clock: Clock) -> str:
    whens = ("at no time" if (at := site.heard_through) is None else f"until {clock.instant(at)}" for site in sites)
    return listed([f"{site.site} ({when})" for site, when in zip(sites, whens, strict=True)])


def _known_time(figures: Figures, clock: Clock) -> Html:
    return join(
        "Known time ends at ",
        element("b", clock.time(figures.known_through), " UTC"),
        f", when the hub stored the last message that these figures include (stream {figures.position})"
        if figures.position
        else ", where the imported history ends",
        ". Of anything later nothing is claimed.",
    )


def _exactness(figures: Figures) -> Html:
    interval, title = figures.registration_interval, element("b", "How exact is this? ")
    if figures.all_imported:
        return join(title, "All of it was imported: it is as exact as its source, which gives no bound.")
    text = (
        "An outage counts from the last word of a sender before it to the first word after it. Senders speak up every"
        f" {duration(interval)}, so each outage, as counted, may be off by up to twice that, {duration(2 * interval)}"
    )
    if figures.noticed_count and figures.times.known:
        text += f"; all of them together make the availability exact to {_bound(figures)}"
    if figures.stale_after:
        shortest, longest = figures.stale_after
        span = duration(shortest) if shortest == longest else f"{duration(shortest)} to {duration(longest)}, by site,"
        text += f". Silence shorter than {span} is not called an outage at all"
    if figures.imported:
        text += ". What was imported is as exact as its source, and in no bound here"
    return join(title, text + ".")
