"""The hub's clock is set back under a fold: time stands still, and no state is wrong."""

from pathlib import Path

import pytest

from aggregator.archive.hub_clock import ClockStep, HubClock, without_steps
from aggregator.live.alerts.incident_book import IncidentBook
from aggregator.live.alerts.incidents import IncidentCause, IncidentKey, IncidentRules
from aggregator.live.api import Counts, UnknownReason
from aggregator.live.fold.senders import STALE, UP
from aggregator.live.fold.view import Sourcing, View
from aggregator.live.store import ArchiveId, LiveStore
from shared.instants import MINUTE, SECOND
from tests.support.lakehouse.hub import Block
from tests.support.live.told import START, Told

STEPS = [5 * SECOND, 28 * SECOND, 10 * MINUTE]
WATERMARK_EVERY = SECOND


def stamped(*stamps: int) -> tuple[list[int], HubClock, list[ClockStep]]:
    """Read stamps; return the hub's times, the clock after them and the steps that have ended."""
    clock, times, ended = HubClock(), list[int](), list[ClockStep]()
    for sequence, stamp in enumerate(stamps, start=1):
        ended += clock.read(sequence, stamp)
        times.append(clock.time)
    return times, clock, ended


def test_the_hubs_time_is_the_largest_stamp_so_far_and_a_step_ends_with_the_first_that_is_not_earlier() -> None:
    second = [each * SECOND for each in (10, 20, 13, 12, 19, 26, 27)]
    times, clock, ended = stamped(*second)
    assert times == [each * SECOND for each in (10, 20, 20, 20, 20, 26, 27)]
    assert ended == [ClockStep(3, 20 * SECOND, 12 * SECOND, 6, 26 * SECOND)]
    assert (clock.step, ended[0].length) == (None, 8 * SECOND)
    assert ended[0].before_its_end == ClockStep(3, 20 * SECOND, 12 * SECOND)
    assert "set back by 8s" in str(ended[0])


def test_a_fall_of_less_than_a_second_is_no_step_and_a_step_goes_on_until_it_is_made_up_for() -> None:
    times, clock, ended = stamped(5 * SECOND, 4 * SECOND + 1, 5 * SECOND)
    assert (times, clock.step, ended) == ([5 * SECOND] * 3, None, [])
    times, clock, ended = stamped(5 * SECOND, 4 * SECOND, 5 * SECOND - 1)
    assert (times, clock.step, ended) == ([5 * SECOND] * 3, ClockStep(2, 5 * SECOND, 4 * SECOND), [])


def test_spans_are_cut_where_the_clock_was_behind() -> None:
    steps = [ClockStep(1, 10, 0, 2, 20), ClockStep(3, 30, 0, 4, 30), ClockStep(5, 40, 0, 6, 50)]
    assert list(without_steps(steps, 0, 60)) == [(0, 10), (20, 30), (30, 40), (50, 60)]
    assert list(without_steps(steps, 12, 18)) == []
    assert list(without_steps(steps, 15, 45)) == [(20, 30), (30, 40)]
    assert list(without_steps((), 3, 9)) == [(3, 9)]


class Site:
    """One site that goes on by the right time while the hub's clock, which is ``behind`` it, stamps what it says."""

    def __init__(self, told: Told) -> None:
        self.told, self.block, self.now, self.behind = told, Block("eu-west", "dub1"), START, 0

    def pass_time(self, duration: int) -> None:
        until = self.now + duration
        while self.now < until:
            self.now += WATERMARK_EVERY
            self.told.at(self.now - self.behind, self.block.watermark(START, self.now))

    def word(self, sender: str) -> int:
        fleet = self.told.fleet
        return fleet.senders.state[fleet.members[0][sender]]

    def reason(self) -> UnknownReason | None:
        """Return why the block is unknown at an instant at which everything was read."""
        fleet, hub = self.told.fleet, self.now - self.behind
        behind = fleet.known_through - hub if fleet.clock.step is not None else 0
        now = max(hub, fleet.known_through)
        return View(fleet, Sourcing(0, now, now, {}, behind), 2 * MINUTE).reason(0)


@pytest.fixture
def site() -> Site:
    site = Site(Told())
    for name in ("living", "dies", "dead"):
        site.told.at(site.now, site.block.new(name, site.now))
    site.pass_time(30 * MINUTE)
    site.told.at(site.now, site.block.stale("dead", site.now - 20 * MINUTE))
    site.pass_time(MINUTE)
    return site


@pytest.mark.parametrize("is_set_right", [True, False], ids=["set right again", "left behind"])
@pytest.mark.parametrize("step", STEPS)
def test_who_lives_is_up_who_died_is_down_and_the_block_is_known_again(
    site: Site, step: int, is_set_right: bool
) -> None:
    stepped_at = site.now
    site.behind = step
    site.pass_time(step // 4)
    site.told.at(site.now - step, site.block.recovered("dead", site.now))
    site.told.at(site.now - step, site.block.stale("dies", site.now - 12 * MINUTE))
    site.pass_time(step // 4)
    # Who died and came back while the clock stood, and who came back and died.
    for each in ("living", "dies"):
        site.told.at(site.now - step, site.block.stale(each, site.now - 12 * MINUTE))
        site.told.at(site.now - step, site.block.recovered(each, site.now + SECOND))
    site.told.at(site.now - step, site.block.stale("dies", site.now - 12 * MINUTE + 2 * SECOND))
    fleet, (block,) = site.told.fleet, site.told.fleet.blocks
    assert (site.word("living"), site.word("dies"), site.word("dead")) == (UP, STALE, UP)
    assert (fleet.clock.time, block.known_until, block.put_back) == (stepped_at, stepped_at, False)
    assert site.reason() is UnknownReason.HUB_CLOCK
    if is_set_right:
        site.behind = 0
    site.pass_time(step + MINUTE)
    assert (site.word("living"), site.word("dies"), site.word("dead")) == (UP, STALE, UP)
    assert (site.reason(), block.put_back, fleet.clock.step) == (None, False, None)
    assert block.known_until == site.now - site.behind
    (ended,) = fleet.steps
    assert step - WATERMARK_EVERY <= ended.length <= step
    # Where the clock is left behind, it goes through that instant again, and no time of its own is left out.
    is_left_out = ended.stepped_at < ended.resumed_at
    assert (is_left_out, block.known_since) == (is_set_right, ended.resumed_at if is_left_out else START)


def test_a_fleet_is_loaded_as_it_was_while_the_clock_is_behind(site: Site, tmp_path: Path) -> None:
    site.behind = 10 * MINUTE
    site.pass_time(MINUTE)
    store, origin = LiveStore(tmp_path / "live.db"), ArchiveId("ARCHIVE", 1)
    fleet = site.told.fleet
    fleet.steps.append(ClockStep(1, 2, 3, 4, 5))
    with store.transaction() as database:
        store.write(database, origin, fleet, site.told.at(site.now))
    loaded = store.load(origin)
    store.close()
    assert loaded is not None
    assert (loaded.clock, loaded.steps) == (fleet.clock, fleet.steps)
    assert (loaded.known_through, loaded.stamped_through) == (fleet.known_through, fleet.stamped_through)


def test_a_store_that_is_rolled_back_under_a_step_is_found_in_the_order_of_its_own_words(site: Site) -> None:
    site.behind = MINUTE
    site.pass_time(WATERMARK_EVERY)
    site.block.ordinal -= 1
    site.pass_time(WATERMARK_EVERY)
    assert site.told.fleet.blocks[0].put_back


def test_a_clock_that_stays_behind_is_one_incident_of_the_hub(site: Site, tmp_path: Path) -> None:
    book, fleet = IncidentBook(tmp_path / "incidents.db", IncidentRules()), site.told.fleet
    began_at = site.now

    def seen(now: int, behind: int) -> View:
        view = View(fleet, Sourcing(0, now, now, {}, behind), 2 * MINUTE)
        book.look(view)
        return view

    for elapsed in range(0, 5 * MINUTE, 10 * SECOND):
        assert seen(site.now + elapsed, 10 * MINUTE).whole.counts == Counts(unknown=3)
    (incident,) = book.open.values()
    assert (incident.key, incident.reason) == (IncidentKey("", "", IncidentCause.UNKNOWN), "hub_clock")
    assert incident.started_at_us == began_at
    site.pass_time(6 * MINUTE)
    for elapsed in range(0, 5 * MINUTE, 10 * SECOND):
        seen(site.now + elapsed, 0)
    assert incident.key not in book.open
    book.close()
