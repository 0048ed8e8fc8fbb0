"""Define what the reading loop needs beside its source and store: a journal, clocks, orders; and how far it is."""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from edge_agent.core.block_mode import BlockDraft
from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.store.port import (
    BatchCommit,
)
from shared.identifiers import BlockId


class Journal(Protocol):
    """What the ingest loop of a redundant pair's leader needs: nothing is committed that the other could not decide."""

    async def record(self, batch: BatchCommit) -> BatchCommit:
        """Write down what a batch depends on; give the batch to be committed. Raise where another agent leads."""

    async def prove(self, block_id: BlockId, state: BlockState) -> None:
        """Write down, now and then, that only time has gone on."""

    def committed(self, batch: BatchCommit) -> None:
        """Note that a batch is durable."""


class Progress(msgspec.Struct, frozen=True, rename={"storage_fault": "doubt"}):
    """How far a block's reading has come, for people; instants are the stream's own time, 0 where there was none yet.

    ``pending`` messages of the stream waited to be read, ``pending_ago`` microseconds before; with any waiting, nothing
    has come for ``idle_for``. The stream was last looked at ``checked_ago`` before; ``server_at`` is the server's clock
    now, counted on from there. ``storage_fault`` says why the stream proves nothing, ``loss`` what it takes no more,
    where somebody may be missed because of that; no time ``is_covered`` while it is known not to take what is sent.
    ``expires_after`` and ``unacknowledged`` are the consumer's. ``contradiction`` says how the server's clock stands to
    others, where it is too far ahead of them to be followed. With ``has_unopened_batches``, no time is covered because
    messages hold registrations of several senders.
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
        """Give how far reading lies behind the server's clock, in microseconds."""
        return max(self.server_at - self.observed_through, 0) if self.observed_through else 0

    @property
    def ahead(self) -> int:
        """Give how far what was observed lies ahead of the server's clock, which was set back then."""
        return max(self.observed_through - self.server_at, 0)


class ClockBound(Protocol):
    """How far the ingest loop follows its stream's clock: what no other clock shows is not believed."""

    def bound(self, state: BlockState | None) -> int:
        """Give the latest instant that is followed now, by a block in ``state``."""

    def reference(self) -> int:
        """Give what the other clocks show."""

    async def compare(self, site_at: int) -> None:
        """Wait for another clock where one contradicts the stream's, and nothing else is known yet."""

    def follow(self, site_at: int) -> None:
        """Note what the stream's clock shows now, which is followed."""

    def contradiction(self, site_at: int) -> str:
        """Say how the stream's clock stands to the others."""


class Orders(Protocol):
    """What the ingest loop needs of the hub's policy."""

    def policy(self, revisions: PolicyRevisions) -> Policy:
        """Give the thresholds that hold after what was taken."""

    def inputs(self, state: BlockState) -> Iterable[Callable[[BlockDraft], bool]]:
        """Give what drafts of ``state`` are to be given, one for each revision that was not taken yet."""
