"""Decide why a message is not taken: columns over what ``decode.py`` has read of it.

The subject says whose record it is, for permissions protect it; a body or header that says otherwise is quarantined.
"""

from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as f

from aggregator.archive.judgement import LONGEST_INCARNATION, QuarantineReason
from aggregator.archive.reach import REACH
from shared.instants import EARLIEST, LATEST
from shared.subjects import RecordType
from shared.wire import WATERMARK_PROTOCOL

POLICY_RECORD = "policy"
WATERMARK_FIELDS = {
    "protocol": "STRING",
    "region": "STRING",
    "site": "STRING",
    "block": "STRING",
    "agent": "STRING",
    "observed_since_us": "BIGINT",
    "observed_through_us": "BIGINT",
    "stream": "STRING",
    "incarnation": "STRING",
    "sequence": "BIGINT",
    "advisory_ordinal": "BIGINT",
    "senders": "MAP<STRING, BIGINT>",
    "outbox": "MAP<STRING, BIGINT>",
    "counters": "MAP<STRING, MAP<STRING, BIGINT>>",
    "stale_after": "BIGINT",
    "retire_after": "BIGINT",
    "blind_after": "BIGINT",
    "policy_revision": "BIGINT",
    "version": "STRING",
    "boot_id": "STRING",
}
"""What must be there: fields with a default in shared/wire.py may be missing."""


def reason(policy_reason: Column) -> Column:
    """Give the reason to quarantine a message, null where there is none.

    That of a revision of policy is given; that of an advisory was found when it was decoded.
    """
    record = f.col("record")
    return (
        f.when(record.isNull(), QuarantineReason.UNKNOWN_SUBJECT)
        .when(record == RecordType.ADVISORY, f.col("quarantine_reason"))
        # A sender may write what it likes: an agent has named it, and says the rest in headers.
        .when(
            ~f.is_valid_utf8("text") & ~record.isin(RecordType.REGISTRATION, RecordType.COPY), QuarantineReason.NOT_TEXT
        )
        .when(record == RecordType.WATERMARK, _watermark_reason())
        .when(record == POLICY_RECORD, policy_reason)
        .otherwise(_registration_reason())
    )


def _watermark_reason() -> Column:
    body = "watermark."
    whole = _present(body, *WATERMARK_FIELDS) & (f.col(body + "protocol") == WATERMARK_PROTOCOL)
    whole &= f.length(body + "incarnation") <= LONGEST_INCARNATION
    since, through = f.col(body + "observed_since_us"), f.col(body + "observed_through_us")
    plausible = since.between(EARLIEST, through) & (through <= LATEST) & (through >= _reach())
    plausible &= f.coalesce(body + "rebuilt_at_us", f.lit(0)) <= LATEST
    return (
        f.when(~sure(whole), QuarantineReason.NOT_DECODABLE)
        .when(~sure(_same(body, "region", "site", "block")), QuarantineReason.CONTRADICTS_SUBJECT)
        .when(~sure(plausible), QuarantineReason.IMPLAUSIBLE_INSTANT)
    )


def _registration_reason() -> Column:
    whole = (
        (f.size(f.split("origin", r"\.")) == 5)
        & origin(3).rlike(r"^\d{1,18}-\d{1,18}$")
        & origin(4).rlike(r"^\d{1,18}$")
        & (f.size(f.split("source", " ")) >= 5)
        & source(-1).rlike(r"^\d{1,18}$")
    )
    agrees = reduce(and_, (origin(index) == f.col(name) for index, name in enumerate(("region", "site", "block"))))
    stored_at = f.when(source(-1).rlike(r"^\d{1,18}$"), source(-1).cast("bigint"))
    plausible = stored_at.between(EARLIEST // 1000, LATEST // 1000)
    return (
        f.when(~sure(whole), QuarantineReason.NO_ORIGIN)
        .when(~sure(agrees), QuarantineReason.CONTRADICTS_SUBJECT)
        .when(~sure(plausible), QuarantineReason.IMPLAUSIBLE_INSTANT)
    )


def _reach() -> Column:
    """Give the earliest instant (microseconds) of which the hub takes a word now."""
    return f.unix_micros("archived_at") - REACH


def origin(index: int) -> Column:
    """Give one part of ``Muster-Origin``: region, site, block, incarnation, sequence."""
    return f.get(f.split("origin", r"\."), f.lit(index))


def source(position: int) -> Column:
    """Give one part of ``Choria-SR-Source``, counted from 1 or, negative, from the end: the last is unix ms."""
    return f.try_element_at(f.split("source", " "), f.lit(position))


def _present(body: str, *names: str) -> Column:
    return reduce(and_, (f.col(body + name).isNotNull() for name in names))


def _same(body: str, *names: str) -> Column:
    return reduce(and_, (f.col(body + name) == f.col(name) for name in names))


def sure(condition: Column) -> Column:
    """Count what is not known as not so: a null would slip through ``when``."""
    return f.coalesce(condition, f.lit(False))
