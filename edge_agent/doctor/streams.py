"""Read of a stream whether it stores, and for how long it will."""

import msgspec

from shared.subjects import covers

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
    subjects: tuple[str, ...] = ()
    no_ack: bool = False
    duplicate_window: int = 0
    discard_new_per_subject: bool = False


class StreamInfo(msgspec.Struct):
    """The part of STREAM.INFO that a check needs."""

    config: _Config
    state: _State
    ts: str

    def takes_unanswered(self, subject: str) -> bool:
        """Tell whether the stream stores what is published on a subject, and acknowledges nothing."""
        return self.config.no_ack and any(covers(each, subject) for each in self.config.subjects)

    @property
    def fullness(self) -> float:
        """Give how much of its tightest limit is taken, of a stream that refuses what is new when it is full."""
        if self.config.discard != "new":
            return 0.0
        limits = ((self.state.messages, self.config.max_msgs), (self.state.bytes, self.config.max_bytes))
        return max((taken / limit for taken, limit in limits if limit > 0), default=0.0)
