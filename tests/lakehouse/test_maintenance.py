"""Maintenance counts in no availability, declared before it or after; what is taken back never was."""

from shared.instants import DAY, HOUR, MINUTE, parse_instant
from shared.policy import CancelMaintenance, DeclareMaintenance, Scope
from tests.lakehouse.conftest import Lakehouse
from tests.lakehouse.test_rollup import FIRST, TODAY, day, instant
from tests.support.lakehouse.hub import Block, said

DUB1 = Scope("eu-west", "dub1")
SENDER_DAYS = (
    "SELECT sender_id, up_us, down_us, unknown_us, maintenance_us, absent_us, outage_count, availability_total"
    f" FROM muster.sender_availability_daily WHERE day < '{day(TODAY)}' ORDER BY day, sender_id"
)
SITE_DAYS = (
    "SELECT up_us, down_us, unknown_us, maintenance_us, outage_count FROM muster.site_availability_daily"
    f" WHERE day < '{day(TODAY)}' ORDER BY day"
)


def test_maintenance_is_declared_afterwards_and_taken_back(lakehouse: Lakehouse) -> None:
    dub1 = Block("eu-west", "dub1")
    switch = DeclareMaintenance(FIRST + 8 * HOUR, FIRST + 10 * HOUR, "new switch")
    disk = DeclareMaintenance(FIRST + 20 * HOUR, FIRST + DAY + 6 * HOUR, "new disk", ("n2",))
    lakehouse.hub.publish(
        [
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
            said(DUB1, 1, TODAY, switch),
            said(DUB1, 2, TODAY + MINUTE, disk),
        ]
    )
    lakehouse.roll_up()
    assert lakehouse.rows(SENDER_DAYS) == [
        ("n1", 21 * HOUR, HOUR, 0, 2 * HOUR, 0, 1, 21 / 22),
        ("n2", 18 * HOUR, 0, 0, 6 * HOUR, 0, 0, 1.0),
        ("n1", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n2", 18 * HOUR, 0, 0, 6 * HOUR, 0, 0, 1.0),
        ("n3", 3 * HOUR, 0, 0, 0, 21 * HOUR, 0, 1.0),
    ]
    assert lakehouse.rows_in_spark(SENDER_DAYS) == lakehouse.rows(SENDER_DAYS)
    assert lakehouse.rows(SITE_DAYS) == [(39 * HOUR, HOUR, 0, 8 * HOUR, 1), (45 * HOUR, 0, 0, 6 * HOUR, 0)]
    declared = (
        "SELECT revision, sender_ids, started_at, ended_at, reason, cancelled_at FROM muster.maintenance ORDER BY 1"
    )
    wanted = [
        (1, None, instant(switch.started_at_us), instant(switch.ended_at_us), "new switch", None),
        (2, ["n2"], instant(disk.started_at_us), instant(disk.ended_at_us), "new disk", None),
    ]
    assert lakehouse.rows(declared) == wanted

    cancelled = [
        said(DUB1, 3, TODAY + 2 * MINUTE, CancelMaintenance(1)),
        said(DUB1, 4, TODAY + 3 * MINUTE, CancelMaintenance(2)),
    ]
    lakehouse.hub.publish(cancelled)
    lakehouse.roll_up()
    assert lakehouse.rows(SENDER_DAYS) == [
        ("n1", 22 * HOUR, 2 * HOUR, 0, 0, 0, 1, 22 / 24),
        ("n2", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n1", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n2", DAY, 0, 0, 0, 0, 0, 1.0),
        ("n3", 3 * HOUR, 0, 0, 0, 21 * HOUR, 0, 1.0),
    ]
    assert [row[-1] for row in lakehouse.rows(declared)] == [instant(TODAY + 2 * MINUTE), instant(TODAY + 3 * MINUTE)]


def test_a_sender_retired_as_soon_as_it_was_heard_has_no_life_after_that(lakehouse: Lakehouse) -> None:
    dub1, heard_at = Block("eu-west", "dub1"), FIRST + 6 * HOUR
    # The agent lets a microsecond pass: at one instant readers put ``retired`` before the other two.
    lakehouse.hub.publish(
        [
            dub1.new("n1", heard_at),
            dub1.retired_by_operator("n1", heard_at + 1, heard_at),
            dub1.new("n2", FIRST),
            dub1.stale("n2", FIRST + 3 * HOUR),
            dub1.recovered("n2", heard_at),
            dub1.retired_by_operator("n2", heard_at + 1, heard_at),
            dub1.watermark(FIRST, TODAY),
        ]
    )
    lakehouse.roll_up()
    # Of the first nothing is left: its life ends at the only instant at which it was heard.
    assert lakehouse.rows("SELECT sender_id, state, started_at, ended_at FROM muster.sender_intervals ORDER BY 3") == [
        ("n2", "up", instant(FIRST), instant(FIRST + 3 * HOUR)),
        ("n2", "down", instant(FIRST + 3 * HOUR), instant(heard_at)),
    ]
    assert lakehouse.rows(SENDER_DAYS) == [("n2", 3 * HOUR, 3 * HOUR, 0, 0, 18 * HOUR, 1, 1 / 2)]


def test_a_closed_site_and_a_renamed_block_lower_no_figure_once_they_are_in_maintenance_for_ever(
    lakehouse: Lakehouse,
) -> None:
    nodes, hosts, lon1 = Block("eu-west", "dub1"), Block("eu-west", "dub1", "hosts"), Block("eu-west", "lon1")
    changed_at, never = FIRST + 12 * HOUR, parse_instant("2200-01-01T00:00:00Z")
    lakehouse.hub.publish(
        [
            nodes.new("n1", FIRST),
            nodes.new("n2", FIRST),
            # Retired while its agent ran: it is part of no later day.
            nodes.retired_by_operator("n2", changed_at, changed_at),
            nodes.watermark(FIRST, changed_at),
            hosts.new("n1", changed_at),
            hosts.watermark(changed_at, TODAY),
            lon1.new("l1", FIRST),
            lon1.new("l2", FIRST),
            lon1.stale("l2", FIRST + 6 * HOUR),
            lon1.watermark(FIRST, changed_at),
        ]
    )
    lakehouse.roll_up()
    next_day = (
        "SELECT site, sender_count, up_us, unknown_us, maintenance_us, availability_total, coverage"
        f" FROM muster.site_availability_daily WHERE day = '{day(FIRST + DAY)}' ORDER BY site"
    )
    outages = "SELECT sender_id, started_at, ended_at, down_us, planned FROM muster.outages"
    goes_on = [("l2", instant(FIRST + 6 * HOUR), None, 6 * HOUR, False)]
    assert lakehouse.rows(next_day) == [
        ("dub1", 2, DAY, DAY, 0, 1 / 2, 1 / 2),
        ("lon1", 2, 0, 2 * DAY, 0, 0.0, 0.0),
    ]
    assert lakehouse.rows(outages) == goes_on

    closed = DeclareMaintenance(changed_at, never, "closed")
    renamed = said(Scope("eu-west", "dub1", "nodes"), 1, TODAY, closed)
    lakehouse.hub.publish([renamed, said(Scope("eu-west", "lon1"), 2, TODAY, closed)])
    lakehouse.roll_up()
    assert lakehouse.rows(next_day) == [
        ("dub1", 2, DAY, 0, DAY, 1.0, 1.0),
        ("lon1", 2, 0, 0, 2 * DAY, None, None),
    ]
    assert lakehouse.rows(outages) == goes_on
    # Who was watched until when, as analysts are told to ask.
    assert lakehouse.rows(
        "SELECT site, block, max(ended_at) FROM site_coverage WHERE known GROUP BY ALL ORDER BY 3, 1"
    ) == [
        ("dub1", "nodes", instant(changed_at)),
        ("lon1", "nodes", instant(changed_at)),
        ("dub1", "hosts", instant(TODAY)),
    ]
