"""Read what the agent wrote into its store, and tell whether it runs; works while the agent or its links are down."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from edge_agent.core.block_state import BlockState, Counters, counted
from edge_agent.core.outgoing import Lane
from edge_agent.core.senders import SenderPhase
from edge_agent.core.shipment import SizeLimit
from edge_agent.outbox_ages import oldest_at
from edge_agent.pair.status import PairStatus
from edge_agent.ports import DROPPED_LATELY, Progress
from edge_agent.status_board import AgentStatus, now
from edge_agent.store import schema
from edge_agent.store.reading import StoreUnreadable, is_held, reading
from edge_agent.store.senders import slot_range
from edge_agent.usefulness import Concern, PartStatus, problems, warnings
from shared.instants import SECOND, format_duration
from shared.sizes import format_size

SIGN_OF_LIFE = 10 * SECOND
LEAST_FREE = 1 << 20
STARTS = "a process has the store and has not written yet"


class Life(StrEnum):
    """What can be said of the agent's process.

    STARTING: the store has been taken by a process that has not written yet; what is found is of the run before.
    SILENT: the process is there, and has written nothing for ``SIGN_OF_LIFE``: it hangs, is suspended, or cannot write.
    """

    STARTING = "starting"
    RUNNING = "running"
    SILENT = "silent"
    STOPPED = "stopped"
    DIED = "died"


_NOT_USEFUL = {
    Life.STARTING: f"the agent is starting: {STARTS}",
    **{life: f"the agent is not running: {life}" for life in (Life.SILENT, Life.STOPPED, Life.DIED)},
}


_REFUSED = {
    SizeLimit.MAX_PAYLOAD: "too large for the region's servers",
    SizeLimit.MAX_MSG_SIZE: "too large for the region's stream",
}


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
    """What waits in one lane of the outbox, in rows and bytes, and the instant that the oldest speaks of (or 0)."""

    rows: int
    size: int
    oldest_at: int = 0


class SetApartReport(msgspec.Struct, frozen=True):
    """Records of one stream block and lane that are over one limit, the oldest of them since ``oldest_at``.

    ``needed`` is how large messages have to be allowed to be for all of them, in bytes, headers included.
    """

    stream: str
    lane: str
    limit: SizeLimit
    count: int
    size: int
    needed: int
    oldest_at: int

    @property
    def records(self) -> str:
        """Name them."""
        return {"copies": "copy", "advisories": "advisory"}[self.lane] if self.count == 1 else self.lane


class StatusReport(msgspec.Struct, frozen=True):
    """Everything that status shows; also its JSON form. Instants and durations are microseconds.

    ``room`` is what is left of ``store.max_outbox``, ``disk_free`` of the store's disk (-1: not known), in bytes.
    ``problems`` says why the agent is not useful now; ``warnings`` and ``too_large`` what is to be looked at all the
    same.
    """

    agent: AgentStatus
    life: Life
    parts: dict[str, PartStatus]
    last_problem: PartStatus | None
    blocks: list[BlockReport]
    outbox: dict[str, LaneReport]
    outbox_counters: Counters
    room: int
    problems: list[str] = []
    warnings: list[Concern] = []
    too_large: list[Concern] = []
    set_apart: list[SetApartReport] = []
    disk_free: int = -1
    pair: PairStatus | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether the agent lives and says so."""
        return self.life is Life.RUNNING

    @property
    def has_process(self) -> bool:
        """Tell whether there is a process that has the store."""
        return self.life in (Life.STARTING, Life.RUNNING, Life.SILENT)


def read_status(path: Path) -> StatusReport:
    """Read the store without disturbing the agent; raise StoreUnreadable."""
    with reading(path) as database:
        database.execute("BEGIN")
        report = read_report(database, is_held=is_held(path))
    free = shutil.disk_usage(path.parent).free
    if report.life is Life.SILENT and free < LEAST_FREE:
        wrong = f"disk full: {format_size(free)} left at {path.parent}; the agent cannot even write its status"
        return msgspec.structs.replace(report, disk_free=free, problems=[wrong])
    return msgspec.structs.replace(report, disk_free=free)


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
    life, parts, progress = _life(agent, is_held), _parts_of(bodies), {each.name: each.progress for each in blocks}
    total: Counters = {}
    for additions in _outbox_counters(database).values():
        total = counted(total, additions)
    known = {name: reached for name, reached in progress.items() if reached is not None}
    set_apart = list(_read_set_apart(database))
    return StatusReport(
        agent=agent,
        life=life,
        parts=parts,
        last_problem=msgspec.json.decode(bodies.get("last_problem", "null"), type=PartStatus | None),
        blocks=blocks,
        outbox=outbox,
        outbox_counters=total,
        room=max(agent.max_outbox - sum(lane.size for lane in outbox.values()), 0),
        pair=msgspec.json.decode(bodies.get("pair", "null"), type=PairStatus | None),
        problems=list(problems(parts, known, now())) if life is Life.RUNNING else [_NOT_USEFUL[life]],
        warnings=[
            warning
            for each in blocks
            if life is Life.RUNNING
            for warning in warnings(each.name, each.state, sum(each.senders.values()))
        ],
        too_large=[*map(_concern_of, set_apart), *_read_dropped(database, now())],
        set_apart=set_apart,
    )


def read_phases(database: sqlite3.Connection) -> dict[str, str]:
    """Read what the parts of a running agent do, by name; nothing of one that does not run."""
    bodies = dict(database.execute("SELECT name, body FROM status"))
    agent = _agent_of(bodies)
    if agent is None or _life(agent, None) is not Life.RUNNING:
        return {}
    return {name: part.phase for name, part in _parts_of(bodies).items()}


def read_progress(database: sqlite3.Connection, block: str) -> Progress | None:
    """Read how far a block's reading had come when the agent last wrote that."""
    row = database.execute("SELECT body FROM status WHERE name = ?", (f"progress:{block}",)).fetchone()
    return msgspec.json.decode(row[0], type=Progress | None) if row else None


def _read_lane(database: sqlite3.Connection, lane: Lane) -> LaneReport:
    counting = [schema.rows_through(lane), *([schema.chunks_through(lane)] if lane in schema.CHUNKS else [])]
    found = [database.execute(statement, (schema.EVERY_ROW,)).fetchone() for statement in counting]
    return LaneReport(sum(count for count, _ in found), sum(size for _, size in found), oldest_at(database, lane))


def _read_set_apart(database: sqlite3.Connection) -> Iterator[SetApartReport]:
    for block, lane, cause, *measures in database.execute(schema.SET_APART_BY_LIMIT):
        yield SetApartReport(block, Lane(lane).name.lower(), SizeLimit(cause), *measures)


def _concern_of(each: SetApartReport) -> Concern:
    verb = "is" if each.count == 1 else "are"
    since = f"the oldest for {_lasted(now() - each.oldest_at)}"
    what = f"stream {each.stream}: {each.count:,} {each.records} {verb} set apart, {since}: {_REFUSED[each.limit]}"
    return Concern(what, _raise(each.limit, each.needed))


def _read_dropped(database: sqlite3.Connection, at: int) -> Iterator[Concern]:
    for block, cause, needed, last_at in database.execute(schema.TOO_LARGE):
        limit = SizeLimit(cause)
        if at - last_at < DROPPED_LATELY:
            what = f"stream {block}: registrations or watermarks are dropped, the last {_lasted(at - last_at)} ago"
            yield Concern(f"{what}: {_REFUSED[limit]}", _raise(limit, needed))


def _raise(limit: SizeLimit, needed: int) -> str:
    of = "of the region's servers" if limit is SizeLimit.MAX_PAYLOAD else "of the region's stream"
    return f"raise {limit} {of} to at least {needed} bytes"


def _lasted(duration: int) -> str:
    return format_duration(max(duration, 0) // SECOND * SECOND)


def _read_blocks(database: sqlite3.Connection, bodies: dict[str, str]) -> Iterator[BlockReport]:
    of_outbox = _outbox_counters(database)
    for number, name, body in database.execute("SELECT number, name, state FROM block ORDER BY number").fetchall():
        counts = dict(
            database.execute(
                "SELECT phase, COUNT(*) FROM sender WHERE row_id BETWEEN ? AND ? GROUP BY phase", slot_range(number)
            )
        )
        state = msgspec.json.decode(body, type=BlockState)
        yield BlockReport(
            name=name,
            state=state,
            senders={phase.name.lower(): counts.get(phase, 0) for phase in SenderPhase},
            counters={**state.counters, **of_outbox.get(name, {})},
            progress=msgspec.json.decode(bodies.get(f"progress:{name}", "null"), type=Progress | None),
        )


def _outbox_counters(database: sqlite3.Connection) -> dict[str, Counters]:
    counters: dict[str, Counters] = {}
    for block, what, cause, count in database.execute("SELECT block, what, cause, count FROM outbox_counter"):
        counters.setdefault(block, {}).setdefault(what, {})[cause] = count
    return counters


def _agent_of(bodies: dict[str, str]) -> AgentStatus | None:
    return msgspec.json.decode(bodies.get("agent", "null"), type=AgentStatus | None)


def _parts_of(bodies: dict[str, str]) -> dict[str, PartStatus]:
    return {
        name.removeprefix("part:"): msgspec.json.decode(body, type=PartStatus)
        for name, body in sorted(bodies.items())
        if name.startswith("part:")
    }


def _life(agent: AgentStatus, is_held: bool | None) -> Life:
    if agent.stopped_at and not is_held:
        return Life.STOPPED
    if is_held is False:
        return Life.DIED
    if not _is_alive(agent.pid):
        return Life.STARTING if is_held else Life.DIED
    if now() - agent.written_at < SIGN_OF_LIFE:
        return Life.RUNNING
    # Without a word of the kernel about the lock, the number may long be another process's.
    return Life.SILENT if is_held else Life.DIED


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
