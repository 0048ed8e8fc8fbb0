"""What a benchmark found, as tables for people and as JSON: ours, the peer's, their ratio, what must be reached."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

Better = Literal["more", "less"]


class Row(msgspec.Struct, frozen=True):
    """One figure of ours beside the peer's (or another yardstick's), both of the same run.

    ``must`` is what must be reached at full size, None where nothing is asked; ``better`` says on which side of it.
    ``others`` are the figures of a table that has ``rivals``, one of each.
    """

    what: str
    unit: str
    ours: float | None
    theirs: float | None = None
    must: float | None = None
    better: Better = "more"
    others: Sequence[float | None] = ()

    @property
    def ratio(self) -> float | None:
        """Give ours divided by theirs."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None


class Table(msgspec.Struct, frozen=True):
    """One measure: its rows, the command that repeats it, and what a reader must know of how it was taken.

    ``rivals`` head the columns of several others, in place of one yardstick.
    """

    measure: str
    title: str
    command: str
    rows: Sequence[Row]
    yardstick: str = "peer"
    notes: Sequence[str] = ()
    rivals: Sequence[str] = ()


class Report(msgspec.Struct, frozen=True):
    """Everything that one run found, and the machine it ran on."""

    machine: dict[str, str]
    is_quick: bool
    tables: list[Table]


class RecordsLost(Exception):
    """Records are missing, or there more than once: no figure of such a run means anything."""


def median(figures: Sequence[float]) -> float | None:
    """Give the median, None of nothing."""
    return statistics.median(figures) if figures else None


def render(table: Table) -> str:
    """Write a table for a terminal."""
    width = max(40, *(len(row.what) for row in table.rows))
    heads = table.rivals or (table.yardstick, "ours/theirs")
    columns = " ".join(f"{head:>12}" for head in ("ours", *heads, "must reach"))
    lines = [f"\n{table.measure}: {table.title}", f"  {'':{width}} {columns}  unit"]
    for row in table.rows:
        must = "" if row.must is None else f"{'>=' if row.better == 'more' else '<'} {_number(row.must)}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        others = [_number(each) for each in row.others] if table.rivals else [_number(row.theirs), ratio]
        figures = " ".join(f"{figure:>12}" for figure in (_number(row.ours), *others, must))
        lines.append(f"  {row.what:{width}} {figures}  {row.unit}")
    lines += [f"  {note}" for note in table.notes]
    return "\n".join([*lines, f"  repeat: {table.command}"])


def write_json(path: Path, report: Report) -> None:
    """Write a run for programs."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def _number(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if abs(figure) >= 100 or figure == int(figure) else f"{figure:,.2f}"
