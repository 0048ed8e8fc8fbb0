"""A hole is asked about where it could hide what somebody else was delivered; requests end by themselves."""

import pytest

from edge_agent.source.holes import MOST_ASKED, MOST_KEPT, Hole, Holes, Requests

HOLE = Hole(after=5, before=9, size=100)


@pytest.mark.parametrize(
    ("waited", "waits", "is_first", "is_asked"),
    [
        pytest.param(10, 9, True, True, id="behind a reset nothing was delivered that it could follow"),
        pytest.param(10, 9, False, False, id="as many wait as before, less the one that came"),
        pytest.param(10, 12, False, False, id="more have come meanwhile"),
        pytest.param(10, 8, False, True, id="one has gone"),
    ],
)
def test_a_hole_is_asked_about_where_something_has_gone(
    waited: int, waits: int, is_first: bool, is_asked: bool
) -> None:
    holes = Holes(are_rare=False)
    holes.take(HOLE, waited, waits, is_first=is_first)
    assert (list(holes.unexplained) == [HOLE]) is is_asked
    assert (holes.kept_before(9) == [HOLE]) is not is_asked


def test_a_reader_without_a_filter_asks_about_every_hole_as_long_as_they_are_few() -> None:
    holes = Holes(are_rare=True)
    for _ in range(MOST_ASKED + 7):
        holes.take(HOLE, 10, 9, is_first=False)
    assert (len(holes.unexplained), len(holes.kept_before(9))) == (MOST_ASKED, 7)
    holes.forget(holes.count)
    holes.take(HOLE, 10, 9, is_first=False)
    assert len(holes.unexplained) == MOST_ASKED + 1


def test_a_look_lets_forget_what_was_found_before_it() -> None:
    holes = Holes(are_rare=False)
    holes.take(HOLE, 10, 9, is_first=False)
    before_the_look = holes.count
    later = Hole(after=9, before=20, size=1)
    holes.take(later, 9, 8, is_first=False)
    holes.forget(before_the_look)
    assert holes.kept_before(20) == [later]
    assert holes.kept_before(19) == [], "it has not been read to its end"
    holes.forget(holes.count)
    assert holes.kept_before(20) == []


def test_what_is_kept_in_mind_has_a_bound() -> None:
    holes = Holes(are_rare=False)
    for _ in range(MOST_KEPT):
        assert not holes.need_check
        holes.take(HOLE, 10, 9, is_first=False)
    assert holes.need_check


def test_requests_wait_until_they_end_or_expire() -> None:
    requests = Requests(30.0)
    for at in (0.0, 1.0, 2.0):
        requests.make(at)
    assert (requests.waiting(2.0), requests.made_count) == (3, 3)
    requests.end()
    assert requests.waiting(2.0) == 2
    assert [requests.waiting(at) for at in (30.9, 31.0, 32.0)] == [2, 1, 0]


def test_requests_that_nobody_listens_for_end_soon() -> None:
    requests = Requests(30.0)
    requests.make(0.0)
    requests.end_by(5.0)
    requests.make(3.0)
    assert [requests.waiting(at) for at in (4.9, 5.0, 33.0)] == [2, 1, 0]
