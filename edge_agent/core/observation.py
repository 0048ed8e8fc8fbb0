"""Define what the agent takes from its source: messages, observations, probes, and what was rejected and why."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

PROBE_HEADER = "Muster-Probe"
# What the peer's heartbeats carry, and ours.
HEARTBEAT_HEADER = "Choria-SR-Originator"


class SourceMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of the source stream, its bytes untouched.

    ``stored_at`` is the stream's own time in microseconds, UTC. ``headers`` are the message's own, or None.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str] | None
    sequence: int
    stored_at: int


class Observation(msgspec.Struct, frozen=True, gc=False):
    """One registration as the tracker sees it. ``digest`` is 0 where no digest is configured."""

    sender_id: str
    message: SourceMessage
    digest: int = 0
    forced: bool = False


class ProbeSighting(msgspec.Struct, frozen=True, gc=False):
    """A message that an agent stored to see that the stream stores: a proof of time, nobody's registration.

    ``is_own`` tells whether our own block sent it; others' prove as much, and so do heartbeats.
    """

    message: SourceMessage
    is_own: bool
    is_heartbeat: bool = False

    @property
    def cause(self) -> str:
        """Name what it is, as counters do."""
        return "heartbeat" if self.is_heartbeat else "own" if self.is_own else "others"


class RejectReason(StrEnum):
    """Why a message could not be read as a registration. It is forwarded unsampled, and is still a proof of time."""

    NOT_AN_OBJECT = "not_a_json_object"
    NO_SENDER = "no_sender"
    SENDER_NOT_TEXT = "sender_not_text"
    SENDER_NOT_USABLE = "sender_not_usable"


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """A message without a sender, and why."""

    message: SourceMessage
    reason: RejectReason


Taken = Observation | Rejected | ProbeSighting
