"""Ask JetStream what there is, and carry out a plan: raw requests, so that no field that we do not know is lost.

Regions are asked through the hub's connection by their domain; sites, where their server is given, through their own.
Every request has a deadline; a place that does not answer is reported, and does not hold up the others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from nats.aio.client import Client

from aggregator.topology.desired import HUB, Config, Desired, DesiredConsumer, DesiredStream, Place
from aggregator.topology.found import Found, FoundConsumer, FoundStream
from aggregator.topology.plan import Action, Change, Plan
from aggregator.topology.settings import TopologySettings
from shared.jetstream_api import NO_SUCH_CONSUMER, NO_SUCH_STREAM
from shared.nats_connection import ApiError, ConnectFailed, RequestFailed, connect, request_json

CONNECT_DEADLINE = 5.0
REQUEST_DEADLINE = 5.0

Connections = dict[str, Client | str]


class ApplyFailed(Exception):
    """A step of a plan did not work; those before it did. The text names the step and the cause in one line."""


class _Api(msgspec.Struct, frozen=True):
    level: int = 0


class _AccountInfo(msgspec.Struct, frozen=True):
    api: _Api = _Api()


@asynccontextmanager
async def connections(topology: TopologySettings) -> AsyncIterator[Connections]:
    """Open the hub's connection and those of the sites, by name; instead of one that failed stands why, in one line."""
    wanted = {HUB: topology.hub} | {site.name: site.server for site in topology.sites if site.server is not None}

    async with AsyncExitStack() as stack:

        async def opened(name: str) -> Client | str:
            try:
                client = await connect(wanted[name], name="muster-aggregator", deadline=CONNECT_DEADLINE)
            except ConnectFailed as error:
                return str(error)
            return await stack.enter_async_context(client)

        clients = await asyncio.gather(*(opened(name) for name in wanted))
        yield dict(zip(wanted, clients, strict=True))


async def observe(wanted: Iterable[Desired], opened: Connections) -> Found:
    """Ask every place, all at once, for what it has of what is wanted."""
    found = Found({}, {}, {}, {})
    by_place: dict[Place, list[Desired]] = {}
    for each in wanted:
        by_place.setdefault(each.place, []).append(each)
    await asyncio.gather(*(_observe_place(place, asked, opened, found) for place, asked in by_place.items()))
    return found


async def apply(plan: Plan, opened: Connections, on_done: Callable[[Change], None]) -> None:
    """Carry out the plan step by step, telling of each; raise ApplyFailed at the first that does not work."""
    for change in plan.changes:
        client = opened[change.place.connection]
        assert isinstance(client, Client), "a place without a connection has no changes"
        try:
            await (_apply_to_consumer if change.consumer else _apply_to_stream)(client, change)
        except (ApiError, RequestFailed) as error:
            what = f"{change.stream}{' ' + change.consumer if change.consumer else ''}"
            raise ApplyFailed(f"{change.place}: cannot {change.action} {what}: {error}") from error
        on_done(change)


async def _observe_place(place: Place, asked: list[Desired], opened: Connections, found: Found) -> None:
    client = opened[place.connection]
    if isinstance(client, str):
        found.unreachable[place] = client
        return
    try:
        info = await request_json(client, f"{place.api}.INFO", None, _AccountInfo, deadline=REQUEST_DEADLINE)
        found.levels[place] = info.api.level
        for each in asked:
            if isinstance(each, DesiredStream):
                await _observe_stream(client, each, found)
            else:
                await _observe_consumer(client, each, found)
    except (ApiError, RequestFailed) as error:
        found.unreachable[place] = str(error)


async def _observe_stream(client: Client, asked: DesiredStream, found: Found) -> None:
    subject = f"{asked.place.api}.STREAM.INFO.{asked.name}"
    try:
        answer = await request_json(client, subject, None, FoundStream, deadline=REQUEST_DEADLINE)
    except ApiError as error:
        if error.err_code != NO_SUCH_STREAM:
            raise
    else:
        found.streams[asked.place, asked.name] = answer


async def _observe_consumer(client: Client, asked: DesiredConsumer, found: Found) -> None:
    subject = f"{asked.place.api}.CONSUMER.INFO.{asked.stream}.{asked.name}"
    try:
        answer = await request_json(client, subject, None, FoundConsumer, deadline=REQUEST_DEADLINE)
    except ApiError as error:
        if error.err_code not in (NO_SUCH_CONSUMER, NO_SUCH_STREAM):
            raise
    else:
        found.consumers[asked.place, asked.stream, asked.name] = answer


async def _apply_to_stream(client: Client, change: Change) -> None:
    api = f"{change.place.api}.STREAM"
    if change.action in (Action.DELETE, Action.REPLACE):
        await _request(client, f"{api}.DELETE.{change.stream}", None)
    if change.action in (Action.CREATE, Action.REPLACE):
        await _request(client, f"{api}.CREATE.{change.stream}", change.config)
    if change.action is Action.UPDATE:
        await _request(client, f"{api}.UPDATE.{change.stream}", change.config)


async def _apply_to_consumer(client: Client, change: Change) -> None:
    api, name = f"{change.place.api}.CONSUMER", f"{change.stream}.{change.consumer}"
    if change.action in (Action.DELETE, Action.REPLACE):
        await _request(client, f"{api}.DELETE.{name}", None)
    if change.action is not Action.DELETE:
        action = "update" if change.action is Action.UPDATE else "create"
        body = {"stream_name": change.stream, "config": change.config, "action": action}
        await _request(client, f"{api}.CREATE.{name}", body)


async def _request(client: Client, subject: str, body: Config | None) -> None:
    await request_json(client, subject, body, dict[str, Any], deadline=REQUEST_DEADLINE)
