"""Useful is who watches and is heard; a link that is away for a moment, or a backlog, is no reason to call anybody."""

from collections.abc import Mapping

import msgspec
import pytest

from edge_agent.core.block_state import UNSTEADY
from edge_agent.core.records import Lane, SizeLimit, TooLarge
from edge_agent.ingest.port import Progress
from edge_agent.observability.conditions import Condition, errors
from edge_agent.observability.health import PartStatus, in_order, of_outbox, of_parts, of_reading
from edge_agent.store.port import DROPPED_LATELY, DroppedTooLarge, OutboxLevel, SetApartSum
from shared.instants import HOUR, MINUTE, SECOND

NOW = 1_769_817_600 * SECOND
WORKING = {
    "source of nodes": PartStatus("connected", "", NOW - MINUTE),
    "stream nodes": PartStatus("reading", "", NOW - MINUTE),
    "upstream": PartStatus("connected", "", NOW - MINUTE),
}


def found(parts: Mapping[str, PartStatus], progress: Progress | None = None) -> list[Condition]:
    reading = of_reading("nodes", progress, parts, NOW) if progress else ()
    return in_order([*of_parts(parts, NOW), *reading])


def names(parts: Mapping[str, PartStatus], progress: Progress | None = None) -> list[str]:
    return [each.name for each in found(parts, progress)]


def reached(pending: int, behind: int, mode: str = "sample") -> Progress:
    return Progress(pending, NOW, 0, NOW - behind, {"heard": 5, "stale": 0}, mode, 3 * MINUTE)


def test_agent_that_works_has_no_problem() -> None:
    assert found(WORKING, reached(0, 5 * SECOND)) == []


def test_agent_that_has_not_begun_is_not_useful_yet() -> None:
    (starting,) = found({"upstream": WORKING["upstream"]})
    assert (starting.name, starting.line(NOW)) == (
        "starting",
        f"error: agent: no stream is read yet; {starting.remedy} (starting)",
    )


@pytest.mark.parametrize(
    ("part", "phase", "name"),
    [
        ("source of nodes", "not connected", "link_down"),
        ("source of nodes", "denied", "permission_denied"),
        ("stream nodes", "source unavailable", "stream_not_read"),
        ("stream nodes", "starting", "starting"),
        ("stream nodes", "paused, disk full", "disk_full"),
        ("stream nodes", "paused, disk failing", "disk_failing"),
        ("stream nodes", "paused, store locked", "store_locked"),
        ("stream nodes", "paused, outbox full", "outbox_full"),
    ],
)
def test_stream_that_is_not_read_is_an_error_at_once(part: str, phase: str, name: str) -> None:
    (condition,) = found({**WORKING, part: PartStatus(phase, "why", NOW - 3 * SECOND)})
    assert (condition.name, condition.is_error, condition.stream) == (name, True, "nodes")
    assert condition.line(NOW) == f"error: {part}: {phase}: why; {condition.remedy} ({name} for 3s)"


@pytest.mark.parametrize(("seconds", "is_problem"), [(59, False), (60, True), (3_600, True)])
def test_region_that_takes_nothing_is_a_problem_after_a_minute(seconds: int, is_problem: bool) -> None:
    parts = {**WORKING, "upstream": PartStatus("not connected", "no answer", NOW - seconds * SECOND)}
    assert names(parts) == (["region_unreachable"] if is_problem else [])
    assert [each.name for each in of_parts(parts, NOW, with_patience=False)] == ["region_unreachable"]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("monitor", "monitor_not_listening"),
        ("probe of nodes", "probe_not_stored"),
        ("heartbeat of nodes", "heartbeat_not_stored"),
        ("policy", "policy_not_heard"),
        ("policy of nodes", "policy_refused"),
    ],
)
def test_helper_in_trouble_is_a_warning(part: str, name: str) -> None:
    (condition,) = found({**WORKING, part: PartStatus("off", "not permitted", NOW - MINUTE)})
    assert (condition.name, condition.is_error) == (name, False)
    assert found({**WORKING, part: PartStatus("none in this region", "", NOW - MINUTE)}) == []


def test_errors_come_before_warnings() -> None:
    parts = {"monitor": PartStatus("off", "taken"), **WORKING, "stream nodes": PartStatus("starting")}
    assert names(parts) == ["starting", "monitor_not_listening"]


@pytest.mark.parametrize(
    ("progress", "is_blind"),
    [
        (reached(0, 3 * MINUTE), False),
        (reached(0, 3 * MINUTE + 1), True),
        (reached(1, 60 * MINUTE), False),
        (reached(0, 60 * MINUTE, mode="copy"), False),
    ],
    ids=["within blind_after", "beyond it", "a backlog", "nobody is watched"],
)
def test_stream_that_is_read_to_its_end_and_proves_nothing_is_blind(progress: Progress, is_blind: bool) -> None:
    assert names(WORKING, progress) == (["time_unproven"] if is_blind else [])


def test_stream_of_which_it_is_known_that_it_does_not_store_is_called_so() -> None:
    refused = msgspec.structs.replace(reached(0, SECOND), storage_fault="is sealed", is_covered=False)
    (condition,) = found(WORKING, refused)
    assert (condition.name, condition.what) == ("stream_not_storing", "blind: the stream is sealed")


def test_quiet_of_the_time_before_the_agent_ran_is_no_condition_of_its_stream() -> None:
    unproven = msgspec.structs.replace(reached(0, SECOND), loss=UNSTEADY, is_covered=False)
    for minutes, expected in ((1, []), (4, ["time_unproven"])):
        reading = PartStatus("reading", "", NOW - minutes * MINUTE)
        assert names({**WORKING, "stream nodes": reading}, unproven) == expected


@pytest.mark.parametrize(
    ("progress", "is_told"),
    [
        (reached(0, -3 * MINUTE), False),
        (reached(0, -HOUR), True),
        (reached(7, -HOUR), True),
        (reached(0, -HOUR, mode="copy"), False),
    ],
    ids=["within blind_after", "beyond it", "with a backlog", "nobody is watched"],
)
def test_stream_whose_server_was_set_back_is_told_to_stand_still(progress: Progress, is_told: bool) -> None:
    said = "stream nodes: standing still: its server's clock is 1h behind what it had shown before"
    assert [(each.name, each.text) for each in found(WORKING, progress)] == [("standing_still", said)] * is_told


@pytest.mark.parametrize("phase", ["leading", "standing by", "catching up"])
def test_both_members_of_a_pair_are_useful(phase: str) -> None:
    follows = {**WORKING, "stream nodes": PartStatus("following", "", NOW)}
    assert found({**follows, "pair": PartStatus(phase, "", NOW)}) == []
    missed = PartStatus("not heard", "dub1-b does not stand by", NOW)
    alone = found({**WORKING, "pair": PartStatus(phase, "", NOW), "other member": missed})
    assert ([each.name for each in alone], errors(alone)) == (["pair_alone"], [])


def test_a_member_that_can_neither_lead_nor_follow_is_not_useful() -> None:
    waits = PartStatus("waiting", "dub1-a begins the pair: start it", NOW - MINUTE)
    (condition,) = found({**WORKING, "pair": waits})
    assert (condition.name, condition.text) == ("pair_not_ready", "pair: waiting: dub1-a begins the pair: start it")


@pytest.mark.parametrize(("size", "is_told"), [(0, False), (899, False), (900, True), (1_000, True)])
def test_outbox_that_is_nearly_full_is_told(size: int, is_told: bool) -> None:
    assert [each.name for each in of_outbox(OutboxLevel(size, 1_000), NOW)] == ["outbox_nearly_full"] * is_told


def test_what_is_too_large_for_the_region_is_told_with_the_limit_to_raise() -> None:
    apart = SetApartSum("nodes", Lane.COPIES.name.lower(), SizeLimit.MAX_PAYLOAD, 1, 10, 2_000, NOW - HOUR)
    dropped = DroppedTooLarge("nodes", TooLarge(SizeLimit.MAX_MSG_SIZE, 3_000), NOW - MINUTE)
    past = DroppedTooLarge("nodes", TooLarge(SizeLimit.MAX_PAYLOAD, 3_000), NOW - DROPPED_LATELY)
    level = OutboxLevel(0, 1_000, set_apart=(apart,), dropped=(dropped, past))
    assert [each.line(NOW) for each in of_outbox(level, NOW)] == [
        (
            "warning: stream nodes: 1 copy is set apart: too large for the region's servers; raise max_payload of the "
            "region's servers to at least 2000 bytes (set_apart for 1h)"
        ),
        (
            "warning: stream nodes: registrations or watermarks are dropped, the last 1m ago: too large for the "
            "region's stream; raise max_msg_size of the region's stream to at least 3000 bytes (too_large_dropped)"
        ),
    ]
