"""Whatever an agent ends by, it lets go of its links and of its store: one held open would keep the process."""

import asyncio
import json
import sqlite3
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import pytest

from edge_agent.config import agent as agent_config
from edge_agent.daemon import Agent
from edge_agent.runtime.links import Links
from edge_agent.store.files import hold_of, prepare
from edge_agent.store.site_key import site_key
from edge_agent.store.sqlite_store import SqliteStore
from shared.embedded.link import EmbeddedLink
from shared.nats.connection import ConnectionSettings
from tests.support.agent.agent_process import SETTINGS, AgentProcess, deployed
from tests.support.nats.one_server import server_in, settings_for
from tests.support.waiting import until


class Unwell:
    """What works over a link, and fails when it hears of the link's end."""

    is_ending = False

    def break_off(self, reason: str) -> None:
        if self.is_ending:
            raise ValueError(reason)

    def takes_denial(self, _reason: str) -> bool:
        return False


def report(_phase: str, _reason: str) -> None:
    """Say nothing."""


async def test_an_agent_that_meets_what_nobody_foresaw_in_its_store_ends(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path / "agent.toml")
    agent.config.write_text(SETTINGS.format(upstream="nats://127.0.0.1:1", source="nats://127.0.0.1:1", listen=""))
    prepare(agent.store)
    with closing(sqlite3.connect(agent.store)) as database:
        database.execute("ALTER TABLE block RENAME TO another")
    agent.start()
    try:
        assert await agent.ended() == 1
    finally:
        agent.end()
    assert agent.log.endswith("sqlite3.OperationalError: no such table: block\n")


async def test_a_link_that_does_not_close_well_leaves_no_other_open(tmp_path: Path) -> None:
    links, unwell = Links("dub1"), Unwell()
    async with server_in(tmp_path) as server:
        first = await links.open(settings_for(server), "first", [unwell], report)
        second = await links.open(settings_for(server), "second", [], report)
        unwell.is_ending = True
        await links.close()
        assert (first.is_closed, second.is_closed) == (True, True)


async def test_a_silent_link_lets_no_other_wait_for_its_end(tmp_path: Path) -> None:
    links = Links("dub1")
    async with server_in(tmp_path) as server, EmbeddedLink(server.port) as link:
        silent = await links.open(ConnectionSettings(servers=(link.url,)), "silent", [], report)
        well = await links.open(settings_for(server), "well", [], report)
        link.stall()
        # More than the link takes unread: what is still to be sent is waited for.
        for _ in range(60):
            await silent.publish_framed([b"PUB stuck 500000\r\n", bytes(500_000), b"\r\n"])
            await asyncio.sleep(0)
        ending = asyncio.create_task(links.close())
        await until(lambda: well.is_closed, "the link that is well is closed")
        assert not silent.is_closed
        await ending
        assert silent.is_closed


async def test_an_agent_whose_end_is_broken_off_at_its_links_closes_its_store(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        deployment = await stack.enter_async_context(deployed(tmp_path))
        settings = agent_config.load(deployment.agent.config)
        hold = stack.enter_context(hold_of(deployment.agent.store))
        prepare(deployment.agent.store)
        stack.enter_context(hold.lock_file())
        store = await SqliteStore.open(deployment.agent.store, int(settings.store.max_outbox))
        agent = Agent(settings, store, site_key(settings.id_key_path), hold, replaces_lost=False)
        stopping = asyncio.Event()
        running = asyncio.create_task(agent.run_until(stopping))

        async def is_connected() -> bool:
            parts = (await deployment.agent.status_json()).get("parts", {})
            return bool(parts.get("upstream", {}).get("phase") == "connected")

        await until(is_connected, "there is a link")
        stopping.set()
        await running
        ending = asyncio.create_task(agent.close())
        await asyncio.sleep(0)
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending
        with pytest.raises(ValueError, match="no active connection|Connection closed"):
            await store.block_states()


async def test_an_agent_that_ended_by_an_error_is_no_agent_that_was_stopped(tmp_path: Path) -> None:
    async with deployed(tmp_path) as deployment:
        agent = deployment.agent
        agent.start()
        await deployment.until_observed()
        with closing(sqlite3.connect(agent.store, timeout=60)) as database:
            database.execute("ALTER TABLE block RENAME TO another")
        await deployment.site.publish(b'{"sender": "web1"}')
        assert await agent.ended() == 1
        with closing(sqlite3.connect(agent.store)) as database:
            database.execute("ALTER TABLE another RENAME TO block")
        code, output, _ = await agent.run_command("doctor", "--json", "--config", str(agent.config))
        (finding,) = [each for each in json.loads(output)["findings"] if each["condition"] == "not_running"]
        assert (code, finding["level"]) == (2, "FAIL")
        assert "ended by an error: OperationalError: no such table" in finding["text"]
        assert "ended by an error: OperationalError" in await agent.status()
