"""The known rows are found, exactly, by few questions; that none is known takes one."""

from collections.abc import Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.delivery.copy_lane import StoredPrefix


def asked_for(
    count: int, known: int, sizes: Sequence[int] = (), too_large: Collection[int] = ()
) -> tuple[StoredPrefix, list[int]]:
    search, places = StoredPrefix(sizes or [1] * count), []
    while (place := search.question) is not None:
        places.append(place)
        search.learn(place, is_known=place < known and place not in too_large)
    return search, places


def test_that_nothing_is_known_takes_one_question() -> None:
    search, places = asked_for(1_000, 0)
    assert (search.known, places, search.has_met_unknown) == (0, [0], True)


def test_questions_reach_further_and_further_and_then_halve_what_lies_between() -> None:
    assert asked_for(1_000, 100)[1] == [0, 4, 20, 84, 340, 212, 148, 116, 100, 92, 96, 98, 99]


def test_that_everything_is_known_leaves_it_open_what_comes_behind() -> None:
    search, places = asked_for(10, 10)
    assert (search.known, places, search.has_met_unknown) == (10, [0, 4, 9], False)


def test_a_row_that_is_larger_than_any_that_is_known_is_asked_for_by_itself() -> None:
    search, places = asked_for(6, 6, sizes=[1, 5, 1, 1, 1, 1], too_large={1})
    assert (search.known, places, search.has_met_unknown) == (1, [0, 1], True)


@given(st.data(), st.integers(1, 2_000))
def test_the_known_rows_are_found_whatever_their_number(data: st.DataObject, count: int) -> None:
    known = data.draw(st.integers(0, count))
    search, places = asked_for(count, known)
    assert search.known == known
    assert search.has_met_unknown is (known < count)
    assert len(places) == len(set(places)) <= 20


@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 10))
def test_what_was_too_large_is_never_taken_for_known(data: st.DataObject, sizes: list[int], limit: int) -> None:
    known = data.draw(st.integers(0, len(sizes)))
    too_large = {place for place, size in enumerate(sizes) if size >= limit}
    search, places = asked_for(len(sizes), known, sizes, too_large)
    assert search.known == min([known, *too_large])
    assert len(places) == len(set(places))
