"""The clock of a real hub is set back under a service that reads it."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.live.api import UnknownReason
from aggregator.live.feed import Feed
from aggregator.live.fold.senders import STALE, UP
from aggregator.live.fold.view import View
from shared.instants import MINUTE, SECOND
from tests.support.lakehouse.hub import ARCHIVE, Block, Hub, Message
from tests.support.nats.stepped_clock import CANNOT_STEP, SteppedClock
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(bool(CANNOT_STEP), reason=CANNOT_STEP)


class Stage:
    """A hub, the clock of its server, and the reader of a service."""

    def __init__(self, hub: Hub, clock: SteppedClock, feed: Feed) -> None:
        self.hub, self.clock, self.feed = hub, clock, feed
        self.block = Block("eu-west", "dub1")
        self.began_at = self.now

    @property
    def now(self) -> int:
        return time.time_ns() // 1_000

    async def tell(self, *messages: Message) -> None:
        """Store messages, then a watermark, and wait until all are read."""
        told = [*messages, self.block.watermark(self.began_at, self.now)]
        last = await asyncio.to_thread(self.hub.publish, told)
        await until(lambda: self.feed.fleet.sequence >= last, "what was stored is read")

    def reason(self) -> UnknownReason | None:
        return View(self.feed.fleet, self.feed.sourcing, 2 * MINUTE).reason(0)

    def word(self, sender: str) -> int:
        fleet = self.feed.fleet
        return fleet.senders.state[fleet.members[0][sender]]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    hub = Hub(tmp_path / "hub")
    await asyncio.to_thread(hub.start)
    feed = Feed(hub.connection, ARCHIVE, tmp_path / "live.db")
    reading = asyncio.create_task(feed.run())
    try:
        with SteppedClock(hub.server) as clock:
            yield Stage(hub, clock, feed)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        feed.close()
        await asyncio.to_thread(hub.stop)


@pytest.mark.parametrize("step", [5 * MINUTE, 10 * MINUTE])
async def test_nobody_is_wrongly_up_or_down_and_the_site_is_known_again_with_the_clock(stage: Stage, step: int) -> None:
    block, seen_at = stage.block, stage.now - 20 * MINUTE
    await stage.tell(block.new("web1", seen_at), block.new("web2", seen_at), block.stale("web2", seen_at))
    await until(lambda: stage.reason() is None and stage.feed.is_ready, "the site is known")
    stage.clock.set(-step)
    stepped_at = stage.feed.fleet.known_through
    await stage.tell(block.stale("web1", stage.now - 12 * MINUTE), block.recovered("web2", stage.now))
    await stage.tell(block.recovered("web1", stage.now), block.stale("web2", stage.now - 12 * MINUTE + SECOND))
    await until(lambda: stage.reason() is UnknownReason.HUB_CLOCK, "the hub's clock is reported")
    assert (stage.feed.fleet.known_through, stage.feed.fleet.blocks[0].known_until) == (stepped_at, stepped_at)
    assert (stage.word("web1"), stage.word("web2")) == (UP, STALE)

    stage.clock.set(0)
    # The first of them ends the step: nothing before its stamp is known.
    await stage.tell()
    await stage.tell()
    await until(lambda: stage.reason() is None, "the site is known again")
    known_until = stage.feed.fleet.blocks[0].known_until
    assert (known_until > stepped_at, stage.feed.fleet.blocks[0].put_back) == (True, False)
    assert (stage.word("web1"), stage.word("web2")) == (UP, STALE)
    (ended,) = stage.feed.fleet.steps
    assert abs(ended.length - step) < MINUTE
