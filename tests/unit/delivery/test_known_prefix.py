"""The known rows are found, exactly, by few questions; that none is known takes one."""

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.delivery.copy_lane import KnownPrefix


def asked_for(count: int, known: int) -> tuple[KnownPrefix, list[int]]:
    search, places = KnownPrefix(count), []
    while (place := search.question) is not None:
        places.append(place)
        search.learn(place, is_known=place < known)
    return search, places


def test_that_nothing_is_known_takes_one_question() -> None:
    search, places = asked_for(1_000, 0)
    assert (search.known, places, search.has_met_unknown) == (0, [0], True)


def test_questions_reach_further_and_further_and_then_halve_what_lies_between() -> None:
    assert asked_for(1_000, 100)[1] == [0, 4, 20, 84, 340, 212, 148, 116, 100, 92, 96, 98, 99]


def test_that_everything_is_known_leaves_it_open_what_comes_behind() -> None:
    search, places = asked_for(10, 10)
    assert (search.known, places, search.has_met_unknown) == (10, [0, 4, 9], False)


@given(st.integers(1, 2_000).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count))))
def test_the_known_rows_are_found_whatever_their_number(sizes: tuple[int, int]) -> None:
    count, known = sizes
    search, places = asked_for(count, known)
    assert search.known == known
    assert search.has_met_unknown is (known < count)
    assert len(places) == len(set(places)) <= 20
