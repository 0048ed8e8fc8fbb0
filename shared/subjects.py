"""Say which subject a record travels on, and read a subject back. Senders never become subject tokens."""

import re
from enum import StrEnum
from functools import lru_cache

import msgspec

from shared.identifiers import AdvisoryKind, BlockId, is_token

ROOT = "fleet"
_PUBLISHABLE = re.compile(r"(?![*>]$)[^\s.]+")
BLOCKS_PER_SITE = 64
"""The default of the most blocks that count of one site."""
EVERY_REGISTRATION = f"{ROOT}.*.*.*.registration"


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


@lru_cache(maxsize=64)
def registration_subject(block_id: BlockId, prefix: str = "") -> str:
    """``fleet.<region>.<site>.<block>.registration``, or ``<prefix>.registration``."""
    return f"{prefix or _own(block_id)}.registration"


@lru_cache(maxsize=64)
def advisory_subject(block_id: BlockId, kind: AdvisoryKind, prefix: str = "") -> str:
    """``fleet.<region>.<site>.<block>.advisory.<kind>``, or ``<prefix>.advisory.<kind>``."""
    return f"{prefix or _own(block_id)}.advisory.{kind}"


def watermark_subject(block_id: BlockId, prefix: str = "") -> str:
    """``fleet.<region>.<site>.<block>.watermark``, or ``<prefix>.watermark``."""
    return f"{prefix or _own(block_id)}.watermark"


def copy_prefix(block_id: BlockId) -> str:
    """``fleet.<region>.<site>.<block>.copy``: copies go below it, on the subjects that they had at the site."""
    return f"{_own(block_id)}.copy"


def probe_subject(region: str, site: str, block: str) -> str:
    """Name where a site's agents publish a block's probes: no sender's subject, and no other block's."""
    return f"muster.probe.{region}.{site}.{block}"


def _own(block_id: BlockId) -> str:
    return f"{ROOT}.{block_id}"


def is_publishable(subject: str) -> bool:
    """Tell whether a subject can be published on: tokens without blanks and wildcards, joined by single dots.

    >>> is_publishable("fleet.eu-west"), is_publishable("fleet..eu-west"), is_publishable("fleet.>")
    (True, False, False)
    """
    return all(_PUBLISHABLE.fullmatch(token) for token in subject.split("."))


def is_readable(pattern: str) -> bool:
    """Tell whether a subject can be read on: as one to publish on, with wildcards for whole tokens where wanted.

    >>> is_readable("registration.*.>"), is_readable("registration.>.a"), is_readable("registration. a")
    (True, False, False)
    """
    *parts, last = pattern.split(".")
    return all(part == "*" or _PUBLISHABLE.fullmatch(part) for part in (*parts, "*" if last == ">" else last))


def parse_subject(subject: str) -> FleetSubject | None:
    """Return what a subject says; None if it is not one of ours, or names a block as no agent can be configured to."""
    tokens = subject.split(".")
    if len(tokens) < 5 or tokens[0] != ROOT or not all(tokens) or not all(map(is_token, tokens[1:4])):
        return None
    block_id, record, rest = BlockId(tokens[1], tokens[2], tokens[3]), tokens[4], tokens[5:]
    if record == RecordType.COPY and rest:
        return FleetSubject(block_id, RecordType.COPY)
    if record == RecordType.ADVISORY and len(rest) == 1 and rest[0] in set(AdvisoryKind):
        return FleetSubject(block_id, RecordType.ADVISORY, AdvisoryKind(rest[0]))
    if record in (RecordType.REGISTRATION, RecordType.WATERMARK) and not rest:
        return FleetSubject(block_id, RecordType(record))
    return None


def overlap(one: str, other: str) -> bool:
    """Tell whether there is a subject that two patterns both stand for.

    >>> overlap("fleet.*.dub1", "fleet.eu-west.>"), overlap("fleet.eu-west", "fleet.*.dub1")
    (True, False)
    """
    ones, others = one.split("."), other.split(".")
    for left, right in zip(ones, others, strict=False):
        if ">" in (left, right):
            return True
        if left != right and "*" not in (left, right):
            return False
    return len(ones) == len(others)


def covers(pattern: str, subject: str) -> bool:
    """Tell whether a stream's subject takes every subject that another, perhaps itself a wildcard, stands for.

    >>> covers("registration.>", "registration.dub1.*"), covers("registration.dub1", "registration.*")
    (True, False)
    """
    wanted, found = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(found) > position
        if position >= len(found) or found[position] == ">" or part not in ("*", found[position]):
            return False
    return len(wanted) == len(found)
