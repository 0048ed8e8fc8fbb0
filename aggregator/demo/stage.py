"""Stand up the servers of the demo: a hub, two regions as its leaf nodes, a server at each site, links that can be cut.

A region's link is all that connects it: to the hub, and to the agents of its sites.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from nats.aio.client import Client

from aggregator.demo import scenario
from aggregator.demo.directory import DemoDirectory
from aggregator.demo.scenario import REGIONS, SITES
from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerFailed, ServerSettings
from shared.nats.connection import ApiError, ConnectionSettings, RequestFailed, connect, request_json

CONNECT_DEADLINE = 10.0
JOIN_DEADLINE = 60.0
_KEEPER_POLL = 0.1


class Stage:
    """The servers, by name; ``hub_links`` carry a region's leaf connection, ``uplinks`` its agents' connections."""

    def __init__(
        self,
        hub: EmbeddedNats,
        regions: dict[str, EmbeddedNats],
        sites: dict[str, EmbeddedNats],
        hub_links: dict[str, EmbeddedLink],
        uplinks: dict[str, EmbeddedLink],
    ) -> None:
        self.hub = hub
        self.sites = sites
        self._regions = regions
        self._hub_links = hub_links
        self._uplinks = uplinks
        self._stopped: set[str] = set()

    @property
    def uplink_urls(self) -> dict[str, str]:
        return {region: link.url for region, link in self._uplinks.items()}

    @property
    def site_urls(self) -> dict[str, str]:
        return {site: server.url for site, server in self.sites.items()}

    async def cut(self, region: str) -> None:
        """Let neither the hub nor the sites reach a region."""
        await self._hub_links[region].cut()
        await self._uplinks[region].cut()

    async def restore(self, region: str) -> None:
        await self._hub_links[region].restore()
        await self._uplinks[region].restore()

    async def stop_site(self, site: str) -> None:
        """Stop a site's server, and let it be."""
        self._stopped.add(site)
        await self.sites[site].stop()

    async def start_site(self, site: str) -> None:
        """Start a site's server again; raise ServerFailed."""
        await self.sites[site].start()
        self._stopped.discard(site)

    async def keep_running(self, told: Callable[[str], None]) -> None:
        """Start again, for ever, what somebody else ends, as an operator's init system would; raise ServerFailed.

        ``told`` is called with the name of each before it is started.
        """
        kept = {scenario.HUB: self.hub, **self._regions, **self.sites}
        while True:
            for name, server in kept.items():
                if server.has_died and name not in self._stopped:
                    told(name)
                    await server.start()
            await asyncio.sleep(_KEEPER_POLL)


@asynccontextmanager
async def servers(directory: DemoDirectory) -> AsyncIterator[Stage]:
    """Start everything, wait until the hub reaches each region's domain, and stop it all at the end.

    Raise ServerFailed.
    """
    async with AsyncExitStack() as stack:

        async def started(name: str, **settings: object) -> EmbeddedNats:
            wanted = ServerSettings(name=name, store_dir=directory.server(name), **settings)  # type: ignore[arg-type]
            return await stack.enter_async_context(EmbeddedNats(wanted))

        async def linked(target_port: int) -> EmbeddedLink:
            return await stack.enter_async_context(EmbeddedLink(target_port))

        hub = await started(scenario.HUB, domain=scenario.HUB, leaf_port=0)
        hub_links = {region: await linked(hub.leaf_port) for region in REGIONS}
        regions, uplinks = {}, {}
        for region in REGIONS:
            remotes = (LeafRemote(hub_links[region].leaf_url),)
            regions[region] = await started(region, domain=region, sync_always=True, leaf_remotes=remotes)
            uplinks[region] = await linked(regions[region].port)
        sites = {site: await started(site, sync_always=True) for site in SITES}
        await _until_joined(hub)
        yield Stage(hub, regions, sites, hub_links, uplinks)


async def connected(url: str) -> Client:
    """Connect to a server; raise ConnectFailed."""
    return await connect(ConnectionSettings(servers=(url,)), name="muster-demo", deadline=CONNECT_DEADLINE)


async def _until_joined(hub: EmbeddedNats) -> None:
    client = await connected(hub.url)
    try:
        ends_at = asyncio.get_running_loop().time() + JOIN_DEADLINE
        for region in REGIONS:
            while not await _answers(client, region):
                if asyncio.get_running_loop().time() > ends_at:
                    raise ServerFailed(f"the hub does not reach the region {region} within {JOIN_DEADLINE:g} s")
                await asyncio.sleep(0.1)
    finally:
        await client.close()


async def _answers(client: Client, region: str) -> bool:
    try:
        await request_json(client, f"$JS.{region}.API.INFO", None, dict[str, object], deadline=1)
    except (ApiError, RequestFailed):
        return False
    return True
