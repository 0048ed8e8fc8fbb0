"""Suggest names like one that somebody mistyped, from those in an SQLite file."""

import sqlite3
from collections.abc import Mapping

SUGGESTIONS = 4
LARGEST_DIFFERENCE = 2
_LONGEST = 10_000
"""SQLite looks for no part of any length, and nobody types such a name."""

HOLDING = "SELECT name FROM ({names}) WHERE name LIKE :part ESCAPE '\\' ORDER BY length(name), name LIMIT :most"
# What differs in one place has its first half or its second half unchanged.
HALF_THE_SAME = """
SELECT name FROM ({names})
WHERE length(name) BETWEEN :shortest AND :longest
  AND (substr(name, 1, :half) = :head OR substr(name, -:rest) = :tail)
"""


def similar_names(
    database: sqlite3.Connection, names: str, asked: str, values: Mapping[str, object] | None = None
) -> list[str]:
    """Give a few names like the one that was asked for, the likeliest first; one pass over a million takes a second.

    ``names`` is the query that gives those there are, as ``name``, with the ``values`` of its parameters.
    """
    if len(asked) > _LONGEST or "\0" in asked:
        # Where a pattern has a NUL, it ends for SQLite.
        return []
    given = dict(values or {})
    part = given | {"part": f"%{escaped_for_like(asked)}%", "most": SUGGESTIONS}
    holding = [name for (name,) in database.execute(HOLDING.format(names=names), part)]
    if holding:
        return holding
    half = len(asked) // 2
    like = given | {
        "shortest": len(asked) - LARGEST_DIFFERENCE,
        "longest": len(asked) + LARGEST_DIFFERENCE,
        "half": half,
        "head": asked[:half],
        "rest": len(asked) - half,
        "tail": asked[half:],
    }
    found = [(distance(asked, name), name) for (name,) in database.execute(HALF_THE_SAME.format(names=names), like)]
    return [name for far, name in sorted(found) if far <= LARGEST_DIFFERENCE][:SUGGESTIONS]


def distance(one: str, other: str) -> int:
    """Count the characters of the longer name between the start and the end that both share.

    >>> distance("web1.example.net", "web1.exmple.net"), distance("web1", "wbe1"), distance("web1", "web1")
    (1, 2, 0)
    """
    head = _common_length(one, other)
    shorter = min(len(one), len(other))
    tail = min(_common_length(one[::-1], other[::-1]), shorter - head)
    return max(len(one), len(other)) - head - tail


def _common_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def escaped_for_like(text: str) -> str:
    """Write a text for a pattern of LIKE that means it alone; its ESCAPE is the backslash."""
    return "".join(f"\\{character}" if character in "%_\\" else character for character in text)
