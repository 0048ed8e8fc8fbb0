"""Ask JetStream what there is, and carry out a plan: raw requests, so that no field that we do not know is lost.

Regions are asked through the hub's connection by their domain; sites, where their server is given, through their own.
Every request has a deadline; a place that does not answer is reported, and does not hold up the others.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client

from aggregator.topology.found import (
    ConsumerKey,
    Found,
    FoundConsumer,
    FoundStream,
    api_of,
    beyond,
    consumer_name_of,
    silence,
    sources_of,
)
from aggregator.topology.plan import Action, Change, Plan
from aggregator.topology.settings import TopologySettings
from aggregator.topology.sourcing import OURS, copier_of, named_copier
from aggregator.topology.words import HUB, Config, Desired, DesiredConsumer, DesiredStream, Origin, Place
from shared.jetstream_api import NO_SUCH_CONSUMER, NO_SUCH_MESSAGE, NO_SUCH_STREAM, domain_of
from shared.nats_connection import ApiError, ConnectFailed, RequestFailed, connect, request_json

CONNECT_DEADLINE = 5.0
REQUEST_DEADLINE = 5.0
_SCAN_DEADLINE = 60.0
_FIRST_DEADLINE = 2.0
_AT_ONCE = 32

T = TypeVar("T")
Connections = dict[str, Client | str]


class ApplyFailed(Exception):
    """A step of a plan did not work; those before it did. The text names the step and the cause in one line."""


class _Api(msgspec.Struct, frozen=True):
    level: int = 0


class _AccountInfo(msgspec.Struct, frozen=True):
    api: _Api = _Api()


class _Names(msgspec.Struct, frozen=True):
    total: int = 0
    consumers: list[str] | None = None


class _Message(msgspec.Struct, frozen=True):
    seq: int


class _MessageAnswer(msgspec.Struct, frozen=True):
    message: _Message


@asynccontextmanager
async def connections(topology: TopologySettings) -> AsyncIterator[Connections]:
    """Open the connections of hub, sites and accounts, by name; instead of one that failed stands why, in one line."""
    wanted = {HUB: topology.hub} | topology.servers

    async with AsyncExitStack() as stack:

        async def opened(name: str) -> Client | str:
            try:
                client = await connect(wanted[name], name="muster-aggregator", deadline=CONNECT_DEADLINE)
            except ConnectFailed as error:
                return str(error)
            return await stack.enter_async_context(client)

        clients = await asyncio.gather(*(opened(name) for name in wanted))
        yield dict(zip(wanted, clients, strict=True))


async def observe(wanted: Iterable[Desired], opened: Connections, *, with_strays: bool = False) -> Found:
    """Ask every place, all at once, for what it has of what is wanted, and of what that copies.

    ``with_strays``: also for consumers that might be ours and are not wanted, and what copies through them.
    """
    wanted = tuple(wanted)
    found = Found({}, {}, {}, {})
    by_place: dict[Place, list[Desired | Origin]] = {}
    for each in _asked(wanted):
        by_place.setdefault(each.place, []).append(each)
    await asyncio.gather(*(_observe_place(place, asked, opened, found) for place, asked in by_place.items()))
    await _observe_overtaken(wanted, opened, found)
    if with_strays:
        _leave_alone(found)
        await asyncio.gather(*(_observe_strays(place, asked, opened, found) for place, asked in by_place.items()))
        await _observe_named_places(opened, found)
        copiers = {copier_of(each.config, list(found.levels)) for each in found.strays.values()} - {None}
        unknown = [Origin(*key) for key in copiers if key is not None and key not in found.streams]
        await asyncio.gather(*(_observe_place(each.place, [each], opened, found) for each in unknown))
        # What the strays were acknowledged counts as taken, too, and was asked for after the origins.
        await _observe_overtaken(wanted, opened, found)
        _leave_alone(found)
    return found


async def _observe_overtaken(wanted: Iterable[Desired], opened: Connections, found: Found) -> None:
    """Ask once more for the origins that copies are beyond, where they answer: they may just have moved on."""
    overtaken = [each for each in _overtaken(wanted, found) if each.place not in found.unreachable]
    await asyncio.gather(*(_observe_place(each.place, [each], opened, found) for each in overtaken))


def _leave_alone(found: Found) -> None:
    """Let a plan do nothing where there was no answer: what is not known may be what its other steps rest upon."""
    silent: dict[Place, list[str]] = {}
    for key in sorted(found.silent):
        silent.setdefault(key[0], []).append(silence(key, found))
    found.unreachable.update({place: "; ".join(said) for place, said in silent.items()})


async def _observe_strays(place: Place, asked: list[Desired | Origin], opened: Connections, found: Found) -> None:
    client = opened[place.connection]
    streams = [each.name for each in asked if isinstance(each, DesiredStream) and (place, each.name) in found.streams]
    wanted = {(each.stream, each.name) for each in asked if isinstance(each, DesiredConsumer)}
    if isinstance(client, str) or place in found.unreachable:
        return
    try:
        for stream in streams:
            for name in await _consumer_names(client, place, stream):
                if name.startswith(OURS) and (stream, name) not in wanted:
                    await _observe_consumer(client, DesiredConsumer(place, stream, name, {}), found.strays)
    except (ApiError, RequestFailed) as error:
        found.unreachable[place] = str(error)


async def _observe_named_places(opened: Connections, found: Found) -> None:
    """Ask those domains, too, that only consumers and sources name: a region that was removed; one may be gone."""
    known = {str(place) for place in (*found.levels, *found.unreachable)}
    named = {copier[0] for each in found.strays.values() if (copier := named_copier(each.config)) is not None}
    named |= {
        domain_of(api_of(source))
        for (place, _), stream in found.streams.items()
        for source in sources_of(stream)
        if place.connection == HUB and consumer_name_of(source)
    }
    places = [Place(HUB, name) for name in sorted(named - known - {""})]
    asked = [Found({}, {}, {}, {}) for _ in places]
    await asyncio.gather(*(_observe_place(place, [], opened, each) for place, each in zip(places, asked, strict=True)))
    for each in asked:
        # Not among those that do not answer: nobody asked for them.
        found.levels.update(each.levels)
        found.away.update(each.unreachable)


async def _consumer_names(client: Client, place: Place, stream: str) -> list[str]:
    names: list[str] = []
    while True:
        request = {"offset": len(names)}
        page = await request_json(
            client, f"{place.api}.CONSUMER.NAMES.{stream}", request, _Names, deadline=REQUEST_DEADLINE
        )
        names += page.consumers or []
        if not page.consumers or len(names) >= page.total:
            return names


def _overtaken(wanted: Iterable[Desired], found: Found) -> Iterator[Origin]:
    """List the origins that copies are beyond."""
    for each in wanted:
        current = found.streams.get((each.place, each.name)) if isinstance(each, DesiredStream) else None
        if not isinstance(each, DesiredStream) or current is None:
            continue
        key, sources = (each.place, each.name), sources_of(current)
        is_ahead = any(found.resumes_behind(key, source) < found.taken(key, source) for source in sources)
        for origin in each.origins:
            at = found.streams.get((origin.place, origin.name))
            held = at.state.last_seq if at is not None and origin.api else None
            elsewhere = [each for each in sources if (each["name"], api_of(each)) == (origin.name, origin.api)]
            is_behind = held is not None and any(found.taken(key, each) > held for each in elsewhere)
            if is_ahead or is_behind or (current.mirror is not None and beyond(current, at)):
                yield origin


def _asked(wanted: Iterable[Desired]) -> Iterator[Desired | Origin]:
    """List what is wanted, and what that copies: an origin is asked for where it is not wanted too, or is filtered."""
    managed = set()
    origins: dict[Origin, None] = {}
    for each in wanted:
        yield each
        if isinstance(each, DesiredStream):
            managed.add((each.place, each.name))
            origins |= dict.fromkeys(each.origins)
    yield from (each for each in origins if each.subjects or (each.place, each.name) not in managed)


async def apply(plan: Plan, opened: Connections, on_done: Callable[[Change], None]) -> None:
    """Carry out the plan step by step, telling of each; raise ApplyFailed at the first that does not work.

    Streams that are replaced are deleted before anything else: a consumer that is made anew for a new archive must not
    find the old one still listening.
    """
    for change in plan.changes:
        if change.action is Action.REPLACE and not change.consumer:
            await _carry_out(_delete_stream, change, opened)
    for number, change in enumerate(plan.changes):
        try:
            await _carry_out(_apply_to_consumer if change.consumer else _apply_to_stream, change, opened)
        except ApplyFailed as error:
            raise ApplyFailed(f"{error}{_left_aside(plan.changes[:number], plan.changes[number:])}") from error
        on_done(change)


def _left_aside(done: tuple[Change, ...], left: tuple[Change, ...]) -> str:
    """Say which streams do without some of their sources: those that were updated once and wait for it again."""
    again = {(change.place, change.stream) for change in left if not change.consumer}
    aside = [each for each in done if not each.consumer and (each.place, each.stream) in again]
    return "".join(f"; {each.stream} of {each.place} has set sources aside: apply again" for each in aside)


async def _carry_out(step: Callable[[Client, Change], Awaitable[None]], change: Change, opened: Connections) -> None:
    client = opened[change.place.connection]
    assert isinstance(client, Client), "a place without a connection has no changes"
    try:
        await step(client, change)
    except (ApiError, RequestFailed) as error:
        what = f"{change.stream}{' ' + change.consumer if change.consumer else ''}"
        raise ApplyFailed(f"{change.place}: cannot {change.action} {what}: {error}") from error


async def _observe_place(place: Place, asked: list[Desired | Origin], opened: Connections, found: Found) -> None:
    client = opened[place.connection]
    if isinstance(client, str):
        found.unreachable[place] = client
        return
    try:
        info = await _asked_again(client, f"{place.api}.INFO", None, _AccountInfo)
    except (ApiError, RequestFailed) as error:
        found.unreachable[place] = str(error)
        return
    found.levels[place] = info.api.level
    turns = asyncio.Semaphore(_AT_ONCE)
    streams = [each for each in asked if not isinstance(each, DesiredConsumer)]
    await asyncio.gather(*(_observe_one(client, each, found, turns) for each in streams))
    # Each of its consumers would take as long to give no answer either.
    answered = [
        each for each in asked if isinstance(each, DesiredConsumer) and (place, each.stream, "") not in found.silent
    ]
    await asyncio.gather(*(_observe_one(client, each, found, turns) for each in answered))


async def _observe_one(client: Client, asked: Desired | Origin, found: Found, turns: asyncio.Semaphore) -> None:
    """Ask for one stream or consumer: one that has no leader gives no answer, and says nothing of the others."""
    async with turns:
        try:
            if isinstance(asked, DesiredConsumer):
                await _observe_consumer(client, asked, found.consumers)
            else:
                await _observe_stream(client, asked, found)
            if isinstance(asked, Origin):
                await _observe_last_matching(client, asked, found)
        except (ApiError, RequestFailed) as error:
            names = (asked.stream, asked.name) if isinstance(asked, DesiredConsumer) else (asked.name, "")
            found.silent[asked.place, *names] = str(error)


async def _observe_stream(client: Client, asked: DesiredStream | Origin, found: Found) -> None:
    subject = f"{asked.place.api}.STREAM.INFO.{asked.name}"
    try:
        answer = await _asked_again(client, subject, None, FoundStream)
    except ApiError as error:
        if error.err_code != NO_SUCH_STREAM:
            raise
    else:
        found.streams[asked.place, asked.name] = answer


async def _observe_last_matching(client: Client, asked: Origin, found: Found) -> None:
    """Ask for the last message that a source with a filter could take: the origin's own last one need not match."""
    key = asked.place, asked.name
    for subject in asked.subjects if key in found.streams else ():
        request = {"last_by_subj": subject}
        api = f"{asked.place.api}.STREAM.MSG.GET.{asked.name}"
        try:
            answer = await _asked_again(client, api, request, _MessageAnswer)
        except ApiError as error:
            if error.err_code != NO_SUCH_MESSAGE:
                raise
            found.last_matching[key, subject] = 0
        else:
            found.last_matching[key, subject] = answer.message.seq


async def _observe_consumer(client: Client, asked: DesiredConsumer, found: dict[ConsumerKey, FoundConsumer]) -> None:
    subject = f"{asked.place.api}.CONSUMER.INFO.{asked.stream}.{asked.name}"
    try:
        answer = await _asked_again(client, subject, None, FoundConsumer)
    except ApiError as error:
        if error.err_code not in (NO_SUCH_CONSUMER, NO_SUCH_STREAM):
            raise
    else:
        found[asked.place, asked.stream, asked.name] = answer


async def _asked_again(client: Client, subject: str, body: Config | None, model: type[T]) -> T:
    """Ask what changes nothing, and once more where no answer came: a stream that had no leader then may have one now.

    Raise ApiError, RequestFailed.
    """
    try:
        return await request_json(client, subject, body, model, deadline=_FIRST_DEADLINE)
    except RequestFailed:
        return await request_json(client, subject, body, model, deadline=REQUEST_DEADLINE)


async def _delete_stream(client: Client, change: Change) -> None:
    await _request(client, f"{change.place.api}.STREAM.DELETE.{change.stream}", None)


async def _apply_to_stream(client: Client, change: Change) -> None:
    action = "UPDATE" if change.action is Action.UPDATE else "CREATE"
    # For where a source goes on the server looks through all that the stream holds before it answers.
    deadline = _SCAN_DEADLINE if change.config.get("sources") else REQUEST_DEADLINE
    await _request(client, f"{change.place.api}.STREAM.{action}.{change.stream}", change.config, deadline)


async def _apply_to_consumer(client: Client, change: Change) -> None:
    api, name = f"{change.place.api}.CONSUMER", f"{change.stream}.{change.consumer}"
    if change.action in (Action.DELETE, Action.REPLACE):
        try:
            await _request(client, f"{api}.DELETE.{name}", None)
        except ApiError as error:
            # Gone already, or with its stream: that is what is wanted.
            if error.err_code not in (NO_SUCH_CONSUMER, NO_SUCH_STREAM):
                raise
    if change.action is not Action.DELETE:
        action = "update" if change.action is Action.UPDATE else "create"
        body = {"stream_name": change.stream, "config": change.config, "action": action}
        await _request(client, f"{api}.CREATE.{name}", body)


async def _request(client: Client, subject: str, body: Config | None, deadline: float = REQUEST_DEADLINE) -> None:
    await request_json(client, subject, body, dict[str, Any], deadline=deadline)
