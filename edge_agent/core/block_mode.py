"""Say what the ingest loop needs of a block's mode: something that reads messages, decides, and writes records.

The loop knows no modes. In every mode inputs go to a draft, whose commit is begun, and which is then adopted at once:
what is decided next builds on it (``edge_agent.ingest.commits``). A commit that the store cannot take now is tried
until it can; any other failure ends the loop, and what is in memory with it.
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

    Inputs that return a bool return False where the draft is full: begin to commit it, adopt it, and give the same
    input to the next one. ``clock_ahead`` tells that the stream's clock is not followed.
    """

    decisions: list[Decision]
    recorded: list[RecordedInput]
    clock_ahead: bool

    def prove(self, at: int, examined_sequence: int = 0) -> bool:
        """Advance to an instant through which everything stored, up to ``examined_sequence``, has been read."""

    def examine(self, sequence: int) -> bool:
        """Note that everything up to ``sequence`` has been read, which proves no time."""

    def look_at(self, facts: StreamFacts, *, refuses: bool) -> bool:
        """Note what the stream takes, and whether it is seen to refuse what is sent to it."""

    def lifts(self, facts: StreamFacts, *, refuses: bool) -> set[Restriction]:
        """Tell what is noted to restrict the stream, and does so no more."""

    def find_thinned(self, *, thinned: bool) -> bool:
        """Note that messages are gone from among those that are being read, or are no more."""

    def pass_unproven(self, started_at: int, ended_at: int) -> bool:
        """Note a span in which nothing was stored for longer than probes leave a stream quiet."""

    def see_clock(self, *, is_ahead: bool, reference: int = 0) -> bool:
        """Let no time pass while the stream's clock is ahead of the others, which show ``reference``."""

    def lose(self, cause: BlindCause) -> None:
        """Note that something before the next proof was never seen."""

    def begin_epoch(self, incarnation: Incarnation, sequence: int, stored_at: int = 0) -> bool:
        """Go on with a stream whose past has changed, after ``sequence`` of the new past.

        ``stored_at`` is that of the message there, where it is one that was read.
        """

    def ask_for(self, sender_id: str) -> bool:
        """Let a sender's next sighting be forwarded."""

    def retire(self, sender_id: str) -> bool:
        """End a sender's life: an operator says that it is gone."""

    def change_policy(self, policy: Policy) -> bool:
        """Let other thresholds hold from now on."""

    def note_revisions(self, revisions: PolicyRevisions, what: str) -> None:
        """Note how far the hub's policy has been taken, and count what was done."""

    def steps_back(self, at: int) -> bool:
        """Tell whether the stream's clock showing ``at`` means that its past has changed."""

    @property
    def changes_nothing(self) -> bool:
        """Tell whether only time went on."""

    def state(self) -> BlockState:
        """Give the block's state as it is after the inputs."""

    def changes(self) -> SenderChanges:
        """Give the senders that were touched."""


D = TypeVar("D", bound=BlockDraft)
D_contra = TypeVar("D_contra", bound=BlockDraft, contravariant=True)


class Decider(Protocol[D]):
    """A block as of the last draft that was adopted; ``D`` is the mode's kind of draft, which its intake fills."""

    state: BlockState

    def draft(self) -> D:
        """Begin to apply inputs to copies."""

    def adopt(self, draft: D) -> None:
        """Make a draft the state, its commit having begun."""

    def sender_counts(self) -> dict[str, int]:
        """Count the senders by phase, as watermarks and people are told."""


class MessageIntake(Protocol[D_contra]):
    """Reads messages as the block's mode sees them."""

    @property
    def slow_count(self) -> int:
        """Count the messages that may have taken long to read: behind each, others on the loop may wait."""

    def give(self, draft: D_contra, message: SourceMessage, *, too_old: bool) -> bool:
        """Give a message to a draft; False where that is full. One that is ``too_old`` is read, but goes no further."""


class RecordWriter(Protocol):
    """Writes what was decided as rows for the outbox."""

    @property
    def block_id(self) -> BlockId:
        """Name the block."""

    def rows(self, decisions: list[Decision], state: BlockState, watermark: WatermarkContext) -> Sequence[OutboxRow]:
        """Write every decision as a row, in order."""

    def watermark(self, state: BlockState, context: WatermarkContext) -> OutboxRow | None:
        """Vouch for what ``state`` has reached; None where the mode vouches for nothing."""
