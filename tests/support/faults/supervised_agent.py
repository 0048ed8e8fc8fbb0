"""An agent on the fault schedule's stage: it dies in every way there is, and a service manager starts it again."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from edge_agent.observability.status_board import PairPhase
from edge_agent.observability.status_report import read_status
from edge_agent.store.read_only import StoreUnreadable
from shared.embedded.link import EmbeddedLink
from tests.support.agent import dying_agent
from tests.support.agent.agent_process import AgentProcess

STOP_DEADLINE = 60.0
LOOK_EVERY = 0.05
RESTART_AFTER = 0.3
LONGEST_TRACEBACK = 80
LOG_LINES_SHOWN = 40


class UnaskedEnd(NamedTuple):
    """The agent ended though nobody ended it."""

    code: int | None
    last_words: str
    disk_was_full: bool


class SupervisedAgent:
    """One agent, and the links that it has to the site and to the region.

    ``disk_was_full`` tells whether its disk was full lately.
    """

    def __init__(
        self,
        config_path: Path,
        store_path: Path,
        links: tuple[EmbeddedLink, EmbeddedLink],
        disk_was_full: Callable[[], bool],
    ) -> None:
        self.source_link, self.uplink = links
        self.config_path = config_path
        self.store_path = store_path
        self.process = AgentProcess(config_path, (sys.executable, "-m", dying_agent.__name__))
        self.process.log_path = config_path.with_suffix(".log")
        self._death_path = config_path.with_suffix(".death")
        self._disk_was_full = disk_was_full
        self.unasked_ends: list[UnaskedEnd] = []
        self.stop_codes: list[int] = []
        self.starts = 0
        self._is_wanted = False
        self._last_start_at = 0

    def start(self) -> None:
        """Start it, and have it started again whenever it ends by itself."""
        self._last_start_at = time.time_ns()
        self.process.start({dying_agent.DEATH: str(self._death_path)})
        self.starts += 1
        self._is_wanted = True

    def kill(self) -> None:
        """End it at once."""
        self._is_wanted = False
        self.process.kill()

    async def die(self, when: dying_agent.When, patience: float) -> None:
        """Let it die at its next commit, or else when ``patience`` seconds have passed."""
        self._is_wanted = False
        self._death_path.write_text(when)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await self.process.ended(patience)
        self.process.kill()
        self._death_path.unlink()

    async def stop(self) -> int:
        """End it as an operator would; give its exit code."""
        self._is_wanted = False
        self.process.signal(signal.SIGTERM)
        code = await self.process.ended(STOP_DEADLINE)
        self.stop_codes.append(code)
        return code

    def suspend(self) -> None:
        """Let it do nothing, its connections open."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.signal(signal.SIGCONT)

    @property
    def is_starting(self) -> bool:
        """Tell whether it was started, and has not written into its database since."""
        return self._is_wanted and self.written_at() < self._last_start_at

    @property
    def leads(self) -> bool:
        """Tell whether it leads a pair, by what it said last."""
        return self._does(PairPhase.LEADING)

    @property
    def stands_by(self) -> bool:
        """Tell whether it stands by in a pair, by what it said last."""
        return self._does(PairPhase.STANDING_BY)

    def last_said(self) -> Iterator[str]:
        """Tell in lines what a failure does not: whether it runs, what its status shows, how its log ends."""
        code = self.process.process.poll()
        life = "runs" if code is None else f"ended with {code}"
        yield f"{self.config_path.stem}: {life}, started {self.starts} times"
        try:
            status = read_status(self.store_path)
        except StoreUnreadable as unreadable:
            yield f"  {unreadable}"
        else:
            yield f"  {status.life}, {status.pair}"
            yield from (f"  {name}: {part.phase} {part.reason}" for name, part in status.parts.items())
            yield from (f"  {condition}" for condition in status.conditions)
        yield from (f"  {line}" for line in self.process.log.splitlines()[-LOG_LINES_SHOWN:])

    def _does(self, phase: PairPhase) -> bool:
        try:
            pair = read_status(self.store_path).pair
        except StoreUnreadable:
            return False
        return pair is not None and pair.phase == phase

    def written_at(self) -> int:
        """Give when the database was written last, in nanoseconds of this machine's clock, 0 where there is none."""
        try:
            return self.store_path.with_name(self.store_path.name + "-wal").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    async def supervise(self) -> None:
        """Do what a service manager does: start an agent that ended by itself again, a moment later."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._is_missing:
                code = self.process.process.returncode
                self.unasked_ends.append(UnaskedEnd(code, _last_words(self.process.log), self._disk_was_full()))
                await asyncio.sleep(RESTART_AFTER)
                # Meanwhile a fault may have ended it in order, or started it.
                if self._is_missing:
                    self.start()

    @property
    def _is_missing(self) -> bool:
        return self._is_wanted and self.process.process.poll() is not None


def _last_words(log: str) -> str:
    """Give a log's last line, or the whole traceback that it ends with."""
    _, traceback, text = log.rpartition("Traceback (most recent call last)")
    return traceback + text if text.count("\n") < LONGEST_TRACEBACK and traceback else "".join(log.splitlines()[-1:])
