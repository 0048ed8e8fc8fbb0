"""Open the connections through which places are asked, and say how long an answer may take.

Regions are asked through the hub's connection by their domain; sites, where their server is given, through their own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from nats.aio.client import Client

from aggregator.topology.desired.model import HUB
from aggregator.topology.desired.settings import TopologySettings
from shared.nats.connection import ConnectFailed, connect

CONNECT_DEADLINE = 5.0
REQUEST_DEADLINE = 5.0

Connections = dict[str, Client | str]


@asynccontextmanager
async def connections(topology: TopologySettings) -> AsyncIterator[Connections]:
    """Open the connections of hub, sites and accounts, by name; instead of one that failed stands why, in one line."""
    wanted = {HUB: topology.hub} | topology.servers

    async with AsyncExitStack() as stack:

        async def opened(name: str) -> Client | str:
            try:
                client = await connect(wanted[name], name="muster-aggregator", deadline=CONNECT_DEADLINE)
            except ConnectFailed as error:
                return str(error)
            return await stack.enter_async_context(client)

        clients = await asyncio.gather(*(opened(name) for name in wanted))
        yield dict(zip(wanted, clients, strict=True))
