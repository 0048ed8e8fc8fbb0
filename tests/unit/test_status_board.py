"""The board tells of each part what it does now, and counts what came back."""

from edge_agent.status_board import CONNECTED, DISCONNECTED, UPSTREAM, StatusBoard


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
