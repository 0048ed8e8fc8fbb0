"""Copies pass the store by: each still comes once and in its order, whatever dies or fails between region and store."""

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import pytest

from edge_agent.delivery import fast_path
from edge_agent.delivery.fast_path import FastPath
from edge_agent.store import sqlite_store
from shared.nats import client
from tests.support.agent.agent_process import Deployment, deployed
from tests.support.agent.agent_within import agent_within
from tests.support.agent.mode_settings import ABOVE_BLOCKS, block
from tests.support.delivery.fleet_region import Stored
from tests.support.waiting import until

PATIENCE = 60.0
# What is seen is committed once only, at the beginning: a commit that has to wait lets nothing pass.
COPYING = ABOVE_BLOCKS.replace('interval = "300ms"', 'interval = "1h"') + block("all", "copy")
OTHERS = block("others", "copy", stream="OTHERS")


@pytest.fixture
def nobody_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an agent within this process store what is not acknowledged soon, and come back to a link soon."""
    monkeypatch.setattr(fast_path, "PATIENCE", 0.5)
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)


class Copying:
    """A deployment whose messages are numbered."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.agent, self.region, self.site = deployment.agent, deployment.region, deployment.site
        self._numbers = count()
        self.published: list[bytes] = []

    async def publish(self, messages: int, size: int = 0) -> None:
        """Store messages at the site."""
        bodies = [b"%d" % next(self._numbers) for _ in range(messages)]
        await self.site.publish(*(body.ljust(size) for body in bodies))
        self.published += bodies

    async def copied(self, messages: int) -> None:
        """Wait until the region holds so many."""

        async def there() -> bool:
            return await self.region.stored_count() >= messages

        await until(there, f"{messages} copies are in the region", PATIENCE)

    async def everything_is_copied(self) -> None:
        """Wait until the region holds everything, and see that it does once, in order."""
        await self.copied(len(self.published))
        assert [record.payload.rstrip() for record in await self.region.stored()] == self.published

    def position(self) -> int:
        """Give the last sequence that is committed."""
        with self._database() as database:
            row = database.execute("SELECT state ->> '$.position.sequence' FROM block").fetchone()
            return int(row[0]) if row else 0

    async def nothing_more_is_committed(self) -> None:
        """Wait until the block has stood where it stands for a second."""
        stood, since = "", time.monotonic()

        def stands() -> bool:
            nonlocal stood, since
            with self._database() as database:
                (state,) = database.execute("SELECT state FROM block").fetchone()
            if state != stood:
                stood, since = state, time.monotonic()
            return time.monotonic() - since >= 1

        await until(stands, "the block stands still", PATIENCE)

    async def everything_is_committed(self) -> None:
        """Wait until the agent has committed everything."""
        await until(lambda: self.position() == len(self.published), "everything is committed", PATIENCE)

    def waiting(self) -> int:
        """Count the copies in the store."""
        with self._database() as database:
            return int(database.execute("SELECT COUNT(*) FROM copy_outbox").fetchone()[0])

    def stored_ever(self) -> int:
        """Count the copies that have ever been in the store."""
        with self._database() as database:
            row = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'copy_outbox'").fetchone()
            return int(row[0]) if row else 0

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.agent.store, isolation_level=None, timeout=30)
        try:
            yield database
        finally:
            database.close()

    @contextmanager
    def nothing_is_committed(self) -> Iterator[None]:
        """Keep the agent from committing, as long as the block runs."""
        with self._database() as database:
            database.execute("BEGIN IMMEDIATE")
            yield
            database.execute("ROLLBACK")


@asynccontextmanager
async def copying(
    directory: Path, settings: str = COPYING, *, allow_atomic: bool = True, **fleet: object
) -> AsyncIterator[Copying]:
    async with deployed(directory, settings) as deployment:
        await deployment.region.update_stream(allow_atomic=allow_atomic, **fleet)
        yield Copying(deployment)


async def begin(copies: Copying) -> None:
    """Start the agent as a process; one message is copied, and committed."""
    await copies.publish(1)
    copies.agent.start()
    await copies.everything_is_copied()
    await copies.everything_is_committed()
    await copies.nothing_more_is_committed()


async def test_copies_pass_the_store_by_and_are_stored_while_the_link_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine is not to be taken for a link that answers nothing.
    monkeypatch.setattr(fast_path, "PATIENCE", PATIENCE)
    async with copying(tmp_path) as copies, agent_within(copies.agent.config):
        await copies.publish(1_500)
        await copies.everything_is_copied()
        assert copies.stored_ever() == 0

        monkeypatch.setattr(fast_path, "PATIENCE", 0.5)
        copies.region.link.stall()
        await copies.publish(500)
        await until(lambda: copies.waiting() == 500, "the copies are stored", PATIENCE)
        await copies.everything_is_committed()
        await copies.publish(100)
        await until(lambda: copies.waiting() == 600, "what follows is stored behind them", PATIENCE)
        await copies.region.link.restore()
        await copies.everything_is_copied()
        await until(lambda: copies.waiting() == 0, "nothing waits any more", PATIENCE)
        monkeypatch.setattr(fast_path, "PATIENCE", PATIENCE)
        stored_ever = copies.stored_ever()
        await copies.publish(100)
        await copies.everything_is_copied()
        assert copies.stored_ever() == stored_ever, "copies pass the store by again"


@pytest.mark.parametrize("allow_atomic", [True, False])
async def test_an_agent_killed_between_acknowledgement_and_commit_copies_nothing_twice(
    tmp_path: Path, allow_atomic: bool
) -> None:
    async with copying(tmp_path, allow_atomic=allow_atomic) as copies:
        await begin(copies)
        with copies.nothing_is_committed():
            await copies.publish(1_500 if allow_atomic else 100)
            await copies.copied(len(copies.published))
            copies.agent.kill()
        await copies.publish(700)
        assert copies.position() == 1
        copies.agent.start()
        await copies.everything_is_copied()
        await copies.everything_is_committed()
        assert await copies.region.stored_count() == len(copies.published)


async def test_what_the_region_has_forgotten_when_the_agent_comes_back_is_stored_again_in_order(tmp_path: Path) -> None:
    """As a row that was stored: readers know copies by their origin."""
    # Set while FLEET is empty: a server that shortens the window of ids it holds may first forget by the old one.
    async with copying(tmp_path, duplicate_window=1_000_000_000) as copies:
        await begin(copies)
        with copies.nothing_is_committed():
            await copies.publish(300)
            await copies.copied(301)
            copies.agent.kill()
        await copies.region.forgets_ids()
        copies.agent.start()
        await copies.copied(601)
        texts = [record.payload for record in await copies.region.stored()]
        assert texts == copies.published + copies.published[1:]


@pytest.mark.usefixtures("nobody_waits_long")
async def test_a_link_cut_again_and_again_loses_doubles_and_reorders_nothing(tmp_path: Path) -> None:
    async with copying(tmp_path) as copies:
        await copies.publish(6_000, size=500)
        async with agent_within(copies.agent.config):
            for part in (1, 2_000, 4_000):
                await copies.copied(part)
                await copies.region.link.cut()
                await copies.region.link.restore()
            await copies.everything_is_copied()


async def test_a_copy_that_is_refused_waits_in_the_store_and_is_told(tmp_path: Path) -> None:
    async with copying(tmp_path, discard="new", max_msgs=130) as copies:
        await copies.publish(200)
        async with agent_within(copies.agent.config):
            await copies.copied(130)
            await until(lambda: copies.waiting() >= 70, "what is refused is stored", PATIENCE)
            await copies.everything_is_committed()

            async def is_told() -> bool:
                return "maximum messages exceeded" in await copies.agent.status()

            await until(is_told, "the refusal is told", PATIENCE)
            await copies.region.update_stream(max_msgs=-1)
            await copies.publish(50)
            await copies.everything_is_copied()


@pytest.mark.usefixtures("nobody_waits_long")
async def test_blocks_keep_their_own_order_when_what_they_have_under_way_is_stored(tmp_path: Path) -> None:
    async with copying(tmp_path, COPYING + OTHERS) as copies:
        await copies.site.api("STREAM.CREATE.OTHERS", {"name": "OTHERS", "subjects": ["others.>"]})
        async with agent_within(copies.agent.config):
            for part in range(6):
                for number in range(part * 400, part * 400 + 400):
                    await copies.site.client.publish("registration.nodes", b"%d" % number)
                    await copies.site.client.publish("others.x", b"%d" % number)
                if part in (1, 3):
                    await copies.copied(part * 400)
                    copies.region.link.stall()
                if part in (2, 4):
                    await until(lambda: copies.waiting() > 0, "copies are stored", PATIENCE)
                    await copies.region.link.restore()
            await copies.copied(4_800)
        records = await copies.region.stored()
        numbers = [b"%d" % number for number in range(2_400)]
        assert _of(records, ".all.copy.") == numbers
        assert _of(records, ".others.copy.") == numbers


@pytest.mark.usefixtures("nobody_waits_long")
async def test_a_block_does_not_overtake_its_own_copies_that_were_being_stored_when_another_opened_the_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_store, "LOCK_PATIENCE", 0.1)
    # A busy machine is not to be taken for a link that answers nothing: what passes here could not be stored.
    monkeypatch.setattr(fast_path, "PATIENCE", PATIENCE)
    link_is_up, ups = FastPath.link_is_up, 0

    def noting(fast_path: FastPath, wake: Callable[[], None]) -> None:
        nonlocal ups
        link_is_up(fast_path, wake)
        ups += 1

    monkeypatch.setattr(FastPath, "link_is_up", noting)
    async with copying(tmp_path, COPYING + OTHERS) as copies:
        region, site = copies.region, copies.site
        await site.api("STREAM.CREATE.OTHERS", {"name": "OTHERS", "subjects": ["others.>"]})
        async with agent_within(copies.agent.config):
            await copies.publish(1)
            await site.client.publish("others.x", b"0")
            await copies.copied(2)
            await copies.nothing_more_is_committed()
            with copies.nothing_is_committed():
                await region.link.cut()
                await copies.publish(3_000)
                await until(lambda: "stream all: paused" in caplog.text, "copies are being stored", PATIENCE)
                region.link.round_trip = 0.2
                await region.link.restore()
                await until(lambda: ups == 2, "the link is up again", PATIENCE)
                await site.client.publish("others.x", b"1")
                await copies.copied(3)
                await copies.publish(300)
            await copies.copied(3_303)
            await until(lambda: copies.waiting() == 0, "nothing waits any more", PATIENCE)
            stored_ever = copies.stored_ever()
            assert stored_ever > 0
            await copies.publish(1)
            await site.client.publish("others.x", b"2")
            await copies.copied(3_305)
            assert copies.stored_ever() == stored_ever, "copies pass the store by again"
        records = await region.stored()
        assert _of(records, ".all.copy.") == copies.published
        assert _of(records, ".others.copy.") == [b"0", b"1", b"2"]


def _of(records: list[Stored], part: str) -> list[bytes]:
    return [record.payload for record in records if part in record.subject]
