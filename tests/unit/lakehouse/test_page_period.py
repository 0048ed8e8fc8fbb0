"""The period of a page and the windows that it is cut into, and how its figures are written."""

import pytest
from markupsafe import Markup

from aggregator.lakehouse.page.document import TEMPLATES
from aggregator.lakehouse.page.period import (
    MOST_POINTS,
    MOST_WEEKS,
    Grid,
    Period,
    Window,
    choose_period,
    curve_grid,
    heat_grid,
)
from aggregator.lakehouse.page.words import Clock, percent, rest
from shared.instants import DAY, HOUR, MINUTE, SECOND, InvalidInstant, parse_instant

KNOWN = Period(parse_instant("2026-03-02T10:00:00Z"), parse_instant("2026-03-09T10:00:00Z"))


@pytest.mark.parametrize(
    ("length", "step"),
    [
        (30 * SECOND, SECOND),
        (95 * SECOND, 5 * SECOND),
        (180 * SECOND, 5 * SECOND),
        (HOUR, 2 * MINUTE),
        (8 * HOUR - 1, 15 * MINUTE),
        (8 * HOUR, HOUR),
        (48 * HOUR, HOUR),
        (48 * HOUR + 1, DAY),
        (31 * DAY, DAY),
        (365 * DAY, 7 * DAY),
        (3_653 * DAY, 28 * DAY),
        (20 * 365 * DAY, 91 * DAY),
        (200 * 365 * DAY, 364 * DAY),
    ],
)
def test_a_map_has_columns_that_people_can_tell_apart(length: int, step: int) -> None:
    grid = heat_grid(Period(START, START + length))
    assert grid.step == step
    assert len(list(grid.windows(Period(START, START + length)))) <= (
        MOST_WEEKS + 1 if length < 100 * 365 * DAY else 202
    )


START = parse_instant("2026-03-02T14:02:11Z")


@pytest.mark.parametrize("length", [SECOND, 95 * SECOND, HOUR, DAY, 31 * DAY, 400 * DAY, 3_653 * DAY])
def test_a_curve_has_no_more_points_than_a_screen_shows(length: int) -> None:
    period = Period(START, START + length)
    assert len(list(curve_grid(period).windows(period))) <= MOST_POINTS + 1


def test_windows_begin_at_round_instants_and_the_cut_ones_are_marked() -> None:
    windows = list(Grid(HOUR).windows(Period(90 * MINUTE, 3 * HOUR)))
    assert windows == [Window(HOUR, 2 * HOUR, complete=False), Window(2 * HOUR, 3 * HOUR, complete=True)]


def test_weeks_begin_on_monday() -> None:
    period = Period(START, START + 60 * DAY)
    first = next(heat_grid(period).windows(period))
    assert first.started_at == parse_instant("2026-03-02T00:00:00Z")


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, KNOWN),
        ("2026-03-03", None, Period(parse_instant("2026-03-03T00:00:00Z"), KNOWN.ended_at)),
        ("1d", None, Period(parse_instant("2026-03-08T10:00:00Z"), KNOWN.ended_at)),
        ("1d", "2026-03-05", Period(parse_instant("2026-03-04T00:00:00Z"), parse_instant("2026-03-05T00:00:00Z"))),
        ("2020-01-01", "2030-01-01", KNOWN),
        ("365d", None, KNOWN),
    ],
)
def test_what_is_asked_for_is_cut_to_what_is_known(since: str | None, until: str | None, expected: Period) -> None:
    assert choose_period(KNOWN, since, until) == expected


def test_a_period_without_anything_known_is_refused() -> None:
    with pytest.raises(InvalidInstant, match="nothing is known of that time"):
        choose_period(KNOWN, "2026-03-05", "2026-03-04")


@pytest.mark.parametrize("whole", [3, 7, 9_999, 10_000, 10_001, 10**15])
def test_a_share_and_the_rest_add_up_and_only_all_is_100(whole: int) -> None:
    for part in (1, whole // 2, whole - 1):
        share, other = percent(part, whole), rest(part, whole)
        assert share != "100 %"
        if not share.startswith("<"):
            assert round(float(share.split()[0]) + float(other.split()[0]), 2) == 100


def test_instants_are_as_long_as_the_period_needs() -> None:
    at = parse_instant("2026-03-02T14:02:11Z")
    assert Clock(Period(at, at + MINUTE)).instant(at) == "14:02:11"
    assert Clock(Period(at, at + MINUTE)).instant(at - DAY) == "1 Mar 14:02:11"
    assert Clock(Period(at, at + 30 * DAY)).instant(at) == "2 Mar 14:02"
    assert Clock(Period(at, at + 400 * DAY)).instant(at) == "2026-03-02 14:02"


def test_the_labels_of_an_axis_have_the_year_where_the_period_has_several() -> None:
    at = parse_instant("2026-12-07T00:00:00Z")
    assert Clock(Period(at, at + MINUTE)).tick(at, SECOND) == "00:00:00"
    assert Clock(Period(at, at + 60 * DAY)).tick(at, 7 * DAY) == "7 Dec"
    years = Clock(Period(at - 400 * DAY, at + 30 * DAY))
    assert [years.tick(at + days * DAY, 7 * DAY) for days in (0, 28)] == ["2026-12-07", "2027-01-04"]


def test_text_is_escaped_and_markup_is_not() -> None:
    template = TEMPLATES.from_string('<b title="{{ text }}">{{ text }}</b>{{ markup }}{{ number }}{{ nothing }}')
    drawn = template.render(text='<&>"\u202egnp', markup=Markup("<i></i>"), number=5, nothing=None)
    assert drawn == '<b title="&lt;&amp;&gt;&quot;\\u202egnp">&lt;&amp;&gt;&quot;\\u202egnp</b><i></i>5'
