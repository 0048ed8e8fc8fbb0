"""Decode advisories, Muster's own and Choria's, into rows of their table, or say why one is quarantined.

Messages are decoded where they are read: that costs less than to carry one into Spark. The subject says whose an
advisory is, for permissions protect it; a body that says otherwise is quarantined.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET

from aggregator.lakehouse.archive.consumer import Messages
from aggregator.lakehouse.bronze.quarantine import QuarantineReason
from aggregator.lakehouse.tables.reach import REACH
from aggregator.lakehouse.tables.schemas import ADVISORIES
from shared.identifiers import AdvisoryKind
from shared.instants import EARLIEST, LATEST, SECOND
from shared.policy import parse_policy_subject
from shared.subjects import ROOT, RecordType, parse_subject
from shared.wire import CHORIA_EVENTS, Advisory, ChoriaAdvisory, WireError, decode_advisory

CHORIA_BLOCK = "choria"
"""The block of plain Choria advisories that came on subjects of their own."""

_TYPES = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}
SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind, _ in ADVISORIES.columns])
"""The columns of the table."""
_FIELD_OF = {
    "sender_id": "value",
    "occurred_at": "at_us",
    "last_seen_at": "last_seen_us",
    "unheard_until": "unheard_until_us",
}
"""The table's columns that have another name than the field."""
_SITE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Decoded(NamedTuple):
    """What was found in messages: ``rows`` of those at ``places``, and ``reasons`` to quarantine others by place.

    A message that has neither is no advisory.
    """

    rows: pa.RecordBatch
    places: Sequence[int]
    reasons: dict[int, QuarantineReason]


class _Subject(NamedTuple):
    """Whose an advisory is, by its subject. A foreign subject does not say the kind and the site: they are None."""

    kind: AdvisoryKind | None
    region: str
    site: str | None
    block: str


class _Plain(msgspec.Struct, gc=False):
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


_Body: TypeAlias = Advisory | _Plain


def decode(messages: Messages, schema: pa.Schema = SCHEMA, choria_region: str = "") -> Decoded:
    """Decode the advisories among messages, as rows with the columns of ``schema``, which are the table's or some.

    ``choria_region`` is the region of plain Choria advisories on subjects outside ``fleet.>``; with "" a message there
    is no advisory.
    """
    bodies, places, reasons = list[_Body](), list[int](), dict[int, QuarantineReason]()
    earliest = np.maximum(messages.archived_at - REACH, EARLIEST).tolist()
    for place, (subject, payload) in enumerate(zip(messages.subjects, messages.payloads, strict=True)):
        named = _named_by(subject, choria_region)
        if named is None:
            continue
        found = _judged(payload, named, earliest[place])
        if isinstance(found, QuarantineReason):
            reasons[place] = found
        else:
            bodies.append(found)
            places.append(place)
    whole = messages if len(places) == len(messages.sequences) else messages.at(places)
    columns = [_column(field, bodies, whole) for field in schema]
    return Decoded(pa.RecordBatch.from_arrays(columns, schema=schema), places, reasons)


@lru_cache(maxsize=10_000)
def _named_by(subject: bytes, choria_region: str) -> _Subject | None:
    """Read the subject of an advisory; None where a message on it is none."""
    text = subject.decode(errors="backslashreplace")
    ours = parse_subject(text)
    if ours is not None and ours.record_type is RecordType.ADVISORY:
        return _Subject(ours.kind, *msgspec.structs.astuple(ours.block_id))
    if not choria_region or text.split(".", 1)[0] == ROOT or parse_policy_subject(text) is not None:
        return None
    return _Subject(None, choria_region, None, CHORIA_BLOCK)


def _judged(payload: bytes, named: _Subject, earliest: int) -> _Body | QuarantineReason:
    try:
        # What a decoder skips, it does not look at.
        _ = payload.isascii() or payload.decode()
        found = decode_advisory(payload)
    except UnicodeDecodeError:
        return QuarantineReason.NOT_TEXT
    except WireError:
        return QuarantineReason.NOT_DECODABLE
    if not found.value or (named.site is None and not _SITE_NAME.fullmatch(found.replicator)):
        return QuarantineReason.NOT_DECODABLE
    wanted = named if named.site is not None else _Subject(found.kind, named.region, found.replicator, named.block)
    body = _with_our_names(found, wanted) if isinstance(found, ChoriaAdvisory) else found
    said = (body.kind, body.region, body.site, body.block)
    if said != wanted or found.event != CHORIA_EVENTS[body.kind]:
        return QuarantineReason.CONTRADICTS_SUBJECT
    # A sender that was never seen has no time of it: Choria writes what it has.
    is_plausible = earliest <= body.at_us <= LATEST and 0 <= body.last_seen_us <= body.at_us
    unheard_until = body.unheard_until_us
    if unheard_until is not UNSET and unheard_until is not None:
        is_plausible = is_plausible and -LATEST <= unheard_until <= LATEST
    return body if is_plausible else QuarantineReason.IMPLAUSIBLE_INSTANT


def _with_our_names(plain: ChoriaAdvisory, named: _Subject) -> _Plain:
    return _Plain(
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


def _column(field: pa.Field, bodies: Sequence[_Body], messages: Messages) -> pa.Array:
    values: Any
    if field.name == "hub_sequence":
        values = messages.sequences
    elif field.name == "archived_at":
        return pa.array(messages.archived_at).cast(field.type)
    elif field.name == "assumed":
        values = [isinstance(body, _Plain) for body in bodies]
    else:
        values = map(attrgetter(_FIELD_OF.get(field.name, field.name)), bodies)
        if field.name == "by_operator":
            values = (value is True for value in values)
        elif field.name == "unheard_until":
            values = (None if value is UNSET else value for value in values)
        values = list(values)
    return pa.array(values, field.type)
