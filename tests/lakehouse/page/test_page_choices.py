"""The page of any senders and any period: by site, by region, or by a part of names."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aggregator.lakehouse.commands.report import report_html
from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import SenderTimes
from aggregator.lakehouse.page.grouping import BY_REGION, InvalidGrouping, parse_grouping
from aggregator.lakehouse.tables.policy import POLICY
from shared.instants import DAY, HOUR, MINUTE, InvalidInstant, format_instant
from tests.support.lakehouse.histories import History, demo, observed
from tests.support.lakehouse.shown_history import Shown
from tests.support.lakehouse.small_rollup import IMPORTED_BLOCK, START, Coverage, Interval


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(tmp_path_factory.mktemp("short"), demo())


def test_senders_may_be_grouped_by_region_or_by_a_part_of_their_names(short: Shown) -> None:
    by_site = figures = short.figures()
    for grouping in (BY_REGION, parse_grouping("{}-{rack}-{}.example.net"), parse_grouping("{site}-{rack}-{}")):
        figures = short.figures(grouping=grouping)
        assert figures.times == by_site.times
        assert figures.points == by_site.points
        summed = [sum(part) for part in zip(*(group.times for group in figures.groups), strict=True)]
        assert SenderTimes(*summed) == by_site.times
        assert sum(group.sender_count for group in figures.groups) == by_site.sender_count
        assert sum(group.outage_count for group in figures.groups) == len(by_site.outages)
    names = [group.name for group in figures.groups]
    assert len(names) == 30
    assert {"dub1/r3", "nyc1/r10"} <= set(names)
    (rack,) = [group for group in figures.groups if group.name == "nyc1/r4"]
    assert (rack.sender_count, rack.outage_count) == (20, 20)
    assert "each column" in render(figures)


def test_names_without_that_part_are_a_group_of_their_own(short: Shown) -> None:
    figures = short.figures(grouping=parse_grouping("dub1-{rack}-{}"))
    assert [group.name for group in figures.groups][-1] == ""
    assert figures.groups[-1].sender_count == 400
    assert "other names" in render(figures)


def test_a_page_may_be_of_some_regions_or_sites_only(short: Shown) -> None:
    whole, figures = short.figures(), short.figures(sites=("dub1",))
    assert figures.sites == [site for site in whole.sites if site.site == "dub1"]
    assert {outage.site for outage in figures.outages} == {"dub1"}
    of_region = short.figures(regions=("eu-west",))
    assert of_region.sites == [site for site in whole.sites if site.region == "eu-west"]
    assert of_region.times.lived < whole.times.lived


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ({"sites": ("dub9",)}, "there is no site dub9; there are "),
        ({"regions": ("us-east",), "sites": ("dub1",)}, "no site of dub1 is in region us-east"),
        ({"grouping": parse_grouping("{sender}.example.net")}, "these are 600 groups, and a page has room for 400"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_senders_that_cannot_be_shown_are_said_in_a_line(short: Shown, chosen: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidGrouping, match=re.escape(line)):
        short.figures(**chosen)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Give two imported histories with days between them, in the second of which nobody was in the first hours."""
    coverage = [
        *(Coverage(site, START, START + DAY, "imported", IMPORTED_BLOCK) for site in ("ams1", "dub1")),
        Coverage("dub1", START + 5 * DAY, START + 10 * DAY, "imported", IMPORTED_BLOCK),
    ]
    intervals = [
        Interval("ams1", "a", "up", START, START + DAY, "import_end", IMPORTED_BLOCK),
        Interval("dub1", "b", "up", START + 5 * DAY + 6 * HOUR, START + 10 * DAY, "import_end", IMPORTED_BLOCK),
    ]
    history = History(intervals, coverage, START + 10 * DAY, 12 * MINUTE, 5 * MINUTE)
    return Shown(tmp_path_factory.mktemp("apart"), history)


@pytest.mark.parametrize(
    ("begin", "end", "sites", "line"),
    [
        (2, 3, (), "what is known before it ends at 2026-03-03T00:00:00Z, what is known after it begins at 2026-03-07"),
        (2, 9, ("ams1",), "what is known before it ends at 2026-03-03T00:00:00Z"),
        (2, 3, ("dub1",), "what is known before it ends at 2026-03-03T00:00:00Z, what is known after it begins at"),
    ],
)
def test_a_period_in_which_no_site_is_known_is_refused(
    apart: Shown, begin: int, end: int, sites: tuple[str, ...], line: str
) -> None:
    with pytest.raises(InvalidInstant, match=re.escape(f"nothing is known of that time: {line}")):
        apart.figures(format_instant(START + begin * DAY), format_instant(START + end * DAY), sites=sites)


def summary_of(page: str) -> str:
    return re.sub(r"<[^>]+>", "", page[page.index('<ul class="summary">') : page.index("<nav>")])


@pytest.mark.parametrize("hours", [5, 51])
@pytest.mark.parametrize("by", ["site", "{letter}", "{}-{rack}"])
def test_where_nobody_was_the_page_says_that_alone(tmp_path: Path, hours: int, by: str) -> None:
    gaps = [(START + 60 * HOUR, START + 61 * HOUR, "unobserved")]
    coverage = [Coverage("dub1", START, START + 100 * HOUR, "observed"), *observed("ams1", START + 100 * HOUR, gaps)]
    intervals = [Interval("dub1", "b", "up", START + 60 * HOUR, None, None)]
    shown = Shown(tmp_path, History(intervals, coverage, START + 100 * HOUR, 12 * MINUTE, 5 * MINUTE))
    figures = shown.figures(until=format_instant(START + hours * HOUR), grouping=parse_grouping(by))
    page = render(figures)
    ended = "6 Mar 04:00" if hours > 48 else "6 Mar 04:00:00"
    assert summary_of(page) == (
        "No sender is known to have been there: there is nothing to tell of this time."
        f"Known time ends at {ended} UTC, when the hub stored the last message that these figures include (stream"
        " REPORT 4,711). Of anything later nothing is claimed."
    )
    assert "all the time." not in page[page.index("<main>") : page.index('id="words"')]
    assert "0 senders at 2 sites" in page
    assert [group.name for group in figures.groups] == (["ams1", "dub1"] if by == "site" else [])
    assert {each.site: each.times for each in figures.sites} == {"ams1": SenderTimes(), "dub1": SenderTimes()}


def test_where_all_was_maintenance_the_page_says_that_alone(tmp_path: Path) -> None:
    shown = Shown(tmp_path, demo())
    regions = ("eu-west", "us-east")
    asked = {"revision": 1, "stream_created_at": START, "given_at": START, "author": "ann", "kind": "maintenance"}
    spans = {"started_at": START, "ended_at": START + DAY}
    shown.lakehouse.append(POLICY, [{**asked, **spans, "region": region} for region in regions])
    shown.lakehouse.record_positions(shown.history.known_through)
    page = render(shown.figures())
    summary = summary_of(page)
    assert summary.startswith("All of this time was maintenance: declared so, and left out of every figure here.")
    assert re.findall(r"Everything is known|Nothing is known|How exact", summary) == []


@pytest.mark.parametrize("text", ["rack", "{}", "{rack"])
def test_a_grouping_that_is_none_is_said_in_a_line(text: str) -> None:
    with pytest.raises(InvalidGrouping, match=r"not a grouping|name at least one part|a brace"):
        parse_grouping(text)


def test_the_command_takes_a_period_a_grouping_and_places(short: Shown, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    asked = ["--config", str(short.config), "--output", str(output)]
    chosen = CliRunner().invoke(report_html, [*asked, "--last", "30s", "--by", "{}-{rack}-{}", "--site", "dub1"])
    assert chosen.exit_code == 0, chosen.stderr
    page = output.read_text(encoding="utf-8")
    assert "Each row is a rack, a part of the senders" in page
    assert "200 senders at 1 site" in page
    both = CliRunner().invoke(report_html, [*asked, "--last", "30s", "--from", "2026-03-02"])
    assert (both.exit_code, "leave one out" in both.stderr) == (2, True)
    wrong = CliRunner().invoke(report_html, [*asked, "--by", "rack"])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
