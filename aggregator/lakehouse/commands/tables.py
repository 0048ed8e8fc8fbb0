"""The command ``tables``: what is there, how fresh, how big, through which message of the hub."""

from collections.abc import Sequence
from pathlib import Path

import click

from aggregator import config
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.query.table_states import TableState, table_states
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.terminal import clear_errors, format_table
from shared.command_line.command_group import examples, json_option
from shared.command_line.tables import TableColumn
from shared.command_line.terminal import echo, json_text, width
from shared.instants import SECOND, format_instant
from shared.sizes import format_size


def _written(state: TableState) -> str:
    return f"before {_instant(state.written_before)}" if state.written_before else _instant(state.written_at)


def _instant(at: int) -> str:
    return format_instant(at // SECOND * SECOND) if at else "-"


_COLUMNS: Sequence[TableColumn[TableState]] = (
    TableColumn("table", lambda state: state.name),
    TableColumn("rows", lambda state: f"{state.rows:,}", right=True),
    TableColumn("files", lambda state: f"{state.files:,}", right=True, spare=1),
    TableColumn("size", lambda state: format_size(state.bytes), right=True, spare=2),
    TableColumn("stands at", lambda state: f"{state.stream} {state.sequence:,}" if state.stream else "-"),
    TableColumn("known through", lambda state: _instant(state.known_through)),
    TableColumn("written", _written, spare=3),
)


@click.command(epilog=examples("muster-aggregator tables", "muster-aggregator tables --json"))
@config.config_option
@json_option
def tables(config_path: Path, as_json: bool) -> None:
    """Show the tables: how much they hold, when they were written, and through which message of the hub.

    \b
    STANDS AT      the last message of the hub's archive that the table holds
    KNOWN THROUGH  the hub's time of that message: known time ends here
    WRITTEN        when rows were last written; before: the commit that wrote them
                   is forgotten (keep_snapshots)

    What is shown is what queries read: the state that the last whole rollup left.
    """  # noqa: D301 - \b keeps click from filling the lines
    settings = config.load(config_path).lakehouse
    with clear_errors(TablesUnreadable), open_tables(Path(settings.path), settings.catalog) as opened:
        states = list(table_states(opened))
    if as_json:
        echo(json_text(states))
        return
    echo(format_table(_COLUMNS, [state for state in states if state.kind == "table"], width()))
    views = ", ".join(state.name for state in states if state.kind == "view")
    echo(f"\nviews: {views}", prose=True)
