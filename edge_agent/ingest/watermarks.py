"""Say when a block's next watermark is due, which state it may vouch for, and what it tells beside that."""

from edge_agent.core.block_state import BlockState
from edge_agent.core.records import Lane, WatermarkContext
from edge_agent.store.port import BatchStore
from shared.instants import SECOND


class Watermarks:
    """One block's watermarks: at most one for each ``interval`` (microseconds), and none that says nothing new.

    Instants here are the event loop's, in seconds: the agent's own clock only paces.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval / SECOND
        self._due_at = 0.0
        self._through = 0
        self.vouched: BlockState | None = None
        """What the last one vouched for, in this run or before it."""
        self.count = 0

    def begin(self, state: BlockState) -> None:
        """Note what a run before has committed: no further than that, it can be vouched for."""
        if state.pending_blind is None and not state.is_suspended and state.observed_through:
            self.vouched = state

    def are_due(self, at: float) -> bool:
        """Tell whether the next one is due, if there is anything to vouch for."""
        return at >= self._due_at

    def has_progress(self, state: BlockState) -> bool:
        """Tell whether a state has anything new to vouch for.

        Coverage that is about to be closed is vouched for by the watermark that closes it.
        """
        is_covered = state.pending_blind is None and not state.is_suspended
        return is_covered and state.observed_through != self._through

    def made(self, state: BlockState, at: float) -> None:
        """Note that a state's is committed, as it is when the mode writes none."""
        self._through, self.vouched = state.observed_through, state
        self.count += 1
        self._due_at = at + self._interval


def watermark_context(senders: dict[str, int], store: BatchStore, block: str) -> WatermarkContext:
    """Look up what a watermark of a block tells beside the block's state."""
    depths = store.depths()
    return WatermarkContext(
        senders=senders,
        outbox={lane.name.lower(): depths[lane].rows for lane in Lane},
        outbox_counters=store.outbox_counters(block),
    )
