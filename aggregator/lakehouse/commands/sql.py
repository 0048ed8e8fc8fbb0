"""The command ``sql``: ask the tables a question, without Java."""

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import click

from aggregator import config
from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.query.output import at_most, csv_lines, json_lines, table_lines
from aggregator.lakehouse.query.prompt import ask_at_prompt, interruptible
from aggregator.lakehouse.query.watch import Watch
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.sizes import format_size

_TABLE_ROWS = 1000


@click.command()
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
@click.option(
    "--max-rows",
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
    type=click.FloatRange(min=0),
    default=0,
    show_default="never",
    help="End a query that has no answer after so many seconds.",
)
def sql(
    query: str | None, config_path: Path, form: str, max_rows: int | None, parquet_file: Path | None, timeout: float
) -> None:
    """Ask the tables a question, for example:

    \b
      muster-aggregator sql "SHOW TABLES"
      muster-aggregator sql "SELECT * FROM outages ORDER BY started_at DESC LIMIT 10"

    QUERY is SQL as DuckDB speaks it; - reads it from standard input; without one, you are asked for as many as you
    like. Instants are in UTC. What is read is the state that the last whole rollup left, and no other file.
    """  # noqa: D301 - \b keeps click from filling the lines
    settings = config.load(config_path).lakehouse
    open_anew = partial(open_tables, Path(settings.path), settings.catalog)
    limit = max_rows if max_rows is not None else _TABLE_ROWS if form == "table" else 0
    try:
        if query is None and parquet_file is not None:
            raise click.UsageError("--parquet wants a query: it writes the answer to one")
        if query is None:
            ask_at_prompt(open_anew, lambda tables, asked: _answer(tables, asked, form, limit), timeout)
            return
        text = sys.stdin.read() if query == "-" else query
        if parquet_file is not None:
            _write_file(open_anew, text, parquet_file, timeout)
            return
        with open_anew() as tables, interruptible(), Watch(tables, timeout):
            _answer(tables, text, form, limit)
    except TablesUnreadable as error:
        raise click.ClickException(str(error)) from error
    except BrokenPipeError:
        # Whoever read this has seen enough; what is still buffered must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_file(open_anew: Callable[..., Tables], query: str, file: Path, timeout: float) -> None:
    """Write a file that is there whole, or not at all."""
    unfinished = file.absolute().with_name(f".{file.name}.{os.getpid()}")
    try:
        with open_anew(output=unfinished) as tables, interruptible(), Watch(tables, timeout):
            statement = tables.read_only_statement(query)
            # Told before the query is run; and DuckDB would write beside a file that is there.
            unfinished.touch()
            unfinished.unlink()
            count = tables.write_parquet(statement, unfinished)
        unfinished.replace(file)
        click.echo(f"{file}: {count:,} row{'' if count == 1 else 's'}, {format_size(file.stat().st_size)}", err=True)
    except OSError as error:
        raise click.ClickException(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _answer(tables: Tables, query: str, form: str, limit: int) -> None:
    names, rows = tables.answer(tables.read_only_statement(query))
    if form != "table" and not limit:
        _write((csv_lines if form == "csv" else json_lines)(names, rows))
        return
    taken, more = at_most(rows, limit)
    _write({"table": table_lines, "csv": csv_lines, "json": json_lines}[form](names, taken))
    count = f"{len(taken):,} row{'' if len(taken) == 1 else 's'}"
    if more:
        click.echo(f"({count} shown, there are more: --max-rows 0 shows all)", err=True)
    elif form == "table":
        click.echo(f"({count})", err=True)


def _write(lines: Iterable[str]) -> None:
    """Write lines as the stream takes them: click.echo would flush each."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
