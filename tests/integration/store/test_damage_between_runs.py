"""Between two runs on a store that is damaged, a supervisor hears that the agent lives, however long its disk takes."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.agent.agent_process import AgentProcess, Deployment, deployed
from tests.support.agent.supervisor import MORE_TIME, READY, supervisor_socket
from tests.support.store.store_batches import batch, opened, registration

# What has been damaged twice is left alone for as long as the test likes; who waits for a lock goes on soon.
PROGRAM = """
from edge_agent import cli, daemon
from edge_agent.store import sqlite_store
daemon.PAUSE = daemon.SOON = 3600
sqlite_store.LOCK_PATIENCE = 4
cli.main()
"""
WORDS = 10
"""More than are said while a small store is looked at: ten a second are due."""


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path) as deployment:
        deployment.agent = AgentProcess(deployment.agent.config, (sys.executable, "-c", PROGRAM))
        try:
            yield deployment
        finally:
            deployment.agent.end()


async def test_a_supervisor_hears_of_an_agent_that_closes_a_damaged_store_on_a_slow_disk(
    deployment: Deployment, tmp_path: Path
) -> None:
    store = deployment.agent.store
    async with opened(store) as filled:
        await filled.commit(batch(1, [registration("node", "r")]))
    with (
        supervisor_socket(tmp_path / "notify") as supervisor,
        closing(sqlite3.connect(store, isolation_level=None)) as lasting,
    ):
        lasting.execute("UPDATE registration_outbox SET headers = '{'")
        lasting.execute("BEGIN IMMEDIATE")
        deployment.agent.start({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"})
        while await asyncio.to_thread(supervisor.recv, 1_000) != READY:
            pass
        heard: list[bytes] = []
        while heard.count(MORE_TIME) < WORDS:
            heard.append(await asyncio.to_thread(supervisor.recv, 1_000))
            assert heard[-1] != READY, "it closed its store, and said nothing"


async def test_a_supervisor_hears_of_an_agent_that_leaves_its_disk_alone_for_a_while(
    deployment: Deployment, tmp_path: Path
) -> None:
    with supervisor_socket(tmp_path / "notify") as supervisor:
        deployment.agent.start({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"})
        for _ in range(2):
            while await asyncio.to_thread(supervisor.recv, 1_000) != READY:
                pass
            with closing(sqlite3.connect(deployment.agent.store, isolation_level=None)) as other:
                # No text any more: the agent looks there for what an operator asks.
                other.execute("INSERT INTO operator_request (asked) VALUES (CAST(X'FF' AS TEXT))")
        heard: list[bytes] = []
        async with asyncio.timeout(60):
            while heard.count(MORE_TIME) < WORDS:
                heard.append(await asyncio.to_thread(supervisor.recv, 1_000))
        assert READY not in heard
        await deployment.agent.stopped()
    assert f"set aside as {deployment.agent.store}.corrupt-1" in deployment.agent.log
    assert "the end came before a look at it" in deployment.agent.log
