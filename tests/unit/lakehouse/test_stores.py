"""Stores of a block follow each other; a sender is known to the last one if that store has announced it."""

from aggregator.archive.stores import StoreSpan, succession
from shared.instants import HOUR, LATEST


def life(name: str, store: int, first: int, last: int, put_back_from: int = 0) -> StoreSpan:
    """Return an incarnation that speaks from one hour to another; ``store`` is an hour, too."""
    return StoreSpan(name, *(hour * HOUR for hour in (store, first, last, put_back_from)))


def test_incarnations_of_one_store_follow_each_other_without_an_end() -> None:
    order = succession([life("1-1", 1, 1, 3), life("2-1", 1, 4, 9)])
    assert (order.ends, order.latest) == ((), ())


def test_store_that_begins_another_incarnation_after_another_store_is_the_last_again() -> None:
    first, other, again = life("1-1", 1, 1, 4), life("1-2", 5, 5, 7), life("2-1", 1, 8, 9)
    order = succession([first, other])
    assert (order.latest, order.ends) == (("1-2",), (4 * HOUR,))
    order = succession([first, other, again])
    assert (set(order.latest), order.ends) == ({"1-1", "2-1"}, (7 * HOUR,))


def test_store_that_reaches_the_hub_after_its_successor_comes_before_it() -> None:
    cut_off, successor = StoreSpan("1-1", 1 * HOUR, 8 * HOUR, 4 * HOUR), life("1-2", 5, 5, 7)
    order = succession([successor, cut_off])
    assert (order.latest, order.ends) == (("1-2",), (4 * HOUR,))
    # Its agent reads on, and the other one does not.
    order = succession([successor, cut_off._replace(last_through=9 * HOUR)])
    assert (order.latest, order.ends) == (("1-1",), (7 * HOUR,))


def test_incarnation_without_watermarks_belongs_to_the_store_that_began_last_before_it() -> None:
    stores = [life("1-1", 1, 1, 4), life("1-2", 5, 5, 7)]
    for epoch_hour, rank in ((0, 0), (2, 0), (6, 1)):
        name = f"1-{epoch_hour * HOUR // 1_000}"
        order = succession([*stores, StoreSpan(name, 0, 8 * HOUR, 0)])
        assert (order.ranks[name], len(order.ends)) == (rank, 1 + (epoch_hour == 0))


def test_thousands_of_made_up_stores_take_no_longer_than_they_are_many() -> None:
    count = 20_000
    lives = [
        life(f"{turn}-{each}", each + 1, count * turn + each, count * turn + each + 1)
        for turn in (0, 1)
        for each in range(count)
    ]
    lives += [StoreSpan(f"2-{each}", 0, LATEST, 0) for each in range(count)]
    assert len(succession(lives).ends) == count
