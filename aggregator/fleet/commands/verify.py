"""The command ``muster-aggregator verify``: do the live service and the tables agree?"""

import asyncio
import sys
from pathlib import Path

import click

from aggregator.config import config_option, load
from aggregator.fleet.agreement import Agreement, CannotCompare, Seen, compare
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.terminal import clear_errors, progress, terminable
from shared.command_line.command_group import examples, json_option
from shared.command_line.terminal import echo, json_text
from shared.instants import format_instant
from shared.nats.connection import ApiError, ConnectFailed, RequestFailed


@click.command(epilog=examples("muster-aggregator verify", "muster-aggregator verify --json"))
@config_option
@json_option
def verify(config_path: Path, as_json: bool) -> None:
    """Compare the live service and the tables, sender by sender, at the message of the hub that the tables stand at.

    The last line counts the senders. The exit code is 1 where anything differs.
    """
    settings = load(config_path)
    with (
        clear_errors(TablesUnreadable, CannotCompare, ConnectFailed, ApiError, RequestFailed),
        open_tables(Path(settings.lakehouse.path), settings.lakehouse.catalog) as tables,
        progress() as tell,
        terminable(),
    ):
        found = asyncio.run(compare(settings, tables, tell))
    echo(json_text(found) if as_json else "\n".join(_lines(found)))
    sys.exit(0 if found.is_whole else 1)


def _lines(found: Agreement) -> list[str]:
    lines = []
    for each in found.differences:
        lines.append(f"{'.'.join(each.key[:3])} {each.key.sender}")
        lines += [f"  live:   {_seen(each.live)}", *(f"    {line}" for line in each.live_story)]
        lines += [f"  tables: {_seen(each.tables)}", *(f"    {line}" for line in each.tables_story)]
    if not found.is_service_same:
        lines.append(f"the live service's state at message {found.service_sequence:,} is not what the archive gives")
    elif found.service_sequence:
        lines.append(f"the live service's state at message {found.service_sequence:,} is what the archive gives")
    lines.append(f"at message {found.sequence:,}: {found}")
    return lines


def _seen(seen: Seen | None) -> str:
    if seen is None:
        return "never heard of"
    since = f" since {format_instant(seen.since)}" if seen.since else ""
    return f"{seen.state}{since}, known until {format_instant(seen.known_until) if seen.known_until else 'never'}"
