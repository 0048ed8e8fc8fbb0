"""Messages that are gone from among those that wait show while reading is behind, and only then."""

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import StreamSeen
from edge_agent.core.observation import SourceMessage
from edge_agent.core.stream_past import StreamFacts
from edge_agent.ingest.thinning import Thinning
from shared.instants import SECOND
from tests.support.core.watched_site import POLICY, START, position

BLIND_AFTER = POLICY.blind_after


def message(sequence: int, at: int) -> SourceMessage:
    return SourceMessage("registration.a", b"{}", None, sequence, START + at)


def facts(*, shows_holes: bool = True, first: int = 1, subject_count: int = 0, server_at: int = 0) -> StreamFacts:
    return StreamFacts(START, first, 1_000, START + server_at, shows_holes=shows_holes, subject_count=subject_count)


def thinning(sequence: int = 10, *, first: int = 1, shows_holes: bool = True, thinned: bool = False) -> Thinning:
    found = Thinning()
    found.begin(state_at(sequence, thinned=thinned), facts(first=first, shows_holes=shows_holes))
    return found


def state_at(sequence: int = 10, *, thinned: bool = False) -> BlockState:
    return BlockState(
        position(sequence, 0), POLICY, observed_through=START, seen=StreamSeen(START, sequence, thinned=thinned)
    )


LATE = START + 100 * BLIND_AFTER


def test_a_hole_far_behind_the_servers_clock_is_thinned_until_none_was_for_blind_after() -> None:
    reading = thinning()
    assert not reading.take(message(11, SECOND), state_at(), LATE, 0)
    assert reading.take(message(13, 2 * SECOND), state_at(), LATE, 0)
    assert reading.take(message(14, 3 * SECOND), state_at(), LATE, 0)
    assert reading.take(message(16, 3 * SECOND), state_at(), LATE, 0)
    assert reading.take(message(17, 3 * SECOND + BLIND_AFTER), state_at(), LATE, 0)
    assert not reading.take(message(18, 3 * SECOND + BLIND_AFTER + 1), state_at(), LATE, 0)


def test_what_waited_for_less_than_blind_after_proves_enough() -> None:
    reading = thinning()
    assert not reading.take(message(15, BLIND_AFTER - 1), state_at(), START + BLIND_AFTER, 0)


def test_reading_that_has_come_near_to_now_ends_it() -> None:
    reading = thinning(thinned=True)
    assert reading.take(message(11, SECOND), state_at(thinned=True), START + 2 * BLIND_AFTER, 0)
    assert not reading.take(message(12, BLIND_AFTER), state_at(thinned=True), START + 2 * BLIND_AFTER, 0)


def test_what_a_filter_passes_over_or_retention_took_at_the_front_is_no_such_hole() -> None:
    assert not thinning(shows_holes=False).take(message(13, SECOND), state_at(), LATE, 0)
    assert not thinning(first=13).take(message(13, SECOND), state_at(), LATE, 0)


def test_nothing_is_missing_up_to_where_all_was_read() -> None:
    reading = thinning(thinned=True)
    reading.look_at(facts(), state_at(), examined_sequence=20)
    assert not reading.is_thinned
    assert not reading.take(message(21, SECOND), state_at(20), LATE, 0)


def test_where_senders_share_a_subject_what_is_missing_is_thinned_however_soon_it_is_read() -> None:
    reading = thinning()
    reading.look_at(facts(subject_count=3), state_at())
    assert not reading.take(message(13, SECOND), state_at(), START + SECOND, 2), "each has a subject of its own"
    assert reading.take(message(15, SECOND), state_at(), START + SECOND, 3)
    reading.look_at(facts(subject_count=3, server_at=2 * SECOND), state_at(), examined_sequence=15)
    assert reading.take(message(16, 2 * SECOND), state_at(), START + 2 * SECOND, 3)
    reading.look_at(facts(subject_count=3, server_at=SECOND + BLIND_AFTER + 1), state_at(), examined_sequence=16)
    assert not reading.is_thinned
