"""Carry out a plan, one step after the other, by raw requests: what is sent is what the plan says, field by field.

Every request has a deadline. A step that does not work ends it, and says which. What the server answers is compared
with what was asked: to an update of a sealed stream it answers OK and changes nothing, and an older one leaves out what
it does not know.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from aggregator.topology.desired.model import Config
from aggregator.topology.observed.connections import REQUEST_DEADLINE, Connections
from aggregator.topology.plan.changes import Action, Change, Plan
from aggregator.topology.plan.differences import FieldChange, ignored_fields
from aggregator.topology.plan.text import named, untaken
from shared.nats.connection import ApiError, RequestFailed, request_json
from shared.nats.jetstream_api import NO_SUCH_CONSUMER, NO_SUCH_STREAM, create_stream

_SCAN_DEADLINE = 60.0
_COPIES = ("sources", "mirror")


class _Answer(msgspec.Struct, frozen=True):
    config: Config = {}


class ApplyFailed(Exception):
    """A step of a plan did not work; those before it did. The text names the step and the cause in one line."""


class NotTaken(NamedTuple):
    """A step to which the server answered OK, and what it did not make so: ``before`` is what it keeps."""

    change: Change
    fields: tuple[FieldChange, ...]


async def apply(plan: Plan, opened: Connections, on_done: Callable[[Change], None]) -> tuple[NotTaken, ...]:
    """Carry out the plan step by step, telling of each that was done, and give those that the server did not take.

    Raise ApplyFailed at the first that does not work, or of which copies were not taken: later steps rest upon these.
    Streams that are replaced are deleted before anything else: a consumer that is made anew for a new archive must not
    find the old one still listening.
    """
    for change in plan.changes:
        if change.action is Action.REPLACE and not change.consumer:
            await _carry_out(_delete_stream, change, opened)
    missed = []
    for number, change in enumerate(plan.changes):
        try:
            step = _apply_to_consumer if change.consumer else _apply_to_stream
            fields = tuple(ignored_fields(change.config, await _carry_out(step, change, opened)))
            if any(each.field in _COPIES for each in fields):
                raise ApplyFailed(untaken(change, fields))
        except ApplyFailed as error:
            raise ApplyFailed(f"{error}{_left_aside(plan.changes[:number], plan.changes[number:])}") from error
        if fields:
            missed.append(NotTaken(change, fields))
        else:
            on_done(change)
    return tuple(missed)


async def _carry_out(
    step: Callable[[Client, Change], Awaitable[Config]], change: Change, opened: Connections
) -> Config:
    """Take a step, and give the configuration that the server answers."""
    client = opened[change.place.connection]
    assert isinstance(client, Client), "a place without a connection has no changes"
    try:
        return await step(client, change)
    except (ApiError, RequestFailed) as error:
        raise ApplyFailed(f"{change.place}: cannot {change.action} {named(change)}: {error}") from error


def _left_aside(done: tuple[Change, ...], left: tuple[Change, ...]) -> str:
    """Say which streams do without some of their sources: those that were updated once and wait for it again."""
    again = {(change.place, change.stream) for change in left if not change.consumer}
    aside = [each for each in done if not each.consumer and (each.place, each.stream) in again]
    return "".join(f"; {each.stream} of {each.place} has set sources aside: apply again" for each in aside)


async def _delete_stream(client: Client, change: Change) -> Config:
    return await _request(client, f"{change.place.api}.STREAM.DELETE.{change.stream}", None)


async def _apply_to_stream(client: Client, change: Change) -> Config:
    action = "UPDATE" if change.action is Action.UPDATE else "CREATE"
    # For where a source goes on the server looks through all that the stream holds before it answers.
    deadline = _SCAN_DEADLINE if change.config.get("sources") else REQUEST_DEADLINE
    return await _request(client, f"{change.place.api}.STREAM.{action}.{change.stream}", change.config, deadline)


async def _apply_to_consumer(client: Client, change: Change) -> Config:
    api, name = f"{change.place.api}.CONSUMER", f"{change.stream}.{change.consumer}"
    if change.action in (Action.DELETE, Action.REPLACE):
        try:
            await _request(client, f"{api}.DELETE.{name}", None)
        except ApiError as error:
            # Gone already, or with its stream: that is what is wanted.
            if error.err_code not in (NO_SUCH_CONSUMER, NO_SUCH_STREAM):
                raise
    if change.action is Action.DELETE:
        return {}
    action = "update" if change.action is Action.UPDATE else "create"
    body = {"stream_name": change.stream, "config": change.config, "action": action}
    return await _request(client, f"{api}.CREATE.{name}", body)


async def _request(client: Client, subject: str, body: Config | None, deadline: float = REQUEST_DEADLINE) -> Config:
    ask = create_stream if ".STREAM.CREATE." in subject else request_json
    return (await ask(client, subject, body, _Answer, deadline=deadline)).config
