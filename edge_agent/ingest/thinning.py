"""Tell from sequences that are missing whether a stream has let go of messages before they were read.

A limit for each subject, a message's own time to live, a rollup, somebody who purges a subject: each takes messages
from among those that wait, and those that are left still follow one another closely. Whose messages are gone was silent
only to us. So no time is covered from the first that is missing until none has been for ``blind_after``, or until
reading is no further behind than that: what waits for less time than ``blind_after`` proves enough by what is left.
Where several senders share a subject, one's message takes the place of another's, however soon it is read.
"""

from collections.abc import Sequence

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.stream_past import StreamFacts


class Thinning:
    """What one block's reading has found missing. ``expected`` is the sequence that comes next where nothing is."""

    def __init__(self) -> None:
        self.expected = 0
        self.is_thinned = self.shows = False
        self._at = 0
        self._last_stored_at = 0
        self._subject_count, self._is_shared = 0, False

    def begin(self, state: BlockState, facts: StreamFacts) -> None:
        """Read on behind ``state``."""
        self.expected = state.read_through + 1
        self.is_thinned, self._at = state.seen.thinned, state.observed_through
        self.look_at(facts, state)

    def look_at(self, facts: StreamFacts, state: BlockState, examined_sequence: int = 0) -> None:
        """Note what a stream shows; up to ``examined_sequence`` nothing waits to be read."""
        self.shows, self._subject_count = facts.shows_holes, facts.subject_count
        # What retention has taken at the front is a gap of its own.
        self.expected = max(self.expected, facts.first_sequence)
        if examined_sequence:
            self.expected = max(self.expected, examined_sequence + 1)
            if not self._is_shared or facts.server_at - self._at > state.policy.blind_after:
                self.is_thinned = False

    def must_look(self, messages: Sequence[SourceMessage]) -> bool:
        """Tell whether to take each of the next messages, and not just pass the last one on: they have a hole."""
        first, last = messages[0].sequence, messages[-1].sequence
        follow_closely = first == self.expected and last - first == len(messages) - 1
        return self.is_thinned or (self.shows and not follow_closely)

    def take(self, message: SourceMessage, state: BlockState, server_at: int, sender_count: int) -> bool:
        """Take the next message; tell whether messages are gone about there. ``server_at``: the server's clock now."""
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
