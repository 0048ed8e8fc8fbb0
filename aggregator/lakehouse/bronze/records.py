"""Judge messages that are no advisories where they are read, and make rows of their tables of them.

The rules are those of ``aggregator/records/judge.py``, which the live fleet calls too: no rule is written again in
Spark's expressions.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import UNSET

from aggregator.lakehouse.tables.definition import Column
from aggregator.lakehouse.tables.policy import POLICY
from aggregator.lakehouse.tables.schemas import REGISTRATIONS, WATERMARKS
from aggregator.records.judge import (
    REACH,
    QuarantineReason,
    RegistrationOrigin,
    cached_by_subject,
    judged_registration,
    judged_revision,
    judged_watermark,
)
from shared.identifiers import BlockId
from shared.policy import (
    CancelMaintenance,
    DeclareMaintenance,
    ForwardSender,
    RetireSender,
    Revision,
    SetThresholds,
    parse_policy_subject,
)
from shared.subjects import RecordType, parse_subject
from shared.wire import Watermark

POLICY_RECORD: Final = "policy"
_COUNTS = pa.map_(pa.string(), pa.int64())
_TYPES = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "MAP<STRING, BIGINT>": _COUNTS,
    "MAP<STRING, MAP<STRING, BIGINT>>": pa.map_(pa.string(), _COUNTS),
}
_ORIGIN = tuple(each for each in REGISTRATIONS.columns if each.name in RegistrationOrigin._fields)

Row = dict[str, Any]


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return columns of a table in Arrow's types."""
    return pa.schema([(name, _TYPES[kind]) for name, kind, _ in columns])


def struct_of(columns: Iterable[Column]) -> str:
    """Return Spark's type of one value that holds ``columns``."""
    return f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind, _ in columns)}>"


class Subject(NamedTuple):
    """The record that a subject is for, and its block; a revision of the policy may name no site and no block."""

    record: str
    region: str | None
    site: str | None
    block: str | None


class Judged(NamedTuple):
    """One message: a row or an origin if it is a record, or the reason to quarantine it."""

    subject: Subject | None
    reason: QuarantineReason | None = None
    watermark: Row | None = None
    revision: Row | None = None
    origin: RegistrationOrigin | None = None


@cached_by_subject
def subject_of(subject: bytes) -> Subject | None:
    """Return the record that a subject is for; None if it is for none of ours."""
    text = subject.decode(errors="backslashreplace")
    ours = parse_subject(text)
    if ours is not None:
        return Subject(str(ours.record_type), *msgspec.structs.astuple(ours.block_id))
    scope = parse_policy_subject(text)
    return None if scope is None else Subject(POLICY_RECORD, scope.region, scope.site or None, scope.block or None)


def judge(subject: Subject | None, archived: tuple[int, int], headers: Sequence[str | None], payload: bytes) -> Judged:
    """Judge one message that is no advisory.

    ``archived`` is its sequence and the hub's time of it (microseconds), ``headers`` are the origin, the source, the
    reason and the sender.
    """
    if subject is None:
        return Judged(None, QuarantineReason.UNKNOWN_SUBJECT)
    region, site, block = (name or "" for name in subject[1:])
    match _found(subject.record, BlockId(region, site, block), archived[1], headers, payload):
        case QuarantineReason() as reason:
            return Judged(subject, reason)
        case Watermark() as watermark:
            return Judged(subject, watermark=_watermark_row(watermark, *archived))
        case Revision() as revision:
            return Judged(subject, revision=_revision_row(revision, subject, *archived))
        case origin:
            return Judged(subject, origin=origin)


def without_excess(judged: Judged, excess: Collection[BlockId]) -> Judged:
    """Return the message as judged, quarantined if it is a watermark of a block in ``excess``."""
    row = judged.watermark
    if row is not None and BlockId(row["region"], row["site"], row["block"]) in excess:
        return Judged(judged.subject, QuarantineReason.TOO_MANY_BLOCKS)
    return judged


def _found(
    record: str, block_id: BlockId, archived_at: int, headers: Sequence[str | None], payload: bytes
) -> Watermark | Revision | RegistrationOrigin | QuarantineReason:
    if record == POLICY_RECORD:
        return judged_revision(payload)
    if record == RecordType.WATERMARK:
        return judged_watermark(payload, block_id, archived_at - REACH)
    origin, source, _, sender = headers
    return judged_registration(origin, source, sender, block_id)


def columns(judged: Iterable[Judged]) -> list[pa.Array]:
    """Return one array for each of ``COLUMNS``."""
    subjects, reasons, watermarks, revisions, origins = zip(*judged, strict=True)
    named = [subject or (None,) * 4 for subject in subjects]
    return [
        *(pa.array(values, pa.string()) for values in zip(*named, strict=True)),
        pa.array(reasons, pa.string()),
        pa.array(watermarks, COLUMNS[-3][2]),
        pa.array(revisions, COLUMNS[-2][2]),
        pa.array([origin and origin._asdict() for origin in origins], COLUMNS[-1][2]),
    ]


COLUMNS = (
    *((name, "STRING", pa.string()) for name in ("record", "region", "site", "block", "quarantine_reason")),
    *(
        (name, struct_of(fields), pa.struct(list(arrow_schema(fields))))
        for name, fields in (("watermark", WATERMARKS.columns), ("revision", POLICY.columns), ("registration", _ORIGIN))
    ),
)
"""Name, type in Spark and type in Arrow of what is known of a message."""


def _watermark_row(said: Watermark, sequence: int, archived_at: int) -> Row:
    return {
        "region": said.region,
        "site": said.site,
        "block": said.block,
        "agent": said.agent,
        "boot_id": said.boot_id,
        "observed_since": said.observed_since_us,
        "observed_through": said.observed_through_us,
        "advisory_ordinal": said.advisory_ordinal,
        "rebuilt_at": said.rebuilt_at_us or None,
        "store_began_at": (said.store_began_us or None) if said.store_began_us is not UNSET else None,
        "stream": said.stream,
        "incarnation": said.incarnation,
        "sequence": said.sequence,
        "senders": list(said.senders.items()),
        "outbox": list(said.outbox.items()),
        "counters": [(what, list(causes.items())) for what, causes in said.counters.items()],
        "stale_after_us": said.stale_after,
        "retire_after_us": said.retire_after,
        "blind_after_us": said.blind_after,
        "policy_revision": said.policy_revision,
        "version": said.version,
        "hub_sequence": sequence,
        "archived_at": archived_at,
    }


def _revision_row(said: Revision, scope: Subject, sequence: int, archived_at: int) -> Row:
    order = said.order
    row: Row = {
        "revision": said.revision,
        "stream_created_at": said.stream_created_us,
        "given_at": said.given_at_us,
        "author": said.author,
        "region": scope.region,
        "site": scope.site,
        "block": scope.block,
        "kind": order.__struct_config__.tag,
        "hub_sequence": sequence,
        "archived_at": archived_at,
    }
    match order:
        case SetThresholds(thresholds):
            row |= {f"{name}_us": value for name, value in thresholds.given.items()}
        case ForwardSender(sender_id) | RetireSender(sender_id):
            row["sender_ids"] = [sender_id]
        case DeclareMaintenance(started_at, ended_at, reason, sender_ids):
            row |= {"started_at": started_at, "ended_at": ended_at, "reason": reason}
            row["sender_ids"] = list(sender_ids) or None
        case CancelMaintenance(revision):
            row["cancelled_revision"] = revision
    return row
