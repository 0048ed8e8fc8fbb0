"""Ask JetStream what there is of what is wanted, by raw requests: no field that we do not know is lost.

Nothing is changed, but for consumers that go away by themselves. Every request has a deadline; a place that does not
answer is reported, and does not hold up the others.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from nats.aio.client import Client

from aggregator.topology.desired.durable_copies import OURS, copier_of, named_copier
from aggregator.topology.desired.model import (
    HUB,
    Config,
    ConsumerKey,
    Desired,
    DesiredConsumer,
    DesiredStream,
    Origin,
    Place,
)
from aggregator.topology.observed.connections import REQUEST_DEADLINE, Connections
from aggregator.topology.observed.messages import see_message
from aggregator.topology.observed.state import (
    Found,
    FoundConsumer,
    FoundStream,
    Room,
    api_of,
    beyond,
    consumer_name_of,
    silence,
    sources_of,
)
from shared.nats.client import EdgeClient
from shared.nats.connection import ApiError, RequestFailed, request_json
from shared.nats.jetstream_api import NO_SUCH_CONSUMER, NO_SUCH_STREAM, domain_of
from shared.nats.server_version import parse_release, release_of

_FIRST_DEADLINE = 2.0
_AT_ONCE = 32
_RELEASE = "_nats.ver"
"""Where a server from 2.11 on tells its version, in the metadata of each stream."""

T = TypeVar("T")


class _Api(msgspec.Struct, frozen=True):
    level: int = 0


class _Limits(msgspec.Struct, frozen=True):
    max_storage: int = 0


class _AccountInfo(msgspec.Struct, frozen=True):
    api: _Api = _Api()
    storage: int = 0
    limits: _Limits = _Limits()


class _StreamNames(msgspec.Struct, frozen=True):
    total: int = 0
    consumers: list[str] | None = None


async def observe(wanted: Iterable[Desired], opened: Connections, *, with_orphans: bool = False) -> Found:
    """Ask every place, all at once, for what it has of what is wanted, and of what that copies.

    ``with_orphans``: also for consumers that might be ours and are not wanted, and what copies through them.
    """
    wanted = tuple(wanted)
    found = Found({}, {}, {}, {})
    by_place: dict[Place, list[Desired | Origin]] = {}
    for each in _asked(wanted):
        by_place.setdefault(each.place, []).append(each)
    await asyncio.gather(*(_observe_place(place, asked, opened, found) for place, asked in by_place.items()))
    await _observe_overtaken(wanted, opened, found)
    if with_orphans:
        _leave_alone(found)
        await asyncio.gather(*(_observe_orphans(place, asked, opened, found) for place, asked in by_place.items()))
        await _observe_named_places(opened, found)
        copiers = {copier_of(each.config, list(found.levels)) for each in found.orphans.values()} - {None}
        unknown = [Origin(*key) for key in copiers if key is not None and key not in found.streams]
        await asyncio.gather(*(_observe_place(each.place, [each], opened, found) for each in unknown))
        # What the strays were acknowledged counts as taken, too, and was asked for after the origins.
        await _observe_overtaken(wanted, opened, found)
        _leave_alone(found)
    return found


def _asked(wanted: Iterable[Desired]) -> Iterator[Desired | Origin]:
    """List what is wanted, and what that copies: an origin is asked for where it is not wanted too, or is filtered."""
    managed = set()
    origins: dict[Origin, None] = {}
    for each in wanted:
        yield each
        if isinstance(each, DesiredStream):
            managed.add(each.key)
            origins |= dict.fromkeys(each.origins)
    yield from (each for each in origins if each.subjects or each.key not in managed)


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
    if isinstance(client, EdgeClient) and place.domain in ("", client.server_domain):
        found.releases[place] = release_of(client)
    found.rooms[place] = Room(info.storage, max(0, info.limits.max_storage))
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
        told = (answer.config.get("metadata") or {}).get(_RELEASE)
        if told:
            found.releases.setdefault(asked.place, parse_release(told))


async def _observe_last_matching(client: Client, asked: Origin, found: Found) -> None:
    """Ask for the last message that a source with a filter could take: the origin's own last one need not match."""
    key = asked.key
    for subject in asked.subjects if key in found.streams else ():
        message = await see_message(client, key, found.streams[key].config, subject)
        found.last_matching[key, subject] = message.sequence if message is not None else 0


async def _observe_consumer(client: Client, asked: DesiredConsumer, found: dict[ConsumerKey, FoundConsumer]) -> None:
    subject = f"{asked.place.api}.CONSUMER.INFO.{asked.stream}.{asked.name}"
    try:
        answer = await _asked_again(client, subject, None, FoundConsumer)
    except ApiError as error:
        if error.err_code not in (NO_SUCH_CONSUMER, NO_SUCH_STREAM):
            raise
    else:
        found[asked.place, asked.stream, asked.name] = answer


async def _observe_overtaken(wanted: Iterable[Desired], opened: Connections, found: Found) -> None:
    """Ask once more for the origins that copies are beyond, where they answer: they may just have moved on."""
    overtaken = [each for each in _overtaken(wanted, found) if each.place not in found.unreachable]
    await asyncio.gather(*(_observe_place(each.place, [each], opened, found) for each in overtaken))


def _overtaken(wanted: Iterable[Desired], found: Found) -> Iterator[Origin]:
    for each in wanted:
        current = found.streams.get(each.key) if isinstance(each, DesiredStream) else None
        if not isinstance(each, DesiredStream) or current is None:
            continue
        sources = sources_of(current)
        is_ahead = any(found.resumes_behind(each.key, source) < found.taken(each.key, source) for source in sources)
        for origin in each.origins:
            at = found.streams.get(origin.key)
            held = at.state.last_seq if at is not None and origin.api else None
            elsewhere = [source for source in sources if (source["name"], api_of(source)) == (origin.name, origin.api)]
            is_behind = held is not None and any(found.taken(each.key, source) > held for source in elsewhere)
            if is_ahead or is_behind or (current.mirror is not None and beyond(current, at)):
                yield origin


async def _observe_orphans(place: Place, asked: list[Desired | Origin], opened: Connections, found: Found) -> None:
    client = opened[place.connection]
    streams = [each.name for each in asked if isinstance(each, DesiredStream) and (place, each.name) in found.streams]
    wanted = {(each.stream, each.name) for each in asked if isinstance(each, DesiredConsumer)}
    if isinstance(client, str) or place in found.unreachable:
        return
    try:
        for stream in streams:
            for name in await _consumer_names(client, place, stream):
                if name.startswith(OURS) and (stream, name) not in wanted:
                    await _observe_consumer(client, DesiredConsumer(place, stream, name, {}), found.orphans)
    except (ApiError, RequestFailed) as error:
        found.unreachable[place] = str(error)


async def _consumer_names(client: Client, place: Place, stream: str) -> list[str]:
    names: list[str] = []
    while True:
        request = {"offset": len(names)}
        page = await request_json(
            client, f"{place.api}.CONSUMER.NAMES.{stream}", request, _StreamNames, deadline=REQUEST_DEADLINE
        )
        names += page.consumers or []
        if not page.consumers or len(names) >= page.total:
            return names


async def _observe_named_places(opened: Connections, found: Found) -> None:
    """Ask those domains, too, that only consumers and sources name: a region that was removed; one may be gone."""
    known = {str(place) for place in (*found.levels, *found.unreachable)}
    named = {copier[0] for each in found.orphans.values() if (copier := named_copier(each.config)) is not None}
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


def _leave_alone(found: Found) -> None:
    """Let a plan do nothing where there was no answer: what is not known may be what its other steps rest upon."""
    silent: dict[Place, list[str]] = {}
    for key in sorted(found.silent):
        silent.setdefault(key[0], []).append(silence(key, found))
    found.unreachable.update({place: "; ".join(said) for place, said in silent.items()})


async def _asked_again(client: Client, subject: str, body: Config | None, model: type[T]) -> T:
    """Ask what changes nothing, and once more where no answer came: a stream that had no leader then may have one now.

    Raise ApiError, RequestFailed.
    """
    try:
        return await request_json(client, subject, body, model, deadline=_FIRST_DEADLINE)
    except RequestFailed:
        return await request_json(client, subject, body, model, deadline=REQUEST_DEADLINE)
