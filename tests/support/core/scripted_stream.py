"""A site's stream in memory, with everything that can happen to one: what a Source shows, without a server."""

from collections.abc import Callable, Sequence

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.stream_past import PastChange, StreamFacts, StreamTakes, is_gap, is_unread, past_change
from edge_agent.source.port import ConsumerState, OpenResult, SourceUnavailable, StreamCheck
from shared.instants import SECOND

SETTLE = 2 * SECOND


class ScriptedStream:
    """A stream that is published to, cut short, made anew or restored, and the reader of it.

    ``clock`` is the true time, in microseconds; it moves only when told to. The server's is ``ahead`` of it.
    """

    def __init__(self, clock: int) -> None:
        self.clock = clock
        self.ahead = 0
        self.amid_check: Callable[[], None] = lambda: None
        """What happens between the two questions of the next check."""
        self._created_at = clock
        self._first_sequence = 1
        self._messages: list[SourceMessage] = []
        self._backup: tuple[int, int, list[SourceMessage]] = clock, 1, []
        self._read_through = 0
        self._is_broken = False
        self.following: list[SourceMessage] = []
        """What was delivered, and comes into the same batch."""
        self.takes = StreamTakes(("nodes.>",))
        self.publish_error = ""
        self.refuses_by_subject = False
        self.refused: list[tuple[str, int]] = []
        """Who was refused, and when."""

    @property
    def shown_clock(self) -> int:
        """Give what the server's clock shows."""
        return self.clock + self.ahead

    # What happens to it

    def publish(self, body: dict[str, object], *, stored_before: int = 0, payload: bytes = b"") -> SourceMessage | None:
        """Store a message, ``stored_before`` microseconds in the past: another server's clock may be behind.

        None where it is refused; what ``a`` and ``b`` send lies below ``nodes.``. ``payload`` is what the body is as
        bytes, where it is not JSON.
        """
        if self.publish_error or (self.takes.subjects != ("nodes.>",) and body["sender"] in ("a", "b")):
            self.refused.append((str(body["sender"]), self.clock))
            return None
        payload = payload or msgspec.json.encode(body)
        sequence = self._first_sequence + len(self._messages)
        message = SourceMessage("nodes.registration", payload, None, sequence, self.shown_clock - stored_before)
        self._messages.append(message)
        return message

    def let_go(self, count: int) -> None:
        """Lose the oldest messages to retention, read or not."""
        count = min(count, len(self._messages))
        del self._messages[:count]
        self._first_sequence += count

    def recreate(self) -> None:
        """Delete the stream and make it anew: sequences begin again, and its consumers are gone."""
        self._is_broken = True
        self._backup = self._created_at, self._first_sequence, self._messages
        self._created_at = self.shown_clock
        self._first_sequence = 1
        self._messages = []

    def restore(self, kept: int) -> None:
        """Start the server again from an older copy of its store: the last messages never were."""
        self._is_broken = True
        del self._messages[kept:]

    def restore_backup(self, kept: int) -> None:
        """Put back what it was before it was made anew the last time, and of that the first messages alone."""
        self._is_broken = True
        self._created_at, self._first_sequence, messages = self._backup
        self._messages = messages[:kept]

    @property
    def held(self) -> int:
        """Count the messages that it holds."""
        return len(self._messages)

    # What a Source shows

    @property
    def delivered_sequence(self) -> int:
        return self._read_through

    @property
    def holds_unread(self) -> bool:
        return False

    @property
    def is_behind(self) -> bool:
        return self._read_through < self._facts().last_sequence

    async def resolve_start(self) -> tuple[StreamFacts, int]:
        return self._facts(), self._first_sequence - 1

    async def open(self, state: BlockState) -> OpenResult:
        position, read_through, last_stored_at = state.position, state.read_through, state.last_stored_at
        self._is_broken = False
        facts = self._facts()
        change = past_change(position, facts)
        committed = self._at(position.sequence)
        verifies = change is None and last_stored_at
        if verifies and committed and is_unread(position, committed.stored_at, last_stored_at):
            change = PastChange.REWRITTEN
        self._read_through = position.sequence
        if change is None:
            return OpenResult(facts, position.sequence, is_gap=is_gap(read_through, facts))
        if change is PastChange.RECREATED or not last_stored_at:
            return OpenResult(facts, self._first_sequence - 1, change)
        later = (message.sequence for message in self._messages if message.stored_at > last_stored_at)
        return OpenResult(facts, next(later, facts.last_sequence + 1) - 1, change)

    async def read(self, _patience: float) -> Sequence[SourceMessage]:
        return self.next_messages(len(self._messages))

    async def read_on(self) -> Sequence[SourceMessage]:
        following, self.following = self.following, []
        return following

    def next_messages(self, count: int) -> list[SourceMessage]:
        """Deliver at most ``count`` messages."""
        self._fail_if_broken()
        messages = [message for message in self._messages if message.sequence > self._read_through][:count]
        if messages:
            self._read_through = messages[-1].sequence
        return messages

    async def check(self, _blind_after: int) -> StreamCheck:
        self._fail_if_broken()
        facts = self._facts()
        happens, self.amid_check = self.amid_check, lambda: None
        happens()
        if self._read_through < facts.last_sequence:
            return StreamCheck(facts, publish_error=self.publish_error)
        through = 0 if self.publish_error else self.shown_clock - SETTLE
        return StreamCheck(facts, through, facts.last_sequence, publish_error=self.publish_error)

    async def poll(self) -> StreamCheck:
        facts = self._facts()
        return StreamCheck(facts, consumer=ConsumerState(facts.last_sequence - self._read_through))

    async def acknowledge(self, through: int | None = None) -> None:
        """Nothing depends on what the server believes was read."""

    async def await_reconnect(self, _within: float) -> bool:
        return True

    def _fail_if_broken(self) -> None:
        if self._is_broken:
            raise SourceUnavailable("the consumer is gone")

    def _facts(self) -> StreamFacts:
        last = self._first_sequence + len(self._messages) - 1
        return StreamFacts(
            self._created_at,
            self._first_sequence,
            last,
            self.shown_clock,
            takes=self.takes,
            publish_error=self.publish_error,
            refuses_by_subject=self.refuses_by_subject,
        )

    def _at(self, sequence: int) -> SourceMessage | None:
        index = sequence - self._first_sequence
        return self._messages[index] if 0 <= index < len(self._messages) else None


class TrueClock:
    """Another clock, which shows the true time: a ClockBound by which the stream's is followed so far beyond it."""

    def __init__(self, stream: ScriptedStream, max_ahead: int) -> None:
        self._stream = stream
        self._max_ahead = max_ahead

    def bound(self, _state: BlockState | None) -> int:
        return self._stream.clock + self._max_ahead

    def reference(self) -> int:
        return self._stream.clock

    async def compare(self, site_at: int) -> None:
        """Know of the true time already."""

    def follow(self, site_at: int) -> None:
        """Need not know when the stream's is followed."""

    def contradiction(self, site_at: int) -> str:
        return f"ahead by {site_at - self._stream.clock}"
