"""An agent and the operator beside it: a process that is started, suspended and ended, and commands on its settings."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

COMMAND = str(Path(sys.executable).with_name("muster-agent"))
DEADLINE = 180.0


class OperatedAgent:
    """One agent, always on the same settings and store."""

    def __init__(self, config_path: Path) -> None:
        self.config_path = config_path
        self.log_path = config_path.with_suffix(".log")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process; it is not waited for."""
        with self.log_path.open("ab") as log:
            self._process = await self.spawn("run", output=log, errors=log)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait until it has."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(number)
            async with asyncio.timeout(DEADLINE):
                await process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Suspend it, or let it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    async def spawn(
        self, *command: str, output: Any = subprocess.PIPE, errors: Any = subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        """Start a command on the agent's settings."""
        name, *options = command
        return await asyncio.create_subprocess_exec(
            COMMAND,
            name,
            "--config",
            str(self.config_path),
            *options,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )

    async def command(self, *command: str) -> tuple[int, str, str]:
        """Run a command; give its exit status, what it printed, and its errors."""
        process = await self.spawn(*command)
        async with asyncio.timeout(DEADLINE):
            output, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode(), errors.decode()

    async def json(self, *command: str) -> Any:
        """Run a command with --json that must not fail; give what it printed."""
        code, output, errors = await self.command(*command, "--json")
        assert code == 0, errors
        return msgspec.json.decode(output)

    async def json_lines(self, *command: str) -> list[dict[str, Any]]:
        """Run a command with --json that prints an object per line."""
        code, output, errors = await self.command(*command, "--json")
        assert code == 0, errors
        return [msgspec.json.decode(line) for line in output.splitlines()]


@asynccontextmanager
async def operated_agent(config_path: Path) -> AsyncIterator[OperatedAgent]:
    """Start an agent; it does not outlive the test."""
    agent = OperatedAgent(config_path)
    try:
        await agent.start()
        yield agent
    finally:
        await agent.end()
