"""A log that is read at three in the morning: the first of a fault at once, repetitions counted, the end told."""

from edge_agent.observability.conditions import LINK_DOWN, NOT_MOVING, SET_APART
from edge_agent.observability.fault_log import LONGEST_QUIET, ConditionLog, FaultLog
from shared.instants import HOUR, MINUTE, SECOND

REFUSED = "10.0.0.1:4222: connection refused"


def told(log: FaultLog, at: int, phase: str, reason: str = "") -> list[str]:
    return [line.text for line in log.report(at, phase, reason)]


def later(log: FaultLog, at: int) -> list[str]:
    return [line.text for line in log.pass_time(at)]


def test_fault_is_told_at_once_and_its_end_with_how_long_it_lasted() -> None:
    log = FaultLog("upstream")
    assert told(log, 0, "connected") == ["upstream: connected"]
    assert told(log, SECOND, "not connected", REFUSED) == [f"upstream: not connected: {REFUSED}"]
    assert told(log, 31 * SECOND, "connected") == ["upstream: connected again after 30s"]


def test_fault_that_repeats_its_reason_is_summed_up_ever_more_rarely() -> None:
    log = FaultLog("upstream")
    lines: list[tuple[int, str]] = []
    for second in range(8 * 60):
        lines += [(second, line) for line in told(log, second * SECOND, "not connected", REFUSED)]
    assert lines == [
        (0, f"upstream: not connected: {REFUSED}"),
        (60, f"upstream: still not connected after 1m, 59 more times in 1m: {REFUSED}"),
        (180, f"upstream: still not connected after 3m, 120 more times in 2m: {REFUSED}"),
        (420, f"upstream: still not connected after 7m, 240 more times in 4m: {REFUSED}"),
    ]


def test_fault_that_lasts_in_silence_is_told_by_time_alone() -> None:
    log = FaultLog("stream nodes")
    told(log, 0, "paused, disk full", "database or disk is full")
    assert later(log, 59 * SECOND) == []
    assert later(log, MINUTE) == [
        "stream nodes: still paused, disk full after 1m: database or disk is full",
    ]


def test_summaries_of_a_lasting_fault_come_at_least_hourly() -> None:
    log = FaultLog("upstream")
    told(log, 0, "not connected", REFUSED)
    count = sum(bool(later(log, minute * MINUTE)) for minute in range(1, 24 * 60 + 1))
    assert LONGEST_QUIET == HOUR
    assert 24 <= count <= 30


def test_another_reason_is_told_at_once_but_each_only_once() -> None:
    log = FaultLog("upstream")
    second = "10.0.0.2:4222: no answer"
    assert told(log, 0, "not connected", REFUSED)
    assert told(log, 1, "not connected", second) == [f"upstream: not connected: {second}"]
    assert [told(log, at, "not connected", reason) for at, reason in ((2, REFUSED), (3, second), (4, REFUSED))] == [
        [],
        [],
        [],
    ]


def test_link_that_flaps_is_told_twice_then_counted() -> None:
    log = FaultLog("upstream")
    lines = []
    for second in range(0, 130, 10):
        lines += told(log, second * SECOND, "not connected", REFUSED)
        lines += told(log, (second + 2) * SECOND, "connected")
    assert lines == [
        f"upstream: not connected: {REFUSED}",
        "upstream: connected again after 2s",
        "upstream: connected now, but went wrong again, 5 more times in 1m",
    ]
    assert later(log, 180 * SECOND) == ["upstream: connected now, but went wrong again, 7 more times in 2m"]
    assert later(log, 180 * SECOND + 4 * MINUTE) == []
    assert told(log, 500 * SECOND, "not connected", REFUSED) == [f"upstream: not connected: {REFUSED}"]


def test_fault_that_began_unsaid_is_told_when_it_lasts_and_then_its_end_too() -> None:
    log = FaultLog("upstream")
    told(log, 0, "not connected", REFUSED)
    told(log, SECOND, "connected")
    assert told(log, 2 * SECOND, "not connected", REFUSED) == []
    assert later(log, MINUTE) == [f"upstream: still not connected after 58s, 1 more times in 1m: {REFUSED}"]
    assert told(log, 2 * MINUTE, "connected") == ["upstream: connected again after 1m 58s"]


def test_what_a_part_tells_bears_the_condition_that_it_is_in_or_was() -> None:
    log = FaultLog("source of nodes")
    lines = [
        *log.report(0, "connecting", "", "link_down"),
        *log.report(1, "connected", ""),
        *log.report(2, "reading", ""),
        *log.report(3, "not connected", "no answer", "link_down"),
        *log.report(4, "connected", ""),
    ]
    assert [(line.text, line.condition) for line in lines] == [
        ("source of nodes: connecting", "link_down"),
        ("source of nodes: connected", "link_down"),
        ("source of nodes: reading", ""),
        ("source of nodes: not connected: no answer", "link_down"),
        ("source of nodes: connected again after 0.001ms", "link_down"),
    ]


def test_a_condition_begins_and_ends_with_one_line_whatever_is_said_meanwhile() -> None:
    log = ConditionLog()
    first, later = NOT_MOVING.of("stream nodes", "7 wait"), NOT_MOVING.of("stream nodes", "9 wait")
    other = SET_APART.of("stream nodes", "1 copy", since=5)
    told = [
        (each.name, line.text, line.is_fault)
        for at, found in [(0, []), (MINUTE, [first]), (MINUTE + 1, [later, other]), (MINUTE + 3 * SECOND, [other])]
        for each, line in log.take(at, found)
    ]
    assert told == [
        ("not_moving", "stream nodes: not_moving: 7 wait", True),
        ("set_apart", "stream nodes: set_apart: 1 copy", True),
        ("not_moving", "stream nodes: not_moving over after 3s", False),
    ]
    assert log.with_start(LINK_DOWN.of("source of nodes", "no answer")).since == 0
    assert log.with_start(other).since == 5
    list(log.take(2 * MINUTE, [later]))
    assert log.with_start(later).since == 2 * MINUTE
