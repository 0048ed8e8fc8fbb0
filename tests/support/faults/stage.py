"""The stage of the fault schedule: a site and a region with links, an agent on a disk of its own, and its supervisor.

Everything is in reach of the injectors; nothing on it goes wrong by itself.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from edge_agent.store.site_key import site_key
from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.nats.connection import ConnectionSettings, connect
from shared.nats.jetstream_api import request_json
from tests.support.faults.disk import SmallDisk
from tests.support.faults.supervised_agent import SupervisedAgent

STREAM = "REGISTRATION"
STREAM_SUBJECTS = ["registration.>"]
PROBE = "registration.probe"
# Two of them: what the region's stream does not take must hold up what comes behind it, whatever its subject.
COPIED_SUBJECTS = ("registration.copied.a", "registration.copied.b")
COPIED = "registration.copied.>"
FLEET = "FLEET"
_OF_BLOCK = "fleet.*.*.*"
# What its stream may not listen on for a while, in turn.
UNHEARD = (
    f"{_OF_BLOCK}.advisory.stale",
    f"{_OF_BLOCK}.copy.{COPIED_SUBJECTS[0]}",
    f"{_OF_BLOCK}.advisory.recovered",
    f"{_OF_BLOCK}.copy.{COPIED_SUBJECTS[1]}",
    f"{_OF_BLOCK}.advisory.new",
)
# What somebody else may take. No copies: these go one after the other, and would wait for a minute each time.
ASTRAY = tuple(subject for subject in UNHEARD if ".advisory." in subject)
FLEET_SUBJECTS = (*UNHEARD, *(f"{_OF_BLOCK}.{rest}" for rest in ("advisory.retired", "registration", "watermark")))
DEADLINE = 10.0
# Something is always under way on a link that takes its time.
ROUND_TRIP = 0.03
DUPLICATE_WINDOW = 24 * 3_600 * 1_000_000_000

SETTINGS = """
site = "{named.site}"
region = "{named.region}"
name = "{name}"
[upstream]
servers = ["{region}"]
id_key_file = "{directory}/id.key"
[store]
path = "{store}"
[watermark]
interval = "500ms"
[monitor]
listen = ""
[[stream]]
name = "nodes"
[stream.source]
servers = ["{site}"]
stream = "REGISTRATION"
settle = "200ms"
probe_subject = "{probe}"
[stream.sender]
json_path = "sender"
[stream.policy]
force_path = "urgent"
{policy}
"""
POLICY = """
sample_interval = "2s"
stale_after = "3s"
retire_after = "8s"
blind_after = "1300ms"
"""
COPIES = """
[[stream]]
name = "copies"
mode = "copy"
[stream.source]
servers = ["{site}"]
stream = "REGISTRATION"
filter_subject = "{copied}"
settle = "200ms"
"""


PAIR = """
[pair]
members = ["{named.site}-a", "{named.site}-b"]
takeover_after = "1s"
hand_over_after = "1s"
"""
SPARES_LEADER = 0.25
"""The part of the agents' faults that befall the member that stands by."""


class Down(NamedTuple):
    """A time, in microseconds of its own clock, in which the site's server provably stored nothing.

    ``refuses``: it worked, and stored nothing that it was sent, or nothing on ``subject`` where that is named.
    """

    started_at: int
    ended_at: int
    refuses: bool = False
    subject: str = ""


class Named(NamedTuple):
    """What the stage's place is called."""

    region: str = "eu-west"
    site: str = "dub1"


HERE = Named()


class Habits:
    """What senders do that is a fault of theirs; they look here before they publish.

    ``malforms`` names the way in which half of them write their bodies, "" for none. ``oversized`` are subjects on
    which a message of the largest size that the server takes is to be published, less some bytes, each once.
    """

    def __init__(self) -> None:
        self.malforms = ""
        self.oversized: deque[tuple[str, int]] = deque()


class FaultStage:
    """What faults befall, and what is noted of it."""

    def __init__(
        self,
        directory: Path,
        disk: SmallDisk,
        servers: tuple[EmbeddedNats, EmbeddedNats],
        uplink: EmbeddedLink,
        agents: tuple[SupervisedAgent, ...],
    ) -> None:
        self.directory = directory
        self.disk = disk
        self.servers = servers
        self.site, self.region = servers
        self.uplink = uplink
        self.agents = agents
        self.fleet_config: dict[str, object] = {
            "name": FLEET,
            "subjects": ["fleet.>"],
            "duplicate_window": DUPLICATE_WINDOW,
        }
        self.unheard = cycle(UNHEARD)
        self.astray = cycle(ASTRAY)
        self.downs: list[Down] = []
        self.shown_twice: list[tuple[int, int]] = []
        self.habits = Habits()
        self._shown_through = 0

    # The agents: one, or two of which one leads

    @property
    def is_pair(self) -> bool:
        """Tell whether two agents serve the site."""
        return len(self.agents) > 1

    @property
    def speaker(self) -> SupervisedAgent:
        """Give the agent that uploads, as far as it has said."""
        return next((agent for agent in self.agents if agent.leads), self.agents[0])

    @property
    def store_path(self) -> Path:
        """Name the store of the agent that uploads."""
        return self.speaker.store_path

    @property
    def config_path(self) -> Path:
        """Name the settings of the agent that uploads."""
        return self.speaker.config_path

    def victim(self, detail: float) -> SupervisedAgent:
        """Choose whom a fault befalls: of two mostly the one that leads."""
        speaker = self.speaker
        others = [agent for agent in self.agents if agent is not speaker]
        return others[0] if others and detail * 10 % 1 < SPARES_LEADER else speaker

    def start_agent(self) -> None:
        """Start it, or both."""
        for agent in self.agents:
            agent.start()

    async def stop_agent(self) -> int:
        """End all as an operator would, the one that uploads last; give its exit code."""
        speaker = self.speaker
        for agent in self.agents:
            if agent is not speaker:
                await agent.stop()
        return await speaker.stop()

    async def supervise(self) -> None:
        """Start agents again that end by themselves."""
        async with asyncio.TaskGroup() as tasks:
            for agent in self.agents:
                tasks.create_task(agent.supervise())

    # The site's server

    @contextmanager
    def site_ahead(self, by: int) -> Iterator[None]:
        """Note that the clock of the site's server, set back at the end, is ahead of this machine's by microseconds."""
        yield
        now = _now()
        self._shown_through = now + by
        # It was set back a moment ago.
        self.shown_twice.append((now - by // 10, now + by))

    @contextmanager
    def site_down(self, *, refuses: bool = False, subject: str = "") -> Iterator[None]:
        """Note that the site's server, which was just ended, suspended or made to refuse, stores nothing meanwhile.

        Of a time that its clock had shown before nobody can tell: it goes by twice.
        """
        started_at = max(_now(), self._shown_through)
        yield
        self.downs.append(Down(started_at, _now(), refuses, subject))


@asynccontextmanager
async def fault_stage(
    directory: Path,
    *,
    atomic: bool,
    copies: bool = True,
    small_disk: bool = True,
    servers_die: bool = True,
    policy: str = POLICY,
    pair: bool = False,
    site_storage: str = "",
) -> AsyncIterator[FaultStage]:
    """Start servers and links, make the streams, write the settings; the agent is not started.

    ``atomic``: whether the region's stream takes atomic batches. ``copies``: whether the agent also copies everything.
    ``small_disk``: whether the store lies on a disk of its own, where this machine permits that. ``servers_die``: where
    they do not, they need not have each message on the disk before they acknowledge it. ``policy``: the thresholds that
    senders are held to. ``pair``: whether two agents serve the site, the second with a store on the usual disk, each
    with a link of its own to the region, behind the one that both share. ``site_storage``: the most that the site's
    server may store.
    """
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(SmallDisk(directory / "disk", is_wanted=small_disk))
        servers = tuple(
            EmbeddedNats(
                ServerSettings(name=name, store_dir=directory / name, sync_always=servers_die, max_file=storage)
            )
            for name, storage in (("site", site_storage), ("region", ""))
        )
        for server in servers:
            await stack.enter_async_context(server)
        site, region = servers
        uplink = await stack.enter_async_context(EmbeddedLink(region.port, round_trip=ROUND_TRIP))
        await make_stream(site, {"name": STREAM, "subjects": STREAM_SUBJECTS})
        agents = await agents_between(stack, directory, disk, site, uplink, pair=pair, copies=copies, policy=policy)
        stage = FaultStage(directory, disk, (site, region), uplink, agents)
        stage.fleet_config["allow_atomic"] = atomic
        await make_stream(region, stage.fleet_config)
        yield stage


async def agents_between(
    stack: AsyncExitStack,
    directory: Path,
    disk: SmallDisk,
    site: EmbeddedNats,
    uplink: EmbeddedLink,
    *,
    pair: bool,
    copies: bool,
    policy: str,
    named: Named = HERE,
) -> tuple[SupervisedAgent, ...]:
    """Give a site its agent, or two, and their links; they end with ``stack``."""
    agents: list[SupervisedAgent] = []
    for member in ("a", "b") if pair else ("a",):
        name = f"{named.site}-{member}"
        link = await stack.enter_async_context(EmbeddedLink(site.port, round_trip=ROUND_TRIP))
        own = await stack.enter_async_context(EmbeddedLink(uplink.port)) if pair else uplink
        place = disk.path if not agents else directory / name
        place.mkdir(exist_ok=True)
        agent = SupervisedAgent(
            directory / f"{name}.toml", place / "agent.db", (link, own), lambda: disk.was_full_lately
        )
        settings = SETTINGS + (COPIES if copies and not pair else "") + (PAIR if pair else "")
        agent.config_path.write_text(
            settings.format(
                named=named,
                name=name,
                copied=COPIED,
                probe=PROBE,
                policy=policy,
                region=own.url,
                site=link.url,
                store=agent.store_path,
                directory=directory,
            )
        )
        stack.callback(agent.process.end)
        agents.append(agent)
    # Both members have the same; which of them starts first is not to matter.
    site_key(directory / "id.key")
    return tuple(agents)


async def make_stream(server: EmbeddedNats, config: dict[str, object]) -> None:
    """Make a stream on a server."""
    client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=DEADLINE)
    try:
        subject = f"$JS.API.STREAM.CREATE.{config['name']}"
        await request_json(client, subject, config, dict[str, object], deadline=DEADLINE)
    finally:
        await client.close()


def _now() -> int:
    return time.time_ns() // 1000
