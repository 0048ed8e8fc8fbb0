"""Maintenance counts in no availability, declared before it or after; what is taken back never was."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from shared.instants import DAY, HOUR, MINUTE, parse_instant
from shared.policy import CancelMaintenance, DeclareMaintenance, Scope
from tests.lakehouse.conftest import Lakehouse
from tests.lakehouse.test_rollup import FIRST, TODAY, day, instant
from tests.support.lakehouse.hub import Block, Hub, Message, said

Rows = list[tuple[object, ...]]

DUB1, AMS1_NODES, LON1 = Scope("eu-west", "dub1"), Scope("eu-west", "ams1", "nodes"), Scope("eu-west", "lon1")
SENDER_DAYS = (
    "SELECT sender_id, up_us, down_us, unknown_us, maintenance_us, absent_us, outage_count, availability_total"
    f" FROM muster.sender_availability_daily WHERE day < '{day(TODAY)}' AND site = '{{}}' ORDER BY day, sender_id"
)
QUERIES = {
    "sender days": SENDER_DAYS.format("dub1"),
    "sender days of ber1": SENDER_DAYS.format("ber1"),
    "site days": (
        "SELECT up_us, down_us, unknown_us, maintenance_us, outage_count FROM muster.site_availability_daily"
        f" WHERE day < '{day(TODAY)}' AND site = 'dub1' ORDER BY day"
    ),
    "declared": (
        "SELECT revision, sender_ids, started_at, ended_at, reason, cancelled_at FROM muster.maintenance"
        " WHERE site = 'dub1' ORDER BY 1"
    ),
    "lives of ber1": (
        "SELECT sender_id, state, started_at, ended_at FROM muster.sender_intervals WHERE site = 'ber1' ORDER BY 3"
    ),
    "next day": (
        "SELECT site, sender_count, up_us, unknown_us, maintenance_us, availability_total, coverage"
        f" FROM muster.site_availability_daily WHERE day = '{day(FIRST + DAY)}' AND site IN ('ams1', 'lon1')"
        " ORDER BY site"
    ),
    "outages": (
        "SELECT sender_id, started_at, ended_at, down_us, planned FROM muster.outages WHERE site IN ('ams1', 'lon1')"
    ),
    # Who was watched until when, as analysts are told to ask.
    "watched": (
        "SELECT site, block, max(ended_at) FROM site_coverage WHERE known AND site IN ('ams1', 'lon1')"
        " GROUP BY ALL ORDER BY 3, 1"
    ),
}
SWITCH = DeclareMaintenance(FIRST + 8 * HOUR, FIRST + 10 * HOUR, "new switch")
DISK = DeclareMaintenance(FIRST + 20 * HOUR, FIRST + DAY + 6 * HOUR, "new disk", ("n2",))
HEARD_AT, CHANGED_AT = FIRST + 6 * HOUR, FIRST + 12 * HOUR


class Found(NamedTuple):
    """What is found after a first run, and after a second that takes back what was declared, and declares more."""

    first: Mapping[str, Rows]
    in_spark: Rows
    second: Mapping[str, Rows]


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """Tell of sites that have nothing to do with each other, in the same two runs."""
    directory = tmp_path_factory.mktemp("maintenance")
    with Hub(directory / "hub") as hub:
        lakehouse = Lakehouse(hub, directory / "lake")
        hub.publish([*declared(), *heard_once(), *closed_and_renamed()])
        lakehouse.roll_up()
        first = {name: lakehouse.rows(query) for name, query in QUERIES.items()}
        in_spark = lakehouse.rows_in_spark(QUERIES["sender days"])
        closed = DeclareMaintenance(CHANGED_AT, parse_instant("2200-01-01T00:00:00Z"), "closed")
        hub.publish(
            [
                said(DUB1, 3, TODAY + 2 * MINUTE, CancelMaintenance(1)),
                said(DUB1, 4, TODAY + 3 * MINUTE, CancelMaintenance(2)),
                said(AMS1_NODES, 5, TODAY + 4 * MINUTE, closed),
                said(LON1, 6, TODAY + 4 * MINUTE, closed),
            ]
        )
        lakehouse.roll_up()
        yield Found(first, in_spark, {name: lakehouse.rows(query) for name, query in QUERIES.items()})


def declared() -> list[Message]:
    dub1 = Block("eu-west", "dub1")
    return [
        dub1.new("n1", FIRST),
        dub1.new("n2", FIRST),
        # Out for the switch, and for an hour longer.
        dub1.stale("n1", FIRST + 9 * HOUR),
        dub1.recovered("n1", FIRST + 11 * HOUR),
        dub1.new("n3", FIRST + DAY),
        # Out on the second day; then an operator says that it is gone: it was never down.
        dub1.stale("n3", FIRST + DAY + 3 * HOUR),
        dub1.retired_by_operator("n3", FIRST + DAY + 5 * HOUR, FIRST + DAY + 3 * HOUR),
        dub1.watermark(FIRST, FIRST + DAY),
        dub1.watermark(FIRST, TODAY),
        said(DUB1, 1, TODAY, SWITCH),
        said(DUB1, 2, TODAY + MINUTE, DISK),
    ]


def heard_once() -> list[Message]:
    """Retire two of ber1 a microsecond after they were heard: readers put ``retired`` before what is of one instant."""
    ber1 = Block("eu-west", "ber1")
    return [
        ber1.new("n1", HEARD_AT),
        ber1.retired_by_operator("n1", HEARD_AT + 1, HEARD_AT),
        ber1.new("n2", FIRST),
        ber1.stale("n2", FIRST + 3 * HOUR),
        ber1.recovered("n2", HEARD_AT),
        ber1.retired_by_operator("n2", HEARD_AT + 1, HEARD_AT),
        ber1.watermark(FIRST, TODAY),
    ]


def closed_and_renamed() -> list[Message]:
    nodes, hosts, lon1 = Block("eu-west", "ams1"), Block("eu-west", "ams1", "hosts"), Block("eu-west", "lon1")
    return [
        nodes.new("n1", FIRST),
        nodes.new("n2", FIRST),
        # Retired while its agent ran: it is part of no later day.
        nodes.retired_by_operator("n2", CHANGED_AT, CHANGED_AT),
        nodes.watermark(FIRST, CHANGED_AT),
        hosts.new("n1", CHANGED_AT),
        hosts.watermark(CHANGED_AT, TODAY),
        lon1.new("l1", FIRST),
        lon1.new("l2", FIRST),
        lon1.stale("l2", FIRST + 6 * HOUR),
        lon1.watermark(FIRST, CHANGED_AT),
    ]


def test_maintenance_is_declared_afterwards_and_taken_back(found: Found) -> None:
    first, second = found.first, found.second
    assert first["sender days"] == [
        ("n1", 21 * HOUR, HOUR, 0, 2 * HOUR, 0, 1, 21 / 22),
        ("n2", 18 * HOUR, 0, 0, 6 * HOUR, 0, 0, 1.0),
        ("n1", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n2", 18 * HOUR, 0, 0, 6 * HOUR, 0, 0, 1.0),
        ("n3", 3 * HOUR, 0, 0, 0, 21 * HOUR, 0, 1.0),
    ]
    assert found.in_spark == first["sender days"]
    assert first["site days"] == [(39 * HOUR, HOUR, 0, 8 * HOUR, 1), (45 * HOUR, 0, 0, 6 * HOUR, 0)]
    assert first["declared"] == [
        (1, None, instant(SWITCH.started_at_us), instant(SWITCH.ended_at_us), "new switch", None),
        (2, ["n2"], instant(DISK.started_at_us), instant(DISK.ended_at_us), "new disk", None),
    ]
    assert second["sender days"] == [
        ("n1", 22 * HOUR, 2 * HOUR, 0, 0, 0, 1, 22 / 24),
        ("n2", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n1", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n2", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n3", 3 * HOUR, 0, 0, 0, 21 * HOUR, 0, 1.0),
    ]
    taken_back_at = [instant(TODAY + 2 * MINUTE), instant(TODAY + 3 * MINUTE)]
    assert [row[-1] for row in second["declared"]] == taken_back_at


def test_a_sender_retired_as_soon_as_it_was_heard_has_no_life_after_that(found: Found) -> None:
    # Of the first nothing is left: its life ends at the only instant at which it was heard.
    assert found.first["lives of ber1"] == [
        ("n2", "up", instant(FIRST), instant(FIRST + 3 * HOUR)),
        ("n2", "down", instant(FIRST + 3 * HOUR), instant(HEARD_AT)),
    ]
    assert found.first["sender days of ber1"] == [("n2", 3 * HOUR, 3 * HOUR, 0, 0, 18 * HOUR, 1, 1 / 2)]


def test_a_closed_site_and_a_renamed_block_lower_no_figure_once_they_are_in_maintenance_for_ever(found: Found) -> None:
    goes_on = [("l2", instant(FIRST + 6 * HOUR), None, 6 * HOUR, False)]
    assert found.first["next day"] == [
        ("ams1", 2, DAY, DAY, 0, 1 / 2, 1 / 2),
        ("lon1", 2, 0, 2 * DAY, 0, 0.0, 0.0),
    ]
    assert found.first["outages"] == goes_on
    assert found.second["next day"] == [
        ("ams1", 2, DAY, 0, DAY, 1.0, 1.0),
        ("lon1", 2, 0, 0, 2 * DAY, None, None),
    ]
    assert found.second["outages"] == goes_on
    assert found.second["watched"] == [
        ("ams1", "nodes", instant(CHANGED_AT)),
        ("lon1", "nodes", instant(CHANGED_AT)),
        ("ams1", "hosts", instant(TODAY)),
    ]
