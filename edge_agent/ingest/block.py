"""The rules of a stream block's reading loop, its phases, and which state its next watermark may vouch for."""

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
    """What the loop is doing, as people are told."""

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
    """Tell why the store keeps a batch waiting, and what a loop does ``otherwise`` when it keeps none any more."""
    report(otherwise if error is None else IngestPhase(f"paused, {error.cause}"), "" if error is None else str(error))


class BlockRules(msgspec.Struct, Generic[D], frozen=True):
    """One stream block's rules. ``rebuilding`` where its store was lost; ``watermark_interval`` in microseconds.

    ``decides`` makes from a state what decides: a Tracker where senders are watched. ``orders`` lays the hub's policy
    over ``policy``; None where there is none. ``clock`` bounds how far the stream's is followed; None where it always
    is. ``journal`` is told of every commit before it is made. ``conditions`` names what is wrong with the agent.
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
        """Give the thresholds that hold after what was taken of the hub's policy."""
        return self.policy if self.orders is None else self.orders.policy(revisions)

    def clock_bound(self, state: BlockState | None) -> int:
        """Give the latest instant of the stream's clock that a block in ``state`` follows now."""
        return EVERYTHING if self.clock is None else self.clock.bound(state)

    def contradiction(self, state: BlockState, site_at: int) -> str:
        """Say how the stream's clock stands to others, where it is not followed."""
        return self.clock.contradiction(site_at) if self.clock is not None and state.clock_ahead else ""


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
        self.claim: BlockState | None = None
        """What the last watermark of this run claims; None before the first."""
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

    def note(self, state: BlockState, at: float) -> None:
        """Note that a state's is committed, as it is when the mode writes none."""
        self._through = state.observed_through
        if self.claim is None or self.claim.observed_through != self._through:
            self.claim = state
        self.vouched = self.claim
        self.count += 1
        self._due_at = at + self._interval


def watermark_context(
    senders: dict[str, int],
    store: BatchStore,
    block: str,
    conditions: tuple[str, ...],
    claim: BlockState | None = None,
) -> WatermarkContext:
    """Look up what a watermark of a block tells beside the block's state."""
    depths = store.depths()
    return WatermarkContext(
        senders=senders,
        outbox={lane.name.lower(): depths[lane].rows for lane in Lane},
        outbox_counters=store.outbox_counters(block),
        conditions=conditions,
        claim=claim,
    )
