"""What analysts ask first: incidents, reliability, longer times and inventories, as queries without Java see them."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.query.packed_content import LIMIT
from aggregator.lakehouse.tables.schemas import REGISTRATIONS, SENDER_DAY_EXCEPTIONS, SENDER_MAINTENANCE_DAYS
from shared.instants import DAY, HOUR, MINUTE, SECOND, parse_instant
from tests.support.lakehouse.histories import month, observed
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import BLOCK, REGION_OF, STALE_AFTER, START, Coverage, Interval, bucket_of

Times = tuple[Any, ...]
KNOWN_THROUGH = START + 2 * DAY
HALF_AN_HOUR = 30 * MINUTE
RACK = [f"r1-n{number}" for number in range(5)]
RACK_DOWN = START + 10 * HOUR
RACK_BACK = START + 12 * HOUR


def life(site: str, sender: str, *outages: tuple[int, int | None]) -> Iterator[Interval]:
    """Give the intervals of a sender that lives from the start, but for its outages."""
    cuts = [START, *(instant for outage in outages for instant in outage), None]
    for number, (started_at, ended_at) in enumerate(pairwise(cuts)):
        if started_at is None:
            return
        state, end = ("down", "recovered") if number % 2 else ("up", "stale")
        yield Interval(site, sender, state, started_at, ended_at, end if ended_at is not None else None)


INTERVALS = [
    *(
        each
        for number, sender in enumerate(RACK)
        for each in life("dub1", sender, (RACK_DOWN + number * MINUTE, RACK_BACK + number * MINUTE))
    ),
    *life(
        "dub1", "flapping", (START + 20 * HOUR, START + 21 * HOUR), (START + 21 * HOUR + 30 * MINUTE, START + 22 * HOUR)
    ),
    *life("dub1", "well"),
    *life("nyc1", "gone", (START + 30 * HOUR, None)),
]
COVERAGE = [Coverage(site, START, KNOWN_THROUGH, "observed") for site in ("dub1", "nyc1")]


def registration(sender: str, sequence: int, payload: str) -> dict[str, object]:
    stored_at = START + sequence * HOUR
    place = {"region": "eu-west", "site": "dub1", "block": "nodes", "incarnation": "1-1"}
    return {**place, "sender_id": sender, "sequence": sequence, "stored_at": stored_at, "payload": payload}


def enveloped(body: dict[str, object]) -> str:
    return json.dumps({"protocol": "choria:adapters:choria_streams:output:1", "data": json.dumps(body)})


def zipped(compress: Callable[[bytes], bytes]) -> str:
    return base64.b64encode(compress(b'{"facts": {"os": "sles"}, "agents": {"rpcutil": "1.0"}}')).decode()


REGISTRATION_ROWS = [
    registration("node", 1, enveloped({"content": {"facts": {"os": "el8"}, "classes": ["base"]}})),
    registration("node", 3, enveloped({"content": {"facts": {"os": "el9"}, "classes": ["base", "web"]}})),
    registration("plain", 2, '{"sender": "plain", "facts": {"os": "deb12"}}'),
    registration("gzipped", 4, enveloped({"zcontent": zipped(gzip.compress)})),
    registration("zipped", 4, enveloped({"zcontent": zipped(zlib.compress)})),
    registration("half", 4, enveloped({"zcontent": "H4sIAAAAAAAA"})),
    registration("torn", 5, '{"sender": "torn", "fac'),
]


FILE_CONTENT, INVENTORY_CONTENT = "choria:registration:filecontent:1", "choria:registration:inventorycontent:1"
FACTS = b'{"facts": {"os": "sles"}, "sender": "n1"}'


def base64_of(content: bytes, *, broken: bool = False) -> str:
    return (base64.encodebytes if broken else base64.b64encode)(content).decode()


FORMS: dict[str, tuple[dict[str, object], str | None, str | None]] = {
    "a file": ({"protocol": FILE_CONTENT, "content": base64_of(FACTS)}, "sles", None),
    "a file in lines": ({"protocol": FILE_CONTENT, "content": base64_of(FACTS + b" " * 99, broken=True)}, "sles", None),
    "a file zipped": ({"protocol": FILE_CONTENT, "zcontent": base64_of(gzip.compress(FACTS))}, "sles", None),
    "zipped in lines": (
        {"protocol": FILE_CONTENT, "zcontent": base64_of(gzip.compress(FACTS, 0), broken=True)}, "sles", None
    ),
    "an inventory": ({"protocol": INVENTORY_CONTENT, "content": json.loads(FACTS)}, "sles", None),
    "no base64": ({"protocol": FILE_CONTENT, "content": "{}"}, None, "not_base64"),
    "no text": ({"protocol": FILE_CONTENT, "content": base64_of(b"\xff\xfe")}, None, "not_text"),
    "no JSON": ({"protocol": FILE_CONTENT, "content": base64_of(b"os: sles")}, None, "not_json"),
    "nothing": ({"protocol": FILE_CONTENT, "mtime": 1}, None, "no_content"),
    "not zipped": ({"protocol": FILE_CONTENT, "zcontent": base64_of(FACTS)}, None, "not_zipped"),
    "half": ({"protocol": FILE_CONTENT, "zcontent": base64_of(gzip.compress(FACTS)[:20])}, None, "not_whole"),
    "too much": ({"protocol": FILE_CONTENT, "zcontent": base64_of(gzip.compress(bytes(LIMIT + 1)))}, None, "too_large"),
    "own data": ({"facts": {"os": "sles"}, "data": {"disk": 1}}, "sles", None),
    "own content": ({"facts": {"os": "sles"}, "content": "rack 7"}, "sles", None),
    "own zcontent": ({"facts": {"os": "sles"}, "zcontent": "x"}, "sles", None),
}  # fmt: skip


def test_what_nodes_register_is_read_as_its_protocol_says_or_says_why_not(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    rows = [registration(name, number, json.dumps(body)) for number, (name, (body, *_)) in enumerate(FORMS.items())]
    rows += [
        registration(f"{name}, enveloped", number, enveloped(body))
        for number, (name, (body, *_)) in enumerate(FORMS.items())
    ]
    lakehouse.append(REGISTRATIONS, rows)
    with open_tables(tmp_path) as tables:
        found = tables.rows(
            "SELECT sender_id, json_extract_string(facts, '$.os'), unopened FROM inventory ORDER BY ALL"
        )
    assert found == sorted(
        (name + suffix, *said) for name, (_, *said) in FORMS.items() for suffix in ("", ", enveloped")
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    lakehouse = SmallLakehouse(Path(tmp_path_factory.mktemp("lake")))
    lakehouse.append(REGISTRATIONS, REGISTRATION_ROWS)
    lakehouse.roll_up(INTERVALS, COVERAGE, KNOWN_THROUGH)
    with open_tables(lakehouse.warehouse) as tables:
        yield tables


def test_many_senders_that_fall_silent_one_soon_after_the_other_are_one_incident(tables: Tables) -> None:
    incidents = tables.rows(
        "SELECT site, epoch_us(started_at), epoch_us(ended_at), epoch_us(noticed_at), duration_us,"
        " sender_count, outage_count, still_down_count, site_sender_count, share FROM incidents"
    )
    last_back = RACK_BACK + 4 * MINUTE
    first_noticed = RACK_DOWN + STALE_AFTER
    length = last_back - RACK_DOWN
    assert incidents == [("dub1", RACK_DOWN, last_back, first_noticed, length, 5, 5, 0, 7, 5 / 7)]


def test_the_share_of_an_incident_is_right_where_two_blocks_hear_the_same_senders(tmp_path: Path) -> None:
    in_both = [each._replace(block=block) for each in INTERVALS for block in (BLOCK, "racks") if each.site == "dub1"]
    coverage = [Coverage("dub1", START, KNOWN_THROUGH, "observed", block) for block in (BLOCK, "racks")]
    lakehouse = SmallLakehouse(tmp_path)
    lakehouse.roll_up(in_both, coverage, KNOWN_THROUGH)
    with open_tables(tmp_path) as tables:
        found = tables.rows("SELECT sender_count, outage_count, site_sender_count, share FROM incidents")
    assert found == [(5, 10, 14, 5 / 7)]


def test_an_outage_tells_which_incident_it_is_part_of(tables: Tables) -> None:
    found = tables.rows("SELECT sender_id, epoch_us(incident_started_at) FROM outages ORDER BY sender_id, started_at")
    alone = [("flapping", None), ("flapping", None), ("gone", None)]
    assert found == [*alone, *((sender, RACK_DOWN) for sender in RACK)]


def test_the_reliability_of_a_sender_is_told_by_month(tables: Tables) -> None:
    found = tables.rows(
        "SELECT month, sender_id, up_us, down_us, outage_count, flap_count, mtbf_us, mttr_us, median_outage_us,"
        " p95_outage_us, longest_outage_us, availability_known FROM sender_reliability"
        " WHERE sender_id IN ('flapping', 'gone', 'well') ORDER BY sender_id"
    )
    march, up = date(2026, 3, 1), 2 * DAY - 90 * MINUTE
    # 95 % of the way from the shorter of two to the longer one.
    both = (90 * MINUTE // 2, 90 * MINUTE // 2, 58 * MINUTE + 30 * SECOND, HOUR)
    assert found == [
        (march, "flapping", up, 90 * MINUTE, 2, 1, up // 2, *both, up / (2 * DAY)),
        (march, "gone", 30 * HOUR, 18 * HOUR, 1, 0, 30 * HOUR, None, None, None, None, 30 / 48),
        (march, "well", 2 * DAY, 0, 0, 0, None, None, None, None, None, 1.0),
    ]


def test_a_flap_counts_after_an_outage_of_a_month_that_ended_in_the_same_hour(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    begins_at, ends_at = (parse_instant(f"2026-{month}-01T00:00:00Z") for month in ("04", "05"))
    first = begins_at - HOUR, ends_at - 40 * MINUTE
    second = ends_at - HALF_AN_HOUR, ends_at - 10 * MINUTE
    lakehouse.roll_up([*life("dub1", "n1", first, second)], [*observed("dub1", ends_at + DAY)], ends_at + DAY)
    with open_tables(tmp_path) as tables:
        found = tables.rows("SELECT month, outage_count, flap_count FROM sender_reliability ORDER BY month")
    assert found == [(date(2026, 3, 1), 1, 0), (date(2026, 4, 1), 1, 1), (date(2026, 5, 1), 0, 0)]


def test_whoever_lived_for_minutes_is_told_from_whoever_lived_through_the_month(tmp_path: Path) -> None:
    begins_at, ends_at = (parse_instant(f"2026-{month}-01T00:00:00Z") for month in ("04", "05"))
    known_through = ends_at + 10 * DAY
    short = [
        Interval("dub1", "short", "up", ends_at - HOUR, ends_at - HALF_AN_HOUR, "stale"),
        Interval("dub1", "short", "down", ends_at - HALF_AN_HOUR, ends_at - 10 * MINUTE, "retired"),
    ]
    blind = (begins_at + DAY, begins_at + 3 * DAY, "unobserved")
    lakehouse = SmallLakehouse(tmp_path)
    coverage = observed("dub1", known_through, [blind], begins_at)
    born_late = Interval("dub1", "late", "up", ends_at - 6 * DAY - 12 * HOUR, None, None)
    lakehouse.roll_up(
        [Interval("dub1", "whole", "up", begins_at, None, None), *short, born_late], coverage, known_through
    )
    with open_tables(tmp_path) as tables:
        found = tables.rows(
            "SELECT month, sender_id, coverage > 0.9, round(lived_share * 30 * 24, 6) FROM sender_reliability"
            " WHERE month = '2026-04-01' OR sender_id = 'late' ORDER BY ALL"
        )
        days = tables.rows("SELECT day, round(lived_share, 6) FROM sender_availability_daily WHERE sender_id = 'short'")
    april, may = date(2026, 4, 1), date(2026, 5, 1)
    assert found == [
        (april, "late", True, 156.0),
        (april, "short", True, round(50 / 60, 6)),
        (april, "whole", True, 720.0),
        (may, "late", True, 720.0),
    ]
    assert days == [(date(2026, 4, 30), round(50 / 60 / 24, 6))]


def reliability(tables: Tables) -> list[Times]:
    """Give the times of every sender and month, as its reliability is told by."""
    return tables.rows(
        "SELECT month, region, site, block, sender_id, up_us, down_us, unknown_us, error_bound_us"
        " FROM sender_reliability ORDER BY ALL"
    )


def summed_days(tables: Tables) -> list[Times]:
    """Give the same as the sum of the sender's days."""
    return tables.rows(
        "SELECT CAST(date_trunc('month', day) AS DATE) AS month, region, site, block, sender_id, sum(up_us),"
        " sum(down_us), sum(unknown_us), sum(error_bound_us) FROM sender_availability_daily GROUP BY ALL ORDER BY ALL"
    )


def down_times(tables: Tables, view: str) -> list[Times]:
    """Give what a view with ``down_us`` counts as down of every sender, where it does."""
    return tables.rows(
        f"SELECT region, site, block, sender_id, sum(down_us) FROM {view}"
        " GROUP BY ALL HAVING sum(down_us) > 0 ORDER BY ALL"
    )


def check_views_against_days(warehouse: Path) -> None:
    """Compare a rollup's months and outages of senders with their days: each row of these is within coverage."""
    with open_tables(warehouse) as tables:
        assert reliability(tables) == summed_days(tables) != []
        assert down_times(tables, "outages") == down_times(tables, "sender_availability_daily")
        assert tables.rows("SELECT count(*) > 0 FROM sender_day_exceptions") == [(True,)]
        outside = "sender_day_exceptions ANTI JOIN site_coverage_daily USING (region, site, block, day)"
        assert tables.rows(f"SELECT * FROM {outside}") == []


def test_the_months_of_a_sender_are_the_sum_of_its_days(tmp_path: Path) -> None:
    history, lakehouse = month(senders_per_site=5), SmallLakehouse(tmp_path)
    end = history.known_through
    # Another part of each day is unknown.
    gaps = [(at + HOUR, at + HOUR + (at - START) // 50, "unobserved") for at in range(START + DAY, end, DAY)]
    coverage = [span for site in REGION_OF for span in observed(site, end, gaps)]
    # A sender that is up throughout was in maintenance by name, on either side of the month's end.
    named = next(each for each in history.intervals if each.ended_at is None and each.started_at < START + 28 * DAY)
    for at in (START + 29 * DAY, START + 30 * DAY):
        where = {"region": REGION_OF[named.site], "site": named.site, "block": BLOCK, "sender_id": named.sender_id}
        of_day = where | {"day": at // DAY, "site_bucket": bucket_of(named.site)}
        times = {"up_us": 5 * HOUR, "down_us": 0, "unknown_us": HOUR, "maintenance_us": 2 * HOUR, "error_bound_us": 0}
        lakehouse.append(SENDER_MAINTENANCE_DAYS, [of_day])
        lakehouse.append(SENDER_DAY_EXCEPTIONS, [of_day | times])
    lakehouse.roll_up(history.intervals, coverage, end)
    with open_tables(tmp_path) as tables:
        found = reliability(tables)
        assert found == summed_days(tables)
        assert down_times(tables, "outages") == down_times(tables, "sender_availability_daily")
    assert {each[0] for each in found} == {date(2026, 3, 1), date(2026, 4, 1)}
    assert all(sum(each[column] for each in found) for column in range(5, 9))


def test_months_and_a_regions_hours_add_up_to_what_their_days_and_sites_are(tables: Tables) -> None:
    days = tables.rows("SELECT sum(up_us), sum(down_us), sum(error_bound_us) FROM fleet_availability_daily")
    month = "month, day_count, most_senders, complete"
    assert tables.rows(f"SELECT {month} FROM fleet_availability_monthly") == [(date(2026, 3, 1), 2, 8, False)]
    assert tables.rows("SELECT up_us, down_us, error_bound_us FROM fleet_availability_monthly") == days
    hours = "region, sum(up_us), sum(down_us), max(sender_count)"
    by_hour = tables.rows(f"SELECT {hours} FROM region_availability_hourly GROUP BY 1 ORDER BY 1")
    by_day = tables.rows(f"SELECT {hours} FROM region_availability_daily GROUP BY 1 ORDER BY 1")
    assert by_hour == by_day


def test_the_inventory_is_the_latest_that_each_sender_said(tables: Tables) -> None:
    found = tables.rows(
        "SELECT sender_id, json_extract_string(facts, '$.os'), classes FROM inventory ORDER BY sender_id"
    )
    assert found == [
        ("gzipped", "sles", None),
        ("half", None, None),
        ("node", "el9", '["base","web"]'),
        ("plain", "deb12", None),
        ("torn", None, None),
        ("zipped", "sles", None),
    ]
    history = tables.rows(
        "SELECT epoch_us(stored_at), epoch_us(replaced_at), json_extract_string(facts, '$.os') FROM inventory_history"
        " WHERE sender_id = 'node' ORDER BY 1"
    )
    assert history == [(START + HOUR, START + 3 * HOUR, "el8"), (START + 3 * HOUR, None, "el9")]
    contents = tables.rows("SELECT sender_id FROM inventory WHERE content IS NULL")
    assert contents == [("half",)]
