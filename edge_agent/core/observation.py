"""Define what the agent takes from its source: messages, observations, probes, and what was rejected and why."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from shared.tolerant_json import Deviation

PROBE_HEADER = "Muster-Probe"
# What the peer's heartbeats carry, and ours.
HEARTBEAT_HEADER = "Choria-SR-Originator"
MARKER_HEADER = "Nats-Marker-Reason"
"""What a server's own messages carry that stand for one it let go (ADR-43): the sender has said nothing."""

OPERATION_HEADER = "KV-Operation"
DELETE_OPERATIONS = frozenset(("DEL", "PURGE"))
"""What a key-value store's client writes when a key is deleted; any other operation puts a value."""


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
    """One registration as the tracker sees it. ``digest`` is 0 where no digest is configured.

    ``deviation`` says in what the body, as far as it was read, is not JSON; None where it is.
    """

    sender_id: str
    message: SourceMessage
    digest: int = 0
    forced: bool = False
    deviation: Deviation | None = None


class ProofCause(StrEnum):
    """What a message is that proves time and is nobody's registration. Probes of others prove as much as our own."""

    OWN = "own"
    OTHERS = "others"
    HEARTBEAT = "heartbeat"
    DELETE_MARKER = "delete_marker"


class ProbeSighting(msgspec.Struct, frozen=True, gc=False):
    """A message that says no more than that the stream stores: a proof of time, nobody's registration."""

    message: SourceMessage
    cause: ProofCause


class RejectReason(StrEnum):
    """Why a message does not count as a registration. It is still a proof of time.

    It is forwarded unsampled, but for TOO_MANY_SENDERS: those whose sender would be one too many may be any number.
    """

    NOT_AN_OBJECT = "not_a_json_object"
    NO_SENDER = "no_sender"
    SENDER_NOT_TEXT = "sender_not_text"
    SENDER_NOT_USABLE = "sender_not_usable"
    TOO_MANY_SENDERS = "too_many_senders"


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """A message without a sender, and why."""

    message: SourceMessage
    reason: RejectReason


IntakeResult = Observation | Rejected | ProbeSighting
