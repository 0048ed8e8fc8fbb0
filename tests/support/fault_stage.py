"""The stage of the fault schedule: a site and a region with links, an agent on a disk of its own, and its supervisor.

Everything is in reach of the injectors; nothing on it goes wrong by itself.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from shared.embedded_link import EmbeddedLink
from shared.embedded_nats import EmbeddedNats, ServerSettings
from shared.jetstream_api import request_json
from shared.nats_connection import ConnectionSettings, connect
from tests.support import dying_agent
from tests.support.agent_process import AgentProcess
from tests.support.fault_disk import SmallDisk

STREAM = "REGISTRATION"
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
FLEET_SUBJECTS = (*UNHEARD, *(f"{_OF_BLOCK}.{rest}" for rest in ("advisory.retired", "registration", "watermark")))
DEADLINE = 10.0
# Something is always under way on a link that takes its time.
ROUND_TRIP = 0.03
STOP_DEADLINE = 60.0
LOOK_EVERY = 0.05
RESTART_AFTER = 0.3
LONGEST_TRACEBACK = 80
DUPLICATE_WINDOW = 24 * 3_600 * 1_000_000_000

SETTINGS = """
site = "dub1"
region = "eu-west"
name = "dub1-a"
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


class Down(NamedTuple):
    """A time, in microseconds of this machine's clock, in which the site's server provably stored nothing."""

    started_at: int
    ended_at: int


class UnaskedEnd(NamedTuple):
    """The agent ended though nobody ended it."""

    code: int | None
    last_words: str
    disk_was_full: bool


class FaultStage:
    """What faults befall, and what is noted of it."""

    def __init__(
        self,
        directory: Path,
        disk: SmallDisk,
        servers: tuple[EmbeddedNats, EmbeddedNats],
        links: tuple[EmbeddedLink, EmbeddedLink],
    ) -> None:
        self.directory = directory
        self.disk = disk
        self.site, self.region = servers
        self.source_link, self.uplink = links
        self.config_path = directory / "agent.toml"
        self.store_path = disk.path / "agent.db"
        self.agent = AgentProcess(self.config_path, (sys.executable, "-m", dying_agent.__name__))
        self._death_path = directory / "death"
        self.fleet_config: dict[str, object] = {
            "name": FLEET,
            "subjects": ["fleet.>"],
            "duplicate_window": DUPLICATE_WINDOW,
        }
        self.unheard = cycle(UNHEARD)
        self.downs: list[Down] = []
        self.unasked_ends: list[UnaskedEnd] = []
        self.stop_codes: list[int] = []
        self.agent_starts = 0
        self._is_wanted = False
        self._last_start_at = 0

    # The agent

    def start_agent(self) -> None:
        """Start it, and have it started again whenever it ends by itself."""
        self._last_start_at = time.time_ns()
        self.agent.start({dying_agent.DEATH: str(self._death_path)})
        self.agent_starts += 1
        self._is_wanted = True

    def kill_agent(self) -> None:
        """End it at once."""
        self._is_wanted = False
        self.agent.kill()

    async def let_agent_die(self, when: dying_agent.When, patience: float) -> None:
        """Let it die at its next commit, or else when ``patience`` seconds have passed."""
        self._is_wanted = False
        self._death_path.write_text(when)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await self.agent.ended(patience)
        self.agent.kill()
        self._death_path.unlink()

    async def stop_agent(self) -> int:
        """End it as an operator would; give its exit code."""
        self._is_wanted = False
        self.agent.signal(signal.SIGTERM)
        code = await self.agent.ended(STOP_DEADLINE)
        self.stop_codes.append(code)
        return code

    @property
    def agent_is_starting(self) -> bool:
        """Tell whether it was started, and has not written into its database since."""
        return self._is_wanted and self.written_at() < self._last_start_at

    def written_at(self) -> int:
        """Give when the database was written last, in nanoseconds of this machine's clock, 0 where there is none."""
        try:
            return self.store_path.with_name(self.store_path.name + "-wal").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def suspend_agent(self) -> None:
        """Let it do nothing, its connections open."""
        self.agent.signal(signal.SIGSTOP)

    def resume_agent(self) -> None:
        """Let it go on."""
        self.agent.signal(signal.SIGCONT)

    async def supervise(self) -> None:
        """Do what a service manager does: start an agent that ended by itself again, a moment later."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._is_missing:
                code = self.agent.process.returncode
                self.unasked_ends.append(UnaskedEnd(code, _last_words(self.agent.log), self.disk.was_full_lately))
                await asyncio.sleep(RESTART_AFTER)
                # Meanwhile a fault may have ended it in order, or started it.
                if self._is_missing:
                    self.start_agent()

    @property
    def _is_missing(self) -> bool:
        return self._is_wanted and self.agent.process.poll() is not None

    # The site's server

    @contextmanager
    def site_down(self) -> Iterator[None]:
        """Note that the site's server, which was just ended or suspended, stores nothing meanwhile."""
        started_at = _now()
        yield
        self.downs.append(Down(started_at, _now()))


@asynccontextmanager
async def fault_stage(
    directory: Path,
    *,
    atomic: bool,
    copies: bool = True,
    small_disk: bool = True,
    servers_die: bool = True,
    policy: str = POLICY,
) -> AsyncIterator[FaultStage]:
    """Start servers and links, make the streams, write the settings; the agent is not started.

    ``atomic``: whether the region's stream takes atomic batches. ``copies``: whether the agent also copies everything.
    ``small_disk``: whether the store lies on a disk of its own, where this machine permits that. ``servers_die``: where
    they do not, they need not have each message on the disk before they acknowledge it. ``policy``: the thresholds that
    senders are held to.
    """
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(SmallDisk(directory / "disk", is_wanted=small_disk))
        servers = tuple(
            EmbeddedNats(ServerSettings(name=name, store_dir=directory / name, sync_always=servers_die))
            for name in ("site", "region")
        )
        for server in servers:
            await stack.enter_async_context(server)
        site, region = servers
        links = EmbeddedLink(site.port, round_trip=ROUND_TRIP), EmbeddedLink(region.port, round_trip=ROUND_TRIP)
        for link in links:
            await stack.enter_async_context(link)
        await make_stream(site, {"name": STREAM, "subjects": ["registration.>"]})
        stage = FaultStage(directory, disk, (site, region), links)
        stage.fleet_config["allow_atomic"] = atomic
        await make_stream(region, stage.fleet_config)
        settings = SETTINGS + (COPIES if copies else "")
        stage.config_path.write_text(
            settings.format(
                copied=COPIED,
                policy=policy,
                region=links[1].url,
                site=links[0].url,
                store=stage.store_path,
                directory=directory,
            )
        )
        stack.callback(stage.agent.end)
        yield stage


async def make_stream(server: EmbeddedNats, config: dict[str, object]) -> None:
    """Make a stream on a server."""
    client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=DEADLINE)
    try:
        subject = f"$JS.API.STREAM.CREATE.{config['name']}"
        await request_json(client, subject, config, dict[str, object], deadline=DEADLINE)
    finally:
        await client.close()


def _last_words(log: str) -> str:
    """Give a log's last line, or the whole traceback that it ends with."""
    _, traceback, text = log.rpartition("Traceback (most recent call last)")
    return traceback + text if text.count("\n") < LONGEST_TRACEBACK and traceback else "".join(log.splitlines()[-1:])


def _now() -> int:
    return time.time_ns() // 1000
