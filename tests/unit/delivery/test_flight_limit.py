"""As much is under way as the link carries at once: more while answers come soon, less when they come late."""

from edge_agent.delivery.flow_control import FIRST, LEAST, MOST, SMALLEST_FIRST, FlightLimit


def test_quick_answers_raise_the_limit_by_what_they_answer() -> None:
    limit = FlightLimit()
    limit.note_answer(1_000, after=0.05)
    assert limit.limit == FIRST + 1_000


def test_a_long_round_trip_is_no_reason_to_send_less() -> None:
    limit = FlightLimit()
    for _ in range(100):
        limit.note_answer(FIRST, after=0.8)
    assert limit.limit == MOST


def test_answers_that_come_much_later_than_the_first_lower_it_to_a_least() -> None:
    limit = FlightLimit()
    limit.note_answer(1_000, after=0.1)
    limit.note_answer(101_000, after=2.0)
    assert limit.limit == FIRST - 100_000
    for _ in range(100):
        limit.note_answer(FIRST, after=2.0)
    assert limit.limit == LEAST


def test_answers_that_come_a_little_later_change_nothing() -> None:
    limit = FlightLimit()
    limit.note_answer(0, after=0.1)
    limit.note_answer(50_000, after=0.7)
    assert limit.limit == FIRST


def test_another_link_is_tried_anew() -> None:
    limit = FlightLimit()
    for after in (0.1, 5.0, 5.0):
        limit.note_answer(FIRST, after)
    limit.restart(is_lost=False)
    assert limit.limit == FIRST
    limit.note_answer(1_000, after=5.0)
    assert limit.limit == FIRST + 1_000


def test_less_is_tried_after_each_link_that_answered_nothing() -> None:
    limit = FlightLimit()
    limit.restart(is_lost=True)
    limit.restart(is_lost=True)
    assert limit.limit == FIRST // 4
    for _ in range(20):
        limit.restart(is_lost=True)
    assert limit.limit == SMALLEST_FIRST
    limit.note_answer(100, after=3.0)
    limit.restart(is_lost=True)
    assert limit.limit == FIRST


def test_an_outage_in_which_nothing_was_sent_says_nothing_of_the_link() -> None:
    limit = FlightLimit()
    for _ in range(20):
        limit.restart(is_lost=False)
    assert limit.limit == FIRST


def test_a_bandwidth_that_the_operator_set_bounds_it_from_the_start() -> None:
    limit = FlightLimit(most=10_000)
    assert limit.limit == 10_000
    limit.note_answer(10_000, after=0.1)
    assert limit.limit == 10_000
    limit.note_answer(10_000, after=9.0)
    limit.note_answer(10_000, after=9.0)
    assert limit.limit == 10_000


def test_late_answers_do_not_raise_a_limit_that_silent_links_have_lowered() -> None:
    limit = FlightLimit()
    for _ in range(20):
        limit.restart(is_lost=True)
    limit.note_answer(0, after=0.1)
    limit.note_answer(1_000, after=9.0)
    assert limit.limit == SMALLEST_FIRST
