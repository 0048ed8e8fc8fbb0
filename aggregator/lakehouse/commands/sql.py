"""The command ``sql``: ask the tables a question, without Java."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from aggregator import config
from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.query.output import Row, at_most, csv_lines, json_lines, stacked_lines, table_lines
from aggregator.lakehouse.query.prompt import ask_at_prompt, interruptible, run_watched
from aggregator.lakehouse.query.watch import Watch
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.terminal import page, whole_file
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo
from shared.sizes import format_size

_TABLE_ROWS = 1000


@click.command(
    epilog=examples(
        'muster-aggregator sql "SHOW TABLES"',
        'muster-aggregator sql "SELECT * FROM outages LIMIT 10"',
        'muster-aggregator sql "FROM outages" --format csv > daily.csv',
    )
)
@click.argument("query", required=False)
@config.config_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)
@click.option("--json", "form", flag_value="json", help="As --format json: an array with an object for each row.")
@click.option(
    "--csv-safe", is_flag=True, help="In CSV, put ' before texts that begin with = + - @, a tab or a carriage return."
)
@click.option(
    "--max-rows",
    metavar="COUNT",
    type=click.IntRange(min=0),
    help=f"Stop after so many rows, 0 = never.  [default: {_TABLE_ROWS} in a table, else 0]",
)
@click.option(
    "--parquet",
    "parquet_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the whole answer to this file, for other programs.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=0,
    show_default="never",
    help="End a query that has no answer after so many seconds.",
)
def sql(query: str | None, config_path: Path, max_rows: int | None, parquet_file: Path | None, **how: Any) -> None:
    """Ask the tables a question in SQL.

    QUERY is SQL as DuckDB speaks it; - reads it from standard input; without one, you are asked for as many as you
    like. Instants are in UTC. What is read is the state that the last whole rollup left, and no other file;
    what memory does not hold meanwhile goes below TMPDIR.
    A terminal shows what is too wide or too long for it through the pager (less; PAGER names another, PAGER=cat none).
    """
    settings = config.load(config_path).lakehouse
    open_anew = partial(open_tables, Path(settings.path), settings.catalog)
    timeout: float = how["timeout"]
    default = _TABLE_ROWS if how["form"] == "table" else 0
    form = _Form(how["form"], default if max_rows is None else max_rows, how["csv_safe"])
    try:
        if query is None and parquet_file is not None:
            raise click.UsageError("--parquet wants a query: it writes the answer to one")
        if query is None:
            ask_at_prompt(open_anew, form.write, timeout)
            return
        text = sys.stdin.read() if query == "-" else query
        if parquet_file is not None:
            _write_file(open_anew, text, parquet_file, timeout)
            return
        with open_anew() as tables, interruptible(), Watch(tables, timeout):
            form.write(tables, text)
    except TablesUnreadable as error:
        raise click.ClickException(str(error)) from error
    except BrokenPipeError:
        # Whoever read this has seen enough; what is still buffered must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_file(open_anew: Callable[..., Tables], query: str, file: Path, timeout: float) -> None:
    """Write a file that is there whole, or not at all."""
    with whole_file(file) as unfinished, open_anew(output=unfinished) as tables:

        def write() -> int:
            return tables.write_parquet(tables.read_only_statement(query), unfinished)

        count = run_watched(Watch(tables, timeout, unfinished), write)
    echo(f"{file}: {count:,} row{'' if count == 1 else 's'}, {format_size(file.stat().st_size)}", err=True)


class _Form(NamedTuple):
    """How answers are written, and how many rows of one at most; 0: all."""

    name: str
    limit: int
    csv_safe: bool

    def write(self, tables: Tables, query: str) -> None:
        names, rows = tables.answer(tables.read_only_statement(query))
        if self.name != "table" and not self.limit:
            self._write(names, rows)
            return
        taken, more = at_most(rows, self.limit)
        self._write(names, taken)
        count = f"{len(taken):,} row{'' if len(taken) == 1 else 's'}"
        if more:
            echo(f"({count} shown, there are more: --max-rows 0 shows all)", err=True)
        elif self.name == "table":
            echo(f"({count})", err=True)

    def _write(self, names: Sequence[str], rows: Iterable[Row]) -> None:
        if self.name == "table":
            taken = list(rows)
            page(list(table_lines(names, taken)), lambda width: stacked_lines(names, taken, width))
            return
        # Whoever quotes fields reads line ends in them; a terminal would obey them.
        keep = "" if sys.stdout.isatty() else "\t\r\n"
        is_csv = self.name == "csv"
        lines = csv_lines(names, rows, is_safe=self.csv_safe, keep=keep) if is_csv else json_lines(names, rows)
        # As the stream takes them: echo would flush each.
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
