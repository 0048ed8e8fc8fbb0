"""Run commands as children in sessions of their own, and leave nothing of them behind.

A child is killed by the kernel when this process ends. What a child started itself (Spark's JVM and its workers) shares
its session, and is found there when the child has ended; when this process is killed, it ends by itself: a JVM that
Python started exits when its standard input closes.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Self

from shared.embedded.server import dies_with

END_DEADLINE = 60.0
_LINE_LIMIT = 1 << 20
_LOG_TAIL_LINES = 12


class CommandFailed(Exception):
    """A command could not be started, ended when it should not have, or ended badly. The text says what it said."""


class Child:
    """One running command. ``name`` is what people call it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path | None) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, command: Sequence[str], *, log: Path | None = None) -> Self:
        """Start a command whose output goes to the end of ``log``, or, without one, is read with ``lines``.

        Raise CommandFailed where it cannot be started.
        """
        try:
            with log.open("ab") if log else contextlib.nullcontext(asyncio.subprocess.PIPE) as output:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=dies_with(os.getpid()),
                    limit=_LINE_LIMIT,
                )
        except OSError as error:
            raise CommandFailed(f"{name} could not be started: {command[0]}: {error.strerror or error}") from error
        return cls(name, process, log)

    async def lines(self) -> AsyncIterator[str]:
        """Give what it prints, line by line, until it closes its output."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line.decode(errors="replace").rstrip()

    async def wait(self) -> int:
        """Wait until it has ended by itself; give its exit code, negative for a signal."""
        return await self._process.wait()

    async def fail_when_it_ends(self) -> None:
        """Wait for ever, unless it ends: then raise CommandFailed with the end of its log."""
        raise self.failure(await self.wait())

    def failure(self, code: int) -> CommandFailed:
        """Give the error for its end with ``code``: with the end of its log."""
        return CommandFailed(f"{self.name} ended by itself ({code}){self._last_words()}")

    async def end(self, deadline: float = END_DEADLINE) -> int:
        """Ask it to end (SIGTERM); after ``deadline`` seconds kill it, and what it started; give its exit code."""
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(deadline):
                        await self._process.wait()
        finally:
            code = await self.kill()
        return code

    async def kill(self) -> int:
        """End it at once (SIGKILL), and everything that it started; give its exit code."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        ends_at = asyncio.get_running_loop().time() + END_DEADLINE
        code = await self._process.wait()
        while (left := _session(self._process.pid)) and asyncio.get_running_loop().time() < ends_at:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        return code

    def _last_words(self) -> str:
        if self._log is None:
            return ""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "".join([f"; the end of {self._log}:", *(f"\n  {line}" for line in lines)])


def _session(session_id: int) -> list[int]:
    """List the processes that live in a session: the leader's number is not used again while there are any."""
    members = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, _, session, *_ = (directory / "stat").read_text().rpartition(")")[2].split()
                if int(session) == session_id and state != "Z":
                    members.append(int(directory.name))
    return members
