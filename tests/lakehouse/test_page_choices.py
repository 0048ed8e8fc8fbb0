"""The page of any senders and any period: by site, by region, or by a part of names."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import SenderTimes
from aggregator.lakehouse.page.grouping import BY_REGION, InvalidGrouping, parse_grouping
from aggregator.lakehouse.report_commands import report_html
from tests.support.histories import demo
from tests.support.shown_history import Shown


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
