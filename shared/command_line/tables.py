"""Lay rows out as a table for a terminal, and show whatever somebody else wrote without obeying it. Pure."""

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
UNWRAPPED = 100_000
"""The width of a pipe or a file: lines stay whole."""
WIDEST = 64
"""In a pipe, what is longer sticks out of its column, instead of widening it for all."""
_GAP = "  "
_LONGEST_NAME = 64
_LEAST = 8
"""No value is cut to less."""


class TableColumn(NamedTuple, Generic[T]):
    """One column: its title, how a row's cell reads, and whether cells are aligned to the right.

    Where a terminal is too narrow, the columns with the highest ``spare`` are left out first; 0: it stays. ``wraps``:
    a text that may be broken between words, where tables are laid out so.
    """

    title: str
    cell: Callable[[T], str]
    right: bool = False
    spare: int = 0
    wraps: bool = False


class Layout(NamedTuple, Generic[T]):
    """The columns that are shown, their cells by row, and the titles of those left out.

    Where not even those ``fits`` that cannot be spared, all are there.
    """

    columns: list[TableColumn[T]]
    cells: list[list[str]]
    left_out: list[str]
    fits: bool

    @property
    def titles(self) -> list[str]:
        return [column.title.upper() for column in self.columns]

    @property
    def note(self) -> list[str]:
        """Say what is left out, in a line where anything is."""
        return [f"(a wider terminal also shows {', '.join(self.left_out)})"] if self.left_out else []


def fit(columns: Sequence[TableColumn[T]], rows: Sequence[T], width: int, *, wraps: bool = False) -> Layout[T]:
    """Write the cells, leave out columns without any, and of the others as many as ``width`` asks for.

    ``wraps``: whether texts are going to be broken.
    """
    written = [(column, [_written(column.cell(row)) for row in rows]) for column in columns]
    kept = [(column, cells) for column, cells in written if any(cells)]
    left_out: list[str] = []

    def fits() -> bool:
        return (
            sum(_room(column, cells, wraps=wraps and column.wraps) for column, cells in kept)
            + len(_GAP) * (len(kept) - 1)
            <= width
        )

    while not fits() and any(column.spare for column, _ in kept):
        least = max(kept, key=lambda each: each[0].spare)
        kept.remove(least)
        left_out.append(least[0].title.upper())
    is_table = fits()
    shown = kept if is_table else [(column, cells) for column, cells in written if any(cells)]
    cells_by_row = [list(row) for row in zip(*(cells for _, cells in shown), strict=True)]
    return Layout([column for column, _ in shown], cells_by_row, left_out if is_table else [], is_table)


def format_table(columns: Sequence[TableColumn[T]], rows: Sequence[T], width: int = UNWRAPPED) -> str:
    """Align titles and cells in columns two blanks apart, or a value to a line where ``width`` is too narrow for that.

    Columns without any cell are left out, and where it helps those that can be spared.
    """
    layout = fit(columns, rows, width)
    if layout.fits:
        lines = align([layout.titles, *layout.cells], [column.right for column in layout.columns])
    else:
        lines = stack(layout.titles, layout.cells, width)
    return "\n".join([*lines, *layout.note])


def align(rows: Sequence[Sequence[str]], rights: Sequence[bool]) -> Iterator[str]:
    """Give a line for each row of cells, the first a head; ``rights`` tells which columns are aligned to the right."""
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(room) if right else cell.ljust(room)
            for cell, room, right in zip(row, widths, rights, strict=True)
        )
        yield _GAP.join(cells).rstrip()


def stack(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterator[str]:
    """Give a block of lines for each row, a value to a line, broken between words where it is longer."""
    label = max(map(len, titles), default=0) + len(_GAP)
    room = max(_LEAST, width - label)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for title, cell in zip(titles, row, strict=True):
            lines = wrap_text(cell, room) or [""]
            for head, line in zip(chain([title], repeat("")), lines, strict=False):
                yield f"{head:{label}}{cut(line, room)}".rstrip()


def wrap_text(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Break a text between words alone: names, subjects and paths stay whole. ``first`` and ``others`` begin lines."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )


def cut(text: str, room: int) -> str:
    """Take what fits, with a sign that there is more.

    >>> cut("web1.example.net", 8)
    'web1.ex…'
    """
    return text if len(text) <= room else text[: room - 1] + "…"


def shown_name(name: str) -> str:
    """Return a name that anybody may have made up as it is put into a sentence: visible, and cut.

    >>> len(shown_name("n" * 1_024))
    64
    """
    return cut(visible(name), _LONGEST_NAME)


def visible(text: str, keep: str = "") -> str:
    r"""Write out what a terminal would obey or hide instead of showing it: names and payloads come from anybody.

    Control characters (ESC, C1), marks that turn the direction of writing, and what has no shape of its own;
    blanks of any script stay, and what ``keep`` names.

    >>> visible("\x1b[2Jweb1\n"), visible("wéb 1"), visible("a\tb\x9b", keep="\t")
    ('\\x1b[2Jweb1\\n', 'wéb 1', 'a\tb\\x9b')
    """
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or each in keep or unicodedata.category(each) == "Zs"
        else each.encode("unicode_escape").decode()
        for each in text
    )


def _written(text: str) -> str:
    # A name of blanks is a name: its row must not look as if it had none.
    return "".join(f"\\u{ord(each):04x}" for each in text) if text.isspace() else visible(text)


def _room(column: TableColumn[Any], cells: Sequence[str], *, wraps: bool) -> int:
    """Give the columns of a terminal that a table's column needs."""
    return max(len(word) for text in (column.title, *cells) for word in (text.split() if wraps else (text,)) or ("",))
