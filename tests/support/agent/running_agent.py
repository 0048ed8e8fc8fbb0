"""Run the agent as people do: a process of its own, with a settings file, a store, and a log."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from edge_agent.config.agent import load
from edge_agent.observability.status_report import StatusReport, read_status
from edge_agent.store.read_only import StoreUnreadable
from shared.command_line.terminal import json_text
from shared.settings import SettingsError

PROGRAM = str(Path(sys.executable).parent / "muster-agent")
END_DEADLINE = 180.0
ASK_DEADLINE = 180.0


class AgentProcess:
    """One agent: started, killed, stopped, suspended and started again, always on the same settings and store."""

    def __init__(self, config_path: Path) -> None:
        self.config_path = config_path
        self.log_path = config_path.with_suffix(".log")
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether the process lives; a suspended one does."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Give the process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Give everything that it has logged."""
        return self.log_path.read_text()

    async def start(self) -> None:
        """Start the process; it is not waited for."""
        assert not self.is_running
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                PROGRAM, "run", "--config", str(self.config_path), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def kill(self) -> None:
        """End it at once (SIGKILL), running or not."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        await self.ended()

    async def stop(self) -> int:
        """Ask it to end (SIGTERM), and give its exit status."""
        assert self._process is not None
        self._process.terminate()
        return await self.ended()

    async def ended(self, deadline: float = END_DEADLINE) -> int:
        """Wait until it has ended, and give its exit status."""
        if self._process is None:
            return 0
        async with asyncio.timeout(deadline):
            return await self._process.wait()

    def suspend(self) -> None:
        """Let it do nothing, its connections open (SIGSTOP)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended process go on (SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        """Run another command on the same settings; give its exit status, output and errors."""
        name, *options = arguments
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            name,
            "--config",
            str(self.config_path),
            *options,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(ASK_DEADLINE):
            output, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode(), errors.decode()

    async def status(self) -> StatusReport | None:
        """Read the status in this process, as ``muster-agent status --json`` does; None while there is none."""
        try:
            report = await asyncio.to_thread(read_status, Path(load(self.config_path).store.path))
        except (SettingsError, StoreUnreadable):
            return None
        return msgspec.json.decode(json_text(report), type=StatusReport)


@asynccontextmanager
async def agent_process(config_path: Path) -> AsyncIterator[AgentProcess]:
    """Start an agent; it does not outlive the test."""
    agent = AgentProcess(config_path)
    try:
        await agent.start()
        yield agent
    finally:
        await agent.kill()
