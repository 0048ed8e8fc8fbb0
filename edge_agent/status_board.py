"""Collect what people are told about the agent, and write it into the store, where it outlives the agent.

Read back by ``muster-agent status``, also while the agent or its links are down.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping

import msgspec

from edge_agent.ports import StoreFull
from edge_agent.store.sqlite_store import SqliteStore

WRITE_INTERVAL = 2.0

log = logging.getLogger("muster.agent")


class AgentStatus(msgspec.Struct, frozen=True):
    """Which run of which agent wrote the status. Instants are the agent's own clock, microseconds."""

    agent: str
    region: str
    site: str
    version: str
    boot_id: str
    pid: int
    started_at: int
    written_at: int
    max_outbox: int


class PartStatus(msgspec.Struct, frozen=True):
    """What one part of the agent does, since when, and why."""

    phase: str
    reason: str = ""
    since: int = 0


def now() -> int:
    """Read the agent's clock, in microseconds: for people, never for decisions."""
    return time.time_ns() // 1000


class StatusBoard:
    """The parts' phases; each change is logged once."""

    def __init__(self, agent: str, region: str, site: str, version: str, boot_id: str, max_outbox: int) -> None:
        self._agent = AgentStatus(agent, region, site, version, boot_id, os.getpid(), now(), 0, max_outbox)
        self._parts: dict[str, PartStatus] = {}
        self._last_problem: PartStatus | None = None
        self._changed = asyncio.Event()
        self._is_muted = False

    def mute(self) -> None:
        """Take no more reports: links that end because the agent ends are not worth a word."""
        self._is_muted = True

    @property
    def parts(self) -> Mapping[str, PartStatus]:
        """Give every part's phase, by name."""
        return self._parts

    def reporter(self, part: str) -> Callable[[str, str], None]:
        """Give what a part calls with its phase and, where something is wrong, the reason."""

        def report(phase: str, reason: str = "") -> None:
            before = self._parts.get(part)
            if self._is_muted or (before is not None and (before.phase, before.reason) == (phase, reason)):
                return
            since = before.since if before is not None and before.phase == phase else now()
            self._parts[part] = PartStatus(phase, reason, since)
            if reason:
                self._last_problem = PartStatus(part, reason, now())
            log.log(logging.WARNING if reason else logging.INFO, "%s: %s%s", part, phase, reason and f": {reason}")
            self._changed.set()

        return report

    async def keep_written(self, store: SqliteStore) -> None:
        """Write the board when it changes, and every two seconds as a sign of life."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_INTERVAL):
                    await self._changed.wait()
            self._changed.clear()
            with contextlib.suppress(StoreFull):
                await store.write_status(self._contents())

    def _contents(self) -> dict[str, object]:
        agent = msgspec.structs.replace(self._agent, written_at=now())
        return {
            "agent": agent,
            "last_problem": self._last_problem,
            **{f"part:{name}": part for name, part in self._parts.items()},
        }
