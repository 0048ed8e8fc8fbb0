"""Of a stream in a cluster, only who was sent everything, for a while, is believed when he says that nothing waits."""

from collections.abc import Callable

import msgspec
import pytest

from edge_agent.core.resume import StreamFacts
from edge_agent.source_cluster import UNWATCHED, Completeness

SETTLE = 2.0
ALONE = StreamFacts(created_at=1, first_sequence=1, last_sequence=9, server_at=2)
WITHOUT_N2 = msgspec.structs.replace(ALONE, leader="n1", complete_on=("n1", "n3"))
WITH_N2 = msgspec.structs.replace(ALONE, leader="n1", complete_on=("n1", "n2", "n3"))
LED_BY_N3 = msgspec.structs.replace(WITH_N2, leader="n3")
INCOMPLETE = "is not complete on n2, which delivers it"
SETTLING = "is delivered by n2, which may still be storing what it was sent"

Looking = Callable[[float, StreamFacts], str]


@pytest.fixture
def look() -> Looking:
    """Look at an instant, at what n2 delivers."""
    now = 0.0
    completeness = Completeness(SETTLE, lambda: now)

    def look(at: float, facts: StreamFacts) -> str:
        nonlocal now
        now = at
        return completeness.doubt(facts, "n2")

    return look


def test_a_server_alone_holds_all_of_its_stream(look: Looking) -> None:
    assert look(1, ALONE) == ""


def test_who_lacks_something_is_believed_a_while_after_it_was_sent_it(look: Looking) -> None:
    assert look(1, WITHOUT_N2) == INCOMPLETE
    assert look(2, WITH_N2) == SETTLING
    assert look(3.9, WITH_N2) == SETTLING
    assert look(4, WITH_N2) == ""
    assert look(5, WITHOUT_N2) == INCOMPLETE
    assert look(6, WITH_N2) == SETTLING


def test_who_has_just_been_elected_is_believed_a_while_later(look: Looking) -> None:
    assert [look(at, WITH_N2) for at in (1, 3)] == [SETTLING, ""]
    assert [look(at, LED_BY_N3) for at in (4, 6)] == [SETTLING, ""]


def test_who_was_not_looked_at_may_have_been_away(look: Looking) -> None:
    assert [look(at, WITH_N2) for at in (1, 3, 3 + UNWATCHED)] == [SETTLING, "", ""]
    assert look(3.1 + 2 * UNWATCHED, WITH_N2) == SETTLING
