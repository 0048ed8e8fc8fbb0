"""Carry out a plan, one step after the other, by raw requests: what is sent is what the plan says, field by field.

Every request has a deadline. A step that does not work ends it, and says which.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client

from aggregator.topology.connections import REQUEST_DEADLINE, Connections
from aggregator.topology.plan import Action, Change, Plan
from aggregator.topology.words import Config
from shared.jetstream_api import NO_SUCH_CONSUMER, NO_SUCH_STREAM
from shared.nats_connection import ApiError, RequestFailed, request_json

_SCAN_DEADLINE = 60.0


class ApplyFailed(Exception):
    """A step of a plan did not work; those before it did. The text names the step and the cause in one line."""


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


async def _carry_out(step: Callable[[Client, Change], Awaitable[None]], change: Change, opened: Connections) -> None:
    client = opened[change.place.connection]
    assert isinstance(client, Client), "a place without a connection has no changes"
    try:
        await step(client, change)
    except (ApiError, RequestFailed) as error:
        what = f"{change.stream}{' ' + change.consumer if change.consumer else ''}"
        raise ApplyFailed(f"{change.place}: cannot {change.action} {what}: {error}") from error


def _left_aside(done: tuple[Change, ...], left: tuple[Change, ...]) -> str:
    """Say which streams do without some of their sources: those that were updated once and wait for it again."""
    again = {(change.place, change.stream) for change in left if not change.consumer}
    aside = [each for each in done if not each.consumer and (each.place, each.stream) in again]
    return "".join(f"; {each.stream} of {each.place} has set sources aside: apply again" for each in aside)


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
