"""Protocols of a block's mode as the ingest loop uses it: an intake, a decider with its drafts, a record writer.

The loop is the same for all modes: inputs go to a draft, its commit begins, and it is adopted at once, so that the next
draft builds on it (``edge_agent.ingest.commits``). A commit that the store cannot take now is retried until it can; any
other failure ends the loop, and its state in memory with it.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import BlindCause, Decision, RecordedInput, Restriction
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy, PolicyRevisions
from edge_agent.core.records import OutboxRow, WatermarkContext
from edge_agent.core.senders import SenderChanges
from edge_agent.core.stream_past import StreamFacts
from shared.identifiers import BlockId, Incarnation


class BlockDraft(Protocol):
    """Inputs applied, not yet adopted.

    Inputs that return a bool return False if the draft is full: begin to commit it, adopt it, and apply the same input
    to the next one. ``clock_ahead`` is True while the stream's clock is not followed.
    """

    decisions: list[Decision]
    recorded: list[RecordedInput]
    clock_ahead: bool

    def prove(self, at: int, examined_sequence: int = 0) -> bool:
        """Advance to an instant through which everything stored, up to ``examined_sequence``, has been read."""

    def examine(self, sequence: int) -> bool:
        """Note that everything up to ``sequence`` has been read, which proves no time."""

    def look_at(self, facts: StreamFacts, *, refuses: bool) -> bool:
        """Note the stream's configuration, and whether it refuses the messages sent to it."""

    def lifts(self, facts: StreamFacts, *, refuses: bool) -> set[Restriction]:
        """Return the noted restrictions of the stream that ``facts`` no longer show."""

    def find_thinned(self, *, thinned: bool) -> bool:
        """Note whether messages are missing from among those that are being read."""

    def pass_unproven(self, started_at: int, ended_at: int) -> bool:
        """Note a span in which nothing was stored for longer than probes leave a stream quiet."""

    def see_clock(self, *, is_ahead: bool, reference: int = 0) -> bool:
        """Stop time while the stream's clock is ahead of the others, which show ``reference``."""

    def lose(self, cause: BlindCause) -> None:
        """Note that something before the next proof was never seen."""

    def begin_epoch(self, incarnation: Incarnation, sequence: int, stored_at: int = 0) -> bool:
        """Continue after ``sequence`` of a changed past; ``stored_at`` is that message's if it was read before."""

    def ask_for(self, sender_id: str) -> bool:
        """Forward a sender's next sighting."""

    def retire(self, sender_id: str) -> bool:
        """Retire a sender by an operator's order."""

    def change_policy(self, policy: Policy) -> bool:
        """Apply other thresholds from now on."""

    def note_revisions(self, revisions: PolicyRevisions, what: str) -> None:
        """Note the applied revisions of the hub's policy, and count the outcome."""

    def steps_back(self, at: int) -> bool:
        """Return True if a stream's clock that shows ``at`` means that the stream's past has changed."""

    @property
    def changes_nothing(self) -> bool:
        """True if only time advanced."""

    def state(self) -> BlockState:
        """Return the block's state after the inputs."""

    def changes(self) -> SenderChanges:
        """Return the touched senders."""


D = TypeVar("D", bound=BlockDraft)
D_contra = TypeVar("D_contra", bound=BlockDraft, contravariant=True)


class Decider(Protocol[D]):
    """A block as of the last draft that was adopted; ``D`` is the mode's kind of draft, which its intake fills."""

    state: BlockState

    def draft(self) -> D:
        """Begin to apply inputs to copies."""

    def adopt(self, draft: D) -> None:
        """Make a draft's result the state; its commit has begun."""

    def sender_counts(self) -> dict[str, int]:
        """Return the number of senders by phase, for watermarks and status."""


class MessageIntake(Protocol[D_contra]):
    """Reads messages as the block's mode sees them."""

    @property
    def slow_count(self) -> int:
        """Number of messages that may have taken long to read: after each, the loop yields to other tasks."""

    def give(self, draft: D_contra, message: SourceMessage, *, too_old: bool) -> bool:
        """Add a message to a draft; return False if that is full. A ``too_old`` message is read but not forwarded."""


class RecordWriter(Protocol):
    """Writes decisions as rows for the outbox."""

    @property
    def block_id(self) -> BlockId: ...

    def rows(self, decisions: list[Decision], state: BlockState, watermark: WatermarkContext) -> Sequence[OutboxRow]:
        """Return every decision as a row, in order."""

    def watermark(self, state: BlockState, context: WatermarkContext) -> OutboxRow | None:
        """Return the watermark of ``state``; None if the mode covers no time."""
