"""Read of a stream whether it stores, and for how long it will; hold its server's clock against ours."""

import msgspec

from edge_agent.doctor.finding import Finding, doubtful, good
from shared.instants import SECOND, format_duration

CLOCK_TOLERANCE = 2 * SECOND
NEARLY_FULL = 0.9


class _State(msgspec.Struct):
    messages: int
    bytes: int
    last_seq: int


class _Config(msgspec.Struct):
    retention: str = "limits"
    discard: str = "old"
    sealed: bool = False
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: int = 0
    max_msg_size: int = -1


class StreamInfo(msgspec.Struct):
    """The part of STREAM.INFO that a check needs."""

    config: _Config
    state: _State
    ts: str

    @property
    def fullness(self) -> float:
        """Give how much of its tightest limit is taken, of a stream that refuses what is new when it is full."""
        if self.config.discard != "new":
            return 0.0
        limits = ((self.state.messages, self.config.max_msgs), (self.state.bytes, self.config.max_bytes))
        return max((taken / limit for taken, limit in limits if limit > 0), default=0.0)


def clock_finding(name: str, server_at: int, asked_at: int, answered_at: int) -> Finding:
    """Hold a server's clock against this host's, between whose two readings it was asked."""
    offset = 0 if asked_at <= server_at <= answered_at else server_at - (asked_at + answered_at) // 2
    if abs(offset) <= CLOCK_TOLERANCE:
        return good(name, f"its clock agrees with this host's within {format_duration(CLOCK_TOLERANCE)}")
    side = "ahead of" if offset > 0 else "behind"
    text = f"its clock is {format_duration(abs(offset))} {side} this host's"
    return doubtful(name, text, "synchronise both (chrony): what is decided does not depend on it, ages shown here do")
