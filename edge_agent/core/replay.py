"""Decide once more, in one go: from what the stream said and the recorded inputs beside it, and nothing else.

Whatever an agent went through (batches, ticks, crashes, restarts), its advisories are those of this straight run. Tests
and schedules of faults compare them byte for byte.
"""

from collections import deque
from collections.abc import Iterable

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import (
    BlindSpan,
    Clamped,
    ClockSeen,
    Decision,
    EpochBegun,
    ObservationBegun,
    PolicyChanged,
    RecordedInput,
    SenderAskedFor,
    SenderRetired,
    StreamSeen,
)
from edge_agent.core.observation import Observation, Rejected, Taken
from edge_agent.core.policy_draft import PolicyDraft
from edge_agent.core.tracker import Tracker
from shared.identifiers import Incarnation, SourcePosition

NO_LIMIT = 1 << 62


def replay(
    began_as: BlockState,
    read: Iterable[tuple[Incarnation, Taken]],
    recorded: Iterable[RecordedInput],
    observed_through: int,
) -> list[Decision]:
    """Give all decisions of a block that ``began_as`` a new one, up to ``observed_through``.

    ``read``: every message read and committed, in order, under the incarnation in which it was read. ``recorded``:
    everything that was recorded with those commits, in order.
    """
    draft = Tracker(began_as).draft(decision_limit=NO_LIMIT, detect_blind_spans=False)
    waiting = deque(recorded)
    for incarnation, taken in read:
        while waiting and (draft.incarnation != incarnation or holds_before(waiting[0], taken.message.sequence)):
            apply_recorded(draft, waiting.popleft())
        if isinstance(taken, Observation):
            draft.observe(taken)
        elif isinstance(taken, Rejected):
            draft.reject(taken)
        else:
            draft.pass_over(taken)
    while waiting:
        apply_recorded(draft, waiting.popleft())
    draft.prove(observed_through)
    return draft.decisions


def holds_before(item: RecordedInput, sequence: int) -> bool:
    """Tell whether a recorded input comes before the message at ``sequence``."""
    return item.sequence <= sequence if isinstance(item, Clamped) else item.sequence < sequence


def apply_recorded(draft: PolicyDraft, item: RecordedInput, begins_at: SourcePosition | None = None) -> None:
    """Give a draft a recorded input; an epoch begins at ``begins_at`` of the new past, else at its start."""
    match item:
        case ObservationBegun(at):
            draft.prove(at)
        case Clamped(_, counted_at):
            draft.prove(counted_at)
        case BlindSpan():
            draft.pass_blind_span(item)
        case EpochBegun(incarnation, at):
            _prove_if_any(draft, at)
            sequence, stored_at = (begins_at.sequence, begins_at.stored_at) if begins_at else (0, 0)
            draft.begin_epoch(incarnation, sequence, stored_at)
        case PolicyChanged(at, policy):
            _prove_if_any(draft, at)
            draft.change_policy(policy)
        case SenderAskedFor(at, sender_id):
            _prove_if_any(draft, at)
            draft.ask_for(sender_id)
        case SenderRetired(at, sender_id):
            _prove_if_any(draft, at)
            draft.retire(sender_id)
        case StreamSeen(at):
            _prove_if_any(draft, at)
            draft.see_stream(item)
        case ClockSeen(at, _, is_ahead):
            _prove_if_any(draft, at)
            draft.see_clock(is_ahead=is_ahead)


def _prove_if_any(draft: PolicyDraft, at: int) -> None:
    """Advance to ``at``; 0 stands for the time before the first proof."""
    if at:
        draft.prove(at)
