"""Run the agents of a fleet's tree, as processes: one in each city that samples and watches, one above that relays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aggregator.demo.processes import Child
from aggregator.demo.story import muster
from aggregator.scenarios.fleet.nodes import here
from shared.settings import quoted

REGION = "eu"
BLOCK = "nodes"
RELAY = "eu-relay"

CITY_MINUTES = 28
"""A little less than half an hour: every sixth registration of a node goes on."""
RELAY_MINUTES = 56
"""A little less than an hour: every second sample of a city goes on."""
STALE_MINUTES = 40
RETIRED_MINUTES = 300
_BLIND_MINUTES = 19
_ENDS_WITHIN = 60.0


class Agents:
    """Agents by their site's names, each in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: dict[str, Child] = {}

    async def start(self, site: str, settings: str) -> None:
        """Write an agent's settings and start it; raise CommandFailed."""
        place = self._directory / site
        place.mkdir(parents=True)
        (place / "agent.toml").write_text(settings, encoding="utf-8")
        await self.start_again(site)

    async def start_again(self, site: str) -> None:
        """Start an agent on the settings and the store that it has; raise CommandFailed."""
        place = self._directory / site
        command = muster("muster-agent", "run", "--config", place / "agent.toml")
        self._children[site] = await Child.start(f"the agent of {site}", command, log=place / "agent.log")

    async def kill(self, site: str) -> None:
        await self._children.pop(site).kill()

    async def end(self) -> list[int]:
        """Ask all to end; give their exit codes."""
        leaving, self._children = list(self._children.values()), {}
        return await asyncio.gather(*(child.end(_ENDS_WITHIN) for child in leaving))


@asynccontextmanager
async def agents(directory: Path) -> AsyncIterator[Agents]:
    """Have agents, and none left at the end."""
    hired = Agents(directory)
    try:
        yield hired
    finally:
        await hired.end()


def city_settings(site: str, city_url: str, region_url: str) -> str:
    """Write the settings of a city's agent: it reads what Choria's adapters store, and copies another stream whole."""
    block = _block("sample", city_url, "CHORIA_REGISTRATION", CITY_MINUTES)
    watching = {"stale_after": STALE_MINUTES, "retire_after": RETIRED_MINUTES, "blind_after": _BLIND_MINUTES}
    lines = [f'{key} = "{_duration(minutes)}"' for key, minutes in watching.items()]
    return _agent(site, region_url) + block + "\n".join(lines) + "\n" + _copying(site, city_url)


def relay_settings(region_url: str, centre_url: str) -> str:
    """Write the settings of the region's relay: it reads what the cities' agents sent."""
    return _agent(RELAY, centre_url) + _block("relay", region_url, "FLEET", RELAY_MINUTES)


def _agent(site: str, upstream_url: str) -> str:
    return f"""\
site = {quoted(site)}
region = {quoted(REGION)}
name = {quoted(f"{site}-a")}

[upstream]
servers = [{quoted(upstream_url)}]

[store]
path = "agent.db"

[watermark]
interval = "500ms"

[monitor]
listen = ""
"""


def _block(mode: str, source_url: str, stream: str, sample_minutes: float) -> str:
    return f"""
[[stream]]
name = {quoted(BLOCK if mode == "sample" else "up")}
mode = {quoted(mode)}

[stream.source]
servers = [{quoted(source_url)}]
stream = {quoted(stream)}
settle = "200ms"

[stream.sender]
json_path = "sender"

[stream.policy]
sample_interval = "{_duration(sample_minutes)}"
"""


def _copying(site: str, source_url: str) -> str:
    return f"""
[[stream]]
name = "lifecycle"
mode = "copy"

[stream.source]
servers = [{quoted(source_url)}]
stream = "LIFECYCLE"

[stream.target]
prefix = {quoted(site)}
remove = "choria"
"""


def _duration(minutes: float) -> str:
    return f"{here(minutes) // 1000}ms"
