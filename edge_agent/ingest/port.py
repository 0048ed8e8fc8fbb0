"""Protocols of the reading loop's journal, clock bound and policy orders, and its progress."""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from edge_agent.core.block_mode import BlockDraft
from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.store.port import BatchCommit
from shared.identifiers import BlockId


class Journal(Protocol):
    """The log of a redundant pair's leader: it records every commit so that the other member can replay it."""

    async def record(self, batch: BatchCommit) -> BatchCommit:
        """Record a batch's inputs, and return the batch to be committed; raise LeadLost if another agent leads."""

    async def prove(self, block_id: BlockId, state: BlockState) -> None:
        """Record, occasionally, that only time has advanced."""

    def committed(self, batch: BatchCommit) -> None:
        """Note that a batch is durable."""


class Progress(msgspec.Struct, frozen=True, rename={"storage_fault": "doubt"}):
    """Progress of a block's reading, for status; instants are the stream's own time, 0 if there was none yet.

    ``pending`` messages of the stream were unread ``pending_ago`` microseconds before; if any were, none has come for
    ``idle_for``. The last check was ``checked_ago`` before; ``server_at`` is the server's clock now, extrapolated from
    it. ``storage_fault`` is why the stream's silence proves nothing, ``loss`` what it no longer takes if senders may be
    missed because of that; time is not covered (``is_covered``) while coverage is suspended. ``expires_after`` and
    ``unacknowledged`` are the consumer's. ``contradiction`` is how the server's clock differs from others, if it is too
    far ahead to be followed. With ``has_unopened_batches``, no time is covered because messages hold registrations of
    several senders.
    """

    pending: int
    server_at: int
    checked_ago: int
    observed_through: int
    senders: dict[str, int]
    mode: str = "sample"
    blind_after: int = 0
    storage_fault: str = ""
    loss: str = ""
    is_covered: bool = True
    pending_ago: int = 0
    idle_for: int = 0
    expires_after: int = 0
    contradiction: str = ""
    unacknowledged: int = 0
    has_unopened_batches: bool = False

    @property
    def behind(self) -> int:
        """How far reading is behind the server's clock, in microseconds."""
        return max(self.server_at - self.observed_through, 0) if self.observed_through else 0

    @property
    def ahead(self) -> int:
        """How far the observed time is ahead of a server's clock that was set back, in microseconds."""
        return max(self.observed_through - self.server_at, 0)


class ClockBound(Protocol):
    """Bound up to which the ingest loop follows its stream's clock, by the other clocks."""

    def bound(self, state: BlockState | None) -> int:
        """Return the latest instant that a block in ``state`` follows now."""

    def reference(self) -> int:
        """Return the other clocks' time."""

    async def compare(self, site_at: int) -> None:
        """Wait for another clock if one contradicts the stream's and no other is known yet."""

    def follow(self, site_at: int) -> None:
        """Note the time of the stream's clock, which is followed now."""

    def contradiction(self, site_at: int) -> str:
        """Return a message on how the stream's clock differs from the others."""


class Orders(Protocol):
    """The hub's policy for one block."""

    def policy(self, revisions: PolicyRevisions) -> Policy:
        """Return the thresholds after the applied ``revisions``."""

    def inputs(self, state: BlockState) -> Iterable[Callable[[BlockDraft], bool]]:
        """Return the inputs for drafts of ``state``, one for each revision that is not applied yet."""
