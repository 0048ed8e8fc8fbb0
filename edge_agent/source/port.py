"""Define what the reading loop needs of a source (tests hold every adapter to it), and phases of its own messages."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.stream_past import PastChange, StreamFacts


class SourceUnavailable(Exception):
    """The source cannot be read now; the message says why. Try again."""


class ConsumerPaused(SourceUnavailable):
    """An operator has paused the consumer: nothing is delivered."""


class ConsumerShared(SourceUnavailable):
    """Somebody else reads through the consumer."""


class OpenResult(msgspec.Struct, frozen=True):
    """How the source stands to the committed position.

    ``change`` says that the past is another one, to be read behind ``sequence``; ``is_gap`` that messages were lost to
    retention.
    """

    facts: StreamFacts
    sequence: int
    change: PastChange | None = None
    is_gap: bool = False


class ConsumerState(msgspec.Struct, frozen=True):
    """What a consumer shows of itself: ``pending`` messages of its stream wait to be read, delivered or not.

    The server removes it when it has not been used for ``expires_after`` microseconds; 0: never. It delivers nothing
    more while so many ``unacknowledged`` messages are as it lets wait; 0 where fewer are.
    """

    pending: int = 0
    expires_after: int = 0
    unacknowledged: int = 0


class StreamCheck(msgspec.Struct, frozen=True):
    """What a stream shows now, and the consumer that it is read through.

    ``caught_up_through`` is the instant up to which everything sent was stored and read, or 0. ``examined_sequence`` is
    the stream's last sequence where all of it was read, passed the filter or not, whatever that proves; else 0.
    ``publish_error`` says why the stream refuses what is sent to it, "" where it does not, None where that is not
    known: as it was before.
    """

    facts: StreamFacts
    caught_up_through: int = 0
    examined_sequence: int = 0
    publish_error: str | None = ""
    consumer: ConsumerState = ConsumerState()


class Source(Protocol):
    """What the ingest loop needs of a stream. Everything may raise SourceUnavailable: open() again."""

    @property
    def delivered_sequence(self) -> int:
        """Give the last sequence that was delivered, read or not."""

    @property
    def holds_unread(self) -> bool:
        """Tell whether something was delivered that has not been read."""

    @property
    def is_behind(self) -> bool:
        """Tell whether much waits behind what was read."""

    async def resolve_start(self) -> tuple[StreamFacts, int]:
        """Give the stream's facts and the last sequence before the configured start."""

    async def open(self, state: BlockState) -> OpenResult:
        """Point the consumer behind what ``state`` has read, checking that the past is still the same."""

    async def read(self, patience: float) -> Sequence[SourceMessage]:
        """Give the next messages, in order and without a hole; none if none came within ``patience`` seconds."""

    async def read_on(self) -> Sequence[SourceMessage]:
        """Give what follows closely, where reading is behind the stream: none else."""

    async def check(self, blind_after: int) -> StreamCheck:
        """Ask the stream for its facts, and whether everything stored has been read; ``blind_after``: as in Policy."""

    async def look(self) -> StreamCheck:
        """Ask for what waits, whatever keeps reading from going on; nothing is proved by that."""

    async def acknowledge(self, through: int | None = None) -> None:
        """Acknowledge what was read, up to a sequence where one is given; call it after the commit."""

    async def comes_back(self, within: float) -> bool:
        """Wait before another open(): True as soon as the connection is back, False after ``within`` seconds."""


class OwnMessagePhase(StrEnum):
    """State of the agent's own messages in its source, probes and heartbeats, as people are told."""

    STORED = "stored"
    NOT_STORED = "not stored"
    OFF = "off"
    NOT_NEEDED = "not needed"


def is_denied(subject: str, reason: str) -> bool:
    """Tell whether a permission violation is about a publish on a subject.

    >>> is_denied("registration.Probe", 'nats: permissions violation for publish to "registration.probe"')
    True
    """
    # nats-py gives it in small letters.
    return f'publish to "{subject}"'.lower() in reason.lower()
