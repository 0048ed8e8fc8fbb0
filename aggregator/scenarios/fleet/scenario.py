"""Choria fleet streams: nodes of two cities, their region and the centre, each fresh to another measure.

Source: "Stream Replicator 0.5.0", the announcement of Choria's replicator. Here the cities' agents are Muster's, and so
is the region's, which relays; one more city still runs Choria's own replicator.
"""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from aggregator.scenarios.fleet import copies, plain
from aggregator.scenarios.fleet import levels as at_levels
from aggregator.scenarios.fleet.agents import (
    REGION,
    RELAY,
    STALE_MINUTES,
    Agents,
    agents,
    city_settings,
    relay_settings,
)
from aggregator.scenarios.fleet.layout import CITY_STREAMS, LAKEHOUSE, TREE_STREAMS
from aggregator.scenarios.fleet.levels import Levels
from aggregator.scenarios.fleet.nodes import INTERVAL, Nodes, here
from aggregator.scenarios.fleet.records import NodeKey, read
from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import Topology, connected, nats_command
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings

CITIES = ("dub1", "lon1")
NODES = tuple(f"web{number}.example.net" for number in range(1, 9))
SILENT = ("dub1", NODES[-1])
GONE = ("lon1", NODES[0])
_OFF_THE_LINK = 'deny_exports: "fleet.>", deny_imports: "fleet.>"'
"""Where two levels are one account, relayed records would else come back down, and the cities' go past the relay."""


async def play(directory: Path, narrator: Narrator) -> None:
    """Play it in ``directory``: the settings of streams, agents and a rollup, and the agents' stores, stay there."""
    narrator.chapter("Two cities, their region, and the centre, of which the region is a leaf node")
    async with AsyncExitStack() as stack:

        async def started(name: str, **more: Any) -> EmbeddedNats:
            settings = ServerSettings(name=name, store_dir=directory / "servers" / name, **more)
            return await stack.enter_async_context(EmbeddedNats(settings))

        *city_servers, centre = await asyncio.gather(
            *map(started, CITIES), started("centre", domain="centre", leaf_port=0)
        )
        remote = LeafRemote(centre.leaf_url, _OFF_THE_LINK)
        region = await started(REGION, domain=REGION, leaf_remotes=(remote,))
        at_centre, at_region = [await stack.enter_async_context(connected(each.url)) for each in (centre, region)]
        at_cities = [await stack.enter_async_context(connected(each.url)) for each in city_servers]
        levels = Levels(dict(zip(CITIES, at_cities, strict=True)), at_region, at_centre)
        await narrator.comes("the centre reaches the region's JetStream", lambda: at_centre.reaches(REGION), True)
        topology = await _lay_out(directory, city_servers, centre, narrator)
        await copies.publish(levels)

        crew = await stack.enter_async_context(agents(directory / "agents"))
        for city, server in zip(CITIES, city_servers, strict=True):
            await crew.start(city, city_settings(city, server.url, region.url))
        await crew.start(RELAY, relay_settings(region.url, centre.url))
        fleets = {city: Nodes(levels.cities[city], NODES) for city in CITIES}
        for nodes in fleets.values():
            await stack.enter_async_context(nodes.registering())
        await _announce(levels, narrator)
        await _watch(levels, fleets, crew, narrator)
        await at_levels.freshness(levels, {SILENT, GONE}, narrator)
        retired = ["new", "stale", "retired"]
        await narrator.comes("the node that never came back is given up", partial(_kinds_of, levels, GONE), retired)
        await narrator.comes("and watermarks vouch for all that was said", levels.all_is_vouched_for, True)
        await copies.judge(levels, narrator)
        narrator.show("told to end, the agents end well (exit codes)", await crew.end(), [0, 0, 0])
        await plain.play(at_centre, narrator)
        await at_levels.judge(levels, SILENT, GONE, narrator)
        lakehouse = directory / "aggregator.toml"
        interval = here(INTERVAL) // 1000
        lakehouse.write_text(LAKEHOUSE.format(centre=centre.url, interval=interval), encoding="utf-8")
        await narrator.stay(
            f"muster-aggregator rollup --config {lakehouse}",
            topology.way,
            nats_command(centre.url, "stream report"),
            nats_command(centre.url, "--js-domain eu stream report"),
            *(nats_command(each.url, "stream report") for each in city_servers),
        )


async def _lay_out(directory: Path, cities: list[EmbeddedNats], centre: EmbeddedNats, narrator: Narrator) -> Topology:
    narrator.chapter("The streams: muster-aggregator apply, for each city and for the tree above")
    for city, server in zip(CITIES, cities, strict=True):
        head = f'[hub]\nservers = ["{server.url}"]\n'
        await Topology(directory / f"topology-{city}.toml", head, narrator.sentence).apply(CITY_STREAMS)
    head = f'[hub]\nservers = ["{centre.url}"]\ndomain = "centre"\n'
    topology = Topology(directory / "topology.toml", head, narrator.sentence)
    await topology.apply(TREE_STREAMS)
    narrator.show("doing it again changes", len((await topology.apply()).changes), 0)
    await narrator.comes("each copy hears from its origin", topology.all_copies_hear, True)
    return topology


async def _announce(levels: Levels, narrator: Narrator) -> None:
    narrator.chapter("Every five minutes each node registers: the cities' agents announce them, up to the centre")
    everyone = sorted((city, name) for city in CITIES for name in NODES)

    async def announced() -> int:
        return len(await levels.kinds_at_centre())

    await narrator.comes("the centre knows everyone (nodes)", announced, len(everyone))
    is_everyone = sorted(await levels.kinds_at_centre()) == everyone
    narrator.show("a name that stands in both cities is two nodes", is_everyone, True)

    async def sampled() -> int:
        return len({record.node for record in await read(levels.centre.client, "FLEET")})

    await narrator.comes("and has a registration of each", sampled, len(everyone))


async def _kinds_of(levels: Levels, node: NodeKey) -> list[str]:
    return (await levels.kinds_at_centre())[node]


async def _watch(levels: Levels, fleets: dict[str, Nodes], crew: Agents, narrator: Narrator) -> None:
    narrator.chapter(
        f"A node of dub1 falls silent for {STALE_MINUTES} minutes, one of lon1 for good;"
        " the relay is killed (kill -9), and back"
    )
    for city, name in (SILENT, GONE):
        fleets[city].silent.add(name)
    await crew.kill(RELAY)
    kinds = partial(_kinds_of, levels, SILENT)
    await narrator.comes("the centre hears of it all the same: sources carry advisories", kinds, ["new", "stale"])
    fleets[SILENT[0]].silent.clear()
    await crew.start_again(RELAY)
    await narrator.comes("and that it is back", kinds, ["new", "stale", "recovered"])
