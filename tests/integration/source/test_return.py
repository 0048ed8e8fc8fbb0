"""A reader whose connection comes back does not wait out its pause."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.nats import client
from tests.support.nats.source_site import Site, reading, running_site
from tests.support.waiting import until

# Longer than any test may take.
PAUSE = 600.0
DEADLINE = 60.0


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)
    async with running_site(tmp_path) as site:
        await site.make_stream()
        yield site


async def test_a_pause_ends_when_the_connection_is_back(site: Site) -> None:
    async with reading(site) as reader:
        await site.link.cut()
        await until(lambda: not reader.client.is_connected, "the cut is noticed", DEADLINE)
        pause = asyncio.create_task(reader.source.await_reconnect(PAUSE))
        await site.link.restore()
        async with asyncio.timeout(DEADLINE):
            assert await pause
        assert (await reader.open_again(DEADLINE)).change is None


async def test_a_pause_that_begins_before_the_cut_ends_when_the_connection_is_back(site: Site) -> None:
    async with reading(site) as reader:
        pause = asyncio.create_task(reader.source.await_reconnect(PAUSE))
        await site.link.cut()
        await until(lambda: not reader.client.is_connected, "the cut is noticed", DEADLINE)
        await site.link.restore()
        async with asyncio.timeout(DEADLINE):
            assert await pause


async def test_a_pause_is_waited_out_while_the_connection_stands_or_stays_away(site: Site) -> None:
    async with reading(site) as reader:
        assert not await reader.source.await_reconnect(0.1)
        await site.link.cut()
        await until(lambda: not reader.client.is_connected, "the cut is noticed", DEADLINE)
        assert not await reader.source.await_reconnect(0.1)
