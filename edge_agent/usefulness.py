"""Tell an agent that is alive from one that is useful: its streams are watched, and what it has to say leaves. Pure.

- Not useful at once: a stream is not being read, whatever the cause (its link, the stream, a full disk, a full outbox);
  or it is read, and nothing proves that it can store (it is sealed, or full): the time is blind; or its server's clock
  was set back: no time passes until it shows again what it had shown.
- Not useful at once: a file of its store is not where it was opened any more; what is not there ends with the process.
- Not useful after ``DRAIN_PATIENCE``: nothing leaves for the region. Links fail, and the outbox is there for that.
- One of a pair that can neither lead nor stand by is not useful at once; one whose other is missed still is.
- Useful, with a warning: a message was rejected within the last ``stale_after``. Who sent it is perhaps called stale,
  living; a living sender speaks again within ``stale_after``, so what is older is over.
- Useful: behind, and catching up. A probe or heartbeat in trouble shows as time that is blind, where it matters.

An agent that is not useful gains nothing from being started again.
"""

from collections.abc import Iterator, Mapping

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import RejectReason
from edge_agent.ports import Progress
from shared.instants import MINUTE, SECOND, format_duration

DRAIN_PATIENCE = 1 * MINUTE
IN_PLACE = "in place"
WORKING = frozenset({"connected", "reading", "following", "stored", "leading", "standing by", "catching up", IN_PLACE})
STORE = "store"
_UPSTREAM, _SOURCE, _STREAM, _PAIR = "upstream", "source of ", "stream ", "pair"


class Concern(msgspec.Struct, frozen=True):
    """What somebody should look at though the agent is useful, and what to do about it."""

    what: str
    remedy: str


class PartStatus(msgspec.Struct, frozen=True):
    """What one part of the agent does, since when, and why."""

    phase: str
    reason: str = ""
    since: int = 0

    @property
    def is_working(self) -> bool:
        """Tell whether it does what it is there for."""
        return self.phase in WORKING


def problems(parts: Mapping[str, PartStatus], progress: Mapping[str, Progress], at: int) -> Iterator[str]:
    """Say in a line each why the agent is not useful at ``at``, by its own clock; nothing where it is."""
    if not any(name.startswith(_STREAM) for name in parts):
        yield "starting: no stream is read yet"
    # A block's link before its stream, as the cause before what follows from it.
    for name, part in sorted(parts.items()):
        patience = DRAIN_PATIENCE if name == _UPSTREAM else 0
        counts = name.startswith((_UPSTREAM, _SOURCE, _STREAM)) or name in (_PAIR, STORE)
        if counts and not part.is_working and at - part.since >= patience:
            lasted = f" for {format_duration((at - part.since) // SECOND * SECOND)}" if part.since else ""
            yield f"{name}: {part.phase}{lasted}{part.reason and f': {part.reason}'}"
    for block, reached in progress.items():
        if is_blind(reached):
            behind = format_duration(reached.behind // SECOND * SECOND)
            lasted = f"blind for {behind}: nothing waits, but" if reached.is_covered else "blind:"
            yield f"stream {block}: {lasted} {why_unproven(block, reached, parts)}"
        if stands_still(reached):
            ahead = format_duration(reached.ahead // SECOND * SECOND)
            yield f"stream {block}: standing still: its server's clock is {ahead} behind what it had shown before"


def why_unproven(block: str, reached: Progress, parts: Mapping[str, PartStatus]) -> str:
    """Say why the silence of a block's stream proves nothing."""
    why = reached.doubt or ("" if reached.is_covered else reached.loss)
    if why:
        return f"the stream {why}"
    probe = parts.get(f"probe of {block}")
    said = f" (probe {probe.phase}: {probe.reason})" if probe and probe.reason else ""
    return f"nothing proves that the stream can store{said}"


def warnings(block: str, state: BlockState, sender_count: int) -> Iterator[Concern]:
    """Say what is to be looked at although a block is useful; by the stream's own time."""
    policy, through = state.policy, state.observed_through
    recent = [each for each in state.rejections.values() if through - each.last_at <= policy.stale_after]
    turned_away = [each for each in recent if each.reason is RejectReason.TOO_MANY_SENDERS]
    nameless = [each for each in recent if each.reason is not RejectReason.TOO_MANY_SENDERS]
    if state.loss and not state.is_suspended:
        yield Concern(
            f"stream {block}: the stream {state.loss}: who is not heard any more is unknown, not stale",
            "give the stream back what it took",
        )
    if nameless:
        last = nameless[-1]
        yield Concern(
            f"stream {block}: messages that name no sender are rejected, the last {_ago(last.last_at, through)} on "
            f"subject {last.subject} ({last.reason}): {last.excerpt or 'empty'}; whoever sent it may be called stale",
            "correct what the sender publishes, or [stream.sender], or leave it out by source.filter_subject",
        )
    if turned_away:
        last = turned_away[-1]
        yield Concern(
            f"stream {block}: max_senders ({policy.max_senders:,}) is reached, with {sender_count:,} senders: messages "
            f"of others are rejected, the last {_ago(last.last_at, through)} on subject {last.subject}",
            "raise it, or correct [stream.sender] where that names messages",
        )


def _ago(at: int, to: int) -> str:
    return f"{format_duration(max(to - at, 0) // SECOND * SECOND)} ago"


def is_blind(reached: Progress) -> bool:
    """Tell whether a block's stream has been read to its end, and still nothing proves its time."""
    watches = reached.mode == "sample" and reached.blind_after > 0
    is_unproven = not reached.pending and reached.behind - reached.checked_ago > reached.blind_after
    return watches and (is_unproven or not reached.is_covered)


def stands_still(reached: Progress) -> bool:
    """Tell whether a block's stream shows times that were observed before: nobody falls stale meanwhile."""
    return reached.mode == "sample" and 0 < reached.blind_after < reached.ahead
