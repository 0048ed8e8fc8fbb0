"""Useful is who watches and is heard; a link that is away for a moment, or a backlog, is no reason to call anybody."""

from collections.abc import Mapping

import pytest

from edge_agent.ports import Progress
from edge_agent.usefulness import PartStatus, problems
from shared.instants import HOUR, MINUTE, SECOND

NOW = 1_769_817_600 * SECOND
WORKING = {
    "source of nodes": PartStatus("connected", "", NOW - MINUTE),
    "stream nodes": PartStatus("reading", "", NOW - MINUTE),
    "upstream": PartStatus("connected", "", NOW - MINUTE),
}


def wrong(parts: Mapping[str, PartStatus], progress: Progress | None = None) -> list[str]:
    return list(problems(parts, {"nodes": progress} if progress else {}, NOW))


def reached(pending: int, behind: int, mode: str = "sample") -> Progress:
    return Progress(pending, NOW, 0, NOW - behind, {"heard": 5, "stale": 0}, mode, 3 * MINUTE)


def test_agent_that_works_has_no_problem() -> None:
    assert wrong(WORKING, reached(0, 5 * SECOND)) == []


def test_agent_that_has_not_begun_is_not_useful_yet() -> None:
    assert wrong({"upstream": WORKING["upstream"]}) == ["starting: no stream is read yet"]


@pytest.mark.parametrize(
    ("part", "phase", "reason"),
    [
        ("source of nodes", "not connected", "no answer"),
        ("stream nodes", "source unavailable", "stream not found"),
        ("stream nodes", "paused, disk full", "less than 64 MiB left"),
        ("stream nodes", "paused, outbox full", "advisories alone reach store.max_outbox"),
    ],
)
def test_stream_that_is_not_read_is_a_problem_at_once(part: str, phase: str, reason: str) -> None:
    parts = {**WORKING, part: PartStatus(phase, reason, NOW - 3 * SECOND)}
    assert wrong(parts) == [f"{part}: {phase} for 3s: {reason}"]


@pytest.mark.parametrize(("seconds", "is_problem"), [(59, False), (60, True), (3_600, True)])
def test_region_that_takes_nothing_is_a_problem_after_a_minute(seconds: int, is_problem: bool) -> None:
    parts = {**WORKING, "upstream": PartStatus("not connected", "no answer", NOW - seconds * SECOND)}
    assert bool(wrong(parts)) is is_problem


@pytest.mark.parametrize("part", ["monitor", "probe of nodes"])
def test_helper_in_trouble_is_no_problem_of_its_own(part: str) -> None:
    assert wrong({**WORKING, part: PartStatus("off", "not permitted", NOW - MINUTE)}) == []


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
    assert any("nothing proves that the stream can store" in line for line in wrong(WORKING, progress)) is is_blind


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
    assert wrong(WORKING, progress) == ([said] if is_told else [])


@pytest.mark.parametrize("phase", ["leading", "standing by", "catching up"])
def test_both_members_of_a_pair_are_useful(phase: str) -> None:
    follows = {**WORKING, "stream nodes": PartStatus("following", "", NOW)}
    assert wrong({**follows, "pair": PartStatus(phase, "", NOW)}) == []
    missed = PartStatus("not heard", "dub1-b does not stand by", NOW)
    assert wrong({**WORKING, "pair": PartStatus(phase, "", NOW), "other member": missed}) == []


def test_a_member_that_can_neither_lead_nor_follow_is_not_useful() -> None:
    waits = PartStatus("waiting", "dub1-a begins the pair: start it", NOW - MINUTE)
    assert wrong({**WORKING, "pair": waits}) == ["pair: waiting for 1m: dub1-a begins the pair: start it"]
