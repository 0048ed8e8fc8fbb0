"""Tests of sites whose clock is ahead of the hub's: durations do not change."""

import pytest

from aggregator.live.fold.senders import STALE, UNHEARD
from shared.identifiers import Incarnation
from shared.instants import HOUR, MINUTE, SECOND, format_duration
from tests.support.lakehouse.hub import Block
from tests.support.live.told import START, Told

FIRST, STALE_AFTER = START + MINUTE, 12 * MINUTE


@pytest.mark.parametrize("ahead", [0, 2 * SECOND, 20 * SECOND, 20 * MINUTE, 59 * MINUTE], ids=format_duration)
@pytest.mark.parametrize("delay", [0, SECOND], ids=format_duration)
def test_sender_is_stale_since_it_was_last_seen_however_far_the_clock_is_ahead(ahead: int, delay: int) -> None:
    # The stream, too, was created under this clock.
    told, block = Told(), Block("eu-west", "dub1")
    block.incarnation = Incarnation(START + ahead, 1)
    told.at(FIRST + delay, block.new("web1", FIRST + ahead))
    told.at(FIRST + STALE_AFTER + delay, block.stale("web1", FIRST + ahead))
    senders = told.fleet.senders
    assert (senders.state[0], senders.since[0]) == (STALE, FIRST + min(ahead, delay))


@pytest.mark.parametrize("ahead", [0, 20 * SECOND, 20 * MINUTE], ids=format_duration)
def test_time_after_a_blind_span_is_covered_however_far_the_clock_is_ahead(ahead: int) -> None:
    told, block, blind_until = Told(), Block("eu-west", "dub1"), START + HOUR
    told.at(START + MINUTE, block.watermark(START + ahead, START + MINUTE + ahead))
    told.at(blind_until + MINUTE, block.watermark(blind_until + ahead, blind_until + MINUTE + ahead))
    state = told.fleet.blocks[0]
    assert (state.known_since, state.known_until) == (blind_until, blind_until + MINUTE)


@pytest.mark.parametrize("ahead", [0, 20 * SECOND, 20 * MINUTE], ids=format_duration)
def test_sender_is_unheard_for_as_long_however_far_the_clock_is_ahead(ahead: int) -> None:
    told, block = Told(), Block("eu-west", "dub1")
    told.at(START, block.new("web1", START + ahead))
    told.at(START + STALE_AFTER, block.retired_unheard("web1", START + ahead, START + HOUR + ahead))
    senders = told.fleet.senders
    assert (senders.state[0], senders.until[0]) == (UNHEARD, START + HOUR)
