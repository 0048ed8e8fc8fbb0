"""Status report from the agent's store, and whether it runs; works while the agent or its links are down."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from edge_agent.core.block_state import BlockState, decode_block_state, sum_counters
from edge_agent.core.decisions import Counters
from edge_agent.core.records import Lane
from edge_agent.core.senders import SenderPhase
from edge_agent.ingest.port import Progress
from edge_agent.observability import conditions as kinds
from edge_agent.observability.conditions import Condition
from edge_agent.observability.health import PartStatus, in_order, of_outbox
from edge_agent.observability.status_board import AgentStatus, PairStatus, now
from edge_agent.store import schema
from edge_agent.store.chunks import oldest_at
from edge_agent.store.files import FULL, lock_of, note_of
from edge_agent.store.outbox_index import dropped_too_large, read_counters, set_apart_sums
from edge_agent.store.port import OutboxLevel, SetApartSum
from edge_agent.store.read_only import StoreUnreadable, is_held, store_reader
from edge_agent.store.senders import slot_range
from shared.decoding import Decoder, WireError
from shared.instants import SECOND
from shared.sizes import format_size

SIGN_OF_LIFE = 10 * SECOND
STARTS = "starting: a process has the store and has not written yet"

_agent: Decoder[AgentStatus | None] = Decoder(AgentStatus | None, "an agent's status")
_part = Decoder(PartStatus, "a part's status")
_last_problem: Decoder[PartStatus | None] = Decoder(PartStatus | None, "a part's status")
_pair: Decoder[PairStatus | None] = Decoder(PairStatus | None, "a pair's status")
_progress: Decoder[Progress | None] = Decoder(Progress | None, "progress")
_conditions = Decoder(list[Condition], "conditions")


class ProcessState(StrEnum):
    """State of the agent's process.

    STARTING: a process has the store and has not written yet; the status is of the run before. SILENT: the process
    exists and has written nothing for ``SIGN_OF_LIFE``: it hangs, is suspended, or cannot write.
    """

    STARTING = "starting"
    RUNNING = "running"
    SILENT = "silent"
    STOPPED = "stopped"
    DIED = "died"


class BlockReport(msgspec.Struct, frozen=True):
    """One stream block as committed: its state, its senders by phase, how far it had read when that was last told.

    ``counters`` are those of the block and of its records in the outbox.
    """

    name: str
    state: BlockState
    senders: dict[str, int]
    counters: Counters = {}
    progress: Progress | None = None


class LaneReport(msgspec.Struct, frozen=True):
    """Rows and bytes in one lane of the outbox, and the instant of its oldest record (0: none)."""

    rows: int
    size: int
    oldest_at: int = 0


class StatusReport(msgspec.Struct, frozen=True):
    """Everything that status shows; also its JSON form. Instants and durations are microseconds.

    ``room`` is what is left of ``store.max_outbox``, ``disk_free`` of the store's disk (-1: not known), in bytes.
    ``conditions`` is all that is wrong, errors first: of an agent that runs, as it wrote them itself.
    """

    agent: AgentStatus
    life: ProcessState
    parts: dict[str, PartStatus]
    last_problem: PartStatus | None
    blocks: list[BlockReport]
    outbox: dict[str, LaneReport]
    outbox_counters: Counters
    room: int
    conditions: list[Condition] = []
    set_apart: list[SetApartSum] = []
    disk_free: int = -1
    pair: PairStatus | None = None

    @property
    def is_running(self) -> bool:
        """True if the agent is alive and writes its status."""
        return self.life is ProcessState.RUNNING

    @property
    def has_process(self) -> bool:
        return self.life in (ProcessState.STARTING, ProcessState.RUNNING, ProcessState.SILENT)


def read_status(path: Path) -> StatusReport:
    """Read the store without disturbing the agent; raise StoreUnreadable.

    The reason why an agent has not written for a while is in its lock's file, or follows from its disk and process.
    """
    with store_reader(path) as database:
        database.execute("BEGIN")
        report = read_report(database, is_held=is_held(path))
    report = msgspec.structs.replace(report, disk_free=shutil.disk_usage(path.parent).free)
    if report.life is not ProcessState.SILENT:
        return report
    others = [each for each in report.conditions if each.name != kinds.AGENT_SILENT.name]
    found = _note(path) or [_why_silent(path, report), *others]
    return msgspec.structs.replace(report, conditions=found)


def _note(path: Path) -> list[Condition]:
    """Return the conditions that the agent could not write into its store."""
    with suppress(OSError, WireError):
        return _conditions(note_of(lock_of(path))[1])
    return []


def _why_silent(path: Path, report: StatusReport) -> Condition:
    """Return the condition that explains, as seen from outside, why a living agent writes nothing."""
    pid, since = report.agent.pid, report.agent.written_at
    if report.disk_free < FULL:
        what = f"disk full: {format_size(report.disk_free)} left at {path.parent}; it cannot even write its status"
        return kinds.DISK_FULL.of("agent", what, since=since)
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        what = f"disk failing: {path.parent} can only be read now: what is mounted there takes nothing more"
        return kinds.DISK_FAILING.of("agent", what, since=since)
    if _is_suspended(pid):
        remedy = f"let it go on: kill -CONT {pid}"
        return kinds.AGENT_SILENT.of("agent", f"silent: process {pid} is suspended", since=since, remedy=remedy)
    what = f"silent: process {pid} is there, but hangs, or cannot write its store"
    return kinds.AGENT_SILENT.of("agent", what, since=since)


def _is_suspended(pid: int) -> bool:
    """Return True if a process is stopped, by proc(5); False if the system does not report it."""
    with suppress(OSError):
        # Behind its name, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    return False


def read_report(database: sqlite3.Connection, *, is_held: bool | None = None) -> StatusReport:
    """Read the status from a store that is open; raise StoreUnreadable where it holds none yet.

    ``is_held`` says whether an agent has the store now, where that is known.
    """
    bodies = dict(database.execute("SELECT name, body FROM status"))
    agent = _agent_of(bodies)
    if agent is None:
        raise StoreUnreadable("the agent has not written a status yet; try again in some seconds")
    outbox = {lane.name.lower(): _read_lane(database, lane) for lane in Lane}
    blocks = list(_read_blocks(database, bodies))
    life, size = _process_state(agent, is_held), sum(lane.size for lane in outbox.values())
    total: Counters = {}
    for additions in read_counters(database).values():
        total = sum_counters(total, additions)
    level = OutboxLevel(size, agent.max_outbox, tuple(set_apart_sums(database)), tuple(dropped_too_large(database)))
    if life is ProcessState.RUNNING:
        found = _conditions(bodies.get("conditions", "[]"))
    else:
        found = in_order([_process_condition(life, agent), *of_outbox(level, now())])
    return StatusReport(
        agent=agent,
        life=life,
        parts=_parts_of(bodies),
        last_problem=_last_problem(bodies.get("last_problem", "null")),
        blocks=blocks,
        outbox=outbox,
        outbox_counters=total,
        room=max(agent.max_outbox - size, 0),
        pair=_pair(bodies.get("pair", "null")),
        conditions=found,
        set_apart=list(level.set_apart),
    )


def _process_condition(life: ProcessState, agent: AgentStatus) -> Condition:
    """Return the condition of an agent that does not write its own."""
    if life is ProcessState.STARTING:
        return kinds.STARTING.of("agent", STARTS)
    if life is ProcessState.SILENT:
        return kinds.AGENT_SILENT.of("agent", f"silent: process {agent.pid} is there", since=agent.written_at)
    if life is ProcessState.STOPPED:
        return kinds.NOT_RUNNING.of("agent", "not running: stopped, as it was told", since=agent.stopped_at)
    how = f"ended by an error: {agent.failure}" if agent.failure else "killed or crashed"
    return kinds.NOT_RUNNING.of("agent", f"not running: {how}", since=agent.written_at)


def read_phases(database: sqlite3.Connection) -> dict[str, str]:
    """Return the phases of a running agent's parts by name; empty if it does not run."""
    bodies = dict(database.execute("SELECT name, body FROM status"))
    agent = _agent_of(bodies)
    if agent is None or _process_state(agent, None) is not ProcessState.RUNNING:
        return {}
    return {name: part.phase for name, part in _parts_of(bodies).items()}


def read_progress(database: sqlite3.Connection, block: str) -> Progress | None:
    """Read how far a block's reading had come when the agent last wrote that."""
    row = database.execute("SELECT body FROM status WHERE name = ?", (f"progress:{block}",)).fetchone()
    return _progress(row[0]) if row else None


def _read_lane(database: sqlite3.Connection, lane: Lane) -> LaneReport:
    counting = [schema.ROWS_THROUGH[lane], *([schema.CHUNKS_THROUGH[lane]] if lane in schema.CHUNKS else [])]
    found = [database.execute(statement, (schema.EVERY_ROW,)).fetchone() for statement in counting]
    return LaneReport(sum(count for count, _ in found), sum(size for _, size in found), oldest_at(database, lane))


def _read_blocks(database: sqlite3.Connection, bodies: dict[str, str]) -> Iterator[BlockReport]:
    of_outbox = read_counters(database)
    for number, name, body in database.execute("SELECT number, name, state FROM block ORDER BY number").fetchall():
        counts = dict(
            database.execute(
                "SELECT phase, COUNT(*) FROM sender WHERE row_id BETWEEN ? AND ? GROUP BY phase", slot_range(number)
            )
        )
        state = decode_block_state(body)
        yield BlockReport(
            name=name,
            state=state,
            senders={phase.name.lower(): counts.get(phase, 0) for phase in SenderPhase},
            counters={**state.counters, **of_outbox.get(name, {})},
            progress=_progress(bodies.get(f"progress:{name}", "null")),
        )


def _agent_of(bodies: dict[str, str]) -> AgentStatus | None:
    return _agent(bodies.get("agent", "null"))


def _parts_of(bodies: dict[str, str]) -> dict[str, PartStatus]:
    return {
        name.removeprefix("part:"): _part(body) for name, body in sorted(bodies.items()) if name.startswith("part:")
    }


def _process_state(agent: AgentStatus, is_held: bool | None) -> ProcessState:
    if agent.stopped_at and not is_held:
        return ProcessState.DIED if agent.failure else ProcessState.STOPPED
    if is_held is False:
        return ProcessState.DIED
    if not _is_alive(agent.pid):
        return ProcessState.STARTING if is_held else ProcessState.DIED
    # A clock that was set back makes nobody alive.
    if abs(now() - agent.written_at) < SIGN_OF_LIFE:
        return ProcessState.RUNNING
    # Without a word of the kernel about the lock, the number may long be another process's.
    return ProcessState.SILENT if is_held else ProcessState.DIED


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
