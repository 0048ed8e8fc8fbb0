"""What every scenario needs: Muster's own plan, apply and report on a ``topology.toml``, and a few raw requests."""

import asyncio
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from aggregator.scenarios.narrator import DEADLINE
from aggregator.topology.apply import ApplyFailed, apply
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.connections import connections
from aggregator.topology.observed.reader import observe
from aggregator.topology.plan.changes import Change, Plan, plan
from aggregator.topology.plan.text import change_lines, untaken
from aggregator.topology.report.tables import Report, report
from shared.nats.connection import LinkEvent, LinkState, connect
from shared.nats.jetstream_api import NO_SUCH_MESSAGE, ApiError, RequestFailed, api_prefix, request, request_json
from shared.nats.settings import AuthSettings, ConnectionSettings
from shared.settings import load_settings

ACCEPTED = "accepted"
REQUEST_DEADLINE = 20.0
CONNECT_DEADLINE = 20.0
_STORE_DEADLINE = 5.0
_ATTEMPTS = 20
_PAUSE = 1.0


class Topology:
    """One ``topology.toml`` whose ``head`` names the servers."""

    def __init__(self, path: Path, head: str, tell: Callable[[str], None]) -> None:
        self.path = path
        self._head = head
        self._tell = tell

    def add(self, head: str) -> None:
        self._head += head

    async def plan(self, streams: str | None = None) -> Plan:
        """Write the streams into the settings, where given, and say what apply would do."""
        if streams is not None:
            self.path.write_text(self._head + streams, encoding="utf-8")
        topology = load_settings(self.path, TopologySettings)
        wanted = desired(topology)
        async with connections(topology) as opened:
            return plan(wanted, await observe(wanted, opened, with_orphans=True))

    async def apply(self, streams: str | None = None) -> Plan:
        """Carry it out too, whatever that destroys; refused copies stay refused. Give the plan as it was at first.

        A cluster that has just started, or just taken an account, may answer late, or not know yet which of its servers
        are there: as a person would, do it again a little later. Raise ApplyFailed where that never helps.
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
            missed = await apply(todo, opened, self._tell_change)
        if missed:
            raise ApplyFailed("; ".join(untaken(*each) for each in missed))
        if todo.problems:
            raise ApplyFailed("; ".join(f"{place}: {why}" for place, why in todo.problems.items()))

    def _tell_change(self, change: Change) -> None:
        self._tell(f"{change.place}: {next(change_lines(change))}")

    @property
    def way(self) -> str:
        return f"muster-aggregator report --config {self.path}"

    async def report(self) -> Report:
        topology = load_settings(self.path, TopologySettings)
        wanted = desired(topology)
        async with connections(topology) as opened:
            return report(wanted, await observe(wanted, opened))

    async def all_copies_hear(self) -> bool:
        return all(row.healthy for row in (await self.report()).replication)


@asynccontextmanager
async def connected(*urls: str, auth: AuthSettings | None = None) -> AsyncIterator["JetStream"]:
    """Connect to one of these servers, as an application would."""
    settings = ConnectionSettings(servers=urls, auth=auth or AuthSettings())
    denials: list[str] = []

    def note(state: LinkState) -> None:
        if state.event is LinkEvent.DENIED:
            denials.append(state.reason)

    async with await connect(settings, name="muster-scenario", deadline=CONNECT_DEADLINE, on_state=note) as client:
        yield JetStream(client, denials)


async def insist(client: Client, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for what must be granted, and may be asked for twice, until it is: of a stream or a consumer that is made.

    A cluster that chooses leaders, or has just taken an account, refuses for a moment or says nothing. Raise ApiError,
    RequestFailed: its last word after ``DEADLINE``.
    """
    ends_at = time.monotonic() + DEADLINE
    while True:
        try:
            return await request_json(client, subject, body, dict[str, Any], deadline=REQUEST_DEADLINE)
        except (ApiError, RequestFailed):
            if time.monotonic() > ends_at:
                raise
            await asyncio.sleep(_PAUSE)


def explicit_consumer(stream: str, name: str, **more: object) -> tuple[str, dict[str, Any]]:
    """Give the request, below an API's prefix, for a durable consumer whose messages are acknowledged one by one."""
    config = {"durable_name": name, "ack_policy": "explicit", **more}
    return f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}


def nats_command(url: str, *command: str) -> str:
    """Say how to ask a server with NATS's own command."""
    return " ".join(["nats --server", url, *command])


class JetStream:
    """A few things that an application does, by raw requests; ``denials`` is what the server said no to."""

    def __init__(self, client: Client, denials: list[str]) -> None:
        self.client = client
        self.denials = denials

    async def request(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask ``$JS.API.<subject>``; raise ApiError, RequestFailed."""
        return await request_json(self.client, f"$JS.API.{subject}", body, dict[str, Any], deadline=REQUEST_DEADLINE)

    async def insist(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await insist(self.client, f"$JS.API.{subject}", body)

    async def answer(self, subject: str, body: Mapping[str, Any] | None = None) -> str:
        """Ask for what the server may refuse: ``error`` and its code where it does, else ``accepted``."""
        try:
            await self.request(subject, body)
        except ApiError as error:
            return f"error {error.err_code}"
        return ACCEPTED

    async def publish(self, subject: str, *bodies: str) -> None:
        """Publish one after the other, each acknowledged."""
        for body in bodies:
            await self.client.jetstream().publish(subject, body.encode(), timeout=REQUEST_DEADLINE)

    async def reaches(self, domain: str) -> bool:
        """Tell whether the JetStream of another domain answers."""
        subject = f"{api_prefix(domain)}.INFO"
        try:
            await request_json(self.client, subject, None, dict[str, Any], deadline=REQUEST_DEADLINE)
        except RequestFailed:
            return False
        return True

    async def has(self, stream: str, sequence: int) -> bool:
        return await self.answer(f"STREAM.MSG.GET.{stream}", {"seq": sequence}) == ACCEPTED

    async def is_now(self, stream: str, messages: list[dict[str, Any]]) -> bool:
        return await self.messages(stream) == messages

    async def bodies(self, stream: str) -> list[str]:
        return [b64decode(message.get("data", "")).decode() for message in await self.messages(stream)]

    async def last_body(self, stream: str, subject: str) -> str:
        """Give the body of a subject's last message in a stream, "" where it has none."""
        api, asked = f"$JS.API.STREAM.MSG.GET.{stream}", {"last_by_subj": subject}
        try:
            answer = await request_json(self.client, api, asked, dict[str, Any], deadline=_STORE_DEADLINE)
        except ApiError as error:
            if error.err_code != NO_SUCH_MESSAGE:
                raise
            return ""
        return b64decode(answer["message"].get("data", "")).decode()

    async def subjects(self, stream: str) -> list[str]:
        return [message["subject"] for message in await self.messages(stream)]

    async def fetch(self, stream: str, consumer: str, count: int) -> list[str]:
        """Give the bodies of the next messages of a pull consumer, and acknowledge them."""
        subscription = await self.client.jetstream().pull_subscribe_bind(consumer, stream)
        messages = await subscription.fetch(count, timeout=REQUEST_DEADLINE)
        for message in messages:
            await message.ack_sync(timeout=REQUEST_DEADLINE)
        return [message.data.decode() for message in messages]

    async def direct_get(self, stream: str, sequence: int) -> str:
        subject = f"{api_prefix()}.DIRECT.GET.{stream}"
        answer = await request(self.client, subject, b'{"seq":%d}' % sequence, REQUEST_DEADLINE)
        return answer.data.decode()

    async def takes(self, subject: str) -> bool:
        """Tell whether any stream takes what is published there."""
        try:
            await self.publish(subject, "may this be stored?")
        except nats.js.errors.NoStreamResponseError:
            return False
        return True

    async def stores(self, subject: str, body: str) -> bool:
        """Tell whether a message is acknowledged within a few seconds; where not, it may be stored all the same."""
        try:
            await self.client.jetstream().publish(subject, body.encode(), timeout=_STORE_DEADLINE)
        except (nats.errors.Error, TimeoutError):
            return False
        return True

    async def info(self, stream: str) -> dict[str, Any]:
        return await self.request(f"STREAM.INFO.{stream}")

    async def count(self, stream: str) -> int:
        return int((await self.info(stream))["state"]["messages"])

    async def messages(self, stream: str) -> list[dict[str, Any]]:
        """Give all messages of a stream, in its order: subject, seq, data (base64), time."""
        state = (await self.info(stream))["state"]
        found = []
        for sequence in range(max(1, state["first_seq"]), state["last_seq"] + 1):
            try:
                answer = await self.request(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
            except ApiError as error:
                if error.err_code != NO_SUCH_MESSAGE:
                    raise
            else:
                found.append(answer["message"])
        return found
