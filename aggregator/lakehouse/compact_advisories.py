"""Read advisories in the very form in which Muster's agents write them: fields in one order, compact, nothing escaped.

In that form every text stands between the same two quotes of its line, so that a reader of separated values finds all
of them. That this is the form is not believed but tried: what was found, put into the form again, must be the text that
was read. Where anything differs, the answer is None, and JSON is read as JSON.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shared.wire import Advisory

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
