"""Text page of the status: conditions, outbox, and for each stream its progress and senders."""

from collections.abc import Iterator

from edge_agent.core.block_state import BlockState
from edge_agent.observability.conditions import AGENT_SILENT
from edge_agent.observability.health import (
    LOOKED_LATELY,
    PartStatus,
    block_of,
    is_blind,
    is_stalled,
    not_followed,
    why_unproven,
)
from edge_agent.observability.status_board import MISSED_AFTER, UPSTREAM, PairStatus, now, stream_part
from edge_agent.observability.status_report import (
    STARTS,
    BlockReport,
    LaneReport,
    ProcessState,
    StatusReport,
)
from edge_agent.store.files import FULL
from shared.command_line.tables import UNWRAPPED, wrap_text
from shared.identifiers import BlockId
from shared.instants import SECOND, format_duration, format_instant, format_seconds
from shared.sizes import format_size

LABEL = 17
NARROWEST = 60
# What one row of a lane may be, and what several may.
HELD = {
    "advisories": ("advisory or watermark", "advisories and watermarks"),
    "registrations": ("registration", "registrations"),
    "copies": ("copy", "copies"),
}
# In the order in which a message meets them.
COUNTERS = (
    "valid",
    "tolerated",
    "rejected",
    "advisories",
    "forwarded",
    "withheld",
    "skipped",
    "probes",
    "compacted",
    "dropped",
    "set_apart",
    "blind",
    "clamped",
)

_Line = tuple[str, str]


def render_status(report: StatusReport, width: int = UNWRAPPED) -> str:
    """Show the report in lines of at most ``width`` columns, where words allow it."""
    lines: list[str] = []
    for label, text in _lines(report):
        lines += _wrap(label, text, max(width, NARROWEST)) if label or text else [""]
    return "\n".join(lines)


def _wrap(label: str, text: str, width: int) -> list[str]:
    head = f"{label:{LABEL}} " if label and not label.endswith(":") else f"{label} ".lstrip()
    return wrap_text(text, width, head, " " * (LABEL + 1))


def _lines(report: StatusReport) -> Iterator[_Line]:
    agent = report.agent
    yield f"{agent.agent}, site {agent.site}, region {agent.region}:", _process_state(report)
    started = f", started {_instant(agent.started_at)}" if agent.started_at else ""
    yield "muster-agent", f"{agent.version}{started}"
    if report.pair and report.is_running:
        yield "pair", _pair(report.pair, report.parts.get("pair"))
    for condition in report.conditions:
        yield "", ""
        yield condition.severity, f"{condition.text} ({condition.lasted(now())})"
        yield "  remedy", condition.remedy
    yield "", ""
    if report.is_running:
        upstream = report.parts.get(UPSTREAM)
        if upstream:
            yield UPSTREAM, _part(upstream)
        for name in ("policy", "monitor"):
            if name in report.parts:
                yield name, _part(report.parts[name])
    yield "outbox", _outbox(report)
    for block in report.blocks:
        yield "", ""
        yield from _block_lines(report, block)
    yield from _unread_parts(report)
    if report.last_problem:
        problem = report.last_problem
        yield "", ""
        yield "last problem", f"{_ago(problem.since)}, {problem.phase}: {problem.reason}"


def _process_state(report: StatusReport) -> str:
    agent = report.agent
    match report.life:
        case ProcessState.STARTING:
            return STARTS
        case ProcessState.RUNNING:
            return f"running for {format_seconds(now() - agent.started_at)}, pid {agent.pid}"
        case ProcessState.SILENT:
            return f"SILENT for {format_seconds(now() - agent.written_at)}: process {agent.pid} is there, but " + (
                _unwritable(report) or "it hangs, is suspended, or cannot write its store"
            )
        case ProcessState.STOPPED:
            return f"NOT RUNNING, stopped {_ago(agent.stopped_at)} as it was told"
        case ProcessState.DIED:
            how = f"ended by an error: {agent.failure}" if agent.failure else "killed or crashed"
            return f"NOT RUNNING, last sign of life {_ago(agent.written_at)}: {how}"


def _unwritable(report: StatusReport) -> str:
    if 0 <= report.disk_free < FULL:
        return f"cannot write: its disk is full ({format_size(report.disk_free)} left)"
    is_asked = all(each.name != AGENT_SILENT.name for each in report.conditions)
    return "cannot write its store" if is_asked and report.conditions else ""


def _part(part: PartStatus) -> str:
    lasted = f" for {format_seconds(now() - part.since)}" if part.since else ""
    return f"{part.phase}{lasted}{part.reason and f': {part.reason}'}"


def _pair(pair: PairStatus, part: PartStatus | None) -> str:
    reason = f": {part.reason}" if part and part.reason else ""
    ours = f"{pair.phase} for {format_seconds(now() - pair.since)}{reason}"
    if not pair.other_heard_at:
        return f"{ours}; {pair.other} not heard yet"
    silence = now() - pair.other_heard_at
    if silence > MISSED_AFTER:
        return f"{ours}; {pair.other} not heard for {format_seconds(silence)}, {pair.other_phase} then"
    return f"{ours}; {pair.other} {pair.other_phase}, heard {_ago(pair.other_heard_at)}"


def _outbox(report: StatusReport) -> str:
    waiting = [
        f"{lane.rows:,} {HELD[name][lane.rows > 1]} ({_measure(lane)})"
        for name, lane in report.outbox.items()
        if lane.rows
    ]
    if not waiting:
        return "empty: the region has acknowledged everything"
    room = f"room for {format_size(report.room)} more"
    listed = " and ".join(filter(None, (", ".join(waiting[:-1]), waiting[-1])))
    waits = "waits" if sum(lane.rows for lane in report.outbox.values()) == 1 else "wait"
    return f"{listed} {waits} for the region's acknowledgement; {room}"


def _measure(lane: LaneReport) -> str:
    return format_size(lane.size) + (f", the oldest {_ago(lane.oldest_at)}" if lane.oldest_at else "")


def _block_lines(report: StatusReport, block: BlockReport) -> Iterator[_Line]:
    state = block.state
    reading = report.parts.get(stream_part(block.name))
    mode = "" if state.mode == "sample" else f" ({state.mode})"
    phase = _part(reading) if reading and report.is_running else "not read now"
    yield f"stream {block.name}{mode}", phase
    for name, part in report.parts.items() if report.is_running else ():
        kind, is_of_block, of = name.partition(" of ")
        if is_of_block and of == block.name:
            yield f"  {kind}", _part(part)
    yield "  lag", _lag(report, block)
    yield "  position", f"{state.position.stream} sequence {state.position.sequence:,}"
    if state.mode == "sample":
        since = f", without a gap since {_instant(state.observed_since)}" if state.observed_since else ""
        through = _observed_through(block)
        yield "  watched", f"through {_instant(through)} ({_ago(through)}){since}" if through else "not yet"
        senders = block.senders
        yield "  senders", f"{senders['heard']:,} heard, {senders['stale']:,} stale"
    elif state.observed_through:
        yield "  read", f"through {_instant(state.observed_through)} ({_ago(state.observed_through)})"
    if state.revisions.revision:
        yield "  hub's policy", _policy(BlockId(report.agent.region, report.agent.site, block.name), state)
    for what in (*COUNTERS, *sorted(block.counters.keys() - set(COUNTERS))):
        causes = block.counters.get(what)
        if causes:
            yield f"  {what}", ", ".join(f"{cause} {count:,}" for cause, count in sorted(causes.items()))


def _policy(block_id: BlockId, state: BlockState) -> str:
    """Return the policy's revision and the thresholds that it set; parts that were refused are not shown."""
    holds = {
        name: f"{name} {format_duration(value)} (for {scope})"
        for scope, thresholds in state.revisions.thresholds_of(block_id)
        for name, value in thresholds.given.items()
        if getattr(state.policy, name) == value
    }
    asked_for = f"{len(state.asked_for):,} senders asked for" if state.asked_for else ""
    said = ", ".join(filter(None, (*holds.values(), asked_for))) or "every threshold is the settings file's"
    return f"revision {state.revisions.revision}: {said}"


def _observed_through(block: BlockReport) -> int:
    """Return the later of the instants that the agent reported and committed."""
    reported_through = block.progress.observed_through if block.progress else 0
    return max(reported_through, block.state.observed_through)


def _lag(report: StatusReport, block: BlockReport) -> str:
    reached = block.progress
    if reached is None:
        return "not known: the stream has not been looked at yet"
    reading = report.parts.get(stream_part(block.name))
    pending = f"{reached.pending:,} messages" if reached.pending != 1 else "1 message"
    if not report.is_running or reading is None or reached.pending_ago > LOOKED_LATELY:
        looked = _ago(report.agent.written_at - reached.pending_ago)
        return f"not known now; {pending} waited to be read when the stream was last looked at, {looked}"
    if is_blind(reached) and not reached.contradiction:
        lasted = f"nothing waits, but BLIND for {format_seconds(reached.behind)}" if reached.is_covered else "BLIND"
        return f"{lasted}: {why_unproven(block.name, reached, report.parts)}"
    if reached.contradiction or is_stalled(reached):
        why = f"STANDING STILL: its server's clock is {format_seconds(reached.ahead)} behind what it had shown before"
        why = f"CLOCK AHEAD: {not_followed(reached)}" if reached.contradiction else why
        return f"{pending} to read, but {why}"
    if not reading.is_working:
        return f"{pending} to read, and not read now"
    return f"{pending} to read, {format_seconds(reached.behind)} behind the stream's clock"


def _unread_parts(report: StatusReport) -> Iterator[_Line]:
    """Yield the parts of streams that are not in the store: their servers or streams have never been reached."""
    known = {block.name for block in report.blocks}
    for name, part in report.parts.items() if report.is_running else ():
        if block_of(name) not in {"", *known}:
            yield name, _part(part)


def _instant(at: int) -> str:
    return format_instant(at - at % SECOND)


def _ago(at: int) -> str:
    return f"{format_seconds(max(now() - at, 0))} ago"
