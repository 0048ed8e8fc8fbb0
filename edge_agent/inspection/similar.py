"""Suggest the sender that was meant, among very many: names that hold what was asked for, or differ in one place."""

import sqlite3

SUGGESTIONS = 4
LARGEST_DIFFERENCE = 2

HOLDING = (
    "SELECT sender_id FROM sender WHERE sender_id LIKE ? ESCAPE '\\' ORDER BY length(sender_id), sender_id LIMIT ?"
)
# What differs in one place has its first half or its second half unchanged.
HALF_THE_SAME = """
SELECT sender_id FROM sender
WHERE length(sender_id) BETWEEN :shortest AND :longest
  AND (substr(sender_id, 1, :half) = :head OR substr(sender_id, -:rest) = :tail)
"""


def similar_senders(database: sqlite3.Connection, asked: str) -> list[str]:
    """Give a few names like the one that was asked for, the likeliest first; one pass over a million takes a second."""
    holding = [name for (name,) in database.execute(HOLDING, (f"%{_literally(asked)}%", SUGGESTIONS))]
    if holding:
        return holding
    half = len(asked) // 2
    values = {
        "shortest": len(asked) - LARGEST_DIFFERENCE,
        "longest": len(asked) + LARGEST_DIFFERENCE,
        "half": half,
        "head": asked[:half],
        "rest": len(asked) - half,
        "tail": asked[half:],
    }
    found = [(distance(asked, name), name) for (name,) in database.execute(HALF_THE_SAME, values)]
    return [name for far, name in sorted(found) if far <= LARGEST_DIFFERENCE][:SUGGESTIONS]


def distance(one: str, other: str) -> int:
    """Count the characters of the longer name between the start and the end that both share.

    >>> distance("web1.example.net", "web1.exmple.net"), distance("web1", "wbe1"), distance("web1", "web1")
    (1, 2, 0)
    """
    head = _shared(one, other)
    shorter = min(len(one), len(other))
    tail = min(_shared(one[::-1], other[::-1]), shorter - head)
    return max(len(one), len(other)) - head - tail


def _shared(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _literally(text: str) -> str:
    return "".join(f"\\{character}" if character in "%_\\" else character for character in text)
