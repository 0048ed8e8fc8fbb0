"""Define what the agent takes from its source: messages, observations, probes, and what was rejected and why."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from shared.command_line.tables import visible
from shared.tolerant_json import Deviation

PROBE_HEADER = "Muster-Probe"
# What the peer's heartbeats carry, and ours.
HEARTBEAT_HEADER = "Choria-SR-Originator"
MARKER_HEADER = "Nats-Marker-Reason"
"""What a server's own messages carry that stand for one it let go (ADR-43): the sender has said nothing."""

OPERATION_HEADER = "KV-Operation"
DELETE_OPERATIONS = frozenset(("DEL", "PURGE"))
"""What a key-value store's client writes when a key is deleted; any other operation puts a value."""


class BatchForm(StrEnum):
    """How the registrations of several senders stand in one body; NONE: a body holds one registration."""

    NONE = "none"
    LINES = "lines"
    ARRAY = "array"


class Unopened(StrEnum):
    """Why a body holds senders that were not read: it is a batch of another form than is set, or too long a batch.

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

    ``deviation`` says in what the body, as far as it was read, is not JSON; None where it is. ``unopened`` is why
    other senders in it were not read. In a batch, ``message`` has this sender's part of the
    body, which consists of ``count`` registrations.
    """

    sender_id: str
    message: SourceMessage
    digest: int = 0
    forced: bool = False
    deviation: Deviation | None = None
    unopened: Unopened | None = None
    count: int = 1


class ProofCause(StrEnum):
    """What a message is that proves time and is nobody's registration. Probes of others prove as much as our own."""

    OWN = "own"
    OTHERS = "others"
    HEARTBEAT = "heartbeat"
    DELETE_MARKER = "delete_marker"
    GOODBYE = "goodbye"


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
    BATCH = "batch"
    TOO_MANY_SENDERS = "too_many_senders"


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """A message without a sender, or a part of one, and why; ``unopened`` as in Observation."""

    message: SourceMessage
    reason: RejectReason
    unopened: Unopened | None = None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A message that holds registrations of several senders: one observation for each of them.

    ``rejected`` are its parts without a sender, ``goodbyes`` counts those that end something. ``unopened`` as in
    Observation.
    """

    message: SourceMessage
    observations: tuple[Observation, ...]
    rejected: tuple[Rejected, ...] = ()
    goodbyes: int = 0
    unopened: Unopened | None = None


IntakeResult = Observation | Batch | Rejected | ProbeSighting


# Which messages were rejected lately: one of them may be a living sender's. People are told, nothing is decided by it.

REJECTIONS_KEPT = 32
"""Subjects that are kept for each reason: one that comes on every subject pushes none of the others out."""

EXCERPT = 60
SUBJECT_KEPT = 256


class Rejection(msgspec.Struct, frozen=True):
    """What was rejected on one subject for one reason since ``first_at``, the last at ``last_at``, as ``sequence``.

    Instants are the stream's own time in microseconds. ``excerpt`` is what the last one begins with, made visible.
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
    """Add ``number`` rejections of one message, or of its parts; the oldest of a reason go beyond REJECTIONS_KEPT."""
    # Made visible it can be written, whatever bytes it is of.
    subject = visible(message.subject[:SUBJECT_KEPT])
    key = f"{reason} {subject}"
    rest = {each: rejections[each] for each in rejections if each != key}
    before = rejections.get(key)
    of_reason = [each for each, other in rest.items() if other.reason == reason]
    for oldest in of_reason[: max(len(of_reason) + 1 - REJECTIONS_KEPT, 0)]:
        del rest[oldest]
    count, first_at = (before.count + number, before.first_at) if before else (number, at)
    rejection = Rejection(subject, reason, count, first_at, at, message.sequence, excerpt(message.payload))
    return {**rest, key: rejection}


def excerpt(payload: bytes) -> str:
    r"""Show the beginning of a payload, whatever it is.

    >>> excerpt(b'{"sender"\x00\xff' + b"." * 100)
    '{"sender"\\x00\\xff.................................................…'
    """
    shown = visible(payload[:EXCERPT].decode("utf-8", "backslashreplace"))
    return f"{shown}…" if len(payload) > EXCERPT else shown


def rejections_of(rejections: Iterable[Rejection], sender_id: str) -> list[Rejection]:
    """Give those that are a sender's by what they show: its name, or its first label, in the subject or the body."""
    name = sender_id.casefold()
    label = name.partition(".")[0]
    written = {name, name.replace(".", "_"), name.replace(".", "-"), *([] if label.isdecimal() else [label])} - {""}

    def shows_it(rejection: Rejection) -> bool:
        subject, body = f".{rejection.subject}.".casefold(), rejection.excerpt.casefold()
        return f'"{name}"' in body or any(f".{form}." in subject for form in written)

    return [each for each in rejections if shows_it(each)]
