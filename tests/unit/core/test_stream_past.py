"""A stream's sequences are believed only while its past is the one that was read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.core.stream_past import PastChange, StreamFacts, StreamTakes, is_gap, is_unread, past_change
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import SECOND

CREATED_AT = 1_769_817_600 * SECOND
SERVER_AT = CREATED_AT + 123_456_789
FACTS = StreamFacts(created_at=CREATED_AT, first_sequence=1, last_sequence=100, server_at=SERVER_AT)
POSITION = SourcePosition("REGISTRATION", Incarnation(CREATED_AT, 1), 60, stored_at=SERVER_AT - SECOND)


@pytest.mark.parametrize(
    ("created_at", "last_sequence", "change"),
    [
        (CREATED_AT, 100, None),
        (CREATED_AT, 60, None),
        (CREATED_AT, 59, PastChange.SHORTENED),
        (CREATED_AT, 0, PastChange.SHORTENED),
        (CREATED_AT + 1, 100, PastChange.RECREATED),
        (CREATED_AT - 1, 100, PastChange.RESTORED),
        (CREATED_AT - 1, 59, PastChange.RESTORED),
        (CREATED_AT + 1, 59, PastChange.RECREATED),
    ],
)
def test_past_has_changed_where_creation_or_length_say_so(
    created_at: int, last_sequence: int, change: PastChange | None
) -> None:
    facts = msgspec.structs.replace(FACTS, created_at=created_at, last_sequence=last_sequence)
    assert past_change(POSITION, facts) is change


def test_position_before_the_first_message_fits_an_empty_stream() -> None:
    position = SourcePosition("REGISTRATION", Incarnation(CREATED_AT, 1), 0)
    assert past_change(position, msgspec.structs.replace(FACTS, first_sequence=0, last_sequence=0)) is None


@pytest.mark.parametrize(
    ("position_stored_at", "stored_at", "answer"),
    [(60, 60, False), (60, 59, True), (60, 61, True), (0, 79, False), (0, 80, False), (0, 81, True)],
)
def test_what_is_at_the_position_was_read_in_this_past_or_is_no_later_than_what_was_read_in_those_before(
    position_stored_at: int, stored_at: int, answer: bool
) -> None:
    position = msgspec.structs.replace(POSITION, stored_at=position_stored_at)
    assert is_unread(position, stored_at, last_stored_at=position_stored_at or 80) is answer


@pytest.mark.parametrize(
    ("read_through", "first_sequence", "answer"),
    [(60, 1, False), (60, 60, False), (60, 61, False), (60, 62, True), (0, 1, False), (0, 0, False), (0, 2, True)],
)
def test_gap_is_what_retention_removed_unread(read_through: int, first_sequence: int, answer: bool) -> None:
    assert is_gap(read_through, msgspec.structs.replace(FACTS, first_sequence=first_sequence)) is answer


def test_incarnation_is_the_creation_and_the_servers_clock_in_milliseconds() -> None:
    assert FACTS.incarnation() == Incarnation(CREATED_AT, 1_769_817_723_456)


def test_incarnation_of_a_stream_made_anew_is_the_servers_clock_whatever_came_before() -> None:
    assert FACTS.incarnation(Incarnation(CREATED_AT - 1, 1 << 50)) == FACTS.incarnation()


@pytest.mark.parametrize(("previous_ms", "epoch_ms"), [(100, 456), (455, 456), (456, 457), (900, 901)])
def test_incarnation_of_the_same_stream_is_later_than_the_one_before(previous_ms: int, epoch_ms: int) -> None:
    second = 1_769_817_723_000
    assert FACTS.incarnation(Incarnation(CREATED_AT, second + previous_ms)) == Incarnation(
        CREATED_AT, second + epoch_ms
    )


@given(st.lists(st.integers(-5_000, 5_000), min_size=2, max_size=20))
def test_incarnation_of_a_stream_never_repeats_whatever_the_servers_clock_does(steps: list[int]) -> None:
    incarnations: list[Incarnation] = []
    server_at = SERVER_AT
    for step in steps:
        server_at += step
        facts = msgspec.structs.replace(FACTS, server_at=server_at)
        incarnations.append(facts.incarnation(incarnations[-1] if incarnations else None))
    assert incarnations == sorted(set(incarnations))


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (StreamTakes(("a.>",)), StreamTakes(("a.>", "b")), ""),
        (StreamTakes(("a.b", "c")), StreamTakes(("a.*", "c")), ""),
        (StreamTakes(("a.>", "b")), StreamTakes(("a.*",)), "no longer listens on a.>, b"),
        (StreamTakes(), StreamTakes(("a",)), ""),
        (StreamTakes((), 0), StreamTakes((), 100), "no longer takes messages of more than 100 bytes"),
        (StreamTakes((), 200), StreamTakes((), 100), "no longer takes messages of more than 100 bytes"),
        (StreamTakes((), 100), StreamTakes((), 100), ""),
        (StreamTakes((), 100), StreamTakes(), ""),
        (
            StreamTakes(permits=("a", "b")),
            StreamTakes(permits=("b", "c")),
            "no longer has a, and refuses messages that need it",
        ),
        (StreamTakes((), 0, "x"), StreamTakes(), "copies or renames messages otherwise than before"),
    ],
)
def test_what_a_stream_takes_no_more_is_named(before: StreamTakes, after: StreamTakes, lost: str) -> None:
    assert before.lost_in(after) == lost
