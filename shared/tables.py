"""Lay rows out as a table for a terminal."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Column(NamedTuple, Generic[T]):
    """One column: its title, how a row's cell reads, and whether cells are aligned to the right."""

    title: str
    cell: Callable[[T], str]
    right: bool = False


def format_table(columns: Sequence[Column[T]], rows: Sequence[T]) -> str:
    """Align titles and cells in columns two blanks apart; a column without any cell is left out."""
    laid_out = []
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if any(cells):
            lines = [column.title.upper(), *cells]
            width = max(map(len, lines))
            laid_out.append([line.rjust(width) if column.right else line.ljust(width) for line in lines])
    return "\n".join("  ".join(line).rstrip() for line in zip(*laid_out, strict=True))
