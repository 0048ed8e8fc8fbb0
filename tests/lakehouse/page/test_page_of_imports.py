"""The page of another system's history claims no more than it told: no bound, no hub, and nobody where nobody was."""

import re
from pathlib import Path

import pytest

from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import PageFigures, SenderTimes
from shared.instants import DAY, HOUR, MINUTE, format_instant
from tests.support.lakehouse.histories import History, lives, observed
from tests.support.lakehouse.shown_history import Shown
from tests.support.lakehouse.small_rollup import IMPORTED_BLOCK, REGION_OF, START, Coverage, Interval

END = START + 2 * DAY
LATE, EARLY = START + 6 * HOUR, END - 12 * HOUR
GAP = START + 20 * HOUR, START + 21 * HOUR
UNWATCHED = START + 30 * HOUR, START + 31 * HOUR


def imported(site: str, sender_id: str, *spans: tuple[str, int, int]) -> list[Interval]:
    return [
        Interval(site, sender_id, state, started_at, ended_at, "import_end", IMPORTED_BLOCK)
        for state, started_at, ended_at in spans
    ]


IMPORTED = [
    *imported("dub1", "a", ("up", START, START + 5 * HOUR), ("down", START + 5 * HOUR, START + 7 * HOUR)),
    *imported("dub1", "b", ("up", START, GAP[0]), ("unknown", *GAP), ("up", GAP[1], UNWATCHED[0])),
    *imported("dub1", "b", ("up", UNWATCHED[1], EARLY)),
    *imported("ams1", "c", ("up", LATE, END)),
]
HISTORIES = [
    Coverage("dub1", START, UNWATCHED[0], "imported", IMPORTED_BLOCK),
    Coverage("dub1", *UNWATCHED, "unwatched", IMPORTED_BLOCK),
    Coverage("dub1", UNWATCHED[1], EARLY, "imported", IMPORTED_BLOCK),
    Coverage("ams1", LATE, END, "imported", IMPORTED_BLOCK),
]
"""One begins late, one ends early, and there its source did not watch for an hour, when nobody was there."""
NOTICED = lives("nyc1", "n", START, [(START + 9 * HOUR, START + 10 * HOUR)])
# Here agents came to watch where another system had.
GONE_ON = [Interval("dub1", "d", "up", EARLY + HOUR, None, None)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Give an import, and nothing else: no hub ever was."""
    return Shown(tmp_path_factory.mktemp("alone"), History(IMPORTED, HISTORIES, END, 12 * MINUTE, 5 * MINUTE))


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Give the same beside what agents report, one of which has not been heard of for three hours."""
    silent = [(END - 3 * HOUR, END, "unobserved")]
    coverage = [*HISTORIES, *observed("nyc1", END, silent), *observed("dub1", END, (), EARLY + HOUR)]
    history = History([*IMPORTED, *NOTICED, *GONE_ON], coverage, END, 12 * MINUTE, 5 * MINUTE)
    return Shown(tmp_path_factory.mktemp("beside"), history)


def text_of(figures: PageFigures) -> str:
    """Give what the page says, without what its words mean in general."""
    page = render(figures)
    return re.sub(r"<[^>]+>", "", page[page.index("<main>") : page.index('id="words"')])


def test_of_an_import_no_bound_is_claimed(alone: Shown) -> None:
    figures = alone.figures()
    assert len(figures.outages) == 1
    text = text_of(figures)
    assert "percentage points" not in text
    assert "may be off by" not in text
    assert "How exact is this? All of it was imported: it is as exact as its source, which gives no bound." in text
    assert "All of what is known is history imported from other monitoring." in text
    assert "All were imported, and are as their source told of them." in text
    worst = text[text.index("Senders that were worst off") :]
    assert "±" not in worst
    assert "1as imported" in worst


def test_known_time_of_an_import_is_not_a_hubs(alone: Shown) -> None:
    text = text_of(alone.figures())
    assert "Known time ends at 4 Mar 00:00:00 UTC, where the imported history ends. Of anything later" in text
    assert "hub stored the last message that these figures include" not in text
    assert "stream" not in text[: text.index("Each site by hour")]


def test_senders_are_absent_where_their_imported_history_has_ended(alone: Shown) -> None:
    text = text_of(alone.figures())
    assert "not watched any more" not in text
    assert (
        "The imported history of 1 site ends earlier: dub1 (until 3 Mar 12:00:00). After that its senders are absent,"
        " and count in no figure." in text
    )


def test_an_imported_history_does_not_end_where_its_source_did_not_watch(alone: Shown, tmp_path: Path) -> None:
    for since in (START, UNWATCHED[0]):
        figures = alone.figures(format_instant(since), format_instant(UNWATCHED[1]))
        assert [site.heard_through for site in figures.sites if site.site == "dub1"] == [
            UNWATCHED[0] if since == START else None
        ]
        assert "The imported history of" not in text_of(figures)
    not_watched_at_last = [
        Coverage("dub1", START, UNWATCHED[0], "imported", IMPORTED_BLOCK),
        Coverage("dub1", UNWATCHED[0], EARLY, "unwatched", IMPORTED_BLOCK),
        HISTORIES[-1],
    ]
    history = History([*imported("dub1", "a", ("up", START, UNWATCHED[0]))], not_watched_at_last, END, 0, 5 * MINUTE)
    text = text_of(Shown(tmp_path, history).figures())
    assert "The imported history of 1 site ends earlier: dub1 (until 3 Mar 12:00:00). After that" in text


def test_what_an_import_does_not_say_is_no_store_that_was_lost(alone: Shown) -> None:
    figures = alone.figures()
    assert figures.unknown_by_cause == {"import_gap": HOUR}
    assert "(1h): because the imported history does not say what they were." in text_of(figures)


def test_a_strip_is_empty_where_nothing_is_told_of_a_site(alone: Shown, beside: Shown) -> None:
    def strips(shown: Shown) -> list[tuple[str, list[str]]]:
        page = render(shown.figures())
        (drawn,) = re.findall(r'<dl class="strips" aria-hidden="true">(.*?)</dl>', page)
        found = re.findall(r"<dt>(\w+)</dt><dd>(.*?)</dd>", drawn)
        return [(site, re.findall(r"<i (.*?)></i>", parts)) for site, parts in found]

    hour = 100 / 48
    unwatched = f'style="left:{30 * hour:.3f}%;width:{hour:.3f}%"'
    late = 'class="absent" style="left:0.000%;width:12.500%"'
    assert strips(alone) == [
        ("ams1", [late]),
        ("dub1", [unwatched, 'class="absent" style="left:75.000%;width:25.000%"']),
    ]
    assert strips(beside) == [
        ("ams1", [late]),
        ("dub1", [unwatched, f'class="absent" style="left:75.000%;width:{hour:.3f}%"']),
        ("nyc1", [f'style="left:{45 * hour:.3f}%;width:{3 * hour:.3f}%"']),
    ]
    assert "of what is empty nothing is told, and its senders are absent" in text_of(alone.figures())


def test_beside_an_import_the_bound_is_of_what_agents_noticed(beside: Shown) -> None:
    figures = beside.figures()
    assert (len(figures.outages), figures.noticed_count) == (2, 1)
    assert {each.sender_id: (each.outage_count, each.noticed_count) for each in figures.senders} == {
        "a": (1, 0),
        "n": (1, 1),
    }
    known, bound = figures.times.known, 2 * 5 * MINUTE
    points = -(-bound * 10_000 // known) / 100
    text = text_of(figures)
    assert f"senders were up; exact to ± {points:.2f} percentage points, what was imported aside" in text
    assert f"exact to ± {points:.2f} percentage points. Silence shorter than 12m is not called an outage" in text
    assert "at all. What was imported is as exact as its source, and in no bound here." in text
    assert "Imported ones are as their source told of them." in text
    worst = text[text.index("Senders that were worst off") :]
    assert "1as imported" in worst
    assert "1± 10m" in worst


def test_beside_an_import_known_time_is_the_hubs_and_its_silent_sites_are_unknown(beside: Shown) -> None:
    text = text_of(beside.figures())
    assert "when the hub stored the last message that these figures include (stream REPORT 4,711)" in text
    assert "1 site is not watched any more: nyc1 (until 3 Mar 21:00:00). Since then its senders are unknown." in text
    assert "The imported history of" not in text
    ended = text_of(beside.figures(until=format_instant(EARLY + HOUR)))
    assert "The imported history of 1 site ends earlier: dub1 (until 3 Mar 12:00:00)." in ended


def test_of_what_is_known_the_page_says_how_much_was_imported(beside: Shown) -> None:
    figures = beside.figures()
    by_site = {site.site: site.times for site in figures.sites}
    theirs = SenderTimes(up=11 * HOUR)
    assert figures.imported == by_site["ams1"].known + by_site["dub1"].known - theirs.known
    share = figures.imported * 10_000 // figures.times.known / 100
    assert f" {share:.2f} % of what is known is history imported from other monitoring." in text_of(figures)


def test_without_an_import_nothing_is_said_of_one(beside: Shown) -> None:
    text = text_of(beside.figures(sites=("nyc1",)))
    assert "import" not in text


def test_every_axis_of_several_years_has_the_year(tmp_path: Path) -> None:
    end = START + 500 * DAY
    down = START + 320 * DAY, START + 322 * DAY
    intervals = imported("dub1", "a", ("up", START, down[0]), ("down", *down), ("up", down[1], end))
    coverage = [Coverage("dub1", START, end, "imported", IMPORTED_BLOCK)]
    page = render(Shown(tmp_path, History(intervals, coverage, end, 12 * MINUTE, 5 * MINUTE)).figures())
    head, *_ = re.findall(r'<table class="heat"><thead>(.*?)</thead>', page)
    columns = re.findall(r'scope="colgroup">(.*?)</th>', head)
    assert (columns[0], columns[-1]) == ("2026-03-02", "2027-06-21")
    assert re.findall(r'<tr><th scope="row">(2[^<]*)</th>', page) == ["2027-01-16", "2027-01-17"]
    ticks = [re.findall(r"<span[^>]*>(.*?)</span>", part) for part in re.findall(r'class="ticks".*?</div>', page)]
    assert ticks[0] == ["2026-05-07", "2026-07-30", "2026-10-22", "2027-01-14", "2027-04-08"]


def test_time_in_which_senders_were_not_there_counts_in_the_lowest_figure_alone(alone: Shown) -> None:
    up = 5 * HOUR + (20 * HOUR) + (UNWATCHED[0] - GAP[1]) + (EARLY - UNWATCHED[1]) + (END - LATE)
    share = up * 10_000 // (3 * 2 * DAY) / 100
    assert (
        f"Of the whole period, senders were up {share:.2f} % of the time, where each of the 3 senders counts as down"
        " before it first came, after it left for good, and while nobody watched."
    ) in text_of(alone.figures())


def test_sites_come_in_the_order_of_their_numbers_and_no_name_turns_the_text_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = ["20", "2", "19", "\u202egnp.1"]
    for site in sites:
        monkeypatch.setitem(REGION_OF, site, "imported")
    intervals = [each for site in sites for each in imported(site, "a\u2066b", ("up", START, END))]
    coverage = [Coverage(site, START, END, "imported", IMPORTED_BLOCK) for site in sites]
    figures = Shown(tmp_path, History(intervals, coverage, END, 12 * MINUTE, 5 * MINUTE)).figures()
    assert [site.site for site in figures.sites] == ["2", "19", "20", "\u202egnp.1"]
    assert [group.name for group in figures.groups] == ["2", "19", "20", "\u202egnp.1"]
    page = render(figures)
    assert "\\u202egnp.1" in page
    assert [each for each in page if not each.isprintable() and each != "\n"] == []
