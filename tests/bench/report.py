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
    """

    what: str
    unit: str
    ours: float | None
    theirs: float | None = None
    must: float | None = None
    better: Better = "more"

    @property
    def ratio(self) -> float | None:
        """Give ours divided by theirs."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None


class Table(msgspec.Struct, frozen=True):
    """One measure: its rows, the command that repeats it, and what a reader must know of how it was taken."""

    measure: str
    title: str
    command: str
    rows: Sequence[Row]
    yardstick: str = "peer"
    notes: Sequence[str] = ()


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
    head = f"  {'':{width}} {'ours':>12} {table.yardstick:>12} {'ours/theirs':>12} {'must reach':>12}  unit"
    lines = [f"\n{table.measure}: {table.title}", head]
    for row in table.rows:
        must = "" if row.must is None else f"{'>=' if row.better == 'more' else '<'} {_number(row.must)}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(
            f"  {row.what:{width}} {_number(row.ours):>12} {_number(row.theirs):>12} {ratio:>12} {must:>12}  {row.unit}"
        )
    lines += [f"  {note}" for note in table.notes]
    return "\n".join([*lines, f"  repeat: {table.command}"])


def write_json(path: Path, report: Report) -> None:
    """Write a run for programs."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def _number(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if abs(figure) >= 100 or figure == int(figure) else f"{figure:,.2f}"
