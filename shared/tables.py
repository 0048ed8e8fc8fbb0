"""Lay rows out as a table for a terminal."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
WIDEST = 64
"""What is longer sticks out of its column, instead of widening it for all."""


class Column(NamedTuple, Generic[T]):
    """One column: its title, how a row's cell reads, and whether cells are aligned to the right."""

    title: str
    cell: Callable[[T], str]
    right: bool = False


def format_table(columns: Sequence[Column[T]], rows: Sequence[T]) -> str:
    """Align titles and cells, made visible, in columns two blanks apart; a column without any cell is left out."""
    laid_out = []
    for column in columns:
        cells = [visible(column.cell(row)) for row in rows]
        if any(cells):
            lines = [column.title.upper(), *cells]
            width = min(max(map(len, lines)), WIDEST)
            laid_out.append([line.rjust(width) if column.right else line.ljust(width) for line in lines])
    return "\n".join("  ".join(line).rstrip() for line in zip(*laid_out, strict=True))


def visible(text: str) -> str:
    r"""Write out what a terminal would obey or hide instead of showing it: names come from anybody.

    >>> visible("\x1b[2Jweb1\n"), visible("wéb 1")
    ('\\x1b[2Jweb1\\n', 'wéb 1')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
