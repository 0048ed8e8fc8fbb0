"""The command ``muster-aggregator top``: the live fleet at a terminal, the worst sites first."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from aggregator.config import config_option, load
from aggregator.fleet.client import LiveClient
from aggregator.fleet.commands.sender import url_option
from aggregator.live.alerts.incidents import Incident, IncidentCause, IncidentPage
from aggregator.live.api import FleetView, SitePage, SiteView
from aggregator.terminal import format_table
from shared.command_line.command_group import DURATION, examples, json_option
from shared.command_line.tables import TableColumn, cut, visible
from shared.command_line.terminal import echo, json_text, width
from shared.instants import SECOND, format_instant

MARKS = {"stale": "!", "unknown": "?", "maintenance": "~", "up": "+", "retired": "-"}
"""A shape beside each word: colour alone tells not everybody."""
_GAP, _MARK, _INSTANT = 2, 3, 22
"""The room between two columns, and that of a mark's and an instant's with it."""
_NAMED, _LEAST_NODES, _LEAST_NAME = 2, 20, 12
"""So many nodes of an incident are named, where there is so much room; a site's name is never cut to less."""


@click.command(epilog=examples("muster-aggregator top", "muster-aggregator top --once"))
@config_option
@url_option
@click.option("--once", is_flag=True, help="Print it once; as it is where output is no terminal.")
@click.option("--every", type=DURATION, default="2s", show_default=True, help="Time between two looks.")
@json_option
def top(*, config_path: Path, url: str | None, once: bool, every: int, as_json: bool) -> None:
    """Show open incidents, and the sites, those in trouble first. Asks the running service; Ctrl-C ends it."""
    client = LiveClient(load(config_path), url)
    if as_json:
        sites = client.get("sites", SitePage, sort="trouble", limit=1_000)
        fleet = client.get("fleet", FleetView)
        echo(json_text({"fleet": fleet, "incidents": _open_incidents(client), "sites": sites.sites}))
        return
    if once or not sys.stdout.isatty():
        echo("\n".join(screen(client, width(), 1_000)), prose=True)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False) as shown:
        while True:
            columns, rows = shutil.get_terminal_size()
            try:
                lines = list(screen(client, columns, rows))
            except click.ClickException as error:
                lines = [f"{error.format_message()} (trying again)"]
            shown.update(Text("\n".join(map(_shown, lines))), refresh=True)
            time.sleep(max(every, SECOND // 2) / SECOND)


def screen(client: LiveClient, columns: int, rows: int) -> Iterator[str]:
    """Give the lines of one look, as many as there is room for."""
    fleet = client.get("fleet", FleetView)
    incidents = _open_incidents(client)
    shown = incidents[: max(1, rows // 3)]
    room = rows - len(shown) - 11
    page = client.get("sites", SitePage, sort="trouble", limit=max(1, min(room, 1_000)))
    yield _counted(fleet)
    yield fleet.trust
    yield f"at {format_instant(fleet.now_us - fleet.now_us % SECOND)}, by the hub's clock"
    yield ""
    yield incident_table(shown, columns) if shown else "no open incident"
    if len(incidents) > len(shown):
        yield f"and {len(incidents) - len(shown):,} more incidents"
    yield ""
    yield site_table(page.sites, columns)
    if page.total > len(page.sites):
        yield f"and {page.total - len(page.sites):,} more sites"


def _open_incidents(client: LiveClient) -> list[Incident]:
    """Give those that go on, as the page has them: without parts of wider ones, and what seems over last."""
    found = client.get("incidents", IncidentPage, limit=1).incidents
    goes_on = [each for each in found if each.ended_at_us is None and not each.within]
    return sorted(goes_on, key=lambda each: each.clear_since_us is not None)


def _counted(fleet: FleetView) -> str:
    counts = fleet.counts
    named = {"up": counts.up, "stale": counts.stale, "unknown": counts.unknown, "maintenance": counts.maintenance}
    return "   ".join(f"{MARKS[name]} {count:,} {name}" for name, count in named.items())


def _shown(lines: str) -> str:
    return "\n".join(map(visible, lines.split("\n")))


def _instant(at: int) -> str:
    return format_instant(at - at % SECOND) if at else ""


def incident_table(incidents: Sequence[Incident], width: int) -> str:
    """Lay incidents out, with as many of the first nodes' names as there is room for."""
    room = width - _MARK - _INSTANT
    longest = min(max(len(each.summary) for each in incidents), room)
    over = TableColumn[Incident]("seems over since", lambda each: _instant(each.clear_since_us or 0), spare=1)
    for_nodes = room - longest - (_INSTANT if any(map(over.cell, incidents)) else 0) - _GAP
    columns: list[TableColumn[Incident]] = [
        TableColumn("", lambda each: MARKS["stale" if each.cause is IncidentCause.STALE else "unknown"]),
        TableColumn("incident", lambda each: cut(each.summary, longest)),
        TableColumn("since", lambda each: _instant(each.started_at_us)),
        over,
    ]
    if for_nodes >= _LEAST_NODES:
        columns.append(TableColumn("nodes", lambda each: cut(_nodes(each), for_nodes)))
    return format_table(columns, incidents, width)


def _nodes(incident: Incident) -> str:
    names = [visible(name) for name in incident.nodes[:_NAMED]]
    more = incident.most_count - len(names)
    return ", ".join(names) + (f" and {more:,} more" if names and more > 0 else "")


def site_table(sites: Sequence[SiteView], width: int) -> str:
    states = {id(site): f"{site.state}{f' ({site.reason})' if site.reason else ''}" for site in sites}
    room = width - _MARK - _INSTANT - max(map(len, states.values()), default=0) - _GAP
    columns: list[TableColumn[SiteView]] = [
        TableColumn("", lambda site: MARKS[site.state]),
        TableColumn("site", lambda site: cut(f"{site.region}.{site.site}", max(room, _LEAST_NAME))),
        TableColumn("state", lambda site: states[id(site)]),
        TableColumn("since", lambda site: _instant(site.since_us)),
        # Of a site that is unknown it says the same as since when.
        TableColumn("known until", lambda site: _instant(site.known_until_us), spare=5),
        TableColumn("up", lambda site: str(site.counts.up), right=True, spare=3),
        TableColumn("stale", lambda site: str(site.counts.stale), right=True, spare=1),
        TableColumn("unknown", lambda site: str(site.counts.unknown), right=True, spare=2),
        TableColumn("maint.", lambda site: str(site.counts.maintenance), right=True, spare=4),
    ]
    return format_table(columns, sites, width)
