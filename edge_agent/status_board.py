"""Collect what people are told about the agent: log lines, and a status that the store keeps and outlives the agent.

Read back by ``muster-agent status``, also while the agent or its links are down.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from edge_agent.count_log import CountLog
from edge_agent.fault_log import FaultLog, LogLine
from edge_agent.pair.status import PairStatus
from edge_agent.ports import Progress, StoreUnwritable
from edge_agent.store.sqlite_store import SqliteStore
from edge_agent.tallies import Tally
from edge_agent.usefulness import IN_PLACE, STORE, PartStatus, problems
from shared.instants import SECOND

WRITE_INTERVAL = 2.0
UPSTREAM = "upstream"
CONNECTED = "connected"
DISCONNECTED = "not connected"
NOT_ACCEPTED = "not accepted"
_SOURCE, _STREAM = "source of ", "stream "

log = logging.getLogger("muster.agent")


class AgentStatus(msgspec.Struct, frozen=True):
    """Which run of which agent wrote the status. Instants are the agent's own clock, microseconds.

    ``stopped_at`` is when it ended because it was told to; 0 while it runs, and where it was killed.
    """

    agent: str
    region: str
    site: str
    version: str
    boot_id: str
    pid: int
    started_at: int
    written_at: int
    max_outbox: int
    stopped_at: int = 0


class _Reader(Protocol):
    @property
    def progress(self) -> Progress | None: ...


def now() -> int:
    """Read the agent's clock, in microseconds: for people, never for decisions."""
    return time.time_ns() // 1000


def source_part(block: str) -> str:
    """Name the part that is a block's link to its site."""
    return _SOURCE + block


def stream_part(block: str) -> str:
    """Name the part that reads a block's stream."""
    return _STREAM + block


def block_of(part: str) -> str:
    """Name the block that a part belongs to; "" for the agent's own.

    >>> block_of("source of nodes"), block_of("probe of nodes"), block_of("stream nodes"), block_of("upstream")
    ('nodes', 'nodes', 'nodes', '')
    """
    return part.removeprefix(_STREAM) if part.startswith(_STREAM) else part.partition(" of ")[2]


class StatusBoard:
    """The parts' phases, and how far each block has read. Changes are logged as ``fault_log`` says."""

    def __init__(self, agent: str, region: str, site: str, version: str, boot_id: str, max_outbox: int) -> None:
        self.agent = AgentStatus(agent, region, site, version, boot_id, os.getpid(), now(), 0, max_outbox)
        self.publishes = Tally()
        self.pair: Callable[[], PairStatus] | None = None
        self.reconnects: dict[str, int] = {}
        # Parts that were connected once in this run: what a link comes to after failed attempts is no return.
        self._met: set[str] = set()
        self._parts: dict[str, PartStatus] = {}
        self._faults: dict[str, FaultLog] = {}
        self._counts = CountLog()
        self._readers: dict[str, _Reader] = {}
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

    def watch(self, block: str, reader: _Reader) -> None:
        """Ask ``reader`` from now on how far a block has come."""
        self._readers[block] = reader

    def progress(self) -> dict[str, Progress]:
        """Tell how far each block has come, of those that have looked at their stream."""
        found = {block: reader.progress for block, reader in self._readers.items()}
        return {block: progress for block, progress in found.items() if progress is not None}

    def problems(self) -> list[str]:
        """Say in a line each why the agent is not useful now; nothing where it is."""
        return list(problems(self._parts, self.progress(), now()))

    def in_a_line(self) -> str:
        """Say what the agent does, for a supervisor's list."""
        wrong = self.problems()
        reading = sum(part.phase == "reading" for name, part in self._parts.items() if name.startswith(_STREAM))
        senders = sum(sum(each.senders.values()) for each in self.progress().values())
        return "; ".join(wrong) if wrong else f"reading {reading} of {len(self._readers)} streams, {senders:,} senders"

    def reporter(self, part: str) -> Callable[[str, str], None]:
        """Give what a part calls with its phase and, where something is wrong, the reason."""
        faults = self._faults.setdefault(part, FaultLog(part))

        def report(phase: str, reason: str = "") -> None:
            before = self._parts.get(part)
            is_known = before is not None and (before.phase, before.reason) == (phase, reason)
            if self._is_muted or (is_known and not reason):
                return
            self._write_lines(part, faults.report(now(), phase, reason))
            if is_known:
                return
            if phase == CONNECTED:
                if before is not None and before.phase == DISCONNECTED and part in self._met:
                    self.reconnects[part] = self.reconnects.get(part, 0) + 1
                self._met.add(part)
            since = before.since if before is not None and before.phase == phase else now()
            self._parts[part] = PartStatus(phase, reason, since)
            if reason:
                self._last_problem = PartStatus(part, reason, now())
            self._changed.set()

        return report

    async def keep_written(self, store: SqliteStore, displaced: Callable[[], str]) -> None:
        """Write the board when it changes, and every two seconds as a sign of life; look where its file is."""
        report = self.reporter(STORE)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_INTERVAL):
                    await self._changed.wait()
            self._changed.clear()
            where = displaced()
            if where or STORE in self._parts:
                report("displaced" if where else IN_PLACE, where)
            for part, faults in self._faults.items():
                self._write_lines(part, faults.pass_time(now()))
            for line in self._counts.take(now(), store.counters()):
                log.warning(line.text, extra={"fields": {"stream": line.block, "counter": line.what}})
            await self._write(store, self.agent)

    async def write_last(self, store: SqliteStore) -> None:
        """Write that the agent was told to stop: who asks later can tell that from a death."""
        await self._write(store, msgspec.structs.replace(self.agent, stopped_at=now()))

    async def _write(self, store: SqliteStore, agent: AgentStatus) -> None:
        # Of a full disk, or a store that is locked, the log tells, and ``status`` by the age of what it finds.
        with contextlib.suppress(StoreUnwritable):
            await store.write_status(
                {
                    "agent": msgspec.structs.replace(agent, written_at=now()),
                    "last_problem": self._last_problem,
                    "pair": self.pair() if self.pair else None,
                    **{f"part:{name}": part for name, part in self._parts.items()},
                    **{f"progress:{name}": progress for name, progress in self.progress().items()},
                }
            )

    def _write_lines(self, part: str, lines: Iterable[LogLine]) -> None:
        block = block_of(part)
        for line in lines:
            fields = {
                **({"stream": block} if block else {}),
                "part": part,
                "phase": line.phase,
                **({"repeated": line.repeated} if line.repeated else {}),
                **({"lasted_s": round(line.lasted / SECOND, 1)} if line.lasted else {}),
            }
            log.log(logging.WARNING if line.is_fault else logging.INFO, line.text, extra={"fields": fields})
