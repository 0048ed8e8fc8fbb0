"""Decide where reading goes on, given what was committed and what the stream shows on a connect.

A stream's past can change while its name and creation time stay: it is restored from an older copy, or a memory stream
restarts and uses its sequences again. Sequences are believed only where the message at the committed position is
still the one that was read.
"""

from enum import StrEnum

import msgspec

from shared.identifiers import Incarnation, SourcePosition


class StreamFacts(msgspec.Struct, frozen=True):
    """What STREAM.INFO shows. Instants in microseconds; ``server_at`` is the server's clock when it answered.

    ``stores`` is False while the stream is sealed, or full and refusing new messages: silence then proves nothing.
    """

    created_at: int
    first_sequence: int
    last_sequence: int
    server_at: int
    stores: bool = True

    def incarnation(self, previous: Incarnation | None = None) -> Incarnation:
        """Name the past that begins now by the server's clock; never as ``previous`` was named."""
        epoch_ms = self.server_at // 1000
        if previous is not None and previous.created_at == self.created_at:
            epoch_ms = max(epoch_ms, previous.epoch_ms + 1)
        return Incarnation(self.created_at, epoch_ms)


class PastChange(StrEnum):
    """How a stream showed that its past is not the one that was read."""

    RECREATED = "recreated"
    SHORTENED = "shortened"
    REWRITTEN = "rewritten"
    STEPPED_BACK = "stepped_back"


def past_change(position: SourcePosition, facts: StreamFacts) -> PastChange | None:
    """Tell from the stream's facts whether the past has changed since ``position``."""
    if facts.created_at != position.incarnation.created_at:
        return PastChange.RECREATED
    if facts.last_sequence < position.sequence:
        return PastChange.SHORTENED
    return None


def is_gap(read_through: int, facts: StreamFacts) -> bool:
    """Tell whether retention outran the reader: messages behind ``read_through`` are gone unread."""
    return facts.first_sequence > read_through + 1
