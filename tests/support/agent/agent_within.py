"""Run the whole agent within the test's own process: where nothing kills it, a process of its own only takes time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edge_agent.config import agent as agent_config
from edge_agent.daemon import Agent
from edge_agent.store.files import hold_of, prepare
from edge_agent.store.site_key import site_key
from edge_agent.store.sqlite_store import SqliteStore


@asynccontextmanager
async def agent_within(config: Path) -> AsyncIterator[None]:
    """Run an agent on a settings file while the block runs; raise what ended it before."""
    settings = agent_config.load(config)
    path = Path(settings.store.path)
    with hold_of(path) as hold:
        prepare(path)
        with hold.lock_file():
            store = await SqliteStore.open(path, int(settings.store.max_outbox))
            agent = Agent(settings, store, site_key(settings.id_key_path), hold, replaces_lost=False)
            stopping = asyncio.Event()
            running = asyncio.create_task(agent.run_until(stopping))
            try:
                yield
            finally:
                stopping.set()
                try:
                    await running
                finally:
                    await agent.close()
