"""Say which subject a record travels on, and read a subject back. Senders never become subject tokens."""

from enum import StrEnum

import msgspec

from shared.identifiers import AdvisoryKind, BlockId

ROOT = "fleet"
EVERY_RECORD = f"{ROOT}.>"


class RecordType(StrEnum):
    """The records that an agent publishes."""

    REGISTRATION = "registration"
    ADVISORY = "advisory"
    WATERMARK = "watermark"
    COPY = "copy"


class FleetSubject(msgspec.Struct, frozen=True):
    """What a subject says about the record on it: permissions protect it, so it outranks the body."""

    block_id: BlockId
    record_type: RecordType
    kind: AdvisoryKind | None = None
    copied_subject: str = ""


def registration_subject(block_id: BlockId) -> str:
    """``fleet.<region>.<site>.<block>.registration``"""
    return f"{ROOT}.{block_id}.registration"


def advisory_subject(block_id: BlockId, kind: AdvisoryKind) -> str:
    """``fleet.<region>.<site>.<block>.advisory.<kind>``"""
    return f"{ROOT}.{block_id}.advisory.{kind}"


def watermark_subject(block_id: BlockId) -> str:
    """``fleet.<region>.<site>.<block>.watermark``"""
    return f"{ROOT}.{block_id}.watermark"


def copy_subject(block_id: BlockId, copied_subject: str) -> str:
    """``fleet.<region>.<site>.<block>.copy.<the subject it had at the site>``"""
    return f"{ROOT}.{block_id}.copy.{copied_subject}"


def parse_subject(subject: str) -> FleetSubject | None:
    """Read a subject; None where it is not one of ours."""
    tokens = subject.split(".")
    if len(tokens) < 5 or tokens[0] != ROOT or not all(tokens):
        return None
    block_id, record, rest = BlockId(tokens[1], tokens[2], tokens[3]), tokens[4], tokens[5:]
    if record == RecordType.COPY and rest:
        return FleetSubject(block_id, RecordType.COPY, copied_subject=".".join(rest))
    if record == RecordType.ADVISORY and len(rest) == 1 and rest[0] in set(AdvisoryKind):
        return FleetSubject(block_id, RecordType.ADVISORY, AdvisoryKind(rest[0]))
    if record in (RecordType.REGISTRATION, RecordType.WATERMARK) and not rest:
        return FleetSubject(block_id, RecordType(record))
    return None
