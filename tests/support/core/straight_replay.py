"""Decide once more, in one go: from what the stream said and the recorded inputs beside it, and nothing else."""

from collections import deque
from collections.abc import Iterable

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Decision, RecordedInput
from edge_agent.core.observation import Batch, IntakeResult, Observation, Rejected
from edge_agent.core.replay import NO_LIMIT, apply_recorded, holds_before
from edge_agent.core.tracker import Tracker
from shared.identifiers import Incarnation


def replay(
    began_as: BlockState,
    read: Iterable[tuple[Incarnation, IntakeResult]],
    recorded: Iterable[RecordedInput],
    observed_through: int,
) -> list[Decision]:
    """Give all decisions of a block that ``began_as`` a new one, up to ``observed_through``.

    ``read``: every message read and committed, in order, under the incarnation in which it was read. ``recorded``:
    everything that was recorded with those commits, in order.
    """
    draft = Tracker(began_as).draft(decision_limit=NO_LIMIT, detect_blind_spans=False)
    waiting = deque(recorded)
    for incarnation, result in read:
        while waiting and (draft.incarnation != incarnation or holds_before(waiting[0], result.message.sequence)):
            apply_recorded(draft, waiting.popleft())
        if isinstance(result, Observation):
            draft.observe(result)
        elif isinstance(result, Batch):
            draft.observe_batch(result)
        elif isinstance(result, Rejected):
            draft.reject(result)
        else:
            draft.pass_over(result)
    while waiting:
        apply_recorded(draft, waiting.popleft())
    draft.prove(observed_through)
    return draft.decisions
