"""The rules of a stream block's reading loop, its phases, and the state that its next watermark may cover."""

from collections.abc import Callable
from enum import StrEnum
from typing import Generic

import msgspec

from edge_agent.core.block_mode import D, Decider, MessageIntake, RecordWriter
from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.core.records import Lane, WatermarkContext
from edge_agent.ingest.port import ClockBound, Journal, Orders
from edge_agent.source.port import ConsumerPaused, ConsumerShared, SourceUnavailable
from edge_agent.store.port import EVERYTHING, BatchStore, StoreUnwritable
from shared.instants import SECOND


class IngestPhase(StrEnum):
    """The loop's activity, for status and conditions."""

    STARTING = "starting"
    READING = "reading"
    FOLLOWING = "following"
    UNAVAILABLE = "source unavailable"
    CONSUMER_PAUSED = "consumer paused"
    CONSUMER_SHARED = "consumer shared"
    WITHDRAWN = "withdrawn"
    DISK_FULL = "paused, disk full"
    DISK_FAILING = "paused, disk failing"
    STORE_LOCKED = "paused, store locked"
    OUTBOX_FULL = "paused, outbox full"


def phase_of(error: SourceUnavailable) -> IngestPhase:
    if isinstance(error, ConsumerShared):
        return IngestPhase.CONSUMER_SHARED
    return IngestPhase.CONSUMER_PAUSED if isinstance(error, ConsumerPaused) else IngestPhase.UNAVAILABLE


def report_pause(
    report: Callable[[IngestPhase, str], None], otherwise: IngestPhase, error: StoreUnwritable | None
) -> None:
    """Report why the store delays a batch, or the phase ``otherwise`` once it no longer does (``error`` is None)."""
    report(otherwise if error is None else IngestPhase(f"paused, {error.cause}"), "" if error is None else str(error))


class BlockRules(msgspec.Struct, Generic[D], frozen=True):
    """One stream block's rules. ``rebuilding`` where its store was lost; ``watermark_interval`` in microseconds.

    ``decides`` returns the decider of a state: a Tracker in sample mode. ``orders`` overlays the hub's policy on
    ``policy``; None without one. ``clock`` bounds how far the stream's clock is followed; None for no bound.
    ``journal`` records every commit before it is made. ``conditions`` returns the agent's current conditions.
    """

    stream: str
    policy: Policy
    intake: MessageIntake[D]
    emitter: RecordWriter
    decides: Callable[[BlockState], Decider[D]]
    watermark_interval: int
    rebuilding: bool = False
    mode: str = "sample"
    orders: Orders | None = None
    journal: Journal | None = None
    clock: ClockBound | None = None
    conditions: Callable[[], tuple[str, ...]] = tuple

    def policy_after(self, revisions: PolicyRevisions) -> Policy:
        """Return the thresholds after the applied ``revisions`` of the hub's policy."""
        return self.policy if self.orders is None else self.orders.policy(revisions)

    def clock_bound(self, state: BlockState | None) -> int:
        """Return the latest instant of the stream's clock that a block in ``state`` follows now."""
        return EVERYTHING if self.clock is None else self.clock.bound(state)

    def contradiction(self, state: BlockState, site_at: int) -> str:
        """Return a message on how the stream's clock differs from others, if it is not followed; else ""."""
        return self.clock.contradiction(site_at) if self.clock is not None and state.clock_ahead else ""


class Watermarks:
    """One block's watermarks: at most one for each ``interval`` (microseconds), and none without progress.

    Instants here are the event loop's, in seconds: the agent's own clock only paces.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval / SECOND
        self._due_at = 0.0
        self._through = 0
        self.covered: BlockState | None = None
        """The state that the last watermark covers, in this run or before it."""
        self.claim: BlockState | None = None
        """The state that the last watermark of this run claims; None before the first."""
        self.count = 0

    def begin(self, state: BlockState) -> None:
        """Note the state that an earlier run has committed, as the one that its last watermark covers at most."""
        if state.pending_blind is None and not state.is_suspended and state.observed_through:
            self.covered = state

    def are_due(self, at: float) -> bool:
        return at >= self._due_at

    def has_progress(self, state: BlockState) -> bool:
        """Return True if a state covers more time than the last watermark.

        Coverage that is about to be closed is covered by its closing watermark.
        """
        is_covered = state.pending_blind is None and not state.is_suspended
        return is_covered and state.observed_through != self._through

    def note(self, state: BlockState, at: float) -> None:
        """Note that the watermark of ``state`` is committed, or that the mode writes none."""
        self._through = state.observed_through
        if self.claim is None or self.claim.observed_through != self._through:
            self.claim = state
        self.covered = self.claim
        self.count += 1
        self._due_at = at + self._interval


def watermark_context(
    senders: dict[str, int],
    store: BatchStore,
    block: str,
    conditions: tuple[str, ...],
    claim: BlockState | None = None,
) -> WatermarkContext:
    """Return the fields of a block's watermark in addition to the block's state."""
    depths = store.depths()
    return WatermarkContext(
        senders=senders,
        outbox={lane.name.lower(): depths[lane].rows for lane in Lane},
        outbox_counters=store.outbox_counters(block),
        conditions=conditions,
        claim=claim,
    )
