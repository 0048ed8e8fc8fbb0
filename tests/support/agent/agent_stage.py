"""A site and a region with real servers and links between them, nodes that register, and an agent's settings."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from shared.embedded.server import LeafRemote
from tests.support.delivery.fleet_region import Region, running_region
from tests.support.nats.source_site import STREAM, Site, running_site

REGISTER_EVERY = 0.25


class Stage:
    """Both servers, and where the agent's files are."""

    def __init__(self, site: Site, region: Region, config_path: Path) -> None:
        self.site = site
        self.region = region
        self.config_path = config_path
        self.store_path = config_path.with_suffix(".db")

    def write_settings(self, *, policy: str = "", **options: str) -> Path:
        """Write the agent's settings; everything is a hundred times faster than in earnest."""
        text = SETTINGS.format(
            region=self.region.link.url,
            site=self.site.link.url,
            stream=STREAM,
            store=self.store_path,
            policy=policy,
            listen=options.pop("listen", ""),
            id_key_file=options.pop("id_key_file", ""),
            probe=options.pop("probe", "true"),
        )
        assert not options, options
        self.config_path.write_text(text)
        return self.config_path


SETTINGS = """
site = "dub1"
region = "eu-west"
name = "dub1-a"
[upstream]
servers = ["{region}"]
id_key_file = "{id_key_file}"
[store]
path = "{store}"
[watermark]
interval = "500ms"
[monitor]
listen = "{listen}"
[[stream]]
name = "nodes"
[stream.source]
servers = ["{site}"]
stream = "{stream}"
settle = "300ms"
probe = {probe}
[stream.sender]
json_path = "sender"
[stream.policy]
stale_after = "4s"
retire_after = "1h"
blind_after = "1500ms"
{policy}
"""


@asynccontextmanager
async def agent_stage(directory: Path, leaf_remote: LeafRemote | None = None, **options: str) -> AsyncIterator[Stage]:
    """Start a site's and a region's servers, with their streams; the site, with a domain of its own, as a leaf node."""
    async with AsyncExitStack() as stack:
        domain, remotes = ("site", (leaf_remote,)) if leaf_remote else ("", ())
        site = await stack.enter_async_context(running_site(directory, domain=domain, leaf_remotes=remotes))
        await site.make_stream()
        region = await stack.enter_async_context(running_region(directory, domain="eu-west"))
        await region.make_stream()
        stage = Stage(site, region, directory / "agent.toml")
        stage.write_settings(**options)
        yield stage


class Nodes:
    """Nodes that register every quarter of a second until they fall silent."""

    def __init__(self, site: Site, names: Iterable[str]) -> None:
        self._site = site
        self.living = set(names)
        self.published = 0

    def fall_silent(self, *names: str) -> None:
        """Let some register no more."""
        self.living -= set(names)

    def speak_up(self, *names: str) -> None:
        """Let some register, new or again."""
        self.living |= set(names)

    async def register_for_ever(self) -> None:
        """Publish what nodes say, as nodes do: without waiting for anybody."""
        while True:
            for name in sorted(self.living):
                self.published += 1
                body = {"sender": name, "number": self.published}
                await self._site.client.publish(f"registration.{name}", msgspec.json.encode(body))
            await asyncio.sleep(REGISTER_EVERY)


@asynccontextmanager
async def registering(site: Site, *names: str) -> AsyncIterator[Nodes]:
    """Let nodes register while the block runs."""
    nodes = Nodes(site, names)
    task = asyncio.create_task(nodes.register_for_ever())
    try:
        yield nodes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
