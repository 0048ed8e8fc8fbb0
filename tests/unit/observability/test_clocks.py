"""Whose clock is followed: the site's, as far as two of three clocks have it so."""

import asyncio

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy
from edge_agent.observability.clocks import Clocks, SiteClock
from edge_agent.store.port import EVERYTHING
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import DAY, HOUR, MINUTE, SECOND

TRUE = 1_700_000_000 * SECOND
YEAR = 365 * DAY
POLICY = Policy(60 * SECOND, 20 * SECOND, 50 * SECOND, 8 * SECOND)
READING = BlockState(SourcePosition("REGISTRATION", Incarnation(TRUE, 0), 1), POLICY, observed_through=TRUE)
REFUSING = msgspec.structs.replace(READING, clock_ahead=True)


class Host:
    """One host's clocks, and a block that reads by them."""

    def __init__(self, *, own_ahead: int = 0, max_ahead: int = HOUR) -> None:
        self.passed = 0
        self.own_ahead = own_ahead
        self.clocks = Clocks(lambda: self.true + self.own_ahead, lambda: self.passed)
        self.clock = SiteClock(self.clocks, max_ahead)

    @property
    def true(self) -> int:
        return TRUE + self.passed

    def wait(self, duration: int) -> None:
        self.passed += duration

    def follows(self, site_ahead: int, state: BlockState = READING) -> bool:
        return self.true + site_ahead <= self.clock.bound(state)


def heard(*, own_ahead: int = 0, region_ahead: int = 0) -> Host:
    host = Host(own_ahead=own_ahead)
    host.clocks.hear_region(host.true + region_ahead)
    return host


def test_site_is_followed_as_far_beyond_the_others_as_the_setting_has_it() -> None:
    host = heard()
    assert host.clock.bound(READING) == host.true + HOUR
    host.wait(3 * HOUR)
    assert host.clock.bound(READING) == host.true + HOUR, "the region's clock is counted on"


@pytest.mark.parametrize("own_ahead", [-YEAR, YEAR, 0], ids=["a year behind", "a year ahead", "right"])
def test_wrong_clock_of_the_agent_stops_nobody_whom_the_region_agrees_with(own_ahead: int) -> None:
    assert heard(own_ahead=own_ahead).follows(0)
    assert heard(own_ahead=own_ahead).follows(0, REFUSING)


@pytest.mark.parametrize("region_ahead", [-YEAR, YEAR], ids=["a year behind", "a year ahead"])
def test_wrong_clock_of_the_region_stops_nobody_whom_the_agent_agrees_with(region_ahead: int) -> None:
    assert heard(region_ahead=region_ahead).follows(0)


def test_site_that_neither_agent_nor_region_agrees_with_is_not_followed() -> None:
    assert not heard().follows(YEAR)
    assert not heard(own_ahead=-DAY).follows(YEAR)


def test_clock_of_the_agents_host_that_was_set_with_the_sites_is_no_second_witness() -> None:
    host = heard()
    host.own_ahead = YEAR
    assert not host.follows(YEAR)
    assert host.follows(0)


def test_clock_of_a_region_that_was_set_with_the_sites_is_no_second_witness() -> None:
    """Both streams are on one server."""
    host = heard()
    host.clock.follow(host.true)
    host.wait(MINUTE)
    assert not host.follows(YEAR)
    host.clocks.hear_region(host.true + YEAR)
    assert not host.follows(YEAR, REFUSING)
    host.clocks.hear_region(host.true)
    assert host.follows(0, REFUSING)


def test_clock_of_a_region_that_was_set_right_stops_nobody() -> None:
    host = heard(region_ahead=-YEAR)
    host.clock.follow(host.true)
    host.clocks.hear_region(host.true)
    assert host.follows(0)


def test_agent_alone_contradicts_nobody_at_its_start() -> None:
    assert Host(own_ahead=-YEAR).clock.bound(READING) == EVERYTHING


def test_agent_alone_contradicts_a_jump_of_the_clock_that_it_agreed_with() -> None:
    host = Host()
    host.clock.follow(host.true)
    host.wait(MINUTE)
    assert not host.follows(YEAR)
    assert host.follows(0)


def test_agent_alone_that_never_agreed_lets_the_site_be_set() -> None:
    """The host has no battery for its clock; the site's was set meanwhile."""
    host = Host(own_ahead=-YEAR)
    host.clock.follow(host.true)
    assert host.follows(DAY)


def test_refusal_outlives_a_start_but_not_a_clock_that_is_behind_what_was_observed() -> None:
    assert not Host().follows(YEAR, REFUSING)
    assert Host(own_ahead=-YEAR).follows(0, REFUSING)


def test_no_bound_is_no_bound() -> None:
    host = Host(max_ahead=0)
    host.clocks.hear_region(host.true)
    assert host.clock.bound(READING) == EVERYTHING


async def test_region_is_waited_for_where_only_the_agent_contradicts() -> None:
    host = Host(own_ahead=-YEAR)
    waiting = asyncio.create_task(host.clock.compare(host.true))
    await asyncio.sleep(0)
    assert not waiting.done()
    host.clocks.hear_region(host.true)
    await waiting
    await host.clock.compare(host.true)


async def test_region_is_not_waited_for_any_more_after_a_while() -> None:
    host = Host(own_ahead=-YEAR)
    host.wait(MINUTE)
    await host.clock.compare(host.true)


def test_people_are_told_how_the_three_clocks_stand() -> None:
    host = heard(own_ahead=-DAY)
    assert host.clock.contradiction(host.true + YEAR) == (
        "the server's clock is 365d ahead of the region's, and 366d ahead of this host's"
    )
    assert host.clock.contradiction(host.true) == "the server's clock is as the region's, and 1d ahead of this host's"
