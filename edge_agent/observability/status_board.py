"""Status of the agent for people: log lines, and a status in the store that outlives the agent.

``muster-agent status`` reads it, also while the agent or its links are down.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Protocol

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.ingest.port import Progress
from edge_agent.observability.conditions import LOG_LOST, NOT_MOVING, Condition, Kind, errors
from edge_agent.observability.fault_log import ConditionLog, CountLog, FaultLog, LogLine
from edge_agent.observability.health import (
    IN_PLACE,
    STORE,
    PartStatus,
    block_of,
    in_order,
    of_outbox,
    of_parts,
    of_reading,
    of_state,
    of_store,
    part_kind,
)
from edge_agent.observability.log_format import log_trouble
from edge_agent.runtime.tally import Tally
from edge_agent.store.files import Hold
from edge_agent.store.port import OutboxLevel, StoreUnwritable
from edge_agent.store.sqlite_store import SqliteStore
from shared.instants import SECOND
from shared.tasks import wait_for_event

WRITE_INTERVAL = 2.0
MOST_NOTED = 30
UPSTREAM = "upstream"
CONNECTED = "connected"
DISCONNECTED = "not connected"
NOT_ACCEPTED = "not accepted"
_SOURCE, _STREAM = "source of ", "stream "

log = logging.getLogger("muster.agent")


MISSED_AFTER = 10 * SECOND
"""After how long a silence the other member is missed, in microseconds."""


class PairPhase(StrEnum):
    """Phase of a member of a pair."""

    STARTING = "starting"
    LEADING = "leading"
    STANDING_BY = "standing by"
    CATCHING_UP = "catching up"
    WAITING = "waiting"
    COPYING = "copying"
    HANDING_OVER = "handing over"
    UNREACHABLE = "log unreachable"


class PairStatus(msgspec.Struct, frozen=True):
    """One member's view of the pair; instants are its own clock's, microseconds, 0 where there was none yet.

    ``other_phase`` is what the other was last heard to do. ``takeovers`` counts those by this run of the agent.
    """

    member: str
    other: str
    phase: str
    since: int = 0
    other_phase: str = ""
    other_heard_at: int = 0
    takeovers: int = 0


class AgentStatus(msgspec.Struct, frozen=True):
    """The run of the agent that wrote the status. Instants are the agent's own clock, microseconds.

    ``stopped_at`` is when it ended; 0 while it runs, and if it was killed. ``failure`` is the error that ended it, ""
    if it was stopped.
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
    failure: str = ""


class _WatchedReader(Protocol):
    @property
    def progress(self) -> Progress | None: ...

    @property
    def state(self) -> BlockState | None: ...


def now() -> int:
    """Read the agent's clock, in microseconds: for people, never for decisions."""
    return time.time_ns() // 1000


def source_part(block: str) -> str:
    """Name the part that is a block's link to its site."""
    return _SOURCE + block


def stream_part(block: str) -> str:
    """Name the part that reads a block's stream."""
    return _STREAM + block


class StatusBoard:
    """Phases of ``parts``, progress of each block, and conditions. Changes are logged by the rules of ``fault_log``."""

    def __init__(self, agent: str, region: str, site: str, version: str, boot_id: str, max_outbox: int) -> None:
        self.agent = AgentStatus(agent, region, site, version, boot_id, os.getpid(), now(), 0, max_outbox)
        self.publishes = Tally()
        self.pair: Callable[[], PairStatus] | None = None
        self.reconnects: dict[str, int] = {}
        # Parts that were connected once in this run: what a link comes to after failed attempts is no return.
        self._met: set[str] = set()
        self.parts: dict[str, PartStatus] = {}
        self._faults: dict[str, FaultLog] = {}
        self._counts = CountLog()
        self._raised: dict[tuple[str, str], Condition] = {}
        self._conditions = ConditionLog()
        self._found: list[Condition] = []
        self._level = OutboxLevel()
        self._readers: dict[str, _WatchedReader] = {}
        self._store: SqliteStore | None = None
        self._last_problem: PartStatus | None = None
        self._changed = asyncio.Event()
        self._is_muted = False

    def mute(self) -> None:
        """Ignore further reports: links that end because the agent ends are not worth a line."""
        self._is_muted = True

    def watch(self, block: str, reader: _WatchedReader) -> None:
        self._readers[block] = reader

    def progress(self) -> dict[str, Progress]:
        found = {block: reader.progress for block, reader in self._readers.items()}
        return {block: progress for block, progress in found.items() if progress is not None}

    def conditions(self) -> list[Condition]:
        """Return all conditions that hold now, errors first; log those that began or ended."""
        at, others = now(), list(self._judgements())
        for condition, line in () if self._is_muted else self._conditions.take(at, others):
            self._write_line(condition.subject, condition.stream, line)
        self._found = in_order([*of_parts(self.parts, at), *map(self._conditions.with_start, others)])
        return self._found

    def last_found(self, block: str) -> tuple[str, ...]:
        """Return the names of a block's or the agent's conditions as last judged, at most two seconds ago."""
        return tuple(dict.fromkeys(each.name for each in self._found if each.stream in ("", block)))

    def _judgements(self) -> Iterator[Condition]:
        """Yield the conditions that are not a part's phase."""
        at, progress = now(), self.progress()
        of_store = list(self._of_store())
        yield from of_store
        for block, reached in progress.items():
            reading = of_reading(block, reached, self.parts, at)
            # What is read waits for the store.
            yield from (each for each in reading if not of_store or each.name != NOT_MOVING.name)
            state = self._readers[block].state
            if state is not None:
                yield from of_state(block, state, sum(reached.senders.values()))
        yield from of_outbox(self._level, at)
        yield from self._raised.values()
        if lost := log_trouble():
            yield LOG_LOST.of("log", f"lines cannot be written: {lost}")

    def _of_store(self) -> Iterator[Condition]:
        trouble = self._store.trouble if self._store is not None else None
        if trouble is not None:
            yield from of_store(trouble.cause, str(trouble), self.parts)

    def condition(self, kind: Kind, subject: str) -> Callable[[str], None]:
        """Return a function that raises a condition of ``subject`` (a part's name) with a text, or ends it with ""."""

        def say(what: str) -> None:
            key = kind.name, subject
            held = self._raised.pop(key, None)
            if what:
                since = held.since if held else now()
                self._raised[key] = kind.of(subject, what, stream=block_of(subject), since=since)
            if bool(what) != bool(held):
                self._changed.set()

        return say

    def in_a_line(self) -> str:
        """Return the agent's state in one line, for a supervisor's list."""
        wrong = [condition.text for condition in errors(self.conditions())]
        reading = sum(part.phase == "reading" for name, part in self.parts.items() if name.startswith(_STREAM))
        senders = sum(sum(each.senders.values()) for each in self.progress().values())
        return "; ".join(wrong) if wrong else f"reading {reading} of {len(self._readers)} streams, {senders:,} senders"

    def reporter(self, part: str) -> Callable[[str, str], None]:
        """Return a function that a part calls with its phase and, if something is wrong, the reason."""
        faults = self._faults.setdefault(part, FaultLog(part))

        def report(phase: str, reason: str = "") -> None:
            before = self.parts.get(part)
            is_known = before is not None and (before.phase, before.reason) == (phase, reason)
            if self._is_muted or (is_known and not reason):
                return
            kind = part_kind(part, PartStatus(phase, reason))
            self._write_lines(part, faults.report(now(), phase, reason, kind.name if kind else ""))
            if is_known:
                return
            if phase == CONNECTED:
                if before is not None and before.phase == DISCONNECTED and part in self._met:
                    self.reconnects[part] = self.reconnects.get(part, 0) + 1
                self._met.add(part)
            since = before.since if before is not None and before.phase == phase else now()
            self.parts[part] = PartStatus(phase, reason, since)
            if reason:
                self._last_problem = PartStatus(part, reason, now())
            self._changed.set()

        return report

    async def keep_written(self, store: SqliteStore, hold: Hold) -> None:
        """Write the board when it changes, and every two seconds as a sign of life; look where its file is."""
        self._store, is_noted = store, False
        report = self.reporter(STORE)
        while True:
            await wait_for_event(self._changed, WRITE_INTERVAL)
            self._changed.clear()
            where = hold.displacement()
            if where or STORE in self.parts:
                report("displaced" if where else IN_PLACE, where)
            for part, faults in self._faults.items():
                self._write_lines(part, faults.pass_time(now()))
            self._level = await store.outbox_level()
            if log_trouble():
                log.warning("log: lines before this one could not be written")
            for line in self._counts.take(now(), store.counters()):
                log.warning(line.text, extra={"fields": {"stream": line.block, "counter": line.what}})
            await self._write(store, self.agent)
            if store.trouble or is_noted:
                is_noted = store.trouble is not None
                body = msgspec.json.encode(self.conditions()[:MOST_NOTED]) if is_noted else b""
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(hold.note, body)

    async def write_last(self, store: SqliteStore, failure: str = "") -> None:
        """Write that the agent ends, by an error if there is a ``failure``: later readers can tell that from a kill."""
        await self._write(store, msgspec.structs.replace(self.agent, stopped_at=now(), failure=failure))

    async def _write(self, store: SqliteStore, agent: AgentStatus) -> None:
        status = {
            "agent": msgspec.structs.replace(agent, written_at=now()),
            "last_problem": self._last_problem,
            "pair": self.pair() if self.pair else None,
            "conditions": self.conditions(),
            **{f"part:{name}": part for name, part in self.parts.items()},
            **{f"progress:{name}": progress for name, progress in self.progress().items()},
        }
        with contextlib.suppress(StoreUnwritable):
            await store.write_status(status)

    def _write_lines(self, part: str, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._write_line(part, block_of(part), line)

    def _write_line(self, part: str, block: str, line: LogLine) -> None:
        fields = {
            **({"stream": block} if block else {}),
            "part": part,
            "phase": line.phase,
            **({"condition": line.condition} if line.condition else {}),
            **({"repeated": line.repeated} if line.repeated else {}),
            **({"lasted_s": round(line.lasted / SECOND, 1)} if line.lasted else {}),
        }
        # A part that need not work, such as the watch over names, is in no condition.
        is_wrong = line.is_fault and line.condition
        log.log(logging.WARNING if is_wrong else logging.INFO, line.text, extra={"fields": fields})
