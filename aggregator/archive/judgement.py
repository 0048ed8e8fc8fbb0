"""Judge what an archived message is worth: a record of the one whom its subject names, or quarantined for a reason.

The subject says whose a record is, for permissions protect it; a body that says otherwise is quarantined. Pure: the
live fleet and the tables take and refuse the same records.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET

from shared.decoding import WireError
from shared.identifiers import AdvisoryKind, BlockId
from shared.instants import EARLIEST, LATEST, SECOND
from shared.policy import (
    CancelMaintenance,
    DeclareMaintenance,
    ForwardSender,
    RetireSender,
    Revision,
    Scope,
    decode_revision,
    parse_policy_subject,
)
from shared.subjects import ROOT, RecordType, parse_subject
from shared.wire import CHORIA_EVENTS, Advisory, ChoriaAdvisory, Watermark, decode_advisory, decode_watermark

CHORIA_BLOCK = "choria"
"""The block of plain Choria advisories that came on subjects of their own."""

LONGEST_INCARNATION = 64
"""In letters: what is longer is none, and would be kept with each block."""

_LONGEST_SUBJECT = 512
"""Longer subjects, which no agent uses, are parsed for each message and not kept."""
_SITE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class QuarantineReason(StrEnum):
    """Why a message was not taken."""

    UNKNOWN_SUBJECT = "unknown_subject"
    NOT_DECODABLE = "not_decodable"
    CONTRADICTS_SUBJECT = "contradicts_subject"
    IMPLAUSIBLE_INSTANT = "implausible_instant"
    NO_ORIGIN = "no_origin"
    NOT_TEXT = "not_text"


class AdvisorySubject(NamedTuple):
    """Whose an advisory is, by its subject. A foreign subject does not say the kind and the site: they are None."""

    kind: AdvisoryKind | None
    region: str
    site: str | None
    block: str


class PlainAdvisory(msgspec.Struct, gc=False):
    """A plain Choria advisory under the names of our own fields."""

    event_id: str
    inspect_field: str
    value: str
    kind: AdvisoryKind
    region: str
    site: str
    block: str
    at_us: int
    last_seen_us: int
    stream: None = None
    incarnation: None = None
    sequence: None = None
    opening_sequence: None = None
    ordinal: None = None
    rebuilt: bool = False
    by_operator: bool = False
    unheard_until_us: None = None


AdvisoryBody: TypeAlias = Advisory | PlainAdvisory


@lru_cache(maxsize=10_000)
def advisory_subject(subject: bytes, choria_region: str) -> AdvisorySubject | None:
    """Read the subject of an advisory; None where a message on it is none."""
    text = subject.decode(errors="backslashreplace")
    ours = parse_subject(text)
    if ours is not None and ours.record_type is RecordType.ADVISORY:
        return AdvisorySubject(ours.kind, *msgspec.structs.astuple(ours.block_id))
    if not choria_region or text.split(".", 1)[0] == ROOT or parse_policy_subject(text) is not None:
        return None
    return AdvisorySubject(None, choria_region, None, CHORIA_BLOCK)


def named_by(subject: bytes, choria_region: str) -> AdvisorySubject | BlockId | Scope | None:
    """Return whose advisory, watermark or revision the messages on a subject are; None where they are none of these."""
    find = _named_by if len(subject) <= _LONGEST_SUBJECT else _named_by.__wrapped__
    return find(subject, choria_region)


@lru_cache(maxsize=200_000)
def _named_by(subject: bytes, choria_region: str) -> AdvisorySubject | BlockId | Scope | None:
    text = subject.decode(errors="backslashreplace")
    ours = parse_subject(text)
    if ours is not None and ours.record_type is RecordType.WATERMARK:
        return ours.block_id
    return advisory_subject(subject, choria_region) or parse_policy_subject(text)


def judged_advisory(payload: bytes, named: AdvisorySubject, earliest: int) -> AdvisoryBody | QuarantineReason:
    """Read an advisory of the one whom its subject names, not older than ``earliest`` (microseconds)."""
    try:
        # What a decoder skips, it does not look at.
        _ = payload.isascii() or payload.decode()
        found = decode_advisory(payload)
    except UnicodeDecodeError:
        return QuarantineReason.NOT_TEXT
    except WireError:
        return QuarantineReason.NOT_DECODABLE
    wanted = named
    if named.site is None:
        if not _SITE_NAME.fullmatch(found.replicator):
            return QuarantineReason.NOT_DECODABLE
        wanted = AdvisorySubject(found.kind, named.region, found.replicator, named.block)
    body = _with_our_names(found, wanted) if isinstance(found, ChoriaAdvisory) else found
    if not body.value or (body.incarnation is not None and len(body.incarnation) > LONGEST_INCARNATION):
        return QuarantineReason.NOT_DECODABLE
    said = (body.kind, body.region, body.site, body.block)
    if said != wanted or found.event != CHORIA_EVENTS[body.kind]:
        return QuarantineReason.CONTRADICTS_SUBJECT
    # A sender that was never seen has no time of it: Choria writes what it has.
    is_plausible = earliest <= body.at_us <= LATEST and 0 <= body.last_seen_us <= body.at_us
    unheard_until = body.unheard_until_us
    if unheard_until is not UNSET and unheard_until is not None:
        is_plausible = is_plausible and -LATEST <= unheard_until <= LATEST
    return body if is_plausible else QuarantineReason.IMPLAUSIBLE_INSTANT


def judged_watermark(payload: bytes, block_id: BlockId, earliest: int) -> Watermark | QuarantineReason:
    """Read a watermark of the block that its subject names, not older than ``earliest`` (microseconds)."""
    try:
        _ = payload.isascii() or payload.decode()
        found = decode_watermark(payload)
    except UnicodeDecodeError:
        return QuarantineReason.NOT_TEXT
    except WireError:
        return QuarantineReason.NOT_DECODABLE
    if len(found.incarnation) > LONGEST_INCARNATION:
        return QuarantineReason.NOT_DECODABLE
    if (found.region, found.site, found.block) != (block_id.region, block_id.site, block_id.block):
        return QuarantineReason.CONTRADICTS_SUBJECT
    is_plausible = EARLIEST <= found.observed_since_us <= found.observed_through_us <= LATEST
    is_plausible = is_plausible and found.rebuilt_at_us <= LATEST
    return found if is_plausible and found.observed_through_us >= earliest else QuarantineReason.IMPLAUSIBLE_INSTANT


def judged_revision(payload: bytes) -> Revision | QuarantineReason:
    try:
        _ = payload.isascii() or payload.decode()
        found = decode_revision(payload)
    except UnicodeDecodeError:
        return QuarantineReason.NOT_TEXT
    except WireError:
        return QuarantineReason.NOT_DECODABLE
    is_whole, is_plausible = True, EARLIEST <= found.given_at_us <= LATEST
    match found.order:
        case ForwardSender(sender_id) | RetireSender(sender_id):
            is_whole = bool(sender_id)
        case DeclareMaintenance(started_at, ended_at, _, sender_ids):
            is_whole = started_at < ended_at and all(sender_ids)
            is_plausible = is_plausible and started_at >= EARLIEST and ended_at <= LATEST
        case CancelMaintenance(revision):
            is_whole = revision > 0
    if not is_whole:
        return QuarantineReason.NOT_DECODABLE
    return found if is_plausible else QuarantineReason.IMPLAUSIBLE_INSTANT


def _with_our_names(plain: ChoriaAdvisory, named: AdvisorySubject) -> PlainAdvisory:
    return PlainAdvisory(
        event_id=plain.event_id,
        inspect_field=plain.inspect_field,
        value=plain.value,
        kind=plain.kind,
        region=named.region,
        site=plain.replicator,
        block=named.block,
        at_us=plain.timestamp * SECOND,
        last_seen_us=plain.seen * SECOND,
    )
