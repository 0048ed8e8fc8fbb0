"""Detection of messages that a stream has deleted before they were read, from missing sequences.

A limit for each subject, a message's own time to live, a rollup or a purge of a subject deletes messages from among the
unread ones, and those that are left still follow one another closely. The senders of deleted messages were not silent.
So no time is covered from the first missing sequence until none has been missing for ``blind_after``, or until reading
is no further behind than that: among messages unread for less than ``blind_after``, those that are left prove enough.
If several senders share a subject, a message of one replaces that of another, however soon it is read.
"""

from collections.abc import Sequence

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.stream_past import StreamFacts


class Thinning:
    """Missing sequences of one block's reading. ``expected`` is the next sequence if none is missing."""

    def __init__(self) -> None:
        self.expected = 0
        self.is_thinned = self.shows = False
        self._at = 0
        self._last_stored_at = 0
        self._subject_count, self._is_shared = 0, False

    def begin(self, state: BlockState, facts: StreamFacts) -> None:
        self.expected = state.read_through + 1
        self.is_thinned, self._at = state.seen.thinned, state.observed_through
        self.look_at(facts, state)

    def look_at(self, facts: StreamFacts, state: BlockState, examined_sequence: int = 0) -> None:
        """Note the stream's facts; everything up to ``examined_sequence`` is read."""
        self.shows, self._subject_count = facts.shows_holes, facts.subject_count
        # Messages that retention deleted at the front are a gap of their own.
        self.expected = max(self.expected, facts.first_sequence)
        if examined_sequence:
            self.expected = max(self.expected, examined_sequence + 1)
            if not self._is_shared or facts.server_at - self._at > state.policy.blind_after:
                self.is_thinned = False

    def must_look(self, messages: Sequence[SourceMessage]) -> bool:
        """Return True if each of the next messages must be taken, since they have a hole, and not only the last."""
        first, last = messages[0].sequence, messages[-1].sequence
        follow_closely = first == self.expected and last - first == len(messages) - 1
        return self.is_thinned or (self.shows and not follow_closely)

    def take(self, message: SourceMessage, state: BlockState, server_at: int, sender_count: int) -> bool:
        """Note the next message; return True if messages near it are missing. ``server_at``: the server's clock now."""
        blind_after = state.policy.blind_after
        last_proof = max(state.observed_through, self._last_stored_at)
        # The probe has a subject of its own.
        is_shared = 0 < self._subject_count <= sender_count
        if self.shows and message.sequence > self.expected and (is_shared or server_at - last_proof > blind_after):
            self.is_thinned, self._at, self._is_shared = True, message.stored_at, is_shared
        elif message.stored_at - self._at > blind_after or not (
            self._is_shared or server_at - message.stored_at > blind_after
        ):
            self.is_thinned = False
        self.pass_on(message)
        return self.is_thinned

    def pass_on(self, message: SourceMessage) -> None:
        self.expected, self._last_stored_at = message.sequence + 1, message.stored_at
