"""Instants and durations are read and written one way, and nothing else is taken for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.instants import (
    DAY,
    HOUR,
    LONGEST,
    MINUTE,
    SECOND,
    InvalidInstant,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)

LATE = 253_402_300_799_999_999  # the last microsecond of the year 9999


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0s", 0),
        ("250us", 250),
        ("5ms", 5_000),
        ("90s", 90 * SECOND),
        ("0.5s", SECOND // 2),
        ("12m", 12 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        ("7d", 7 * DAY),
        ("2w", 14 * DAY),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, duration: int) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 parsecs", "1h30", "1,5s", "5S", "1h!", "nan s"])
def test_anything_else_is_not_a_duration(text: str) -> None:
    with pytest.raises(InvalidInstant, match="not a duration"):
        parse_duration(text)


def test_a_duration_beyond_the_calendar_is_refused() -> None:
    assert parse_duration("36525d") == LONGEST
    with pytest.raises(InvalidInstant, match="longer than a hundred years: '36525d1s'"):
        parse_duration("36525d1s")


@pytest.mark.parametrize("text", ["9" * 400 + "s", "9" * 5_000 + "w", "1h" + "9" * 400 + "us"], ids=len)
def test_a_duration_beyond_all_numbers_is_refused(text: str) -> None:
    with pytest.raises(InvalidInstant, match="longer than a hundred years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0s"),
        (1_500, "1.5ms"),
        (1_500_000, "1.5s"),
        (90 * SECOND, "1m 30s"),
        (HOUR, "1h"),
        (HOUR + 5 * SECOND, "1h"),
        (3_725 * SECOND, "1h 2m"),
        (90 * DAY + 3 * HOUR + 5 * MINUTE, "90d 3h"),
        (-90 * SECOND, "-1m 30s"),
    ],
)
def test_durations_are_written_with_two_units_at_most(duration: int, text: str) -> None:
    assert format_duration(duration) == text


@given(hours=st.integers(0, 23), minutes=st.integers(0, 59), days=st.integers(0, 1000))
def test_whole_durations_of_two_units_read_back(days: int, hours: int, minutes: int) -> None:
    for duration in (days * DAY + hours * HOUR, hours * HOUR + minutes * MINUTE):
        assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.5Z", -500_000),
        ("2026-01-31T00:00:00Z", 1_769_817_600_000_000),
        ("2026-01-31T00:00:00.1Z", 1_769_817_600_100_000),
        ("2026-01-31T00:00:00.123456789Z", 1_769_817_600_123_456),
        ("2026-01-31T01:30:00+01:30", 1_769_817_600_000_000),
        ("2026-01-30t19:00:00-05:00", 1_769_817_600_000_000),
        ("2026-01-31 00:00:00z", 1_769_817_600_000_000),
    ],
)
def test_rfc_3339_is_read_to_the_microsecond(text: str, at: int) -> None:
    assert parse_instant(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31",
        "2026-01-31T00:00:00",
        "2026-02-30T00:00:00Z",
        "2026-01-31T25:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "2026-01-31T00:00:00.Z",
        "1769817600",
    ],
)
def test_anything_else_is_not_an_instant(text: str) -> None:
    with pytest.raises(InvalidInstant, match="not an instant"):
        parse_instant(text)


def test_instants_are_written_in_utc_without_an_empty_fraction() -> None:
    assert format_instant(1_769_817_600_000_000) == "2026-01-31T00:00:00Z"
    assert format_instant(1_769_817_600_000_001) == "2026-01-31T00:00:00.000001Z"


@given(at=st.integers(0, LATE))
def test_every_instant_reads_back_exactly(at: int) -> None:
    assert parse_instant(format_instant(at)) == at
