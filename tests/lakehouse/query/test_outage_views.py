"""What was planned is no failure; chance at a large site is no incident, and what chance does not explain is one."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import PageFigures
from aggregator.lakehouse.page.grouping import Choice
from aggregator.lakehouse.page.outages import group_outages
from aggregator.lakehouse.page.reader import read_figures
from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.tables.policy import POLICY
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.lakehouse.query.test_analysis_views import life
from tests.support.lakehouse.histories import observed
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import REGISTRATION_INTERVAL, STALE_AFTER, START, Interval

DAYS = 3
END = START + DAYS * DAY
FAILED = START + 30 * HOUR
REPAIRED = FAILED + 2 * HOUR
SENDERS = 10_000
TOGETHER = 60
HALF_AN_HOUR = 30 * MINUTE
MONTH_END = START + 30 * DAY
RACK_FAILED = START + 20 * DAY
BLIND_SINCE = START + 5 * DAY
PLANNED = [f"p{number}" for number in range(6)]

Gap = tuple[int, int, str]


def busy_site() -> Iterator[Interval]:
    """Give a site of many senders that each fail once in thirty days, by chance alone, and one failure of many."""
    chance = random.Random(7)
    for number in range(SENDERS):
        outages = [at for at in (START + chance.randrange(30 * DAY),) if at < END - 2 * HOUR]
        if number < TOGETHER:
            outages = [FAILED + chance.randrange(REGISTRATION_INTERVAL)]
        ends = [(at, REPAIRED if number < TOGETHER else at + HOUR) for at in outages]
        if ends:
            yield from life("dub1", f"n{number}", *ends)


def rack(apart: int) -> list[Interval]:
    """Give twenty senders that fail one after the other, so far apart, and come back in that order."""
    failed = [(f"r{number}", RACK_FAILED + number * apart) for number in range(20)]
    return [each for sender, at in failed for each in life("ams1", sender, (at, at + 6 * HOUR))]


def by_chance() -> list[Interval]:
    chance = random.Random(5)
    failed = [(f"n{number}", START + chance.randrange(29 * DAY)) for number in range(120)]
    return [each for sender, at in failed for each in life("ams1", sender, (at, at + HOUR))]


def incidents_of(directory: Path, intervals: list[Interval], gaps: list[Gap]) -> list[tuple[int, int, int]]:
    """Give (start, end, count of senders) of each incident that tables tell of; the page has to have the same."""
    SmallLakehouse(directory).roll_up(intervals, observed("ams1", MONTH_END, gaps), MONTH_END)
    with open_tables(directory) as tables:
        found = tables.rows("SELECT epoch_us(started_at), epoch_us(ended_at), sender_count FROM incidents ORDER BY 1")
    groups, _ = group_outages(figures_of(directory, "ams1").outages)
    assert [(each.started_at, each.ended_at, len(each.outages)) for each in groups] == found
    return found


def rack_incident(apart: int) -> tuple[int, int, int]:
    return (RACK_FAILED, RACK_FAILED + 19 * apart + 6 * HOUR, 20)


def maintenance(revision: int, begin: int, end: int, sender_ids: list[str] | None = None) -> dict[str, object]:
    said = {"revision": revision, "stream_created_at": START, "given_at": START, "author": "ann", "region": "us-east"}
    where = {"site": "nyc1", "kind": "maintenance", "sender_ids": sender_ids}
    return {**said, **where, "started_at": begin, "ended_at": end}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lakehouse = SmallLakehouse(Path(tmp_path_factory.mktemp("lake")))
    nyc1 = [
        *(each for sender in PLANNED for each in life("nyc1", sender, (START + 9 * HOUR, START + 11 * HOUR))),
        *life("nyc1", "longer", (START + 9 * HOUR, START + 13 * HOUR), (END - HOUR, None)),
        *life("nyc1", "named", (START + 20 * HOUR, START + 21 * HOUR), (START + 22 * HOUR, START + 23 * HOUR)),
    ]
    lakehouse.append(
        POLICY,
        [
            # Two windows that follow one another hold an outage as one would.
            maintenance(1, START + 8 * HOUR, START + 10 * HOUR),
            maintenance(2, START + 10 * HOUR, START + 12 * HOUR),
            maintenance(3, START + 20 * HOUR, START + 21 * HOUR, ["named"]),
            maintenance(4, START + 22 * HOUR, START + 23 * HOUR, ["another"]),
        ],
    )
    blind = (START + 11 * HOUR + HALF_AN_HOUR, START + 12 * HOUR + HALF_AN_HOUR, "unobserved")
    coverage = [*observed("dub1", END), *observed("nyc1", END, [blind])]
    lakehouse.roll_up([*nyc1, *busy_site()], coverage, END)
    return lakehouse.warehouse


@pytest.fixture
def tables(warehouse: Path) -> Iterator[Tables]:
    with open_tables(warehouse) as tables:
        yield tables


def test_outages_wholly_in_maintenance_are_planned(tables: Tables) -> None:
    found = tables.rows("SELECT sender_id, epoch_us(started_at), planned FROM outages WHERE site = 'nyc1' ORDER BY ALL")
    assert found == [
        ("longer", START + 9 * HOUR, False),
        ("longer", END - HOUR, False),
        ("named", START + 20 * HOUR, True),
        ("named", START + 22 * HOUR, False),
        *((sender, START + 9 * HOUR, True) for sender in PLANNED),
    ]


def test_of_an_outage_counts_what_was_watched_and_not_planned(tables: Tables) -> None:
    found = tables.rows("SELECT sender_id, duration_us, down_us FROM outages WHERE site = 'nyc1' ORDER BY ALL")
    assert found == [
        # Planned until 12:00, and nobody watched from 11:30 to 12:30.
        ("longer", 4 * HOUR, HALF_AN_HOUR),
        ("longer", None, HOUR),
        ("named", HOUR, 0),
        ("named", HOUR, HOUR),
        *((sender, 2 * HOUR, 0) for sender in PLANNED),
    ]


def test_what_was_planned_is_no_failure_of_a_sender(tables: Tables) -> None:
    found = tables.rows(
        "SELECT sender_id, outage_count, flap_count, mttr_us, longest_outage_us, mtbf_us IS NULL"
        " FROM sender_reliability WHERE site = 'nyc1' ORDER BY 1"
    )
    assert found == [
        ("longer", 2, 0, 4 * HOUR, 4 * HOUR, False),
        ("named", 1, 0, HOUR, HOUR, False),
        *((sender, 0, 0, None, None, True) for sender in PLANNED),
    ]


def test_chance_at_a_large_site_makes_no_incident_and_a_failure_of_many_makes_one(tables: Tables) -> None:
    (chance_count,) = tables.rows("SELECT count(*) FROM outages WHERE site = 'dub1'")[0]
    assert chance_count > 900
    ((site, begin, end, sender_count, share),) = tables.rows(
        "SELECT site, epoch_us(started_at), epoch_us(ended_at), sender_count, share FROM incidents"
    )
    assert site == "dub1"
    assert FAILED - STALE_AFTER // 2 <= begin <= FAILED + MINUTE
    assert end >= REPAIRED
    assert TOGETHER <= sender_count <= TOGETHER + 10
    assert (
        share
        == sender_count / tables.rows("SELECT max(sender_count) FROM site_availability_daily WHERE site = 'dub1'")[0][0]
    )
    ((spread,),) = tables.rows(
        "SELECT epoch_us(max(started_at)) - epoch_us(min(started_at)) FROM outages"
        " WHERE incident_started_at IS NOT NULL"
    )
    assert spread <= STALE_AFTER // 2


def test_an_incident_consists_of_the_outages_that_name_it_wherever_in_time_they_lie(tmp_path: Path) -> None:
    chance = random.Random(11)
    clumps = [(START + chance.randrange(29 * DAY), chance.randrange(1, 2 * STALE_AFTER)) for _ in range(150)]
    failed = [begin + chance.randrange(length) for begin, length in clumps for _ in range(chance.randrange(2, 13))]
    intervals = [each for number, at in enumerate(failed) for each in life("ams1", f"n{number}", (at, at + HOUR))]
    SmallLakehouse(tmp_path).roll_up(intervals, observed("ams1", MONTH_END), MONTH_END)
    with open_tables(tmp_path) as tables:
        told = tables.rows("SELECT started_at, ended_at, sender_count, down_us FROM incidents ORDER BY 1")
        named = tables.rows(
            "SELECT incident_started_at, max(ended_at), count(*), sum(down_us) FROM outages"
            " WHERE incident_started_at IS NOT NULL GROUP BY 1 ORDER BY 1"
        )
    assert told == named
    assert 50 < len(told) < len(clumps)


def figures_of(warehouse: Path, site: str) -> PageFigures:
    with open_tables(warehouse) as tables:
        return read_figures(tables, Choice(sites=(site,)), REGISTRATION_INTERVAL)


def test_the_page_counts_outages_and_incidents_as_the_views_do(warehouse: Path, tables: Tables) -> None:
    figures = figures_of(warehouse, "nyc1")
    assert [(each.sender_id, each.started_at) for each in figures.outages] == [
        ("longer", START + 9 * HOUR),
        ("named", START + 22 * HOUR),
        ("longer", END - HOUR),
    ]
    assert [(each.site, each.outage_count) for each in figures.sites] == [("nyc1", 3)]
    assert [group.outage_count for group in figures.groups] == [3]
    assert sorted((each.sender_id, each.outage_count) for each in figures.senders) == [("longer", 2), ("named", 1)]
    assert "<b>3 outages</b> of 2 senders were seen" in render(figures)
    groups, _ = group_outages(figures_of(warehouse, "dub1").outages)
    told = [(group.site, group.started_at, len(group.outages)) for group in groups]
    assert told == tables.rows("SELECT site, epoch_us(started_at), outage_count FROM incidents")


@pytest.mark.parametrize("blind_hours", [0, 4, 24, 168])
def test_who_fell_silent_just_before_a_blind_span_changes_no_incident(tmp_path: Path, blind_hours: int) -> None:
    blind_until = BLIND_SINCE + blind_hours * HOUR
    silent = life("ams1", "silent", (BLIND_SINCE - MINUTE, blind_until + HOUR))
    intervals = [*rack(15 * SECOND), *by_chance(), *silent]
    found = incidents_of(tmp_path, intervals, [(BLIND_SINCE, blind_until, "unobserved")])
    assert found == [rack_incident(15 * SECOND)]


def test_a_rack_that_failed_just_before_a_blind_span_is_one_incident(tmp_path: Path) -> None:
    blind = (RACK_FAILED + 6 * MINUTE, RACK_FAILED + 4 * HOUR, "unobserved")
    # As far apart as half of stale_after allows, at a site where nothing else tells of it.
    assert incidents_of(tmp_path, rack(18 * SECOND), [blind]) == [rack_incident(18 * SECOND)]


def test_what_the_hub_did_not_get_of_a_time_that_was_watched_changes_no_incident(tmp_path: Path) -> None:
    missing = (RACK_FAILED + 6 * MINUTE, RACK_FAILED + 20 * MINUTE, "advisories_missing")
    assert incidents_of(tmp_path, rack(18 * SECOND), [missing]) == [rack_incident(18 * SECOND)]


@pytest.mark.parametrize("blind_since", [RACK_FAILED - MINUTE, RACK_FAILED + 6 * MINUTE])
def test_an_incident_whose_advisories_nothing_vouches_for_yet_is_told(tmp_path: Path, blind_since: int) -> None:
    found = incidents_of(tmp_path, rack(15 * SECOND), [(blind_since, MONTH_END, "unobserved")])
    assert found == [rack_incident(15 * SECOND)]


@pytest.mark.parametrize("seen_after", [-1, 0, MINUTE])
def test_a_blind_span_whose_end_the_hub_did_not_get_changes_no_incident(tmp_path: Path, seen_after: int) -> None:
    noticed_at = BLIND_SINCE + 2 * DAY + STALE_AFTER
    silent = life("ams1", "silent", (BLIND_SINCE - MINUTE, noticed_at + HOUR))
    blind = (BLIND_SINCE, noticed_at - STALE_AFTER, "unobserved")
    lost = (noticed_at - STALE_AFTER, noticed_at + seen_after, "lost")
    found = incidents_of(tmp_path, [*rack(15 * SECOND), *by_chance(), *silent], [blind, lost])
    assert found == [rack_incident(15 * SECOND)]
