"""Run the real agent as a process between a real site and a real region, and let senders register at the site."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors

from edge_agent.config.agent import load
from edge_agent.observability.status_report import StatusReport, read_status
from edge_agent.store.read_only import StoreUnreadable
from shared.command_line.terminal import json_text
from shared.embedded.server import dies_with
from shared.settings import SettingsError
from shared.wire import Advisory, Watermark
from tests.support.agent.mode_settings import ABOVE_BLOCKS, SAMPLING, block
from tests.support.delivery.fleet_region import Region, running_region
from tests.support.nats.free_ports import free_ports
from tests.support.nats.source_site import SUBJECT, Site, running_site
from tests.support.waiting import until

COMMAND = str(Path(sys.executable).with_name("muster-agent"))
DEADLINE = 180.0

SETTINGS = ABOVE_BLOCKS + block("nodes", "sample", SAMPLING)
# Where instants are asserted: proofs may be late on a busy machine without making a blind span.
UNHURRIED = SETTINGS.replace('stale_after = "4s"', 'stale_after = "8s"').replace(
    'blind_after = "1500ms"', 'blind_after = "3900ms"'
)
UNHURRIED_STALE_AFTER = 8_000_000
STALE_AFTER = 4_000_000
BLIND_AFTER = 1_500_000


class AgentProcess:
    """``muster-agent`` on one settings file: started, killed, suspended and asked at will.

    ``program`` is what runs it, where that is not the command itself.
    """

    def __init__(self, config: Path, program: Sequence[str] = (COMMAND,)) -> None:
        self.config = config
        self._program = program
        self.store = config.with_name("agent.db")
        self.log_path = config.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, with its output in the log."""
        assert not self.is_running
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._program, "run", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one system call, nothing that could deadlock
            )

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Give the process that was started last."""
        assert self._process is not None
        return self._process

    @property
    def is_running(self) -> bool:
        """True if the process lives; a suspended one does."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def suspend(self) -> None:
        """Stop it for a while, with its connections open (SIGSTOP)."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended process (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.process.kill()
        self.process.wait()

    async def stop(self) -> int:
        """Ask it to end (SIGTERM); return its exit code."""
        self.process.terminate()
        return await self.ended()

    async def stopped(self) -> None:
        """Tell it to end, and wait until it has, well."""
        assert await self.stop() == 0, self.log

    async def ended(self, deadline: float = DEADLINE) -> int:
        """Wait until it has ended; give its exit code."""
        return await asyncio.to_thread(self.process.wait, deadline)

    def end(self) -> None:
        """Leave nothing behind."""
        if self.is_running:
            self.kill()

    @property
    def log(self) -> str:
        """Give what it has written."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    async def run_command(self, *arguments: str) -> tuple[int, str, str]:
        """Run another command of the agent's; give its exit code and what it wrote on stdout and stderr."""
        process = await asyncio.create_subprocess_exec(
            COMMAND, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = await asyncio.wait_for(process.communicate(), DEADLINE)
        return process.returncode or 0, output.decode(), errors.decode()

    async def command(self, name: str, *options: str) -> tuple[int, str, str]:
        """Run another command on the same settings; return the same."""
        return await self.run_command(name, "--config", str(self.config), *options)

    async def status(self) -> str:
        """Give what ``muster-agent status`` shows."""
        code, output, errors = await self.command("status")
        return output if code == 0 else errors

    async def report(self) -> StatusReport | None:
        """Read the status in this process, as ``muster-agent status --json`` does; None while there is none."""
        try:
            report = await asyncio.to_thread(read_status, Path(load(self.config).store.path))
        except (SettingsError, StoreUnreadable):
            return None
        return msgspec.json.decode(json_text(report), type=StatusReport)

    async def status_json(self) -> dict[str, Any]:
        """Give what ``muster-agent status --json`` shows; empty while there is none.

        It is asked again and again: of an agent that is a process of its own it is read here, without one more.
        """
        if self._process is None:
            code, output, _ = await self.command("status", "--json")
            return dict(json.loads(output)) if code == 0 else {}
        try:
            report = await asyncio.to_thread(read_status, Path(load(self.config).store.path))
        except (SettingsError, StoreUnreadable):
            return {}
        return dict(json.loads(json_text(report)))


@asynccontextmanager
async def agent_process(config: Path) -> AsyncIterator[AgentProcess]:
    """Start an agent; it does not outlive the test."""
    agent = AgentProcess(config)
    try:
        agent.start()
        yield agent
    finally:
        agent.end()


class Deployment:
    """A site, its region and the agent between them, which reaches either over a link."""

    def __init__(self, site: Site, region: Region, agent: AgentProcess) -> None:
        self.site = site
        self.region = region
        self.agent = agent

    async def advisories(self) -> list[Advisory]:
        """Give the region's advisories, in the order of its stream."""
        return await self.region.advisories()

    async def watermarks(self) -> list[Watermark]:
        """Give the region's watermarks, in the order of its stream."""
        return await self.region.watermarks()

    async def last_watermark(self) -> Watermark | None:
        """Give the region's newest watermark; fail where the agent has ended."""
        assert self.agent.process.poll() in (None, -signal.SIGKILL), self.agent.log
        watermarks = await self.watermarks()
        return watermarks[-1] if watermarks else None

    async def until_observed(self, through: int = 0, deadline: float = DEADLINE) -> Watermark:
        """Wait until the region has a watermark whose coverage reaches an instant; give it."""
        found: list[Watermark] = []

        async def reaches() -> bool:
            watermark = await self.last_watermark()
            if watermark is None or watermark.observed_through_us < through:
                return False
            found.append(watermark)
            return True

        await until(reaches, f"a watermark reaches {through}", deadline)
        return found[-1]

    async def site_time(self) -> int:
        """Ask the site's server for its time, in microseconds."""
        return await self.site.time()

    @asynccontextmanager
    async def senders(
        self,
        names: Iterable[str],
        interval: float = 0.25,
        subject: str = SUBJECT,
        size: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[None]:
        """Let senders register every ``interval`` seconds; what cannot be stored is not stored later.

        They come back as soon as their server does: senders that stay away longer than that are rightly stale.
        """

        async def note(_error: Exception) -> None:
            """Say nothing of attempts that fail while the server is down."""

        url = self.site.server.url
        connected = partial(
            nats.connect, url, reconnect_time_wait=0.1, max_reconnect_attempts=-1, pending_size=0, error_cb=note
        )
        client = await connected()
        padding = {"padding": "x" * size} if size else {}
        bodies = [msgspec.json.encode({"sender": name} | padding) for name in names]

        async def register() -> None:
            nonlocal client
            while True:
                with contextlib.suppress(nats.errors.Error, OSError):
                    if client.is_closed:
                        # Of what is too large, a server ends the connection, and the client then ends for good.
                        client = await connected()
                    for body in bodies:
                        await client.publish(subject, body, headers=dict(headers) if headers else None)
                await asyncio.sleep(interval)

        registering = asyncio.create_task(register())
        try:
            yield
        finally:
            registering.cancel()
            await asyncio.wait({registering})
            await client.close()


@asynccontextmanager
async def deployed(
    directory: Path,
    settings: str = SETTINGS,
    listen: str = "",
    site_config: str = "",
    region_config: str = "",
    site_max_file: str = "",
) -> AsyncIterator[Deployment]:
    """Start servers and make streams; write the agent's settings, and end it in the end, if it was started.

    ``site_config`` are further lines of the configuration of the site's server, ``region_config`` of the region's;
    ``site_max_file`` is what the site's server may store.
    """
    async with (
        running_site(directory, site_config, max_file=site_max_file) as site,
        running_region(directory, extra_config=region_config) as region,
    ):
        await site.make_stream()
        await region.make_stream()
        config = directory / "agent.toml"
        config.write_text(settings.format(upstream=region.link.url, source=site.link.url, listen=listen))
        agent = AgentProcess(config)
        try:
            yield Deployment(site, region, agent)
        finally:
            agent.end()


def free_address() -> str:
    """Give an address of this machine on which nobody listens."""
    return f"127.0.0.1:{free_ports(1)[0]}"
