"""The commands below ``import``. Spark is imported when one of them runs: ``--help`` must not wait for it."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from aggregator import config
from aggregator.config import AggregatorSettings
from aggregator.lakehouse.imports.mapping import Ambiguous, ImportRefused, Mapping, Unit
from aggregator.lakehouse.imports.source_file import SEPARATORS
from aggregator.lakehouse.imports.times import describe_watch, parse_epoch, parse_watch
from aggregator.terminal import clear_errors, format_table, progress
from shared.command_line.command_group import CommandGroup, examples, json_option
from shared.command_line.tables import TableColumn
from shared.command_line.terminal import echo, json_text, width
from shared.identifiers import InvalidIdentifier, validated_token
from shared.instants import format_duration, format_instant

if TYPE_CHECKING:
    from aggregator.lakehouse.imports.listing import Imported
    from aggregator.lakehouse.imports.staging import Staged

_SHOWN_OF_ID = 12
_FILE = click.Path(dir_okay=False, path_type=Path)
_option = partial(click.option, show_default=True)
_STATE_HELP = "A value of that column that means {0}; repeatable.  [default: {1}]"


def _token(_context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        return validated_token(text, parameter.name or "")
    except InvalidIdentifier as error:
        raise click.BadParameter(str(error)) from error


def _listed(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _separator(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if text not in ("auto", *SEPARATORS) and (len(text) != 1 or text.isalnum() or text in '"\r\n'):
        raise click.BadParameter(f"{', '.join(SEPARATORS)}, or one character that is no letter or digit, not {text!r}")
    return text


@click.group(
    "import",
    cls=CommandGroup,
    epilog=examples("muster-aggregator import list", "muster-aggregator import intervals --help"),
)
def import_() -> None:
    """Import the history of another monitoring system."""


@import_.command(
    epilog=examples(
        "muster-aggregator import intervals outages.csv.gz --source nagios \\\n"
        "      --sender host --start begin --stop end --always down --gaps up \\\n"
        "      --time '%d.%m.%Y %H:%M' --zone Europe/Dublin \\\n"
        "      --groups '{site}-{rack}-{}' --dry-run"
    )
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@config.settings_for_spark
@_option(
    "--source", metavar="NAME", callback=_token, default="history", help="The system that it comes from, in a word."
)
@click.option(
    "--sender", multiple=True, required=True, metavar="COLUMN", help="The column of the sender's key; repeatable."
)
@click.option("--start", required=True, metavar="COLUMN", help="The column of an interval's start.")
@click.option(
    "--stop",
    metavar="COLUMN",
    help="The column of its end. Without it and --duration, a row is a change that holds until the next.",
)
@click.option("--duration", metavar="COLUMN", help="The column of how long it lasted, where there is none of its end.")
@_option(
    "--duration-unit",
    "unit",
    type=click.Choice(get_args(Unit)),
    default="s",
    help="The unit of numbers in that column; 1:02:03 is understood too.",
)
@click.option("--state", metavar="COLUMN", help="The column of the sender's state.")
@click.option("--up", multiple=True, metavar="VALUE", help=_STATE_HELP.format("up", "up, 1"))
@click.option("--down", multiple=True, metavar="VALUE", help=_STATE_HELP.format("down", "down, 0"))
@click.option("--unknown", multiple=True, metavar="VALUE", help="A value that means unknown; repeatable.")
@click.option(
    "--gone", multiple=True, metavar="VALUE", help="A value that means that the sender was removed; repeatable."
)
@click.option(
    "--always", type=click.Choice(["up", "down"]), help="The state of every row, for files without such a column."
)
@_option(
    "--gaps",
    type=click.Choice(["unknown", "up", "down"]),
    default="unknown",
    help="What a sender was between two of its rows: up, for a list of failures.",
)
@click.option(
    "--since", metavar="INSTANT", help="From when on the source watched: --gaps holds before a first row, too."
)
@click.option(
    "--until",
    metavar="INSTANT",
    help="Until when it watched: --gaps holds after a last row; a row without end ends here.",
)
@_option(
    "--overlaps",
    type=click.Choice(["refuse", "join"]),
    default="refuse",
    help="Import nothing where intervals of a sender overlap, or make one of those of the same state.",
)
@_option("--time", metavar="FORMAT", default="auto", help="Unix seconds or ISO 8601; s, ms, us, ns; or %d.%m.%Y %H:%M.")
@click.option(
    "--epoch", metavar="INSTANT", help="Numbers count from then, however small; 0 for 1970.  [default: 1970-01-01]"
)
@_option("--zone", metavar="ZONE", default="UTC", help="Time zone of times that do not say theirs.")
@_option(
    "--ambiguous",
    type=click.Choice(get_args(Ambiguous)),
    default="quarantine",
    help="What becomes of a local time that names two instants, or none, for clocks were changed: order takes"
    " the earlier, unless the sender's row before, or the row's own start, lies behind it.",
)
@click.option("--groups", "shape", default="", metavar="SHAPE", help="What the parts of a key are: {site}/{rack}/{}.")
@_option("--joined-by", metavar="BETWEEN", default="/", help="What stands between the columns of a key.")
@_option("--region", metavar="NAME", default="imported", help="The region of senders whose key names none.")
@_option("--site", metavar="NAME", default="imported", help="Their site, likewise.")
@_option(
    "--separator",
    metavar="NAME",
    callback=_separator,
    default="auto",
    help="What stands between columns: comma, semicolon, tab, pipe, space, or a character; auto looks at the header.",
)
@click.option(
    "--columns", callback=_listed, metavar="A,B,...", help="Names of the columns, where no first line has them."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Read the files, say how they are understood, and change nothing. Overlaps are not looked for.",
)
def intervals(files: tuple[Path, ...], settings: AggregatorSettings, dry_run: bool, **given: Any) -> None:
    """Import files of intervals in which senders were up or down, one to a row.

    Text or CSV, also packed with xz, gzip or bzip2; columns go by name or, from 1, by number. Rows that cannot be read
    are quarantined with a reason; where two intervals of a sender overlap, nothing is imported. The same again changes
    nothing.
    """
    options = {name: value for name, value in given.items() if value or name not in ("up", "down")}
    with clear_errors(ImportRefused):
        now = time.time_ns() // 1000
        options["since"], options["until"] = parse_watch(given["since"], given["until"], given["zone"], now)
        options["epoch"] = parse_epoch(given["epoch"], given["zone"])
        mapping = msgspec.convert(options, Mapping)
        echo(describe_watch(mapping), prose=True)
        if dry_run:
            _look(files, mapping, now)
        else:
            _import(settings, files, mapping)


@import_.command("list", epilog=examples("muster-aggregator import list", "muster-aggregator import list --json"))
@config.config_option
@json_option
def list_(config_path: Path, as_json: bool) -> None:
    """Show what was imported: the identifier of each file, what it brought, and for which time."""
    from aggregator.lakehouse.imports.listing import imports_in
    from aggregator.lakehouse.query.engine import open_tables
    from aggregator.lakehouse.warehouse.errors import TablesUnreadable

    settings = config.load(config_path).lakehouse
    with clear_errors(TablesUnreadable), open_tables(Path(settings.path), settings.catalog) as tables:
        imports = imports_in(tables)
    if as_json:
        echo(json_text(imports))
    else:
        echo(format_table(_IMPORTS, imports, width()) if imports else "nothing was imported")


@import_.command("remove", epilog=examples("muster-aggregator import remove 3f9a1c"))
@click.argument("identifiers", nargs=-1, required=True, metavar="IDENTIFIER...")
@config.settings_for_spark
def remove(identifiers: tuple[str, ...], settings: AggregatorSettings) -> None:
    """Forget what was imported by mistake: IDENTIFIER is what import list shows, or its beginning.

    All tables become as if it had never been imported. A row that another file had too counts as brought by the one
    that was imported first: import the other once more.
    """
    from aggregator.lakehouse.commands.failures import in_one_line
    from aggregator.lakehouse.imports.job import remove_imports
    from aggregator.lakehouse.spark.stop_signal import StopSignal

    with in_one_line(), StopSignal() as stop, progress() as tell:
        removed = remove_imports(settings, identifiers, stop.telling(tell), stop.check)
    for each in removed:
        echo(f"removed {_described(each)}", prose=True)


_IMPORTS: Sequence[TableColumn["Imported"]] = (
    TableColumn("import", lambda each: each.import_id[:_SHOWN_OF_ID]),
    TableColumn("source", lambda each: each.block),
    TableColumn("file", lambda each: each.file, wraps=True),
    TableColumn("intervals", lambda each: f"{each.interval_count:,}", right=True),
    TableColumn("senders", lambda each: f"{each.sender_count:,}", right=True, spare=2),
    TableColumn("quarantined", lambda each: f"{each.quarantined_count:,}", right=True, spare=1),
    TableColumn("from", lambda each: format_instant(each.started_at) if each.interval_count else "-"),
    TableColumn("to", lambda each: format_instant(each.ended_at) if each.interval_count else "-", spare=3),
)


def _described(imported: "Imported") -> str:
    when = ""
    if imported.interval_count:
        when = f", from {format_instant(imported.started_at)} to {format_instant(imported.ended_at)}"
    return (
        f"{imported.import_id}  {imported.file} ({imported.block}): {imported.interval_count:,} intervals of"
        f" {imported.sender_count:,} senders{when}; {imported.quarantined_count:,} quarantined"
    )


def _look(files: tuple[Path, ...], mapping: Mapping, now: int) -> None:
    from aggregator.lakehouse.imports.staging import stage

    for path in files:
        staged = stage(path, mapping, None, now, lambda line: echo(line, err=True))
        first = staged.first
        assert first is not None
        end = "until its next" if mapping.tells_changes else f"to {format_instant(first.ended_at)}"
        groups = "".join(f", {name} {value}" for name, value in first.sender.groups.items())
        echo(
            f"{path}: {staged.row_count:,} rows, {staged.quarantined_count:,} of them to be quarantined;"
            f" {_range(staged)}; the first:"
            f" region {first.sender.region}, site {first.sender.site}{groups}, sender {first.sender.sender_id},"
            f" {first.state} from {format_instant(first.started_at)} {end}",
            prose=True,
        )
        _show_quarantined(staged, mapping)


def _import(settings: AggregatorSettings, files: tuple[Path, ...], mapping: Mapping) -> None:
    from aggregator.lakehouse.commands.failures import in_one_line
    from aggregator.lakehouse.imports.job import import_intervals
    from aggregator.lakehouse.spark.stop_signal import StopSignal

    with in_one_line(), StopSignal() as stop, progress() as tell:
        result = import_intervals(settings, files, mapping, stop.telling(tell), stop.check)
    counts = result.counts
    echo(
        f"read {counts.read:,} = written {counts.written:,} + duplicates {counts.duplicates:,}"
        f" + quarantined {counts.quarantined:,}",
        prose=True,
    )
    if counts.zero_length:
        echo(f"{counts.zero_length:,} of those written end where they start: kept, and flagged zero_length", prose=True)
    for staged in result.files:
        echo(f"{staged.file}: {_range(staged)}", prose=True)
        _show_quarantined(staged, mapping)
    if result.waiting_from is not None:
        echo(
            f"what was imported after {format_instant(result.waiting_from)}, where known time ends, waits for it",
            prose=True,
        )
    echo(f"took {format_duration(round(result.seconds * 1e6))}")


def _range(staged: "Staged") -> str:
    return f"from {format_instant(staged.started_at)} to {format_instant(staged.ended_at)}"


def _show_quarantined(staged: "Staged", mapping: Mapping) -> None:
    from aggregator.lakehouse.imports.staging import remedy

    for reason, count in staged.reasons.items():
        echo(f"  {staged.file}: {count:,} {reason}, the first in {staged.examples[reason]}{remedy(reason)}", prose=True)
    if staged.ambiguous_count:
        taken = "quarantined" if mapping.ambiguous == "quarantine" else f"taken as --ambiguous {mapping.ambiguous} says"
        echo(
            f"  {staged.file}: {staged.ambiguous_count:,} local times name two instants in {mapping.zone}, or none:"
            f" {taken}",
            prose=True,
        )
