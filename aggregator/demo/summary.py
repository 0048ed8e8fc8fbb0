"""Sum the demo up for somebody new to Muster: what happened to whom, what Muster says of it, what the truth was."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from aggregator.demo import scenario
from aggregator.demo.comparison import Verdict
from aggregator.demo.directory import DemoDirectory, shown
from aggregator.demo.outcome import Evidence, Promise
from aggregator.demo.scenario import BEHIND_THE_CUT, SITES, Scenario
from aggregator.demo.spans import Span, common
from aggregator.demo.story import Story, Tone, muster, typed
from aggregator.demo.tables import Times
from aggregator.terminal import format_table
from shared.command_line.tables import TableColumn

QUERIES: Final = (
    "SELECT site, sender_id, started_at, ended_at, ended_by FROM outages ORDER BY started_at LIMIT 10",
    "SELECT site, started_at, ended_at, known, cause FROM site_coverage ORDER BY site, started_at",
    "SELECT * FROM sender_availability_daily ORDER BY availability_known LIMIT 10",
    "SHOW TABLES",
)
_MOST_SHOWN = 12
_EXPLANATION = (
    "truth, Muster: how long those senders were down, on average, within the time that Muster knows. off: the sender"
    " furthest from the truth, + where Muster says too much. bound: what is promised for that one: its outages that"
    " were too short to be noticed, and for each that was noticed two registration intervals ({interval} each):"
    " an outage is seen from the last word before it to the first word after it."
)
_NO_TIMES = Times(0, 0, 0)
_BRIEF = 50_000
"""Spans of unknown time shorter than this are not worth a word: microseconds."""


class _Row(NamedTuple):
    """Senders to whom the same happened."""

    whom: str
    what: str
    verdicts: Sequence[Verdict]

    @property
    def worst(self) -> Verdict:
        return max(self.verdicts, key=lambda each: (abs(each.error) - each.bound, abs(each.error)))

    def average(self, times: Iterable[int]) -> str:
        return _seconds(sum(times) / max(1, len(self.verdicts)))


class _Site(NamedTuple):
    """One site, or the fleet."""

    name: str
    measured: float
    true: float
    coverage: float
    unknown: str


_ROWS: Sequence[TableColumn[_Row]] = (
    TableColumn("who", lambda row: row.whom),
    TableColumn("what happened", lambda row: row.what, wraps=True),
    TableColumn("truth", lambda row: row.average(each.true_down for each in row.verdicts), right=True),
    TableColumn("Muster", lambda row: row.average(each.down for each in row.verdicts), right=True),
    TableColumn("off", lambda row: f"{row.worst.error / 1e6:+.1f}s", right=True),
    TableColumn("bound", lambda row: _seconds(row.worst.bound), right=True),
)
_SITES: Sequence[TableColumn[_Site]] = (
    TableColumn("site", lambda site: site.name),
    TableColumn("truth", lambda site: f"{site.true:.2%}", right=True),
    TableColumn("Muster", lambda site: f"{site.measured:.2%}", right=True),
    TableColumn("known", lambda site: f"{site.coverage:.1%}", right=True),
    TableColumn("unknown, and why", lambda site: site.unknown, wraps=True),
)


def tell_outcome(
    story: Story, played: Scenario, verdicts: tuple[Verdict, ...], evidence: Evidence, kept: tuple[Promise, ...]
) -> None:
    story.text()
    story.text("DOWNTIME: WHAT HAPPENED TO WHOM, WHAT THE TRUTH IS, AND WHAT MUSTER SAYS", Tone.STRONG)
    story.text()
    _tell_table(story, format_table(_ROWS, list(_rows(played, verdicts)), story.width))
    story.text()
    story.text(_EXPLANATION.format(interval=played.length_text(scenario.REGISTRATION_INTERVAL)), Tone.DIM)
    story.text()
    story.text("AVAILABILITY OF THE KNOWN TIME, AND WHAT IS UNKNOWN", Tone.STRONG)
    story.text()
    _tell_table(story, format_table(_SITES, list(_sites(verdicts, evidence)), story.width))
    story.text()
    story.text("WHAT WAS PROMISED", Tone.STRONG)
    story.text()
    for promise in kept:
        _tell_promise(story, promise)


def _tell_table(story: Story, table: str) -> None:
    title, *lines = table.splitlines()
    story.raw(title, Tone.DIM)
    for line in lines:
        story.raw(line)


def _tell_promise(story: Story, promise: Promise) -> None:
    if not promise.broken_by:
        story.marked("ok", promise.text, Tone.GOOD)
        return
    story.marked("FAILED", promise.text, Tone.BAD)
    for text in promise.broken_by[:_MOST_SHOWN]:
        story.marked("", text)
    if len(promise.broken_by) > _MOST_SHOWN:
        story.marked("", f"... and {len(promise.broken_by) - _MOST_SHOWN:,} more")


def _rows(played: Scenario, verdicts: tuple[Verdict, ...]) -> Iterator[_Row]:
    others = {(each.site, each.sender): each for each in verdicts}
    for incident in played.incidents():
        concerned = [each for each in verdicts if each.site == incident.site and incident.concerns(each.sender)]
        for each in concerned:
            others.pop((each.site, each.sender), None)
        if concerned:
            yield _Row(f"{incident.site} {incident.whom}", incident.what, concerned)
    yield _Row(f"{len(others)} others", "nothing", tuple(others.values()))


def _sites(verdicts: tuple[Verdict, ...], evidence: Evidence) -> Iterator[_Site]:
    published = evidence.published
    for site in SITES:
        times = published.sites.get(site, _NO_TIMES)
        why = "; ".join(_reasons(site, evidence))
        yield _Site(site, times.availability, _truth([v for v in verdicts if v.site == site]), times.coverage, why)
    fleet = published.fleet
    yield _Site("all", fleet.availability, _truth(verdicts), fleet.coverage, "")


def _truth(verdicts: Sequence[Verdict]) -> float:
    observed = sum(each.observed for each in verdicts)
    return 1 - sum(each.true_down for each in verdicts) / max(1, observed)


def _reasons(site: str, evidence: Evidence) -> Iterator[str]:
    """Say why spans of a site are unknown, as far as the demo caused it."""
    for span in evidence.published.unknown.get(site, []):
        if span[1] - span[0] >= _BRIEF:
            yield f"{_seconds(span[1] - span[0])} {_reason(site, span, evidence)}"


def _reason(site: str, span: Span, evidence: Evidence) -> str:
    if site == scenario.STOPPED_SITE and common([span], [evidence.stopped]):
        return "its server away"
    if span[1] == evidence.published.known_through:
        return "at the very end"
    return "nobody watched"


def _seconds(duration: float) -> str:
    return f"{duration / 1e6:.1f}s"


def tell_where_it_is(story: Story, directory: DemoDirectory, *, kept: bool) -> None:
    """Say where everything is, and which commands to try next; ``kept`` tells whether the demo ended well."""
    story.text()
    if kept:
        story.text("SUCCESS: every promise was kept.", Tone.GOOD)
    else:
        story.text(
            f"FAILED: see above. {shown(directory.logs)}/ has what agents, fleets and servers said; if the fleets'"
            " registrations were late by seconds, this machine was too busy to tell.",
            Tone.BAD,
        )
    story.text()
    story.raw(f"  page    file://{directory.page.absolute()}")
    story.raw(f"  tables  {shown(directory.tables)}/ (Apache Iceberg)")
    story.raw(f"  logs    {shown(directory.logs)}/")
    story.text()
    story.text("Try next:", Tone.STRONG)
    config = ("--config", directory.aggregator_file)
    for query in QUERIES:
        story.raw("  " + typed(muster("muster-aggregator", "sql", *config)) + " \\", Tone.COMMAND)
        story.raw("      " + typed([query]), Tone.COMMAND)
    story.raw(
        "  " + typed(muster("muster-agent", "status", "--config", directory.agent_file(BEHIND_THE_CUT))), Tone.COMMAND
    )
