"""Decode advisories, Muster's own and Choria's, into rows of their table, or say why one is quarantined.

Messages are decoded where they are read: that costs less than to carry one into Spark. The subject says whose an
advisory is, for permissions protect it; a body that says otherwise is quarantined.
"""

from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from aggregator.archive.consumer import Messages
from aggregator.lakehouse.bronze.records import arrow_schema
from aggregator.lakehouse.tables.schemas import ADVISORIES
from aggregator.records.judge import (
    REACH,
    AdvisoryBody,
    PlainAdvisory,
    QuarantineReason,
    advisory_subject,
    judged_advisory,
)
from shared.identifiers import BlockId
from shared.instants import EARLIEST

SCHEMA = arrow_schema(ADVISORIES.columns)
"""The columns of the table."""
_FIELD_OF = {
    "sender_id": "value",
    "occurred_at": "at_us",
    "last_seen_at": "last_seen_us",
    "unheard_until": "unheard_until_us",
}
"""The table's columns that have another name than the field."""


class Decoded(NamedTuple):
    """What was found in messages: ``rows`` of those at ``places``, and ``reasons`` to quarantine others by place.

    A message that has neither is no advisory.
    """

    rows: pa.RecordBatch
    places: Sequence[int]
    reasons: dict[int, QuarantineReason]
    bodies: Sequence[AdvisoryBody]

    def blocks(self, messages: Messages) -> Iterator[tuple[int, str, str, str]]:
        """Yield the blocks of the rows, each with the sequence of a first one on its subject."""
        first = {messages.subjects[place]: row for row, place in reversed([*enumerate(self.places)])}
        for row in first.values():
            body = self.bodies[row]
            yield int(messages.sequences[self.places[row]]), body.region, body.site, body.block


def decode(
    messages: Messages, schema: pa.Schema = SCHEMA, choria_region: str = "", excess: Collection[BlockId] = ()
) -> Decoded:
    """Decode the advisories among messages, as rows with the columns of ``schema``, which are the table's or some.

    ``choria_region`` is the region of plain Choria advisories on subjects outside ``fleet.>``; with "" a message there
    is no advisory. Advisories of the blocks in ``excess`` are quarantined.
    """
    bodies, places, reasons = list[AdvisoryBody](), list[int](), dict[int, QuarantineReason]()
    earliest = np.maximum(messages.archived_at - REACH, EARLIEST).tolist()
    for place, (subject, payload) in enumerate(zip(messages.subjects, messages.payloads, strict=True)):
        named = advisory_subject(subject, choria_region)
        if named is None:
            continue
        found = judged_advisory(payload, named, earliest[place])
        if isinstance(found, QuarantineReason):
            reasons[place] = found
        elif excess and BlockId(found.region, found.site, found.block) in excess:
            reasons[place] = QuarantineReason.TOO_MANY_BLOCKS
        else:
            bodies.append(found)
            places.append(place)
    whole = messages if len(places) == len(messages.sequences) else messages.at(places)
    columns = [_column(field, bodies, whole) for field in schema]
    return Decoded(pa.RecordBatch.from_arrays(columns, schema=schema), places, reasons, bodies)


def _column(field: pa.Field, bodies: Sequence[AdvisoryBody], messages: Messages) -> pa.Array:
    values: Any
    if field.name == "hub_sequence":
        values = messages.sequences
    elif field.name == "archived_at":
        return pa.array(messages.archived_at).cast(field.type)
    elif field.name == "assumed":
        values = [isinstance(body, PlainAdvisory) for body in bodies]
    else:
        values = map(attrgetter(_FIELD_OF.get(field.name, field.name)), bodies)
        if field.name == "by_operator":
            values = (value is True for value in values)
        elif field.name == "unheard_until":
            values = (None if value is UNSET else value for value in values)
        values = list(values)
    return pa.array(values, field.type)
