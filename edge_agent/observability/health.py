"""Conditions of an agent, judged from its parts, blocks, store and outbox. Pure.

- An error at once: a stream is not being read, whatever the cause (its link, the stream, a full disk, a full outbox);
  or it is read, and nothing proves that it can store (it is sealed, or full): the time is blind; or its server's clock
  was set back: no time passes until it has caught up; or it is ahead of the others, and not followed.
- An error at once: a file of its store is no longer where it was opened; that file is lost when the process ends.
- An error at once: another agent publishes under its names, and it has withdrawn, or neither has.
- An error after ``DRAIN_PATIENCE``: nothing leaves for the region. Links fail, and the outbox exists for that.
- A member of a pair that can neither lead nor stand by is an error at once; a missing other member is a warning.
- A warning: a message was rejected within the last ``stale_after``. Its sender may be reported stale although it is
  alive; a living sender registers again within ``stale_after``, so older rejections are over.
- A warning: the agent's own messages in its stream, its pages or the hub's policy are in trouble.
- No condition: behind, and catching up.

Restarting an agent that is not useful gains nothing.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edge_agent.core.block_state import UNSTEADY, BlockState
from edge_agent.core.observation import RejectReason
from edge_agent.core.records import SizeLimit
from edge_agent.delivery.name_fence import NamePhase
from edge_agent.ingest.port import Progress
from edge_agent.observability import conditions as kinds
from edge_agent.observability.conditions import Condition, Kind
from edge_agent.store.port import DROPPED_LATELY, OutboxLevel
from shared.instants import MINUTE, SECOND, format_duration, format_seconds
from shared.sizes import format_size

DRAIN_PATIENCE = 1 * MINUTE
MOVING_WITHIN = 15 * SECOND
"""Longer than a lock of the store's is waited for, of which nothing comes either."""

LOOKED_LATELY = 15 * SECOND
"""For so long it is known how much waits, when it cannot be asked."""

NEARLY_FULL = 0.9
IN_PLACE = "in place"
WORKING = frozenset(
    {
        "connected",
        "reading",
        "following",
        "stored",
        "leading",
        "standing by",
        "catching up",
        IN_PLACE,
        "ours",
        "not watched",
        "not needed",
    }
)
STORE = "store"
NAMES = "names"
_UPSTREAM, _SOURCE, _STREAM, _PAIR = "upstream", "source of ", "stream ", "pair"

# Conditions of parts that do not work, by the beginning of the part's name and its phase ("": any other phase).
_KINDS: dict[str, dict[str, Kind]] = {
    _SOURCE: {"denied": kinds.PERMISSION_DENIED, "": kinds.LINK_DOWN},
    _STREAM: {
        "starting": kinds.STARTING,
        "consumer paused": kinds.CONSUMER_PAUSED,
        "consumer shared": kinds.CONSUMER_SHARED,
        "withdrawn": kinds.NAME_TAKEN,
        "paused, disk full": kinds.DISK_FULL,
        "paused, disk failing": kinds.DISK_FAILING,
        "paused, store locked": kinds.STORE_LOCKED,
        "paused, outbox full": kinds.OUTBOX_FULL,
        "": kinds.STREAM_NOT_READ,
    },
    "probe of ": {"": kinds.PROBE_NOT_STORED},
    "heartbeat of ": {"": kinds.HEARTBEAT_NOT_STORED},
    "policy of ": {"": kinds.POLICY_REFUSED},
    "policy": {"": kinds.POLICY_NOT_HEARD},
    "other member": {"": kinds.PAIR_ALONE},
    _PAIR: {"": kinds.PAIR_NOT_READY},
    _UPSTREAM: {
        "connecting": kinds.REGION_UNREACHABLE,
        "not connected": kinds.REGION_UNREACHABLE,
        "": kinds.REGION_REFUSES,
    },
    STORE: {"": kinds.STORE_MOVED},
    NAMES: {NamePhase.CONTESTED: kinds.NAME_CONTESTED, "": kinds.NAME_TAKEN},
    "monitor": {"": kinds.MONITOR_NOT_LISTENING},
}
_REFUSED = {
    SizeLimit.MAX_PAYLOAD: "too large for the region's servers",
    SizeLimit.MAX_MSG_SIZE: "too large for the region's stream",
}


class PartStatus(msgspec.Struct, frozen=True):
    """The phase of one part of the agent, since when it is in it, and why."""

    phase: str
    reason: str = ""
    since: int = 0

    @property
    def is_working(self) -> bool:
        return self.phase in WORKING


def part_kind(name: str, part: PartStatus) -> Kind | None:
    """Return the condition of a part; None if it works, or has no reason not to.

    >>> part_kind("source of nodes", PartStatus("denied", "...")).name
    'permission_denied'
    """
    must_work = name.startswith((_UPSTREAM, _SOURCE, _STREAM)) or name in (_PAIR, STORE)
    if part.is_working or not (must_work or part.reason):
        return None
    for beginning, by_phase in _KINDS.items():
        if name.startswith(beginning):
            return by_phase.get(part.phase, by_phase[""])
    return None


def of_parts(parts: Mapping[str, PartStatus], at: int, *, with_patience: bool = True) -> Iterator[Condition]:
    """Yield the conditions of parts at ``at``, by the agent's clock; without patience, also those that will be due."""
    if not any(name.startswith(_STREAM) for name in parts):
        yield kinds.STARTING.of("agent", "no stream is read yet")
    # A block's link before its stream, as the cause before what follows from it.
    for name, part in sorted(parts.items()):
        kind = part_kind(name, part)
        patience = DRAIN_PATIENCE if name == _UPSTREAM and with_patience else 0
        if kind is not None and at - part.since >= patience:
            what = f"{part.phase}{part.reason and f': {part.reason}'}"
            yield kind.of(name, what, stream=block_of(name), since=part.since)


def of_store(cause: str, what: str, parts: Mapping[str, PartStatus]) -> Iterator[Condition]:
    """Yield the condition that the store cannot be written for ``cause``, unless a block's reading has it."""
    kind = _KINDS[_STREAM][f"paused, {cause}"]
    if all(part_kind(name, part) is not kind for name, part in parts.items()):
        yield kind.of(STORE, f"cannot be written, {cause}: {what}")


def of_reading(block: str, reached: Progress, parts: Mapping[str, PartStatus], at: int) -> Iterator[Condition]:
    """Yield the conditions that follow from a block's progress."""
    subject = f"stream {block}"
    reading = parts.get(subject)
    is_reading = reading is not None and reading.is_working
    # Before the agent ran, nobody sent a probe.
    is_past = reached.loss == UNSTEADY and reading is not None and at - reading.since <= reached.blind_after
    if reached.contradiction:
        yield kinds.CLOCK_AHEAD.of(subject, not_followed(reached), stream=block)
    elif is_blind(reached) and not reached.has_unopened_batches and not is_past:
        why = why_unproven(block, reached, parts)
        what = f"blind: nothing waits, but {why}" if reached.is_covered else f"blind: {why}"
        kind = kinds.STREAM_NOT_STORING if explains_missing_proof(reached) else kinds.TIME_UNPROVEN
        yield kind.of(subject, what, stream=block, since=at - reached.behind if reached.is_covered else 0)
    elif reading and is_reading and is_never_proven(reached) and at - reading.since > reached.blind_after:
        what = f"blind: nothing was observed yet: {why_unproven(block, reached, parts)}"
        yield kinds.TIME_UNPROVEN.of(subject, what, stream=block, since=reading.since)
    if is_stalled(reached):
        what = f"standing still: its server's clock is {format_seconds(reached.ahead)} behind what it had shown before"
        yield kinds.STANDING_STILL.of(subject, what, stream=block)
    if reading and is_reading and is_not_moving(reached) and at - reading.since >= MOVING_WITHIN:
        what, remedy = f"{reached.pending:,} messages wait to be read, and nothing comes", ""
        if reached.unacknowledged:
            what += f": the server misses the acknowledgements of {reached.unacknowledged:,}, and lets no more wait"
            remedy = "let what the agent publishes on $JS.ACK.> reach the stream's account, or max_ack_pending be -1"
        yield kinds.NOT_MOVING.of(subject, what, stream=block, since=at - reached.idle_for, remedy=remedy)
    if reached.expires_after:
        after = format_duration(reached.expires_after)
        what = f"the server removes its consumer when it has not been used for {after}"
        yield kinds.CONSUMER_EXPIRES.of(subject, what, stream=block)


def of_state(block: str, state: BlockState, sender_count: int) -> Iterator[Condition]:
    """Yield the conditions that follow from a block's committed state, by the stream's own time."""
    policy, through, subject = state.policy, state.observed_through, f"stream {block}"
    recent = [each for each in state.rejections.values() if through - each.last_at <= policy.stale_after]
    if state.seen.batch:
        wrong, remedy = kinds.unopened_batch(state.seen.batch)
        what = f"messages {wrong}, the last {_ago(state.batched_at, through)}: the time is unknown"
        yield kinds.BATCH_NOT_OPENED.of(subject, what, stream=block, remedy=remedy)
    turned_away = [each for each in recent if each.reason is RejectReason.TOO_MANY_SENDERS]
    of_their_own = (RejectReason.TOO_MANY_SENDERS, RejectReason.BATCH)
    nameless = [each for each in recent if each.reason not in of_their_own]
    if state.is_learning:
        what = "its store began empty in place of an earlier one: senders that are not heard again are unknown"
        yield kinds.STORE_LOST.of(subject, what, stream=block)
    if state.loss and not state.is_suspended:
        what = f"the stream {state.loss}: who is not heard any more is unknown, not stale"
        yield kinds.NARROWED.of(subject, what, stream=block)
    if nameless:
        last = nameless[-1]
        what = (
            f"messages that name no sender are rejected, the last {_ago(last.last_at, through)} on subject "
            f"{last.subject} ({last.reason}): {last.excerpt or 'empty'}; whoever sent it may be called stale"
        )
        yield kinds.UNIDENTIFIED_REGISTRATIONS.of(subject, what, stream=block)
    if turned_away:
        last = turned_away[-1]
        what = (
            f"max_senders ({policy.max_senders:,}) is reached, with {sender_count:,} senders: messages of others are "
            f"rejected, the last {_ago(last.last_at, through)} on subject {last.subject}"
        )
        yield kinds.TOO_MANY_SENDERS.of(subject, what, stream=block)


def of_outbox(level: OutboxLevel, at: int) -> Iterator[Condition]:
    """Yield the conditions of waiting records, and of records that are too large; these outlive the agent."""
    if 0 < level.limit * NEARLY_FULL <= level.size:
        what = f"{format_size(level.size)} wait, of {format_size(level.limit)} (store.max_outbox)"
        yield kinds.OUTBOX_NEARLY_FULL.of("outbox", what)
    for each in level.set_apart:
        verb = "is" if each.count == 1 else "are"
        what = f"{each.count:,} {each.records} {verb} set apart: {_REFUSED[each.limit]}"
        remedy = _raise(each.limit, each.needed)
        yield kinds.SET_APART.of(f"stream {each.stream}", what, stream=each.stream, since=each.oldest_at, remedy=remedy)
    for dropped in level.dropped:
        limit = dropped.too_large.limit
        if at - dropped.at < DROPPED_LATELY:
            what = f"registrations or watermarks are dropped, the last {_ago(dropped.at, at)}: {_REFUSED[limit]}"
            remedy = _raise(limit, dropped.too_large.needed)
            yield kinds.TOO_LARGE_DROPPED.of(f"stream {dropped.block}", what, stream=dropped.block, remedy=remedy)


def in_order(found: Iterable[Condition]) -> list[Condition]:
    """Put errors before warnings, each as they were found."""
    return sorted(found, key=lambda condition: not condition.is_error)


def block_of(part: str) -> str:
    """Name the block that a part belongs to; "" for the agent's own.

    >>> block_of("source of nodes"), block_of("probe of nodes"), block_of("stream nodes"), block_of("upstream")
    ('nodes', 'nodes', 'nodes', '')
    """
    return part.removeprefix(_STREAM) if part.startswith(_STREAM) else part.partition(" of ")[2]


def not_followed(reached: Progress) -> str:
    return f"{reached.contradiction}; it is not followed, no time passes"


def why_unproven(block: str, reached: Progress, parts: Mapping[str, PartStatus]) -> str:
    """Return the reason why the silence of a block's stream proves nothing."""
    why = reached.storage_fault or ("" if reached.is_covered else reached.loss)
    if why:
        return f"the stream {why}"
    probe = parts.get(f"probe of {block}")
    said = f" (probe {probe.phase}: {probe.reason})" if probe and probe.reason else ""
    return f"nothing proves that the stream can store{said}"


def explains_missing_proof(reached: Progress) -> bool:
    """Return True if it is known why a blind stream proves nothing, and its past alone is not the reason."""
    return bool(reached.storage_fault) or not (reached.is_covered or reached.loss == UNSTEADY)


def is_blind(reached: Progress) -> bool:
    """Return True if a block's stream has been read to its end, and still nothing proves its time."""
    watches = reached.mode == "sample" and reached.blind_after > 0
    is_unproven = not reached.pending and reached.behind - reached.checked_ago > reached.blind_after
    return watches and (is_unproven or not reached.is_covered)


def is_never_proven(reached: Progress) -> bool:
    """Return True if a block's stream is read to its end, and nothing has ever proved its time."""
    return reached.mode == "sample" and reached.blind_after > 0 and not (reached.observed_through or reached.pending)


def is_not_moving(reached: Progress) -> bool:
    return reached.pending > 0 and reached.idle_for >= MOVING_WITHIN


def is_stalled(reached: Progress) -> bool:
    """Return True if a block's stream shows times that were observed before: no sender falls stale meanwhile."""
    return reached.mode == "sample" and 0 < reached.blind_after < reached.ahead


def _raise(limit: SizeLimit, needed: int) -> str:
    of = "of the region's servers" if limit is SizeLimit.MAX_PAYLOAD else "of the region's stream"
    return f"raise {limit} {of} to at least {needed} bytes"


def _ago(at: int, to: int) -> str:
    return f"{format_seconds(max(to - at, 0))} ago"
