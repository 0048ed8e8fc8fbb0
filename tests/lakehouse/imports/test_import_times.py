"""Instants and lengths are read as other systems write them, and not where they may mean two things. No Spark here."""

from collections.abc import Iterator
from time import tzset

import pytest

from aggregator.lakehouse.imports.mapping import Ambiguous, ImportRefused, Mapping, Unit
from aggregator.lakehouse.imports.rows import ImportedSpan, ImportReason, RowReader, Unreadable
from aggregator.lakehouse.imports.times import length_reader, parse_option, time_reader
from shared.instants import SECOND, parse_instant


@pytest.fixture
def where_zones_have_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Call this machine's time EST and, in summer, CET: strptime takes the names of its own zone for nothing."""
    with monkeypatch.context() as told:
        told.setenv("TZ", "EST5CET,M3.2.0,M11.1.0")
        tzset()
        yield
    tzset()


@pytest.mark.parametrize(
    ("time", "zone", "text", "instant"),
    [
        ("auto", "UTC", "1115811139", "2005-05-11T11:32:19Z"),
        ("auto", "UTC", "1115811139.25", "2005-05-11T11:32:19.25Z"),
        ("auto", "Europe/Dublin", "2026-07-01 12:00:00", "2026-07-01T11:00:00Z"),
        ("auto", "Europe/Dublin", "2026-07-01T12:00:00+02:00", "2026-07-01T10:00:00Z"),
        ("auto", "Europe/Dublin", "2026-07-01 12:00:00 UTC", "2026-07-01T12:00:00Z"),
        ("auto", "Europe/Dublin", "2026-07-01", "2026-06-30T23:00:00Z"),
        ("s", "UTC", "1115811139.5", "2005-05-11T11:32:19.5Z"),
        ("%d %b %Y %I:%M %p", "UTC", "03 Feb 2003 05:30 PM", "2003-02-03T17:30:00Z"),
        ("ms", "UTC", "1115811139001", "2005-05-11T11:32:19.001Z"),
        ("ns", "UTC", "1115811139000000999", "2005-05-11T11:32:19.000001Z"),
        ("%m/%d/%Y %H:%M", "America/Denver", "01/31/2003 17:30", "2003-02-01T00:30:00Z"),
        ("%Y-%m-%d %H:%M %Z", "America/Denver", "2003-01-31 17:30 UTC", "2003-01-31T17:30:00Z"),
        ("%a %b %d %H:%M:%S %Z %Y", "America/Denver", "Fri Jan 31 17:30:00 gmt 2003", "2003-01-31T17:30:00Z"),
        ("%Y-%m-%d %H:%M %z %Z", "America/Denver", "2003-01-31 17:30 +0100 UTC", "2003-01-31T16:30:00Z"),
        ("%Y-%m-%d %H:%M %%Z", "America/Denver", "2003-01-31 17:30 %Z", "2003-02-01T00:30:00Z"),
        ("%Y%m%d", "UTC", "20051231", "2005-12-31T00:00:00Z"),
        ("auto", "UTC", "100000000", "1973-03-03T09:46:40Z"),
        ("s", "UTC", "20051231", "1970-08-21T01:47:11Z"),
    ],
)
def test_times_are_read_as_other_systems_write_them(time: str, zone: str, text: str, instant: str) -> None:
    assert time_reader(time, zone)(text) == parse_instant(instant)


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("auto", "20051231"),
        ("auto", "20051231.0"),
        ("auto", "2005"),
        ("auto", "0"),
        ("%Y-%m-%d %H:%M %Z", "2003-01-31 17:30 CET"),
        ("%Y-%m-%d %H:%M %Z", "2003-01-31 17:30 EST"),
    ],
)
@pytest.mark.usefixtures("where_zones_have_names")
def test_a_time_that_may_mean_two_things_is_not_read(time: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"nine digits or more|does not match format"):
        time_reader(time, "America/New_York")(text)


TWICE = ("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z")
"""Which instants 01:30 is in Dublin on the night on which summer ends; there is no 01:30 on that of its beginning."""


@pytest.mark.parametrize(
    ("ambiguous", "begin", "end", "interval"),
    [
        ("earlier", "2026-10-25 01:30", "2026-10-25 03:00", (TWICE[0], "2026-10-25T03:00:00Z")),
        ("later", "2026-10-25 01:30", "2026-10-25 03:00", (TWICE[1], "2026-10-25T03:00:00Z")),
        ("order", "2026-10-25 01:50", "2026-10-25 01:10", ("2026-10-25T00:50:00Z", "2026-10-25T01:10:00Z")),
        ("earlier", "2026-03-29 01:30", "2026-03-29 03:00", ("2026-03-29T00:30:00Z", "2026-03-29T02:00:00Z")),
        ("later", "2026-03-29 01:30", "2026-03-29 03:00", ("2026-03-29T01:30:00Z", "2026-03-29T02:00:00Z")),
        ("quarantine", "2026-10-25 01:30", "2026-10-25 03:00", None),
        ("quarantine", "2026-10-25 00:30", "2026-10-25 01:30", None),
        ("quarantine", "2026-03-29 01:30", "2026-03-29 03:00", None),
    ],
)
def test_a_local_time_that_names_two_instants_or_none_is_taken_as_was_said(
    ambiguous: Ambiguous, begin: str, end: str, interval: tuple[str, str] | None
) -> None:
    reader = outages(ambiguous)
    found = reader.read(("n1", begin, end))
    if interval is None:
        assert isinstance(found, Unreadable)
        assert found.reason is ImportReason.AMBIGUOUS_TIME
    else:
        assert isinstance(found, ImportedSpan)
        assert found[2:] == tuple(map(parse_instant, interval))
    assert reader.ambiguous_count >= 1


def test_the_order_of_a_senders_rows_tells_the_second_half_of_the_night_from_the_first() -> None:
    reader = outages("order")
    rows = [("n1", "01:30", "01:40"), ("n2", "01:35", "01:45"), ("n1", "01:35", "02:30"), ("n1", "02:45", "02:50")]
    found = [reader.read((sender, *(f"2026-10-25 {at}" for at in times))) for sender, *times in rows]
    begins = ["00:30", "00:35", "01:35", "02:45"]
    assert [each.started_at for each in found if isinstance(each, ImportedSpan)] == [
        parse_instant(f"2026-10-25T{at}:00Z") for at in begins
    ]
    assert reader.ambiguous_count == 5


def test_when_the_source_watched_is_not_guessed() -> None:
    with pytest.raises(
        ImportRefused, match=r"it is 2026-10-25T00:30:00.*Z or 2026-10-25T01:30:00.*Z; write its offset"
    ):
        parse_option("since", "2026-10-25 01:30", "Europe/Dublin")


def outages(ambiguous: Ambiguous) -> RowReader:
    mapping = Mapping(
        source="nagios", sender=("host",), start="begin", stop="end", always="down", zone="Europe/Dublin",
        ambiguous=ambiguous,
    )  # fmt: skip
    return RowReader(mapping, ("host", "begin", "end"), parse_instant("2027-01-01T00:00:00Z"))


@pytest.mark.parametrize(("time", "text"), [("auto", "90"), ("auto", "90.0"), ("us", "90000000")])
def test_numbers_count_from_where_the_source_begins(time: str, text: str) -> None:
    epoch = parse_instant("2011-05-01T23:00:00Z")
    assert time_reader(time, "UTC", epoch)(text) == parse_instant("2011-05-01T23:01:30Z")
    if time == "auto":
        assert time_reader(time, "UTC", epoch)("2012-01-01") == parse_instant("2012-01-01T00:00:00Z")
    assert time_reader(time, "UTC", 0)(text) == 90 * SECOND


@pytest.mark.parametrize(
    ("unit", "text", "length"),
    [
        ("s", "0", 0),
        ("s", " 1.25 ", 1_250_000),
        ("m", "6", 360 * SECOND),
        ("ms", "6", 6_000),
        ("s", "25:00:01", 90_001 * SECOND),
        ("s", "2 days, 0:00:01.5", 172_801_500_000),
        ("s", "1 00:01:00", 86_460 * SECOND),
    ],
)
def test_lengths_are_read_as_other_systems_write_them(unit: Unit, text: str, length: int) -> None:
    assert length_reader(unit)(text) == length


@pytest.mark.parametrize("text", ["soon", "5:30", "1:60:00"])
def test_a_length_that_may_mean_two_things_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        length_reader("s")(text)
