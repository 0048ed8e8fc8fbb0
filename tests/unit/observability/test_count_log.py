"""What is lost or refused meets whoever reads the log: at once when it begins, then in sums."""

from edge_agent.observability.fault_log import LONGEST_QUIET, CountLog
from shared.instants import MINUTE, SECOND


def told(log: CountLog, at: int, **counts: dict[str, int]) -> list[str]:
    return [line.text for line in log.take(at, {"nodes": counts})]


def test_what_was_counted_before_this_run_is_not_told_again() -> None:
    log = CountLog()
    assert told(log, 0, dropped={"outbox_full": 40}) == []
    assert told(log, 2 * SECOND, dropped={"outbox_full": 40}) == []


def test_first_step_is_told_at_once_then_sums_ever_more_rarely() -> None:
    log = CountLog()
    told(log, 0)
    lines = []
    for second in range(1, 8 * 60):
        lines += [(second, line) for line in told(log, second * SECOND, dropped={"outbox_full": second})]
    assert lines == [
        (1, "stream nodes: dropped: outbox_full 1; in all 1"),
        (61, "stream nodes: dropped: outbox_full 60; in all 61"),
        (181, "stream nodes: dropped: outbox_full 120; in all 181"),
        (421, "stream nodes: dropped: outbox_full 240; in all 421"),
    ]


def test_what_has_stopped_is_told_at_once_when_it_begins_anew() -> None:
    log = CountLog()
    told(log, 0)
    unproven = "unproven (nothing proved that it could be seen: agent, link or server was away)"
    gap = "gap (it let go of messages before they were read: retention, or a damaged file)"
    assert told(log, 1, blind={"unproven": 1}) == [f"stream nodes: blind: {unproven} 1; in all 1"]
    assert told(log, MINUTE + 1, blind={"unproven": 1}) == []
    assert told(log, MINUTE + 2, blind={"unproven": 1, "gap": 2}) == [f"stream nodes: blind: {gap} 2; in all 3"]


def test_what_goes_on_for_ever_is_told_hourly() -> None:
    log = CountLog()
    told(log, 0)
    lines = [told(log, minute * MINUTE, rejected={"no_sender": minute}) for minute in range(1, 24 * 60)]
    assert LONGEST_QUIET == 60 * MINUTE
    assert 23 <= sum(map(bool, lines)) <= 30


def test_what_is_wanted_is_not_told() -> None:
    log = CountLog()
    told(log, 0)
    assert told(log, 1, forwarded={"new": 5}, valid={"registrations": 5}, compacted={"newer_sample": 2}) == []


def test_what_was_told_with_its_cause_when_it_began_is_not_told_again() -> None:
    log = CountLog()
    told(log, 0)
    assert told(log, 1, blind={"new_epoch": 1, "refused": 1, "narrowed": 1, "clock_ahead": 1}) == []
