"""Protocol of a source as the reading loop uses it, its values and errors, and the phases of the agent's messages."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.stream_past import PastChange, StreamFacts


class SourceUnavailable(Exception):
    """The source cannot be read now, for the reason in the message. Open it again."""


class ConsumerPaused(SourceUnavailable):
    """An operator has paused the consumer: nothing is delivered."""


class ConsumerShared(SourceUnavailable):
    """Another reader uses the consumer."""


class OpenResult(msgspec.Struct, frozen=True):
    """Result of open(). ``change`` means that the past is another one, to be read behind ``sequence``.

    ``is_gap`` means that messages were lost to retention, or to another reader.
    """

    facts: StreamFacts
    sequence: int
    change: PastChange | None = None
    is_gap: bool = False


class ConsumerState(msgspec.Struct, frozen=True):
    """A consumer's state: ``pending`` messages of its stream are unread, delivered or not.

    The server removes it when it has not been used for ``expires_after`` microseconds; 0: never. ``unacknowledged`` is
    the number of delivered messages if it has reached max_ack_pending, so that nothing more is delivered; else 0.
    """

    pending: int = 0
    expires_after: int = 0
    unacknowledged: int = 0


class StreamCheck(msgspec.Struct, frozen=True):
    """A check of the stream and of its consumer.

    ``caught_up_through`` is the instant up to which everything sent was stored and read, or 0. ``examined_sequence`` is
    the stream's last sequence if all of it was read, passed the filter or not, even if that proves no time; else 0.
    ``publish_error`` is why the stream refuses messages, "" if it does not, None if that is unknown and has not
    changed.
    """

    facts: StreamFacts
    caught_up_through: int = 0
    examined_sequence: int = 0
    publish_error: str | None = ""
    consumer: ConsumerState = ConsumerState()


class Source(Protocol):
    """A stream as the ingest loop reads it. Every method may raise SourceUnavailable: open() again."""

    @property
    def delivered_sequence(self) -> int:
        """The last sequence that was delivered, read or not."""

    @property
    def holds_unread(self) -> bool:
        """True if messages were delivered and not read."""

    @property
    def is_behind(self) -> bool:
        """True if many messages wait to be read."""

    async def resolve_start(self) -> tuple[StreamFacts, int]:
        """Return the stream's facts and the last sequence before the configured start."""

    async def open(self, state: BlockState) -> OpenResult:
        """Reset the consumer to the position of ``state``, and check that the past is still the same."""

    async def read(self, patience: float) -> Sequence[SourceMessage]:
        """Return the next messages, in order and without a gap; none if none came within ``patience`` seconds."""

    async def read_on(self) -> Sequence[SourceMessage]:
        """Return messages that follow closely, if reading is behind the stream; else none."""

    async def check(self, blind_after: int) -> StreamCheck:
        """Return the stream's facts, and whether everything stored has been read; ``blind_after``: as in Policy."""

    async def poll(self) -> StreamCheck:
        """Return the stream's facts and the number of unread messages, also while reading stands; proves no time."""

    async def acknowledge(self, through: int | None = None) -> None:
        """Acknowledge messages that were read, up to a sequence if one is given; call it after the commit."""

    async def await_reconnect(self, within: float) -> bool:
        """Wait before another open(): return True as soon as the connection is back, False after ``within`` seconds."""


class OwnMessagePhase(StrEnum):
    """State of the agent's own messages in its source (probes and heartbeats), for status and conditions."""

    STORED = "stored"
    NOT_STORED = "not stored"
    OFF = "off"
    NOT_NEEDED = "not needed"


def is_denied(subject: str, reason: str) -> bool:
    """Return True if a permission violation is about a publish on a subject.

    >>> is_denied("registration.Probe", 'nats: permissions violation for publish to "registration.probe"')
    True
    """
    # nats-py lowercases the server's text.
    return f'publish to "{subject}"'.lower() in reason.lower()
