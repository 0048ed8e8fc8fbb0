"""The stage of a soak: three sites, one of them with a pair, two regions, a relay above one, a hub with all it runs.

Sites and agents are the fault schedule's, so that its faults befall them and its judge judges them.
"""

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, ServerSettings
from tests.bench.children import Child
from tests.support.faults.disk import SmallDisk
from tests.support.faults.schedule import RULES, FaultKind, Target
from tests.support.faults.stage import (
    ROUND_TRIP,
    STREAM,
    STREAM_SUBJECTS,
    FaultStage,
    Named,
    agents_between,
    make_stream,
)
from tests.support.faults.supervised_agent import SupervisedAgent
from tests.support.lakehouse.quick_spark import spark_block
from tests.support.nats.free_ports import free_ports
from tests.support.topology.aggregator_command import ran
from tests.support.topology.regions import Federation, client_of, federation, stream
from tests.support.topology.two_sites import PROGRAMS

SITES = {"dub1": "eu-west", "lon1": "eu-west", "nyc1": "us-east"}
PAIR = "dub1"
RELAYED = "eu-west"
PACE = 10.0
"""How much more slowly than in the fault schedule everybody lives, and how much longer its faults last."""
POLICY = """
sample_interval = "20s"
stale_after = "30s"
retire_after = "80s"
blind_after = "13s"
"""
SPEAKS_OF_REGION = {"eu-west": "dub1", "us-east": "nyc1"}
"""A region is befallen by the faults of one of its sites' schedules."""
UNFIT = {FaultKind.REGION_DEAF, FaultKind.REGION_SWALLOWED}
"""FLEET listens on what other regions say, too, or somebody answers for all: not where regions are joined."""
DISK, DISK_PER_HOUR = 96, 16
STORAGE, STORAGE_PER_HOUR = 64, 256
"""Megabytes."""

RELAY = """
site = "above"
region = "{region}"
name = "above-a"
[upstream]
servers = ["{upstream}"]
[store]
path = "{store}"
[monitor]
listen = ""
[[stream]]
name = "up"
mode = "relay"
[stream.source]
servers = ["{source}"]
stream = "FLEET"
[stream.sender]
json_path = "sender"
[stream.policy]
sample_interval = "55s"
"""
AGGREGATOR = """
[hub]
servers = ["{hub}"]
domain = "hub"
[lakehouse]
path = "tables"
registration_interval = "6s"
[live]
listen = "127.0.0.1:{port}"
path = "live.db"
unknown_after = "20s"
{spark}"""


class Soak:
    """Everything that runs; the live service and the agents are not started."""

    def __init__(
        self,
        directory: Path,
        servers: Federation,
        centre: EmbeddedNats,
        sites: dict[str, FaultStage],
        relay: SupervisedAgent,
        live: Child,
    ) -> None:
        self.directory = directory
        self.aggregator_path = directory / "aggregator.toml"
        self.servers = servers
        self.centre = centre
        self.sites = sites
        self.relay = relay
        self.live = live
        self.live_is_wanted = False

    def start_live(self) -> None:
        """Start the live service."""
        self.live.start()
        self.live_is_wanted = True

    async def end_live(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it."""
        self.live_is_wanted = False
        await self.live.end(number)


def kinds_left_out(site: str) -> set[FaultKind]:
    """Say which faults do not befall a site."""
    is_spared = site not in SPEAKS_OF_REGION.values()
    return UNFIT | {kind for kind, rule in RULES.items() if is_spared and rule.target is Target.REGION}


@asynccontextmanager
async def soak_stage(directory: Path, hours: float) -> AsyncIterator[Soak]:
    """Start servers and links, lay out the streams, write the settings; end everything."""
    async with AsyncExitStack() as stack:
        named = "".join(f'[[site]]\nname = "{site}"\nregion = "{region}"\n' for site, region in SITES.items())
        servers = await stack.enter_async_context(federation(directory, extra_toml=f"[policy]\n{named}"))
        await ran("apply", "--config", servers.topology_path)
        sites = {name: await _site(stack, directory / name, servers, name, hours) for name in SITES}
        centre = EmbeddedNats(ServerSettings(name="centre", store_dir=directory / "centre", sync_always=True))
        await stack.enter_async_context(centre)
        subjects = ["fleet.*.*.*.registration"]
        await make_stream(centre, {"name": "FLEET", "subjects": subjects, "allow_atomic": True})
        relay = await _relay(stack, directory / "above", servers.regions[RELAYED], centre)
        (port,) = free_ports(1)
        (directory / "aggregator.toml").write_text(
            AGGREGATOR.format(hub=servers.hub.url, port=port, spark=spark_block())
        )
        command = [str(PROGRAMS / "muster-aggregator"), "serve", "--config", str(directory / "aggregator.toml")]
        live = Child(command, directory / "live.log")
        stack.push_async_callback(live.end)
        yield Soak(directory, servers, centre, sites, relay, live)


async def _site(stack: AsyncExitStack, directory: Path, servers: Federation, name: str, hours: float) -> FaultStage:
    named = Named(SITES[name], name)
    disk = stack.enter_context(SmallDisk(directory / "disk", size=f"{DISK + DISK_PER_HOUR * hours:.0f}m"))
    storage = f"{STORAGE + STORAGE_PER_HOUR * hours:.0f}MB"
    settings = ServerSettings(name=name, store_dir=directory / "server", sync_always=True, max_file=storage)
    site = await stack.enter_async_context(EmbeddedNats(settings))
    await make_stream(site, {"name": STREAM, "subjects": STREAM_SUBJECTS})
    region = servers.regions[named.region]
    uplink = await stack.enter_async_context(EmbeddedLink(region.port, round_trip=ROUND_TRIP))
    agents = await agents_between(
        stack, directory, disk, site, uplink, pair=name == PAIR, copies=True, policy=POLICY, named=named
    )
    stage = FaultStage(directory, disk, (site, region), uplink, agents)
    async with await client_of(region) as client:
        stage.fleet_config = (await stream(client, "FLEET"))["config"]
    return stage


async def _relay(stack: AsyncExitStack, directory: Path, below: EmbeddedNats, above: EmbeddedNats) -> SupervisedAgent:
    directory.mkdir()
    links = [await stack.enter_async_context(EmbeddedLink(server.port)) for server in (below, above)]
    relay = SupervisedAgent(directory / "agent.toml", directory / "agent.db", (links[0], links[1]), lambda: False)
    relay.config_path.write_text(
        RELAY.format(region=RELAYED, upstream=links[1].url, source=links[0].url, store=relay.store_path)
    )
    stack.callback(relay.process.end)
    return relay
