"""Read what the agent wrote into its store, and show it on one screen; works while the agent or its links are down."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edge_agent.core.block_state import BlockState, Counters
from edge_agent.core.outgoing import Lane
from edge_agent.core.senders import SenderPhase
from edge_agent.status_board import AgentStatus, PartStatus, now
from edge_agent.store import schema
from edge_agent.store.reading import StoreUnreadable, reading
from edge_agent.store.senders import slot_range
from shared.instants import SECOND, format_duration, format_instant
from shared.sizes import format_size

SIGN_OF_LIFE = 10 * SECOND
LABEL = 17


class BlockReport(msgspec.Struct, frozen=True):
    """One stream block as committed: its state and its senders by phase."""

    name: str
    state: BlockState
    senders: dict[str, int]


class LaneReport(msgspec.Struct, frozen=True):
    """What waits in one lane of the outbox, in rows and bytes."""

    rows: int
    size: int


class StatusReport(msgspec.Struct, frozen=True):
    """Everything that status shows; also its JSON form."""

    agent: AgentStatus
    is_running: bool
    parts: dict[str, PartStatus]
    last_problem: PartStatus | None
    blocks: list[BlockReport]
    outbox: dict[str, LaneReport]
    outbox_counters: Counters


def read_status(path: Path) -> StatusReport:
    """Read the store without disturbing the agent; raise StoreUnreadable."""
    with reading(path) as database:
        return read_report(database)


def read_report(database: sqlite3.Connection) -> StatusReport:
    """Read the status from a store that is open; raise StoreUnreadable where it holds none yet."""
    agent, parts, last_problem = _read_status(database)
    if agent is None:
        raise StoreUnreadable("the agent has not written a status yet; try again in some seconds")
    counters: Counters = {}
    lanes = {lane.name.lower(): database.execute(schema.rows_through(lane), (schema.EVERY_ROW,)) for lane in Lane}
    for what, cause, count in database.execute(
        "SELECT what, cause, SUM(count) FROM outbox_counter GROUP BY what, cause"
    ):
        counters.setdefault(what, {})[cause] = count
    return StatusReport(
        agent=agent,
        is_running=_is_running(agent),
        parts=parts,
        last_problem=last_problem,
        blocks=[_read_block(database, *row) for row in database.execute("SELECT number, name, state FROM block")],
        outbox={lane: LaneReport(*depth.fetchone()) for lane, depth in lanes.items()},
        outbox_counters=counters,
    )


def _read_block(database: sqlite3.Connection, number: int, name: str, state: str) -> BlockReport:
    counts = dict(
        database.execute(
            "SELECT phase, COUNT(*) FROM sender WHERE row_id BETWEEN ? AND ? GROUP BY phase", slot_range(number)
        )
    )
    senders = {phase.name.lower(): counts.get(phase, 0) for phase in SenderPhase}
    return BlockReport(name, msgspec.json.decode(state, type=BlockState), senders)


def read_phases(database: sqlite3.Connection) -> dict[str, str]:
    """Read what the parts of a running agent do, by name; nothing of one that does not run."""
    agent, parts, _ = _read_status(database)
    return {name: part.phase for name, part in parts.items()} if agent and _is_running(agent) else {}


def _read_status(
    database: sqlite3.Connection,
) -> tuple[AgentStatus | None, dict[str, PartStatus], PartStatus | None]:
    bodies = dict(database.execute("SELECT name, body FROM status"))
    agent = msgspec.json.decode(bodies.get("agent", "null"), type=AgentStatus | None)
    parts = {
        name.removeprefix("part:"): msgspec.json.decode(body, type=PartStatus)
        for name, body in sorted(bodies.items())
        if name.startswith("part:")
    }
    return agent, parts, msgspec.json.decode(bodies.get("last_problem", "null"), type=PartStatus | None)


def _is_running(agent: AgentStatus) -> bool:
    return now() - agent.written_at < SIGN_OF_LIFE and _is_alive(agent.pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def render_status(report: StatusReport) -> str:
    """Show the report on one screen."""
    return "\n".join(_lines(report))


def _lines(report: StatusReport) -> Iterator[str]:
    agent = report.agent
    life = (
        f"running for {format_duration(now() - agent.started_at)}, pid {agent.pid}"
        if report.is_running
        else f"NOT RUNNING, last sign of life {_ago(agent.written_at)}"
    )
    yield f"{agent.agent}, site {agent.site}, region {agent.region}: {life}, muster-agent {agent.version}"
    yield ""
    for name, part in report.parts.items():
        if not report.is_running:
            break
        since = f"for {format_duration(now() - part.since)}" if part.since else ""
        yield f"{name:{LABEL}} {part.phase} {since}{f': {part.reason}' if part.reason else ''}"
    for block in report.blocks:
        yield from _block_lines(block)
    yield from _outbox_lines(report)
    if report.last_problem:
        problem = report.last_problem
        yield f"{'last problem':{LABEL}} {_ago(problem.since)}, {problem.phase}: {problem.reason}"


def _block_lines(block: BlockReport) -> Iterator[str]:
    state = block.state
    seen = (
        f"{format_instant(state.observed_through)} ({_ago(state.observed_through)})" if state.observed_through else "-"
    )
    since = f", without a gap since {format_instant(state.observed_since)}" if state.observed_since else ""
    yield f"{'observed through':{LABEL}} {seen}{since}"
    yield f"{'position':{LABEL}} {state.position.stream} sequence {state.position.sequence}"
    yield f"{'senders':{LABEL}} {block.senders['heard']} heard, {block.senders['stale']} stale"
    for what, causes in sorted(state.counters.items()):
        yield f"{what:{LABEL}} {', '.join(f'{cause} {count}' for cause, count in sorted(causes.items()))}"


def _outbox_lines(report: StatusReport) -> Iterator[str]:
    waiting = [f"{lane.rows} {name} ({format_size(lane.size)})" for name, lane in report.outbox.items() if lane.rows]
    if waiting:
        limit = format_size(report.agent.max_outbox)
        yield f"{'outbox':{LABEL}} {' and '.join(waiting)} wait for the region's acknowledgement; room for {limit}"
    else:
        yield f"{'outbox':{LABEL}} empty: the region has acknowledged everything"
    for what, causes in sorted(report.outbox_counters.items()):
        yield f"{what:{LABEL}} {', '.join(f'{cause} {count}' for cause, count in sorted(causes.items()))}"


def _ago(at: int) -> str:
    return f"{format_duration(max(now() - at, 0))} ago"
