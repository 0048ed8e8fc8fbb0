"""Write the rows of an answer for people (an aligned table) and for programs (CSV, JSON), one form of each value.

Payloads come from anybody: what a terminal would obey is written out (in JSON as an escape of its own, so that nothing
is lost).

Instants are RFC 3339 in UTC, as everywhere in Muster; sums of microseconds are whole numbers however large.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain, count, islice
from math import isfinite
from typing import Any, Final

import msgspec

from shared.command_line.tables import align, cut, stack, visible
from shared.command_line.terminal import escaped_json
from shared.instants import SECOND, format_instant

MAX_CELL_LENGTH: Final = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = (int, float, Decimal)
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")
"""How what a spreadsheet takes for a formula begins (OWASP, CSV Injection)."""

Row = Sequence[Any]
_encoder = msgspec.json.Encoder(decimal_format="number")


def table_lines(names: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    """Give the lines of an aligned table: numbers to the right, ``-`` where there is no value, long texts cut."""
    cells = [[visible(name) for name in names], *([_cell(value) for value in row] for row in rows)]
    rules = ["-" * max(map(len, column)) for column in zip(*cells, strict=True)]
    rights = [
        any(isinstance(row[index], _NUMBERS) and not isinstance(row[index], bool) for row in rows)
        for index in range(len(names))
    ]
    yield from align([cells[0], rules, *cells[1:]], rights)


def stacked_lines(names: Sequence[str], rows: Sequence[Row], width: int) -> Iterator[str]:
    """Give a block of lines for each row, a value to a line: for a terminal of ``width`` columns and many columns."""
    return stack([visible(name) for name in names], ([_cell(value) for value in row] for row in rows), width)


class _Echo:
    """What a CSV writer writes to, and gets back."""

    def write(self, text: str) -> str:
        return text


def csv_lines(names: Sequence[str], rows: Iterable[Row], *, is_safe: bool = False, keep: str = "") -> Iterator[str]:
    """Give lines of CSV (RFC 4180), the columns' names first; nothing stands for no value, nan for no number.

    Of control characters those that ``keep`` names stay, such as line ends. ``is_safe`` puts an apostrophe before texts
    that a spreadsheet would compute.
    """
    # Without a line end of its own, it would leave those within a field unquoted.
    write = csv.writer(_Echo(), lineterminator="\r\n").writerow

    def field(value: Any) -> str:
        text = "" if value is None else visible(_text(value), keep)
        return f"'{text}" if is_safe and not isinstance(value, _NUMBERS) and text.startswith(_COMPUTED) else text

    for row in chain([names], rows):
        yield str(write(map(field, row))).removesuffix("\r\n")


def json_lines(names: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Give the lines of one JSON array with an object for each row, a row to a line.

    Of columns of one name, the second is called name_1, and so on, as DuckDB calls them in Parquet.
    """
    keys = _told_apart(names)
    objects = (
        escaped_json(_encoder.encode({n: _plain(v) for n, v in zip(keys, row, strict=True)}).decode()) for row in rows
    )
    previous = next(objects, None)
    if previous is None:
        yield "[]"
        return
    previous = "[" + previous
    for following in objects:
        yield previous + ","
        previous = " " + following
    yield previous + "]"


def at_most(rows: Iterator[Row], limit: int) -> tuple[list[Row], bool]:
    """Take up to ``limit`` rows, and tell whether there are more. A limit of 0 takes all."""
    taken = list(islice(rows, limit)) if limit else list(rows)
    return taken, bool(limit) and next(rows, None) is not None


def _told_apart(names: Sequence[str]) -> Sequence[str]:
    taken: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        taken[next(each for each in chain((name,), numbered) if each not in taken)] = None
    return list(taken)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else _text(value)
    return cut(visible(text), MAX_CELL_LENGTH)


def _text(value: Any) -> str:
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    plain = _plain(value)
    if isinstance(plain, str | int | Decimal) and not isinstance(plain, bool):
        return str(plain)
    return _encoder.encode(plain).decode()


def _plain(value: Any) -> Any:
    """Give a value as JSON can hold it."""
    plain = value
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        seconds = aware - _EPOCH
        plain = format_instant((seconds.days * 86_400 + seconds.seconds) * SECOND + seconds.microseconds)
    elif isinstance(value, bytes):
        plain = value.decode("utf-8", "backslashreplace")
    elif isinstance(value, dict):
        plain = {_text(key): _plain(each) for key, each in value.items()}
    elif isinstance(value, list | tuple):
        plain = [_plain(each) for each in value]
    elif isinstance(value, float) and not isfinite(value):
        plain = None  # JSON has neither infinity nor NaN
    elif not (value is None or isinstance(value, str | bool | int | float | Decimal)):
        plain = str(value)
    return plain
