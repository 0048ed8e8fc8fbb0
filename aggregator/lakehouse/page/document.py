"""Put the page together: one HTML file that needs nothing else, the same for the same tables."""

from importlib.metadata import version
from importlib.resources import files
from typing import Final

from aggregator.lakehouse.page.figures import Figures
from aggregator.lakehouse.page.fleet_curve import fleet_curve_section
from aggregator.lakehouse.page.heat_map import heat_map_section
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.outages import group_outages, outages_section
from aggregator.lakehouse.page.sections import groups_section, unwatched_section, worst_senders_section
from aggregator.lakehouse.page.summary import summary_section
from aggregator.lakehouse.page.tables import section
from aggregator.lakehouse.page.words import Clock, count, listed

_CONTENTS: Final = (
    ("map", "Map"),
    ("curve", "Over time"),
    ("sites", "Figures"),
    ("outages", "Outages"),
    ("worst", "Worst senders"),
    ("unwatched", "Coverage"),
    ("words", "Words"),
)
_WORDS: Final = (
    ("sender", "a machine that reports in every few minutes; each such message is a registration"),
    ("site", "where senders are, with an agent of Muster's that watches what they send; a region is a set of sites"),
    ("up", "heard as expected while somebody watched"),
    ("down", "not heard for too long while somebody watched: from the last word before to the first word after"),
    ("unknown", "nobody watched: the agent, its server or the link was down. It is never counted as down"),
    ("maintenance", "declared so by an operator: whatever happened then was planned, and counts in no figure"),
    ("absent", "not there at all: before a sender was first heard, or after it was retired. Such time is left out"),
    ("availability", "up / (up + down): of the time that somebody watched"),
    ("known, coverage", "(up + down) / (up + down + unknown): how much of the time somebody watched"),
    ("sender time", "time added up over senders: two senders for one hour are two hours"),
    (
        "outage",
        "one time of one sender being down; an incident is more of them together at a site than chance explains",
    ),
    ("retired", "silent for so long that the agent forgot the sender: it is expected no more"),
    ("known time", "what lies before the last message that the hub had stored, or before the end of what was imported"),
    ("UTC", "all times on this page are UTC"),
)
_IMPORTED_WORDS: Final = (
    ("imported", "recorded by another monitoring system, not by an agent: senders are absent before and after it"),
)
# A mark of our own, so that browsers ask nobody for an icon.
_ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16'"
    " rx='3' fill='%232f6f4f'/%3E%3Cpath d='M3 8l3 3 7-7' stroke='%23fff' stroke-width='2' fill='none'/%3E%3C/svg%3E"
)


def render(figures: Figures) -> str:
    clock = Clock(figures.period)
    groups, singles = group_outages(figures.outages)
    body = element(
        "body",
        _header(figures, clock),
        element(
            "main",
            summary_section(figures, groups, clock),
            element("nav", *(element("a", name, href=f"#{anchor}") for anchor, name in _CONTENTS)),
            heat_map_section(figures, clock),
            fleet_curve_section(figures, clock),
            groups_section(figures, clock),
            outages_section(figures, groups, singles, clock),
            worst_senders_section(figures),
            unwatched_section(figures, clock),
            _words(figures),
        ),
        element(
            "footer",
            f"Muster {version('muster')}. Every figure is exact as the tables have it. To ask them more: ",
            element("code", 'muster-aggregator sql "SHOW TABLES"'),
        ),
        _patterns(),
        element("script", _file("page.js")),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{_title(figures)}, {clock.whole()}"),
        Html(f'<link rel="icon" href="{_ICON}">'),
        element("style", _file("page.css")),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _header(figures: Figures, clock: Clock) -> Html:
    sites = f"{listed([site.site for site in figures.sites])} ({listed(figures.regions)})"
    return element(
        "header",
        element("p", "Muster: who was there, and who was not", class_="eyebrow"),
        element("h1", _title(figures)),
        element(
            "p", element("b", clock.whole()), f". Senders are machines that report in: here at {sites}.", class_="fleet"
        ),
    )


def _title(figures: Figures) -> str:
    return f"Availability of {count(figures.sender_count, 'sender')} at {count(len(figures.sites), 'site')}"


def _words(figures: Figures) -> Html:
    words = (
        *_WORDS,
        *(_IMPORTED_WORDS if any(block.imported for site in figures.sites for block in site.blocks) else ()),
    )
    entries = (join(element("dt", word), element("dd", meaning)) for word, meaning in words)
    return section("words", "Words on this page", None, element("dl", *entries, class_="words"))


def _patterns() -> Html:
    """Define the patterns of what nobody watched and of what was planned, for pictures."""
    stripes = element("path", d="M-1 5L5 -1M3 9L9 3", class_="stripe")
    ground = element("rect", width=8, height=8, class_="ground")
    pattern = element("pattern", ground, stripes, id="hatch", width=8, height=8, patternUnits="userSpaceOnUse")
    bars = element("path", d="M0 4H8", class_="stripe")
    planned = element("pattern", ground, bars, id="bars", width=8, height=8, patternUnits="userSpaceOnUse")
    return element("svg", element("defs", pattern, planned), width=0, height=0, class_="defs", aria_hidden="true")


def _file(name: str) -> Html:
    return Html(files(__package__).joinpath(name).read_text(encoding="utf-8"))
