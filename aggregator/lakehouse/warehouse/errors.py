"""Say in one line what is wrong with a query, and name what was probably meant."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

import duckdb

_KIND = re.compile(r"^(?:\w+ )*(?:Error|Exception): ")
_NO_TABLE = re.compile(r"Table with name \"?([^\"\s]+)\"? does not exist")
_NO_COLUMN = re.compile(r"Referenced column \"([^\"]+)\" not found|does not have a column named \"([^\"]+)\"")
_WHERE = re.compile(r"^LINE (\d+): (.*)$", re.MULTILINE)
_EXCERPT_LENGTH = 80


class TablesUnreadable(Exception):
    """There are no tables yet, they cannot be read, or not in the way that was asked. Its text is one line."""


class AlreadyRunning(RuntimeError):
    """Another job writes these tables. The text is one line."""


def explained(error: duckdb.Error, sql: str, columns: Mapping[str, Sequence[str]]) -> str:
    """Turn what DuckDB says into one line. ``columns`` gives those of every table and view that can be asked for."""
    text = str(error)
    missing_table = _NO_TABLE.search(text)
    if missing_table:
        name = missing_table[1].split(".")[-1]
        return f"there is no table {name}{_meant(name, columns, 'there are')}"
    missing_column = _NO_COLUMN.search(text)
    if missing_column:
        name = missing_column[1] or missing_column[2]
        words = set(re.findall(r"\w+", sql.lower()))
        tables = [table for table in columns if table.lower() in words]
        known = dict.fromkeys(column for table in tables for column in columns[table])
        return f"there is no column {name}{_meant(name, known, f'{_listed(tables)} has' if tables else 'known')}"
    what = _KIND.sub("", text.strip().splitlines()[0]).rstrip("!")
    where = _WHERE.search(text)
    return f"{what} (line {where[1]}: {where[2].strip()[:_EXCERPT_LENGTH]})" if where else what


def _meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the nearest names, or list all."""
    names = list(known)
    by_lower = {each.lower(): each for each in names}
    nearest = [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    if nearest:
        return f", did you mean {_listed(nearest, 'or')}?"
    return f"; {otherwise} {_listed(names)}" if names else ""


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
