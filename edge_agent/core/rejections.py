"""Remember which messages did not count as registrations lately, and why: one of them may be a living sender's.

People are told by it (``status``, ``doctor``, ``explain``); nothing is decided from it.
"""

from collections.abc import Iterable

import msgspec

from edge_agent.core.observation import RejectReason, SourceMessage
from shared.tables import visible

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


def with_another(rejections: Rejections, message: SourceMessage, reason: RejectReason, at: int) -> Rejections:
    """Add a message that was rejected; the oldest of its reason go beyond REJECTIONS_KEPT."""
    # Made visible it can be written, whatever bytes it is of.
    subject = visible(message.subject[:SUBJECT_KEPT])
    key = f"{reason} {subject}"
    rest = {each: rejections[each] for each in rejections if each != key}
    before = rejections.get(key)
    of_reason = [each for each, other in rest.items() if other.reason == reason]
    for oldest in of_reason[: max(len(of_reason) + 1 - REJECTIONS_KEPT, 0)]:
        del rest[oldest]
    count, first_at = (before.count + 1, before.first_at) if before else (1, at)
    rejection = Rejection(subject, reason, count, first_at, at, message.sequence, excerpt(message.payload))
    return {**rest, key: rejection}


def excerpt(payload: bytes) -> str:
    r"""Show the beginning of a payload, whatever it is.

    >>> excerpt(b'{"sender"\x00\xff' + b"." * 100)
    '{"sender"\\x00\\xff.................................................…'
    """
    shown = visible(payload[:EXCERPT].decode("utf-8", "backslashreplace"))
    return f"{shown}…" if len(payload) > EXCERPT else shown


def bearing(rejections: Iterable[Rejection], sender_id: str) -> list[Rejection]:
    """Give those that are a sender's by what they show: its name, or its first label, in the subject or the body."""
    name = sender_id.casefold()
    label = name.partition(".")[0]
    written = {name, name.replace(".", "_"), name.replace(".", "-"), *([] if label.isdecimal() else [label])} - {""}

    def shows_it(rejection: Rejection) -> bool:
        subject, body = f".{rejection.subject}.".casefold(), rejection.excerpt.casefold()
        return f'"{name}"' in body or any(f".{form}." in subject for form in written)

    return [each for each in rejections if shows_it(each)]
