"""The commands on the store's content: ``senders``, ``advisories``, ``explain``, ``outbox``."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from edge_agent.config import agent
from edge_agent.config.agent import config_option
from edge_agent.core.records import Lane
from edge_agent.core.senders import SenderPhase
from edge_agent.inspection import moments
from edge_agent.inspection.decisions import (
    FORWARDED,
    HEADING,
    DecisionFilter,
    LoggedDecision,
    as_line,
    follow,
    last_decisions,
)
from edge_agent.inspection.explanation import explain_sender
from edge_agent.inspection.explanation_page import render_explanation
from edge_agent.inspection.outbox import (
    drop_registrations,
    drop_set_apart,
    export_outbox,
    list_set_apart,
    read_outbox,
    render_outbox,
    render_set_apart,
    write_records,
    write_set_apart,
)
from edge_agent.inspection.senders import SenderFilter, list_senders, render_senders
from edge_agent.observability.status_board import now
from edge_agent.store.marker import last_row_id
from edge_agent.store.port import EVERYTHING
from edge_agent.store.read_only import store_reader
from shared.command_line.command_group import CommandGroup, Parsed, examples, json_option
from shared.command_line.terminal import echo, json_text, width
from shared.identifiers import AdvisoryKind
from shared.sizes import format_size

ADVISORY_KINDS = tuple(str(kind) for kind in AdvisoryKind)

WHEN = Parsed("when", moments.since)
stream_option = click.option("--stream", metavar="NAME", default="", help="Only this [[stream]] block.")
limit_option = click.option(
    "--limit",
    metavar="COUNT",
    type=click.IntRange(0, 2**63 - 1),
    default=50,
    show_default=True,
    help="How many at most; 0: all.",
)
to_option = click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="Write them into a new file (-: standard output), a JSON object per line, payloads in base64.",
)
own_config_option = click.option(
    "--config", "own_path", type=click.Path(dir_okay=False, path_type=Path), help="As muster-agent outbox --config."
)


def _phase(_context: click.Context, _parameter: click.Parameter, name: str | None) -> SenderPhase | None:
    return SenderPhase[name.upper()] if name else None


@click.command(
    epilog=examples(
        "muster-agent senders --state stale",
        "muster-agent senders --match 'web-*' --not-since 10m",
        "muster-agent senders --json --limit 0 | jq '.senders[].sender_id'",
    )
)
@config_option
@stream_option
@click.option(
    "--state",
    "phase",
    type=click.Choice([each.name.lower() for each in SenderPhase]),
    callback=_phase,
    help="Only senders in this state.",
)
@click.option("--match", "glob", default="*", metavar="GLOB", help="Only names like this, such as 'web-*'.")
@click.option("--since", "seen_since", type=WHEN, default=0, help="Seen since 10m ago, or since an instant.")
@click.option("--not-since", "not_seen_since", type=WHEN, default=EVERYTHING, help="Not seen since then.")
@click.option("--newest-first", is_flag=True, help="Begin with the last seen, not with the longest silent.")
@limit_option
@json_option
def senders(config_path: Path, newest_first: bool, limit: int, as_json: bool, **chosen: Any) -> None:
    """List senders, the longest silent first, and when they fall stale or are retired."""
    at = now()
    with store_reader(_store_of(config_path)) as database:
        listed = list_senders(database, SenderFilter(**chosen), limit=limit, newest_first=newest_first, at=at)
    echo(json_text(listed) if as_json else render_senders(listed, at, width()), prose=not as_json)


@click.command(
    epilog=examples(
        "muster-agent advisories --follow",
        "muster-agent advisories --since 1h --kind stale",
        "muster-agent advisories --sender 'web-*' --kind forwarded --json",
    )
)
@config_option
@stream_option
@click.option("--follow", "-f", "follows", is_flag=True, help="Go on with what is decided from now on, until Ctrl-C.")
@click.option("--since", type=WHEN, default=0, help="Since 10m ago, or since an instant.")
@click.option("--sender", default="*", metavar="GLOB", help="Only of senders named like this.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice([*ADVISORY_KINDS, FORWARDED]),
    multiple=True,
    default=ADVISORY_KINDS,
    help="Only these; may be repeated. Without it, all but forwarded.",
)
@limit_option
@json_option
def advisories(config_path: Path, follows: bool, limit: int, as_json: bool, **chosen: Any) -> None:
    """Show what was decided lately, the newest last, and whether its record was sent.

    RECORD: waiting in the outbox; sent and acknowledged; replaced by a newer registration before it left; or dropped.
    With --json each is an object on a line of its own.
    """
    path, wanted = _store_of(config_path), DecisionFilter(**chosen)
    with store_reader(path) as database:
        database.execute("BEGIN")
        newest = last_row_id(database)
        found = last_decisions(database, wanted, limit)
    if not as_json:
        echo(HEADING)
    _echo_decided(found, as_json)
    if follows:
        after = msgspec.structs.replace(wanted, after=newest)
        for decided in follow(path, after, lambda news: echo(f"muster-agent: {news}", err=True)):
            _echo_decided([decided], as_json)


@click.command(
    epilog=examples("muster-agent explain web1.example.net", "muster-agent explain --limit 0 web1.example.net")
)
@config_option
@stream_option
@click.argument("sender")
@limit_option
@json_option
def explain(config_path: Path, stream: str, sender: str, limit: int, as_json: bool) -> None:
    """Say why SENDER was reported or forwarded, what it is now, and what becomes of it if it is not heard."""
    at = now()
    with store_reader(_store_of(config_path)) as database:
        explained = explain_sender(database, sender, stream, at)
    pages = (render_explanation(each, at=at, width=width(), limit=limit) for each in explained)
    echo(json_text(explained) if as_json else "\n\n".join(pages))


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=examples("muster-agent outbox", "muster-agent outbox --to waiting.jsonl"),
)
@config_option
@to_option
@json_option
@click.pass_context
def outbox(context: click.Context, config_path: Path, target: Path | None, as_json: bool) -> None:
    """List what waits for the region's acknowledgement, by lane, with its age and size."""
    context.obj = config_path
    if context.invoked_subcommand:
        return
    with store_reader(_store_of(config_path)) as database:
        if target is None:
            report = read_outbox(database)
            echo(json_text(report) if as_json else render_outbox(report, now(), width()), prose=not as_json)
        else:
            _export(target, partial(write_records, database))


@outbox.command(
    "set-apart",
    epilog=examples(
        "muster-agent outbox set-apart",
        "muster-agent outbox set-apart --row 4711 --to -",
        "muster-agent outbox set-apart --drop --stream events --yes",
    ),
)
@stream_option
@click.option("--row", "row_id", metavar="NUMBER", type=int, help="Only the record of this number.")
@to_option
@click.option("--drop", "drops", is_flag=True, help="Give them up, all or those of a stream; the agent may run.")
@click.option("--yes", is_flag=True, help="Do not ask before they are dropped.")
@json_option
@own_config_option
@click.pass_obj
def set_apart(
    config_path: Path, /, own_path: Path | None, stream: str, row_id: int | None, target: Path | None, **how: bool
) -> None:
    """List the copies and advisories that are too large for the region, with the limit that keeps each back.

    They are sent by themselves when that has been raised.
    """
    path = _store_of(own_path or config_path)
    if how["drops"] and (row_id is not None or target is not None):
        raise click.UsageError("--drop goes without --row and --to: it gives up all, or those of a --stream")
    with store_reader(path) as database:
        rows = [each for each in list_set_apart(database, stream) if row_id in (None, each.row_id)]
        if target is not None:
            _export(target, partial(write_set_apart, database, rows))
        elif not how["drops"]:
            echo(json_text(rows) if how["as_json"] else render_set_apart(rows, now(), width()))
    if not how["drops"]:
        return
    if not rows:
        echo("Nothing is set apart: nothing to drop.")
        return
    _confirm(f"Drop {len(rows):,} records that are set apart? The region will never get them", is_sure=how["yes"])
    dropped = asyncio.run(drop_set_apart(path, stream))
    echo(f"{dropped.rows:,} records ({format_size(dropped.size)}) dropped")


@outbox.command(
    epilog=examples(
        "muster-agent outbox drop --lane registrations",
        "muster-agent outbox drop --lane registrations --stream nodes --yes",
    )
)
@click.option(
    "--lane",
    type=click.Choice([Lane.REGISTRATIONS.name.lower()]),
    required=True,
    help="Whose records. Advisories, watermarks and copies are never dropped.",
)
@stream_option
@click.option("--yes", is_flag=True, help="Do not ask before they are dropped.")
@own_config_option
@click.pass_obj
def drop(config_path: Path, own_path: Path | None, lane: str, stream: str, yes: bool) -> None:
    """Drop the registrations that wait, counted by the cause operator; the agent may run meanwhile."""
    path = _store_of(own_path or config_path)
    count, size = _backlog(path, lane, stream)
    if not count:
        echo("No registrations wait: nothing to drop.")
        return
    _confirm(f"Drop {count:,} registrations ({format_size(size)})? The region will never get them", is_sure=yes)
    dropped = asyncio.run(drop_registrations(path, stream))
    left, _ = _backlog(path, lane, stream)
    stayed = f"; {left:,} stay: they are on their way to the region, or came meanwhile" if left else ""
    echo(f"{dropped.rows:,} registrations ({format_size(dropped.size)}) dropped{stayed}", prose=True)


def _confirm(question: str, *, is_sure: bool) -> None:
    if not is_sure and not sys.stdin.isatty():
        raise click.UsageError("nobody is there to be asked: --yes drops without asking")
    if not is_sure:
        click.confirm(question, abort=True)


def _export(target: Path, write: Callable[[IO[bytes]], int]) -> None:
    if str(target) == "-":
        write(sys.stdout.buffer)
    else:
        echo(f"{export_outbox(target, write):,} records written to {target}", prose=True)


def _backlog(path: Path, lane: str, stream: str) -> tuple[int, int]:
    """Count what waits in a lane, of one stream or of all, and its bytes."""
    with store_reader(path) as database:
        waiting = [each for each in read_outbox(database).waiting if each.lane == lane and stream in ("", each.stream)]
    return sum(each.count for each in waiting), sum(each.size for each in waiting)


def _store_of(config_path: Path) -> Path:
    return Path(agent.load(config_path).store.path)


def _echo_decided(found: list[LoggedDecision], as_json: bool) -> None:
    for decided in found:
        echo(json_text(decided, in_one_line=True) if as_json else as_line(decided, width()))
