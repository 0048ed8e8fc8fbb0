"""Two incarnations of a block that both go on are of two agents; one that another follows is not."""

import pytest

from aggregator.archive.contests import QUIET, Contest, IncarnationSpan, Silence, contests, silent_throughout
from shared.instants import HOUR

BLOCK = ("eu-west", "dub1", "nodes")


def life(
    name: str, first: int, last: int, *, since: int = -1, archived: tuple[int, int] | None = None
) -> IncarnationSpan:
    """Give an incarnation that is heard from one hour to another; it is archived as it is heard, or in other hours."""
    arrived = archived or (first, last)
    instants = (first if since < 0 else since, first, last, *arrived)
    return IncarnationSpan(BLOCK, name, *(hour * HOUR for hour in instants))


def contest(earlier: str, later: str, hours: tuple[int, int], silent: str, since: int = 0) -> Contest:
    started_at, ended_at = (hour * HOUR for hour in hours)
    return Contest(BLOCK, earlier, later, started_at, ended_at + QUIET, Silence(BLOCK, silent, since * HOUR))


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        pytest.param([life("a", 0, 5), life("b", 5, 9)], [], id="one follows the other"),
        pytest.param([life("a", 0, 5), life("b", 3, 9, archived=(6, 9))], [], id="an older copy of the store saw it"),
        pytest.param([life("a", 0, 5, archived=(0, 9)), life("b", 5, 8)], [], id="one came late"),
        pytest.param([life("a", 0, 9), life("b", 3, 5)], [contest("a", "b", (3, 5), "b")], id="the other left"),
        pytest.param([life("a", 0, 9), life("b", 4, 4)], [contest("a", "b", (4, 4), "b")], id="heard once"),
        pytest.param(
            [life("a", 0, 5), life("b", 3, 9, since=2)], [contest("a", "b", (3, 5), "a", 2)], id="the first one left"
        ),
        pytest.param(
            [life("a", 0, 20), life("b", 2, 4), life("c", 6, 8), life("d", 20, 30)],
            [contest("a", "b", (2, 4), "b"), contest("a", "c", (6, 8), "c")],
            id="again and again",
        ),
    ],
)
def test_contests_are_of_incarnations_that_overlap_in_both_times(
    lives: list[IncarnationSpan], expected: list[Contest]
) -> None:
    assert contests(lives) == contests(reversed(lives)) == expected


def test_while_neither_has_been_silent_for_long_the_one_that_began_earlier_is_believed() -> None:
    first = life("a", 0, 5)
    second = life("b", 3, 5)._replace(last_through=5 * HOUR + QUIET)
    assert [each.silence for each in contests([first, second])] == [Silence(BLOCK, "b", 0)]
    longer = second._replace(last_through=second.last_through + 1)
    assert [each.silence for each in contests([first, longer])] == [Silence(BLOCK, "a", 3 * HOUR)]


def test_a_store_of_which_nothing_counts_gives_its_senders_to_nobody() -> None:
    found = contests([life("a", 0, 20), life("b", 2, 4), life("c", 3, 6)])
    assert silent_throughout(found) == {(BLOCK, "b"), (BLOCK, "c")}


def test_thousands_of_made_up_incarnations_take_no_longer_than_they_are_many() -> None:
    found = contests(life(f"{number}", number, 50_000 + number) for number in range(20_000))
    assert len(found) <= 2 * 20_000
