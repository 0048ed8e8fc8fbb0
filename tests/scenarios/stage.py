"""Muster's own plan, apply and report on a ``topology.toml``, and the requests of an application."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from aggregator.topology.apply import ApplyFailed, apply
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.connections import connections
from aggregator.topology.observed.reader import observe
from aggregator.topology.plan.changes import Plan, plan
from aggregator.topology.plan.text import change_lines, untaken
from aggregator.topology.report.tables import StreamReport, report
from shared.nats.connection import LinkEvent, LinkState, connect
from shared.nats.jetstream_api import NO_SUCH_MESSAGE, ApiError, RequestFailed, api_prefix, request, request_json
from shared.nats.settings import AuthSettings, ConnectionSettings
from shared.settings import load_settings
from tests.support.nats.insisting import insist

ACCEPTED = "accepted"
REQUEST_DEADLINE = 20.0
_CONNECT_DEADLINE = 20.0
_STORE_DEADLINE = 5.0
_ATTEMPTS = 20
_PAUSE = 1.0


class Topology:
    """One ``topology.toml``: ``head`` names the servers, and each step the streams below it."""

    def __init__(self, path: Path, head: str, tell: Callable[[str], None]) -> None:
        self.path = path
        self.report_command = f"muster-aggregator report --config {path}"
        self._head = head
        self._tell = tell

    def add(self, head: str) -> None:
        self._head += head

    async def plan(self, streams: str | None = None) -> Plan:
        """Write the streams, if given, into the settings, and return the plan of ``apply``."""
        if streams is not None:
            self.path.write_text(self._head + streams, encoding="utf-8")
        settings = load_settings(self.path, TopologySettings)
        wanted = desired(settings)
        async with connections(settings) as opened:
            return plan(wanted, await observe(wanted, opened, with_orphans=True))

    async def apply(self, streams: str | None = None) -> Plan:
        """Carry the plan out, destructive changes included, unless a copy is refused; return the first plan.

        A cluster that has just started, or just received an account, may answer late: the plan is made and carried out
        again, as a person would do. Raise ApplyFailed after ``_ATTEMPTS``.
        """
        first = todo = await self.plan(streams)
        for attempt in range(1, _ATTEMPTS + 1):
            if todo.refused:
                break
            try:
                await self._carry_out(todo)
                break
            except ApplyFailed as error:
                if attempt == _ATTEMPTS:
                    raise
                self._tell(f"{error}: once more in {_PAUSE:g} s")
                await asyncio.sleep(_PAUSE)
                todo = await self.plan()
        return first

    async def _carry_out(self, todo: Plan) -> None:
        async with connections(load_settings(self.path, TopologySettings)) as opened:
            missed = await apply(todo, opened, lambda each: self._tell(f"{each.place}: {next(change_lines(each))}"))
        problems = [untaken(*each) for each in missed] or [f"{place}: {why}" for place, why in todo.problems.items()]
        if problems:
            raise ApplyFailed("; ".join(problems))

    async def report(self) -> StreamReport:
        settings = load_settings(self.path, TopologySettings)
        wanted = desired(settings)
        async with connections(settings) as opened:
            return report(wanted, await observe(wanted, opened))

    async def is_healthy(self) -> bool:
        return all(row.healthy for row in (await self.report()).replication)


@asynccontextmanager
async def connected(*urls: str, auth: AuthSettings | None = None) -> AsyncIterator["JetStream"]:
    """Connect to one of these servers, as an application would."""
    denials: list[str] = []

    def note(state: LinkState) -> None:
        if state.event is LinkEvent.DENIED:
            denials.append(state.reason)

    settings = ConnectionSettings(servers=urls, auth=auth or AuthSettings())
    async with await connect(settings, name="muster-scenario", deadline=_CONNECT_DEADLINE, on_state=note) as client:
        yield JetStream(client, denials)


def explicit_consumer(stream: str, name: str, **more: object) -> tuple[str, dict[str, Any]]:
    """Return subject (below an API's prefix) and body that create a durable consumer with explicit acknowledgement."""
    config = {"durable_name": name, "ack_policy": "explicit", **more}
    return f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}


class JetStream:
    """An application's requests on one connection; ``denials`` are the permissions that the server refused."""

    def __init__(self, client: Client, denials: list[str]) -> None:
        self.client = client
        self.denials = denials

    async def request(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Request ``$JS.API.<subject>``; raise ApiError, RequestFailed."""
        return await request_json(self.client, f"$JS.API.{subject}", body, dict[str, Any], deadline=REQUEST_DEADLINE)

    async def insist(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await insist(self.client, f"$JS.API.{subject}", body)

    async def answer(self, subject: str, body: Mapping[str, Any] | None = None) -> str:
        """Return ``accepted``, or ``error`` and the server's error code."""
        try:
            await self.request(subject, body)
        except ApiError as error:
            return f"error {error.err_code}"
        return ACCEPTED

    async def reaches(self, domain: str) -> bool:
        """Return True if the JetStream of another domain answers."""
        try:
            await request_json(
                self.client, f"{api_prefix(domain)}.INFO", None, dict[str, Any], deadline=REQUEST_DEADLINE
            )
        except RequestFailed:
            return False
        return True

    async def publish(self, subject: str, *bodies: str) -> None:
        """Publish one after the other, each acknowledged."""
        for body in bodies:
            await self.client.jetstream().publish(subject, body.encode(), timeout=REQUEST_DEADLINE)

    async def takes(self, subject: str) -> bool:
        """Return True if a stream listens on a subject."""
        try:
            await self.publish(subject, "may this be stored?")
        except nats.js.errors.NoStreamResponseError:
            return False
        return True

    async def stores(self, subject: str, body: str) -> bool:
        """Return True if a message is acknowledged in time; one that is not may be stored all the same."""
        try:
            await self.client.jetstream().publish(subject, body.encode(), timeout=_STORE_DEADLINE)
        except (nats.errors.Error, TimeoutError):
            return False
        return True

    async def fetch(self, stream: str, consumer: str, count: int) -> list[str]:
        """Return the bodies of the next messages of a pull consumer, and acknowledge them."""
        subscription = await self.client.jetstream().pull_subscribe_bind(consumer, stream)
        messages = await subscription.fetch(count, timeout=REQUEST_DEADLINE)
        for message in messages:
            await message.ack_sync(timeout=REQUEST_DEADLINE)
        return [message.data.decode() for message in messages]

    async def info(self, stream: str) -> dict[str, Any]:
        return await self.request(f"STREAM.INFO.{stream}")

    async def count(self, stream: str) -> int:
        return int((await self.info(stream))["state"]["messages"])

    async def message(self, stream: str, deadline: float = REQUEST_DEADLINE, **which: object) -> dict[str, Any] | None:
        """Return the message ``which`` names (seq, last_by_subj), or None if there is none."""
        subject = f"$JS.API.STREAM.MSG.GET.{stream}"
        try:
            answer = await request_json(self.client, subject, which, dict[str, Any], deadline=deadline)
        except ApiError as error:
            if error.err_code != NO_SUCH_MESSAGE:
                raise
            return None
        message: dict[str, Any] = answer["message"]
        return message

    async def last_body(self, stream: str, subject: str) -> str:
        """Return the body of a subject's last message in a stream, "" if there is none."""
        message = await self.message(stream, _STORE_DEADLINE, last_by_subj=subject)
        return b64decode(message.get("data", "")).decode() if message else ""

    async def messages(self, stream: str) -> list[dict[str, Any]]:
        """Return all messages of a stream, in its order: subject, seq, data (base64), time."""
        state = (await self.info(stream))["state"]
        sequences = range(max(1, state["first_seq"]), state["last_seq"] + 1)
        return [found for sequence in sequences if (found := await self.message(stream, seq=sequence))]

    async def bodies(self, stream: str) -> list[str]:
        return [b64decode(message.get("data", "")).decode() for message in await self.messages(stream)]

    async def direct_get(self, stream: str, sequence: int) -> str:
        subject = f"{api_prefix()}.DIRECT.GET.{stream}"
        answer = await request(self.client, subject, b'{"seq":%d}' % sequence, REQUEST_DEADLINE)
        return answer.data.decode()
