"""The command ``tables``: what is there, how fresh, how big, through which message of the hub."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from aggregator import config
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.query.table_states import TableState, table_states
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.instants import SECOND, format_instant
from shared.sizes import format_size

_HEADINGS = ("table", "rows", "files", "size", "through", "known through", "written")
_NUMBERS = range(1, 5)


@click.command()
@config.config_option
@click.option("--json", "as_json", is_flag=True, help="For programs: every figure, instants in microseconds.")
def tables(config_path: Path, as_json: bool) -> None:
    """Show the tables: how much they hold, when they were written, and through which message of the hub.

    \b
    through        the last sequence of the hub's archive that the table stands for
    known through  the hub's time of that message: known time ends here
    written        when rows were last written; before: the commit that wrote them is forgotten (keep_snapshots)

    What is shown is what queries read: the state that the last whole rollup left.
    """  # noqa: D301 - \b keeps click from filling the lines
    settings = config.load(config_path).lakehouse
    try:
        with open_tables(Path(settings.path), settings.catalog) as opened:
            states = list(table_states(opened))
    except TablesUnreadable as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(states)).decode())
    else:
        click.echo("\n".join(_lines(states)))


def _lines(states: Sequence[TableState]) -> Iterator[str]:
    rows = [_HEADINGS, *(_cells(state) for state in states if state.kind == "table")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if index in _NUMBERS else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
    views = ", ".join(state.name for state in states if state.kind == "view")
    yield ""
    yield f"views: {views}"


def _cells(state: TableState) -> tuple[str, ...]:
    return (
        state.name,
        f"{state.rows:,}",
        f"{state.files:,}",
        format_size(state.bytes),
        f"{state.stream} {state.sequence:,}" if state.stream else "-",
        _instant(state.known_through),
        f"before {_instant(state.written_before)}" if state.written_before else _instant(state.written_at),
    )


def _instant(at: int) -> str:
    return format_instant(at // SECOND * SECOND) if at else "-"
