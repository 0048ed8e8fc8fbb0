"""The board tells of each part what it does now, and counts what came back."""

import logging

import pytest

from edge_agent.observability.conditions import STANDING_STILL
from edge_agent.observability.status_board import CONNECTED, DISCONNECTED, UPSTREAM, StatusBoard


def board() -> StatusBoard:
    return StatusBoard("dub1-a", "eu-west", "dub1", "1", "boot", 1 << 30)


def test_a_link_that_is_there_at_last_after_failed_attempts_has_not_come_back() -> None:
    told = board()
    report = told.reporter(UPSTREAM)
    for phase in ("connecting", DISCONNECTED, CONNECTED):
        report(phase, "no answer" if phase == DISCONNECTED else "")
    assert told.reconnects == {}


def test_a_link_that_was_lost_has_come_back_each_time_that_it_is_there_again() -> None:
    told = board()
    report = told.reporter(UPSTREAM)
    report("connecting", "")
    for _ in range(3):
        report(CONNECTED, "")
        report(DISCONNECTED, "no answer")
    told.reporter("source of nodes")(CONNECTED, "")
    report(CONNECTED, "")
    assert told.reconnects == {UPSTREAM: 3}


def test_a_condition_that_is_raised_holds_until_it_is_over_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "muster.agent")
    told = board()
    told.reporter("stream nodes")("reading", "")
    say = told.condition(STANDING_STILL, "stream nodes")
    caplog.clear()
    say("its clock is 9m behind")
    (begun,) = told.conditions()
    say("its clock is 8m behind")
    (held,) = told.conditions()
    assert (begun.text, held.text) == (
        "stream nodes: its clock is 9m behind",
        "stream nodes: its clock is 8m behind",
    )
    assert (held.name, held.stream, held.since) == ("standing_still", "nodes", begun.since)
    assert told.in_a_line() == "stream nodes: its clock is 8m behind"
    say("")
    assert told.conditions() == []
    first, last = [record.getMessage() for record in caplog.records]
    assert first == "stream nodes: standing_still: its clock is 9m behind"
    assert last.startswith("stream nodes: standing_still over after ")


def test_what_ends_because_the_agent_ends_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    told = board()
    told.condition(STANDING_STILL, "stream nodes")("its clock is 9m behind")
    told.conditions()
    caplog.clear()
    told.mute()
    told.condition(STANDING_STILL, "stream nodes")("")
    told.conditions()
    assert not caplog.records
