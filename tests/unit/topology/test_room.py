"""Every stream has room that is bounded, a region fills its own first, and who fills it is told of before."""

import re
from pathlib import Path

import msgspec
import pytest

from aggregator.topology.desired.model import DesiredStream, Place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import Found, Room, StreamState
from aggregator.topology.plan.changes import plan
from aggregator.topology.plan.text import format_plan
from aggregator.topology.report.checks import Limits, check
from aggregator.topology.report.evidence import HubFacts
from shared.instants import DAY, parse_instant
from shared.settings import parse_settings
from tests.support.topology.topologies import EU, HUB_PLACE, US, as_applied, topology, with_state

GIB = 1 << 30
STORE = '[render]\nmax_store = "1024GiB"\n'
START = parse_instant("2026-01-01T00:00:00Z")


def rooms(text: str) -> dict[str, int]:
    streams = [each for each in desired(topology(text)) if isinstance(each, DesiredStream)]
    return {f"{each.place}/{each.name}": each.config["max_bytes"] for each in streams}


@pytest.mark.parametrize(
    ("text", "eu", "us", "archive", "report"),
    [
        ("", -1, -1, -1, -1),
        (STORE, 128 * GIB, 128 * GIB, 512 * GIB, 256 * GIB),
        (STORE + '[archive]\nmax_bytes = "100GiB"\n', 25 * GIB, 25 * GIB, 100 * GIB, 256 * GIB),
        (STORE + '[fleet]\nmax_bytes = "9GiB"\n', 9 * GIB, 9 * GIB, 512 * GIB, 256 * GIB),
        # What is in memory is not in that store.
        (STORE + '[fleet]\nstorage = "memory"\n', -1, -1, 512 * GIB, 256 * GIB),
        (STORE + '[archive]\nstorage = "memory"\n', 768 * GIB, 768 * GIB, -1, 256 * GIB),
        ('[archive]\nmax_bytes = "100GiB"\n', -1, -1, 100 * GIB, -1),
    ],
)
def test_all_regions_together_may_send_half_of_what_the_archive_holds(
    text: str, eu: int, us: int, archive: int, report: int
) -> None:
    assert rooms(text) == {
        "eu-west/FLEET": eu,
        "us-east/FLEET": us,
        "hub/ARCHIVE": archive,
        "hub/REPORT": report,
    }


def test_what_is_rendered_for_leaves_room_for_streams_of_ones_own() -> None:
    told = rooms(STORE)
    assert told["hub/ARCHIVE"] + told["hub/REPORT"] <= 1024 * GIB * 3 // 4


@pytest.mark.parametrize(
    ("held", "before", "loss"),
    [
        (1, "old", ""),
        (110 * GIB, "old", "takes nothing more once it is full: 86% of its new max_bytes is taken"),
        (110 * GIB, "new", "takes nothing more once it is full: 86% of its new max_bytes is taken"),
        (130 * GIB, "old", "takes nothing more once it is full: 102% of its new max_bytes is taken"),
    ],
)
def test_limits_of_streams_that_are_there_are_changed_by_force_alone_where_they_are_nearly_reached(
    held: int, before: str, loss: str
) -> None:
    found = as_applied(desired(topology()), FLEET={"discard": before})
    with_state(found, EU, "FLEET", StreamState(bytes=held, messages=1, first_ts=START + 19 * DAY))
    todo = plan(desired(topology(STORE)), found)
    fleet = next(each for each in todo.changes if each.place == EU)
    assert fleet.destroys == loss
    assert "      max_bytes: unlimited -> 128 GiB" in format_plan(todo).splitlines()


def test_more_room_for_a_stream_that_refuses_already_needs_no_force() -> None:
    found = as_applied(desired(topology('[fleet]\nmax_bytes = "9GiB"\n')))
    with_state(found, EU, "FLEET", StreamState(bytes=9 * GIB, messages=1))
    assert not plan(desired(topology('[fleet]\nmax_bytes = "10GiB"\n')), found).destructive


def judged(text: str, *filled: tuple[Place, str, int], rooms: dict[Place, Room] | None = None) -> list[str]:
    wanted = desired(topology(text))
    found: Found = msgspec.structs.replace(as_applied(wanted), rooms=rooms or {})
    for place, name, held in filled:
        with_state(found, place, name, StreamState(bytes=held, messages=1, first_ts=START + 29 * DAY))
    told = check(topology(text), wanted, found, HubFacts(), Limits())
    return [f"{each.severity.name} {each.place}: {each.text}" for each in told if "holds" in each.text]


@pytest.mark.parametrize(("held", "severity"), [(102, ""), (103, "WARNING"), (122, "CRITICAL"), (128, "CRITICAL")])
def test_a_region_that_fills_its_own_is_told_of_before_it_is_full(held: int, severity: str) -> None:
    told = judged(STORE, (EU, "FLEET", held * GIB))
    assert [each.partition(" ")[0] for each in told] == ([severity] if severity else [])
    for line in told:
        assert line.endswith(
            f"eu-west: FLEET holds {held / 128:.0%} of its max_bytes (128 GiB): then it refuses what is new, and"
            " publishers keep it: see who fills it (nats stream subjects FLEET --js-domain eu-west), or raise max_bytes"
        )


def test_an_archive_that_is_filled_fast_is_told_of_with_who_fills_it() -> None:
    held = (EU, "FLEET", 90 * GIB), (US, "FLEET", GIB), (HUB_PLACE, "ARCHIVE", 500 * GIB)
    (line,) = judged(STORE, *held)
    assert line == (
        "WARNING hub: ARCHIVE holds 98% of its max_bytes (512 GiB), all of it came within 1d; then it lets go of the"
        " oldest: raise max_bytes, or shorten max_age (most comes from eu-west: 90 GiB within 1d)"
    )


def test_an_archive_that_holds_most_of_its_max_age_may_be_full() -> None:
    assert judged(STORE + '[archive]\nmax_age = "40h"\n', (HUB_PLACE, "ARCHIVE", 512 * GIB)) == []


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (Room(700 * GIB), ""),
        (Room(900 * GIB), "WARNING hub: JetStream holds 900 GiB of 1.00 TiB that its servers may"),
        (Room(9 * GIB, 10 * GIB), "WARNING hub: JetStream holds 9 GiB of 10 GiB that its servers may"),
        (Room(1000 * GIB), "CRITICAL hub: JetStream holds 1000 GiB of 1.00 TiB that its servers may"),
    ],
)
def test_what_all_streams_of_a_place_hold_is_compared_with_what_its_servers_may(room: Room, said: str) -> None:
    told = judged(STORE, rooms={HUB_PLACE: room})
    assert [line.partition(": then")[0] for line in told] == ([said] if said else [])


def test_nothing_is_said_where_nothing_is_bounded() -> None:
    assert judged("", (EU, "FLEET", 9_000 * GIB), rooms={EU: Room(9_000 * GIB)}) == []


def test_the_packaged_topology_and_that_of_the_tutorial_bound_every_stream() -> None:
    root = Path(__file__).parents[3]
    packaged = (root / "packaging" / "aggregator" / "topology.toml").read_text()
    page = (root / "docs" / "tutorial" / "first-site.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (shown,) = [block for block in blocks if "[[region]]" in block]
    for text in (packaged, shown):
        wanted = parse_settings(text, TopologySettings, root / "topology.toml")
        bounds = {each.name: each.config["max_bytes"] for each in desired(wanted) if isinstance(each, DesiredStream)}
        assert {"ARCHIVE", "REPORT", "FLEET"} <= bounds.keys()
        assert all(bounds[name] > 0 for name in ("ARCHIVE", "REPORT", "FLEET"))
