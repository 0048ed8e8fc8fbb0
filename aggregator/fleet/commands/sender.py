"""The command ``muster-aggregator sender``: everything about one sender."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import click
import msgspec

from aggregator.config import config_option, load
from aggregator.fleet.client import LiveClient
from aggregator.live.api import AdvisoryRow, SenderFacts, SenderPage, SenderRow, SenderStory, State
from aggregator.terminal import format_table
from shared.command_line.command_group import examples, json_option
from shared.command_line.tables import TableColumn
from shared.command_line.terminal import echo, json_text, width
from shared.instants import format_duration, format_instant

SHOWN = 20

url_option = click.option("--url", metavar="URL", help="The service's address.  [default: as the settings say]")


@click.command(
    epilog=examples(
        "muster-aggregator sender web1.example.net", "muster-aggregator sender --site dub1 web1.example.net --json"
    )
)
@config_option
@url_option
@click.option("--site", metavar="NAME", default="", help="Only at this site.")
@json_option
@click.argument("name")
def sender(config_path: Path, url: str | None, site: str, as_json: bool, name: str) -> None:
    """Tell everything about one sender: what it is, since when, and what was said of it. Asks the running service."""
    client = LiveClient(load(config_path), url)
    found = client.get("senders", SenderPage, name=name, site=site, limit=100).senders
    if not found:
        similar = client.get("senders", SenderPage, search=name[:100], site=site, limit=4).senders
        meant = f": did you mean {' or '.join(dict.fromkeys(each.sender for each in similar))}?" if similar else ""
        raise click.ClickException(f"nobody has heard of a sender {name!r}{f' at site {site}' if site else ''}{meant}")
    stories = [client.get(_path(each), SenderStory) for each in found]
    facts = _facts(client, found[0]) if len(found) == 1 else None
    if as_json:
        told_whole = [msgspec.to_builtins(story) for story in stories]
        echo(json_text([told_whole[0] | {"facts": msgspec.to_builtins(facts)}] if facts else told_whole))
        return
    for place, story in enumerate(stories):
        echo("\n" * (place > 0) + "\n".join(lines(story)), prose=True)
    if facts is not None:
        stored_at = format_instant(facts.archived_at_us)
        echo(f"\nlast sample stored {stored_at} ({facts.reason}, {facts.size:,} bytes): --json has it", prose=True)


def _facts(client: LiveClient, found: SenderRow) -> SenderFacts | None:
    """Give its last sample; None where the hub has none, or cannot be asked."""
    place = {"region": found.region, "site": found.site, "block": found.block, "sender": found.sender}
    with contextlib.suppress(click.ClickException):
        return client.get("facts", SenderFacts, **place)
    return None


def _path(found: SenderRow) -> str:
    return "senders/" + "/".join(quote(part, safe="") for part in (found.region, found.site, found.block, found.sender))


def lines(story: SenderStory) -> Iterator[str]:
    found = story.sender
    yield f"{found.sender}  at {found.region}.{found.site}.{found.block}"
    since = f" since {format_instant(found.since_us)}" if found.since_us else ""
    known = f", known until {format_instant(found.known_until_us)}" if found.known_until_us else ""
    why = f" ({found.reason})" if found.reason else ""
    # Of one that is up, the hub knows when it came and that it has not been missed, not when it was heard last.
    heard = "" if found.last_state is State.UP else f"; last seen {format_instant(found.last_seen_us)}"
    yield f"{found.state}{why}{since}{known}{heard}"
    if found.state is State.UNKNOWN:
        yield f"what was told of it last: {found.last_state}"
    for each in story.maintenance:
        span = f"{format_instant(each.started_at_us)} to {format_instant(each.ended_at_us)}"
        end = (
            f", cancelled {format_instant(each.cancelled_at_us)} by {each.cancelled_by}" if each.cancelled_at_us else ""
        )
        yield f"maintenance {span}, by {each.author}: {each.reason} (revision {each.revision}){end}"
    for order in story.orders:
        given_at = format_instant(order.given_at_us)
        yield f"{order.kind} ordered by {order.author} at {given_at} (revision {order.revision})"
    for gap in story.gaps[:SHOWN]:
        end = format_instant(gap.ended_at_us) if gap.ended_at_us else "now"
        length = f", {format_duration(gap.ended_at_us - gap.started_at_us)}" if gap.ended_at_us else ""
        yield f"nothing known {format_instant(gap.started_at_us)} to {end}{length} ({gap.reason})"
    columns: list[TableColumn[AdvisoryRow]] = [
        TableColumn("at", lambda each: format_instant(each.at_us)),
        TableColumn("advisory", lambda each: str(each.kind) + (" (by an operator)" if each.by_operator else "")),
        TableColumn("last seen", lambda each: format_instant(each.last_seen_us)),
    ]
    yield ""
    yield format_table(columns, story.advisories[:SHOWN], width())
    if len(story.advisories) > SHOWN:
        yield f"and {len(story.advisories) - SHOWN} before: --json has all"
