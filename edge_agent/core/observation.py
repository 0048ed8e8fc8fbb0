"""Inputs from the source: messages, observations, batches, probes, and rejections with their reasons."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from shared.command_line.tables import visible
from shared.tolerant_json import Deviation

PROBE_HEADER = "Muster-Probe"
# The header of heartbeats, the peer's and ours.
HEARTBEAT_HEADER = "Choria-SR-Originator"
MARKER_HEADER = "Nats-Marker-Reason"
"""The header of a server's message about one that it deleted (ADR-43): the sender has sent nothing."""

OPERATION_HEADER = "KV-Operation"
DELETE_OPERATIONS = frozenset(("DEL", "PURGE"))
"""The operations by which a key-value client deletes a key; any other operation puts a value."""


class BatchForm(StrEnum):
    """Form of a body with registrations of several senders; NONE: a body holds one registration."""

    NONE = "none"
    LINES = "lines"
    ARRAY = "array"


class Unopened(StrEnum):
    """Why a body has senders that were not read: it is a batch of another form than configured, or too long.

    Of several causes, the state of a block keeps the greatest text.
    """

    ARRAY = "array"
    LINES = "lines"
    TOO_LARGE = "too_large"


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

    ``deviation`` is how the body, as far as it was read, deviates from JSON; None if it does not. ``unopened`` is why
    other senders in it were not read. In a batch, ``message`` has this sender's part of the body, which consists of
    ``count`` registrations.
    """

    sender_id: str
    message: SourceMessage
    digest: int = 0
    forced: bool = False
    deviation: Deviation | None = None
    unopened: Unopened | None = None
    count: int = 1


class ProofCause(StrEnum):
    """Kind of a message that proves time and is not a registration. Other agents' probes prove as much as our own."""

    OWN = "own"
    OTHERS = "others"
    HEARTBEAT = "heartbeat"
    DELETE_MARKER = "delete_marker"
    GOODBYE = "goodbye"


class ProbeSighting(msgspec.Struct, frozen=True, gc=False):
    """A message that proves time and is not a registration."""

    message: SourceMessage
    cause: ProofCause


class RejectReason(StrEnum):
    """Why a message does not count as a registration. It is still a proof of time.

    It is forwarded unsampled, except for TOO_MANY_SENDERS: any number of such messages may follow.
    """

    NOT_AN_OBJECT = "not_a_json_object"
    NO_SENDER = "no_sender"
    SENDER_NOT_TEXT = "sender_not_text"
    SENDER_NOT_USABLE = "sender_not_usable"
    BATCH = "batch"
    TOO_MANY_SENDERS = "too_many_senders"


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """A message, or a part of one, without a sender, and the reason; ``unopened`` as in Observation."""

    message: SourceMessage
    reason: RejectReason
    unopened: Unopened | None = None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A message that holds registrations of several senders: one observation for each of them.

    ``rejected`` are its parts without a sender, ``goodbyes`` counts its goodbyes. ``unopened`` as in Observation.
    """

    message: SourceMessage
    observations: tuple[Observation, ...]
    rejected: tuple[Rejected, ...] = ()
    goodbyes: int = 0
    unopened: Unopened | None = None


IntakeResult = Observation | Batch | Rejected | ProbeSighting


# The latest rejections, for status and explain: one may come from a sender that is up. No decision depends on them.

REJECTIONS_KEPT = 32
"""Subjects that are kept for each reason: a reason met on every subject evicts none of the others."""

EXCERPT = 60
SUBJECT_KEPT = 256


class Rejection(msgspec.Struct, frozen=True):
    """The rejections on one subject for one reason, from ``first_at`` to ``last_at``; ``sequence`` is the last one's.

    Instants are the stream's own time in microseconds. ``excerpt`` is the beginning of the last one, made visible.
    """

    subject: str
    reason: RejectReason
    count: int
    first_at: int
    last_at: int
    sequence: int
    excerpt: str


Rejections = dict[str, Rejection]
"""By reason and subject, the latest last."""


def with_another(
    rejections: Rejections, message: SourceMessage, reason: RejectReason, at: int, number: int = 1
) -> Rejections:
    """Return ``rejections`` with ``number`` more of one message; of each reason the latest REJECTIONS_KEPT stay."""
    # Made visible, a subject of any bytes can be encoded.
    subject = visible(message.subject[:SUBJECT_KEPT])
    key = f"{reason} {subject}"
    rest = {other: rejections[other] for other in rejections if other != key}
    before = rejections.get(key)
    of_reason = [other for other, rejection in rest.items() if rejection.reason == reason]
    for oldest in of_reason[: max(len(of_reason) + 1 - REJECTIONS_KEPT, 0)]:
        del rest[oldest]
    count, first_at = (before.count + number, before.first_at) if before else (number, at)
    rejection = Rejection(subject, reason, count, first_at, at, message.sequence, excerpt(message.payload))
    return {**rest, key: rejection}


def excerpt(payload: bytes) -> str:
    r"""Return the beginning of a payload of any bytes as visible text.

    >>> excerpt(b'{"sender"\x00\xff' + b"." * 100)
    '{"sender"\\x00\\xff.................................................…'
    """
    shown = visible(payload[:EXCERPT].decode("utf-8", "backslashreplace"))
    return f"{shown}…" if len(payload) > EXCERPT else shown


def rejections_of(rejections: Iterable[Rejection], sender_id: str) -> list[Rejection]:
    """Return the rejections that show a sender's name, or its first label, in the subject or the body."""
    name = sender_id.casefold()
    label = name.partition(".")[0]
    written = {name, name.replace(".", "_"), name.replace(".", "-"), *([] if label.isdecimal() else [label])} - {""}

    def shows_it(rejection: Rejection) -> bool:
        subject, body = f".{rejection.subject}.".casefold(), rejection.excerpt.casefold()
        return f'"{name}"' in body or any(f".{form}." in subject for form in written)

    return [each for each in rejections if shows_it(each)]
