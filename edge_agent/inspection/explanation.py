"""Everything in the store about one sender: its state, its decisions, and changes of the stream."""

import sqlite3
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Any

import msgspec

from edge_agent.core.decisions import BlindSpan, Clamped, RecordedInput, SenderAskedFor, SenderRetired
from edge_agent.core.observation import Rejection, rejections_of
from edge_agent.core.senders import SenderPhase
from edge_agent.inspection.blocks import KnownBlock, read_blocks
from edge_agent.inspection.decisions import DecisionFilter, LoggedDecision, last_decisions
from edge_agent.store import decision_log
from edge_agent.store.read_only import StoreUnreadable
from shared.command_line.similar_names import similar_names
from shared.command_line.tables import visible
from shared.decoding import Decoder
from shared.identifiers import AdvisoryKind

SENDER = """
SELECT row_id, phase, last_seen_at, last_sequence, opening_sequence, last_forwarded_at, forwarded_size, first_interval,
  stale_observed_at
FROM sender WHERE sender_id = ?
"""
RECORDED = "SELECT body FROM recorded_input WHERE block = ? ORDER BY row_id"


HistoryEntry = LoggedDecision | RecordedInput
_recorded: Decoder[RecordedInput] = Decoder(RecordedInput, "a recorded input")
"""What was decided of a sender, or what happened to the stream meanwhile."""


class TrackedSender(msgspec.Struct, frozen=True):
    """A sender's state as committed.

    ``due_at`` is when it falls stale (heard) or is retired (stale) if it is not heard and the stream is watched until
    then, of a relay when it is forgotten; from ``forwarded_again_at`` on its next sighting is forwarded because its
    interval has passed.
    """

    state: str
    last_seen_at: int
    last_sequence: int
    opening_sequence: int
    last_forwarded_at: int
    forwarded_size: int
    due_at: int
    forwarded_again_at: int


class Explanation(msgspec.Struct, frozen=True):
    """Result of ``explain``; also its JSON form. ``tracked`` is None if the sender is not tracked (any more).

    ``history`` holds decisions and, between them, what happened to the stream, in the order in which they took effect.
    ``log_begins_at`` is the instant of the oldest advisory that is kept of any sender. ``rejections`` are messages that
    were rejected since the sender was last seen, and may be its; ``are_its`` where their subjects or bodies show
    its name.
    """

    sender_id: str
    block: KnownBlock
    is_watched: bool
    tracked: TrackedSender | None
    history: list[HistoryEntry]
    log_begins_at: int
    rejections: list[Rejection] = []
    are_its: bool = False


def explain_sender(database: sqlite3.Connection, sender_id: str, stream: str, at: int) -> list[Explanation]:
    """Gather one explanation for each block that knows the sender; raise StoreUnreadable where none does."""
    database.execute("BEGIN")
    blocks = read_blocks(database, stream)
    rows = {row[0] >> 32: row for row in database.execute(SENDER, (sender_id,))}
    log_begins_at = database.execute(decision_log.LOG_BEGINS).fetchone()[0] or 0
    explanations = []
    for number, block in blocks.items():
        name = block.block_id.block
        decided = last_decisions(database, DecisionFilter(name, _literally(sender_id)), limit=0)
        if number not in rows and not decided:
            continue
        tracked = _sender_state(sender_id, block, rows[number]) if number in rows else None
        bodies = database.execute(RECORDED, (name,)).fetchall()
        of_all = (_recorded(body) for (body,) in bodies)
        recorded = [each for each in of_all if _concerns(each, sender_id)]
        history = list(_history(decided, recorded, tracked))
        last_seen_at = tracked.last_seen_at if tracked else max(each.last_seen_at for each in decided)
        rejections, are_its = _rejected_since(block, sender_id, last_seen_at)
        explanations.append(
            Explanation(sender_id, block, block.is_watched(at), tracked, history, log_begins_at, rejections, are_its)
        )
    if not explanations:
        unheard = [
            each for block in blocks.values() for each in rejections_of(block.state.rejections.values(), sender_id)
        ]
        similar = similar_names(database, "SELECT sender_id AS name FROM sender", sender_id)
        hint = (
            f"did you mean {', '.join(map(visible, similar))}?"
            if similar
            else "muster-agent senders --match lists those it knows"
        )
        if unheard:
            last = max(unheard, key=lambda each: each.last_at)
            hint = f"a message that may be its was rejected ({last.reason}) on subject {last.subject}: {last.excerpt}"
        raise StoreUnreadable(
            f"sender {visible(sender_id)}: not known to this store, and nothing was decided of it; {hint}"
        )
    return explanations


def _rejected_since(block: KnownBlock, sender_id: str, last_seen_at: int) -> tuple[list[Rejection], bool]:
    """Return rejections since then, the latest first: those with the sender's name, otherwise all without a name."""
    since = [each for each in reversed(block.state.rejections.values()) if each.last_at > last_seen_at]
    its = rejections_of(since, sender_id)
    return its or since, bool(its)


def _sender_state(sender_id: str, block: KnownBlock, row: tuple[Any, ...]) -> TrackedSender:
    _, phase, seen_at, sequence, opening, forwarded_at, size, is_first_interval, stale_observed_at = row
    if not block.watches:
        due_at = block.forgotten_at(seen_at)
    elif phase == SenderPhase.STALE:
        due_at = block.retired_at(stale_observed_at)
    else:
        due_at = block.stale_at(seen_at)
    return TrackedSender(
        state=SenderPhase(phase).name.lower(),
        last_seen_at=seen_at,
        last_sequence=sequence,
        opening_sequence=opening,
        last_forwarded_at=forwarded_at,
        forwarded_size=size,
        due_at=due_at,
        forwarded_again_at=block.forwarded_again_at(sender_id, forwarded_at, bool(is_first_interval)),
    )


def _history(
    decided: list[LoggedDecision], recorded: list[RecordedInput], tracked: TrackedSender | None
) -> Iterator[HistoryEntry]:
    """Merge both by when they took effect, without changes of the stream before the first decision."""
    sequences = {each.sequence for each in decided} | ({tracked.last_sequence} if tracked else set())
    begins_at = min([each.last_seen_at or each.at for each in decided] + ([tracked.last_seen_at] if tracked else []))
    relevant = [
        each
        for each in recorded
        if (each.sequence in sequences if isinstance(each, Clamped) else took_effect_at(each) >= begins_at)
    ]
    keyed = merge(_in_order(relevant), _in_order(decided), key=lambda entry: entry[0])
    return (each for _, each in keyed)


def _in_order(
    entries: Iterable[HistoryEntry],
) -> Iterator[tuple[int, HistoryEntry]]:
    """Yield entries with when they took effect, which never runs back: a clamped message counts later than stored."""
    reached = 0
    for each in entries:
        reached = max(reached, took_effect_at(each))
        yield reached, each


def _concerns(entry: RecordedInput, sender_id: str) -> bool:
    return not isinstance(entry, SenderAskedFor | SenderRetired) or entry.sender_id == sender_id


def took_effect_at(entry: HistoryEntry) -> int:
    match entry:
        case BlindSpan():
            return entry.ended_at
        case Clamped():
            return entry.counted_at
        case _:
            return entry.at


def opened_at(history: list[HistoryEntry]) -> int:
    """Return when the present episode began, as far as the log reaches back; otherwise 0."""
    for entry in reversed(history):
        if isinstance(entry, LoggedDecision) and entry.decision == AdvisoryKind.NEW:
            return entry.at
    return 0


def _literally(text: str) -> str:
    """Write a text as a GLOB that matches it alone."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)
