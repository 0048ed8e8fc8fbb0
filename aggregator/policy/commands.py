"""The commands ``muster-aggregator policy set | forward | retire | maintenance | cancel | show | history``."""

import asyncio
import difflib
import functools
import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from nats.aio.client import Client

from aggregator.config import DEFAULT_PATH, AggregatorSettings
from aggregator.live.known_senders import unheard_of
from aggregator.policy import book as rules
from aggregator.policy import pages
from aggregator.policy.book import Book, OrderRefused
from aggregator.policy.runs import Run, runs
from aggregator.policy.stream import Held, PolicyUnavailable, read_policy, say
from aggregator.terminal import clear_errors
from aggregator.topology.commands.streams import config_option, load
from aggregator.topology.desired.model import Place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import hub_place
from aggregator.topology.observed.connections import CONNECT_DEADLINE
from shared.command_line.command_group import DURATION, INSTANT, CommandGroup, examples, json_option
from shared.command_line.terminal import echo, json_text, width
from shared.identifiers import InvalidIdentifier, validated_token
from shared.nats.connection import ConnectFailed, connect
from shared.nats.jetstream_api import ApiError, RequestFailed
from shared.policy import ForwardSender, Order, RetireSender, Scope, ScopedRevision
from shared.settings import SettingsError, load_settings
from shared.thresholds import Thresholds

T = TypeVar("T")
_Command = TypeVar("_Command", bound=Callable[..., object])
_KEYS = Thresholds.__struct_fields__


class _Voice(msgspec.Struct, frozen=True):
    """Who speaks, and to whom, as the command line says it."""

    config_path: Path
    author: str
    as_json: bool
    region: str = ""
    site: str = ""
    block: str = ""


def _author(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    if value:
        return value
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user often has no name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _spoken(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what all have that say something: its first argument is the voice."""

    @config_option
    @click.option("--author", metavar="NAME", callback=_author, help="Who says it.  [default: user@host]")
    @json_option
    @functools.wraps(command)
    def speaking(*, config_path: Path, author: str, as_json: bool, **own: Any) -> None:
        whom = {name: own.pop(name) for name in ("region", "site", "block") if name in own}
        command(_Voice(config_path, author, as_json, **whom), **own)

    return speaking


def _to_somebody(command: _Command) -> _Command:
    for name, text in (
        ("--block", "For one stream block of the site."),
        ("--site", "For one site."),
        ("--region", "For a region."),
    ):
        command = click.option(name, metavar="NAME", default="", help=text)(command)
    return command


def _of_sender(command: _Command) -> _Command:
    force = click.option("--force", is_flag=True, help="Say it also of a sender that the hub has never heard of.")
    sender = click.option(
        "--sender", "sender_id", metavar="SENDER", required=True, help="The sender, as advisories name it."
    )
    return sender(force(command))


@click.group(
    cls=CommandGroup,
    epilog=examples("muster-aggregator policy show", "muster-aggregator policy set --site dub1 --stale-after 20m"),
)
def policy() -> None:
    """Change what the agents of a region, a site or a block watch by, and declare maintenance."""


@policy.command(
    "set",
    epilog=examples(
        "muster-aggregator policy set --region eu-west --sample-interval 30m",
        "muster-aggregator policy set --site dub1 --unset stale_after",
    ),
)
@_spoken
@_to_somebody
@click.option("--sample-interval", type=DURATION, help="Forward each sender's registration this often, such as 30m.")
@click.option("--stale-after", type=DURATION, help="Silence after which a sender is stale.")
@click.option("--retire-after", type=DURATION, help="Silence after which a sender is forgotten.")
@click.option("--blind-after", type=DURATION, help="Time without proof after which the stream was not seen.")
@click.option("--unset", multiple=True, type=click.Choice(_KEYS), help="Take this threshold back; repeatable.")
def set_(voice: _Voice, unset: tuple[str, ...], **given: int | None) -> None:
    """Set thresholds of a region, a site or a block. What is said of the smaller one outranks the larger's."""
    changes = {name: duration for name, duration in given.items() if duration is not None}
    if too_short := [name for name, duration in changes.items() if duration <= 0]:
        raise click.ClickException(f"{_option(too_short[0])} must be longer than 0s")
    if not changes and not unset:
        raise click.ClickException(f"say what to set: {', '.join(map(_option, _KEYS))}, or --unset")
    both = sorted(set(changes) & set(unset))
    if both:
        raise click.ClickException(f"{both[0]} cannot be set and unset at once")
    _say_to(voice, lambda scope, held: rules.changed_thresholds(held, scope, changes, unset))


@policy.command(epilog=examples("muster-aggregator policy forward --site dub1 --sender web1.example.net"))
@_spoken
@_to_somebody
@_of_sender
def forward(voice: _Voice, sender_id: str, *, force: bool) -> None:
    """Let a sender's next registration be forwarded. When its sample would be due does not matter."""
    _say_of_sender(voice, ForwardSender(sender_id), force=force)


@policy.command(epilog=examples("muster-aggregator policy retire --site dub1 --sender web1.example.net"))
@_spoken
@_to_somebody
@_of_sender
def retire(voice: _Voice, sender_id: str, *, force: bool) -> None:
    """Say that a sender is gone for good. Its life ends at its last word, and nobody waits for it."""
    _say_of_sender(voice, RetireSender(sender_id), force=force)


@policy.command(
    epilog=examples(
        "muster-aggregator policy maintenance --site dub1 --reason 'new switch' \\\n"
        "      --from 2026-01-31T22:00:00Z --to 2026-02-01T02:00:00Z"
    )
)
@_spoken
@_to_somebody
@click.option("--from", "started_at", type=INSTANT, required=True, help="Start, such as 2026-01-31T22:00:00Z.")
@click.option("--to", "ended_at", type=INSTANT, required=True, help="End, exclusive.")
@click.option("--reason", metavar="REASON", required=True, help="Why, for whoever reads the tables.")
@click.option("--sender", "sender_ids", metavar="SENDER", multiple=True, help="Only these senders; repeatable.")
def maintenance(voice: _Voice, started_at: int, ended_at: int, reason: str, sender_ids: tuple[str, ...]) -> None:
    """Declare maintenance, before it or after. Its time is neither up nor down, and counts in no availability."""
    _say_to(voice, lambda *_: rules.declared_maintenance(started_at, ended_at, reason, sender_ids))
    if unheard := _unheard_of(voice, sender_ids):
        # Of a node that is to come it may be meant.
        echo(f"muster-aggregator: {unheard}", err=True)


@policy.command(epilog=examples("muster-aggregator policy cancel 17"))
@_spoken
@click.argument("revision", type=click.IntRange(min=1))
def cancel(voice: _Voice, revision: int) -> None:
    """Take back the maintenance that REVISION declared. It is then as if it had never been."""
    _say(voice, lambda held: rules.cancelled_maintenance(held, revision))


@policy.command(epilog=examples("muster-aggregator policy show", "muster-aggregator policy show --json"))
@config_option
@json_option
def show(config_path: Path, as_json: bool) -> None:
    """Show the thresholds in effect, the maintenance declared, and which revision each block has taken."""
    topology = _with_policy(config_path)

    async def asked(client: Client, hub: Place) -> tuple[Held, list[Run]]:
        held = await read_policy(client, hub)
        return held, await runs(client, (hub, topology.archive.name), held.book, topology.blocks_per_site)

    held, taken = _at_hub(topology, asked)
    if as_json:
        echo(json_text(pages.show_as_json(held.book, taken, held.now)))
        return
    echo(pages.show(held.book, taken, held.now, width()))
    if held.unread:
        echo(
            f"\n{held.unread} revisions are not understood: a newer muster wrote them, or somebody by hand", prose=True
        )


@policy.command(epilog=examples("muster-aggregator policy history"))
@config_option
@json_option
def history(config_path: Path, as_json: bool) -> None:
    """List every revision. Each has its time, who said it, for whom, and what."""
    held = _at_hub(_with_policy(config_path), read_policy)
    echo(json_text(pages.history_as_json(held.book)) if as_json else pages.history(held.book, width()))


def _say_of_sender(voice: _Voice, order: ForwardSender | RetireSender, *, force: bool) -> None:
    if not voice.site:
        raise click.ClickException("say at which site the sender is: --site")
    if not order.sender_id:
        raise click.ClickException("a sender's name is not empty")
    if not force and (unheard := _unheard_of(voice, [order.sender_id])):
        raise click.ClickException(f"{unheard}: nothing was said, this asks for --force")
    _say_to(voice, lambda *_: order)


def _unheard_of(voice: _Voice, sender_ids: Iterable[str]) -> str:
    """Name senders that the live state of this hub, where it is kept on this machine, knows nothing of."""
    path = voice.config_path.with_name(DEFAULT_PATH.name)
    try:
        settings = load_settings(path, AggregatorSettings)
    except SettingsError:
        # It is no part of what was asked.
        return ""
    return unheard_of(settings.live_path, _scope_of(voice), sender_ids)


def _say_to(voice: _Voice, make: Callable[[Scope, Book], Order]) -> None:
    scope = _scope_of(voice)
    _say(voice, lambda held: (scope, make(scope, held)))


def _scope_of(voice: _Voice) -> Scope:
    with clear_errors(OrderRefused):
        return scope_of(_with_policy(voice.config_path), voice.region, voice.site, voice.block)


def _say(voice: _Voice, make: Callable[[Book], tuple[Scope, Order]]) -> None:
    async def write(client: Client, hub: Place) -> ScopedRevision:
        return await say(client, hub, voice.author, make)

    one = _at_hub(_with_policy(voice.config_path), write)
    if voice.as_json:
        echo(json_text({"scope": str(one.scope), **msgspec.to_builtins(one.revision)}))
    else:
        echo(f"revision {one.revision.revision} for {one.scope}: {rules.revision_text(one)}", prose=True)


def scope_of(topology: TopologySettings, region: str, site: str, block: str) -> Scope:
    """Find out whom a person means, by the regions and sites that the topology names; raise OrderRefused.

    The region of a site that is in the file need not be said. Where a region's sites are not in the file, any name is
    taken.
    """
    if not region and not site:
        raise OrderRefused("say for whom: --region, or --site, or --site and --block")
    if block and not site:
        raise OrderRefused("a block is one of a site: say --site too")
    named = {each.name: each for each in topology.sites}
    if site in named:
        if region not in ("", named[site].region):
            raise OrderRefused(f"site {site} is in region {named[site].region}, not in {region}")
        region = named[site].region
        _refuse_unknown("block", block, named[site].blocks)
    elif site and (not region or any(each.region == region for each in topology.sites)):
        _refuse_unknown("site", site, named)
    _refuse_unknown("region", region, [each.name for each in topology.regions])
    try:
        for what, name in (("site", site), ("block", block)):
            validated_token(name or "none", what)
    except InvalidIdentifier as error:
        raise OrderRefused(str(error)) from error
    return Scope(region, site, block)


def _refuse_unknown(what: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name and name not in names:
        nearest = difflib.get_close_matches(name, names, n=1)
        meant = f", did you mean {nearest[0]}?" if nearest else f": {', '.join(names)}" if names else ""
        raise OrderRefused(f"{what} {name!r} is not in the topology{meant}")


def _with_policy(config_path: Path) -> TopologySettings:
    topology = load(config_path)
    if topology.policy is None:
        raise click.ClickException(
            f"{config_path} has no policy: add a line [policy], then run muster-aggregator apply"
        )
    return topology


def _at_hub(topology: TopologySettings, work: Callable[[Client, Place], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with await connect(topology.hub, name="muster-aggregator policy", deadline=CONNECT_DEADLINE) as client:
            return await work(client, hub_place(topology))

    with clear_errors(ConnectFailed, PolicyUnavailable, OrderRefused, RequestFailed, ApiError):
        return asyncio.run(connected())


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"
