"""Take the advisories that Muster's own agents wrote out of a batch of messages: most of what an archive holds.

What is taken here is whole, agrees with its subject and is plausible; it becomes the row that ``decode.py`` would make
of it. Whatever is in any way different is left to that: it knows every kind of message, and every reason to quarantine
one. A batch is read and judged column by column, so that no Python runs for a message.
"""

from collections.abc import Iterator
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json

from aggregator.lakehouse.archive.consumer import Messages
from aggregator.lakehouse.bronze.quarantine import CHORIA_FIELDS, OWN_FIELDS
from aggregator.lakehouse.tables.reach import REACH
from shared.identifiers import AdvisoryKind
from shared.instants import EARLIEST, LATEST
from shared.subjects import ROOT, RecordType
from shared.wire import ADVISORY_PROTOCOL, CHORIA_EVENTS, Advisory

_FLAG = "rebuilt"
_LEFT_OUT = {"by_operator": pa.bool_(), "unheard_until_us": pa.int64()}
_NUMBERS = frozenset(name for name, kind in Advisory.__annotations__.items() if kind is int)
_FIELDS = [name for name in Advisory.__struct_fields__ if name not in _LEFT_OUT]
_SPACE = ord(" ")


def _form() -> tuple[list[str], list[str]]:
    """Give the columns of values, as Arrow's reader names them, and what is written before each.

    Columns are what stands between quotes: a number's has the colon before it and the comma behind it.
    """
    columns, before, text, column = list[str](), list[str](), "{", 0
    for name in _FIELDS:
        is_text = name not in _NUMBERS and name != _FLAG
        columns.append(f"f{column + (3 if is_text else 2)}")
        before.append(f'{text}"{name}":"' if is_text else f'{text}"{name}":')
        text = '",' if is_text else ","
        column += 4 if is_text else 2
    return columns, before


_COLUMNS, _BEFORE = _form()
_READ = csv.ConvertOptions(
    include_columns=_COLUMNS, column_types=dict.fromkeys(_COLUMNS, pa.string()), strings_can_be_null=False
)
_BETWEEN_QUOTES = csv.ParseOptions(delimiter='"', quote_char=False, escape_char=False, ignore_empty_lines=False)


def read(text: bytes, count: int) -> pa.Table | None:
    """Read ``count`` advisories, each in a line of its own, as a column for each field; None where any looks otherwise.

    What an agent leaves out is null: what stands only in some who were retired.
    """
    if b"\\" in text or np.count_nonzero(np.frombuffer(text, np.uint8) < _SPACE) != count - 1:
        return None
    lines = text + b"\n"
    whole = csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=len(lines) + 1)
    try:
        found = csv.read_csv(pa.BufferReader(lines), whole, _BETWEEN_QUOTES, _READ)
        values = [_value(name, column) for name, column in zip(_FIELDS, found.columns, strict=True)]
    except pa.ArrowException:
        return None
    pieces = [piece for pair in zip(_BEFORE, map(_written, values), strict=True) for piece in pair]
    again = pc.binary_join_element_wise(*pieces, "}\n", "").combine_chunks()
    if not again.buffers()[2].equals(pa.py_buffer(lines)):
        return None
    left_out = [pa.nulls(count, kind) for kind in _LEFT_OUT.values()]
    return pa.table([*values, *left_out], names=[*_FIELDS, *_LEFT_OUT])


def _value(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name in _NUMBERS:
        return pc.utf8_slice_codeunits(column, 1, -1).cast(pa.int64())
    return pc.equal(column, ":true}") if name == _FLAG else column


def _written(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values if values.type == pa.string() else values.cast(pa.string())


_TYPES = {"STRING": pa.string(), "BIGINT": pa.int64()}
_FLAGS = ("rebuilt", "by_operator")
_MAY_BE_MISSING = (*_FLAGS, "unheard_until_us")
_BODY = pa.schema(
    [(name, _TYPES[kind]) for name, kind in (CHORIA_FIELDS | OWN_FIELDS).items()]
    + [*((name, pa.bool_()) for name in _FLAGS), ("unheard_until_us", pa.int64())]
)
_MUST_BE_THERE = [name for name in _BODY.names if name not in _MAY_BE_MISSING]
_FIELD_OF = {
    "sender_id": "value",
    "occurred_at": "at_us",
    "last_seen_at": "last_seen_us",
    "unheard_until": "unheard_until_us",
}
"""The table's columns that have another name than the field."""
_WORDS = pa.array([f"{kind} {event}" for kind, event in CHORIA_EVENTS.items()])


class Taken(NamedTuple):
    """``rows`` of the table ``advisories``; ``left`` are the indices of the messages that others are to judge."""

    rows: list[pa.RecordBatch]
    left: list[int]


def take(messages: Messages, schema: pa.Schema) -> Taken:
    """Take what is an advisory of ours, as rows with the columns of ``schema``, which are the table's."""
    count = len(messages.sequences)
    ours = [index for index, subject in enumerate(messages.subjects) if _is_ours(subject)]
    rows, taken = list[pa.RecordBatch](), set[int]()
    for places, bodies in _read([messages.payloads[index] for index in ours], ours):
        read = messages if len(places) == count else messages.at(places)
        good = _is_whole(bodies, read)
        if pc.all(good).as_py():
            rows.append(_rows(bodies, read, schema))
            taken.update(places)
        elif kept := [index for index, is_good in enumerate(good.to_pylist()) if is_good]:
            rows.append(_rows(bodies.filter(good), read.at(kept), schema))
            taken.update(places[index] for index in kept)
    return Taken(rows, [index for index in range(count) if index not in taken] if len(taken) < count else [])


def _read(payloads: list[bytes], places: list[int]) -> Iterator[tuple[list[int], pa.Table]]:
    """Read what can be read: give the places of payloads, and what is in them.

    Where one of many cannot be, it is looked for in halves.
    """
    if not payloads:
        return
    found = _parsed(payloads)
    if found is not None:
        yield places, found
    elif len(payloads) > 1:
        half = len(payloads) // 2
        yield from _read(payloads[:half], places[:half])
        yield from _read(payloads[half:], places[half:])


def _parsed(payloads: list[bytes]) -> pa.Table | None:
    """Read payloads, each one JSON object and nothing else; None where any is something else."""
    text = b"\n".join(payloads)
    compact = read(text, len(payloads))
    if compact is not None:
        return compact
    # Lines that begin and end as objects do, as many as there are objects, are one object each.
    if text.count(b"\n") != len(payloads) - 1 or text.count(b"}\n{") != len(payloads) - 1:
        return None
    if not (text.startswith(b"{") and text.endswith(b"}")) or b"NaN" in text or b"Inf" in text:
        return None
    try:
        text.isascii() or text.decode()
        found = json.read_json(
            pa.BufferReader(text),
            read_options=json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=json.ParseOptions(explicit_schema=_BODY, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return found if found.num_rows == len(payloads) else None


def _is_whole(bodies: pa.Table, messages: Messages) -> pa.ChunkedArray:
    """Say of each whether everything is there, agrees with its subject and is plausible: see ``quarantine.py``."""
    told = (ROOT, "region", "site", "block", str(RecordType.ADVISORY), "kind")
    subject = pc.binary_join_element_wise(
        *(bodies[name] if name in bodies.column_names else name for name in told), "."
    )
    words = pc.binary_join_element_wise(bodies["kind"], bodies["event"], " ")
    conditions = [
        pc.equal(subject, pa.array(messages.subjects, pa.binary()).cast(pa.string())),
        pc.is_in(words, value_set=_WORDS),
        pc.equal(bodies["protocol"], ADVISORY_PROTOCOL),
        pc.greater(pc.binary_length(bodies["value"]), 0),
        pc.and_(pc.greater_equal(bodies["at_us"], EARLIEST), pc.less_equal(bodies["at_us"], LATEST)),
        pc.greater_equal(bodies["at_us"], pa.array(messages.archived_at - REACH)),
        pc.greater_equal(bodies["last_seen_us"], 0),
        pc.less_equal(bodies["last_seen_us"], bodies["at_us"]),
        pc.fill_null(
            pc.and_(
                pc.greater_equal(bodies["unheard_until_us"], -LATEST), pc.less_equal(bodies["unheard_until_us"], LATEST)
            ),
            True,
        ),
        *(pc.is_valid(bodies[name]) for name in _MUST_BE_THERE),
    ]
    return pc.fill_null(reduce(pc.and_kleene, conditions), False)


def _rows(bodies: pa.Table, messages: Messages, schema: pa.Schema) -> pa.RecordBatch:
    count = bodies.num_rows
    arrays = []
    for field in schema:
        if field.name == "hub_sequence":
            array = pa.array(messages.sequences, field.type)
        elif field.name == "archived_at":
            array = pa.array(messages.archived_at).cast(field.type)
        elif field.name == "assumed":
            array = pa.repeat(pa.scalar(False), count)
        else:
            found = bodies[_FIELD_OF.get(field.name, field.name)].combine_chunks()
            array = (pc.fill_null(found, False) if field.name in _FLAGS else found).cast(field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=10_000)
def _is_ours(subject: bytes) -> bool:
    """Tell by its subject whether a message must be an advisory of one of our agents; their subjects are UTF-8."""
    text = subject.decode(errors="replace")
    tokens = text.split(".")
    return (
        len(tokens) == 6
        and "\ufffd" not in text
        and (tokens[0], tokens[4]) == (ROOT, RecordType.ADVISORY)
        and tokens[5] in set(AdvisoryKind)
        and "" not in tokens
    )
