"""Visits to servers as the agent would make them, to find refusals. Every request is one without effect."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec
import nats.errors
from nats.aio.msg import Msg

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.finding import Finding, bad, good, warning
from edge_agent.observability import conditions as kinds
from edge_agent.observability.conditions import Kind
from edge_agent.observability.server_watch import Need, expiry_of_server
from shared.nats.client import EdgeClient
from shared.nats.connection import (
    ConnectFailed,
    ConnectionSettings,
    LinkEvent,
    LinkState,
    connect,
    request_json,
)
from shared.nats.jetstream_api import NotPermitted
from shared.nats.secrets import login
from shared.nats.server_version import doubts, release_of, unusable

CONNECT_DEADLINE = 4.0
ANSWER_DEADLINE = 3.0
MORE_ANSWERS = 0.3
MOMENT = 0.05
NEARLY_FULL = 0.9
"""From which part of its limit on a stream that refuses what is new is worth a warning."""

T = TypeVar("T")


class Visit:
    """One open connection, and the denials of its server."""

    def __init__(self, whom: str) -> None:
        self.client: EdgeClient
        self.whom = whom or "the agent's user"
        self._denied: list[str] = []

    def note(self, state: LinkState) -> None:
        if state.event is LinkEvent.DENIED:
            self._denied.append(state.reason)

    def is_denied(self, subject: str) -> bool:
        return any(f'"{subject}"'.lower() in reason.lower() for reason in self._denied)

    def refusal(self, name: str, subjects: str, keys: str, kind: Kind, *, otherwise: str = "") -> Finding:
        """Return the finding that publishing is denied: a setting of ``keys`` may name the wrong place."""
        remedy = f"correct {keys} if that is mistyped; else allow {self.whom} to publish there{otherwise}"
        return bad(name, f"not permitted: publish on {subjects}, as {self.whom}", remedy, kind)

    async def hears(self) -> bool:
        """Return True if listening for answers is permitted: without that every request seems unanswered."""
        inbox = self.client.new_inbox()
        with suppress(nats.errors.Error):
            subscription = await self.client.subscribe(inbox)
            await self.client.flush(int(ANSWER_DEADLINE))
            await asyncio.sleep(MOMENT)
            await subscription.unsubscribe()
        return not self.is_denied(inbox)

    async def ask(self, subject: str, body: object, model: type[T]) -> T:
        """Ask as JSON; raise ApiError or RequestFailed, at once where the server denies us the subject."""
        asking = asyncio.create_task(request_json(self.client, subject, body, model, deadline=ANSWER_DEADLINE))
        while not asking.done() and not self.is_denied(subject):
            await asyncio.wait({asking}, timeout=MOMENT)
        if not asking.done():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            raise NotPermitted(f"{subject}: not permitted")
        return await asking

    async def answers(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> list[Msg]:
        """Send a request and give everything that is answered soon after the first answer; none if it is denied."""
        inbox = self.client.new_inbox()
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        subscription = await self.client.subscribe(inbox, cb=arrived.put)
        found: list[Msg] = []
        give_up_at = time.monotonic() + ANSWER_DEADLINE
        try:
            await self.client.publish(subject, body, reply=inbox, headers=dict(headers or {}))
            while time.monotonic() < give_up_at and not self.is_denied(subject):
                with suppress(TimeoutError):
                    async with asyncio.timeout(MORE_ANSWERS):
                        found.append(await arrived.get())
                        continue
                if found:
                    break
        except nats.errors.Error:
            return []
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
        return found

    async def may_publish(self, subject: str, body: bytes) -> bool:
        """Return True if the server accepts a message without effect on ``subject``."""
        try:
            await self.client.publish(subject, body)
            await self.client.flush(int(ANSWER_DEADLINE))
        except nats.errors.Error:
            return False
        # The refusal comes before the flush's answer, but is reported in a task of its own.
        await asyncio.sleep(MOMENT)
        return not self.is_denied(subject)


@asynccontextmanager
async def open_visit(settings: AgentSettings, connection: ConnectionSettings) -> AsyncIterator[Visit]:
    """Connect as the agent does; raise ConnectFailed."""
    visit = Visit(login(connection.auth, connection.tls).whom)
    visit.client = await connect(
        connection,
        name=f"muster-agent {settings.site} doctor",
        inbox_prefix=_inboxes(settings),
        deadline=CONNECT_DEADLINE,
        on_state=visit.note,
    )
    try:
        yield visit
    finally:
        await visit.client.close()


def _inboxes(settings: AgentSettings) -> str:
    return f"_INBOX_{settings.site}"


async def check_servers(
    subject: str, settings: AgentSettings, connection: ConnectionSettings, kind: Kind, needs: Iterable[Need]
) -> list[Finding]:
    """Try every server of a connection alone: the second would otherwise be missed only after the first is gone.

    Where none can be had, that is a condition of a ``kind``; ``needs`` say which versions the settings need.
    """
    wanted, noticed = list(needs), list[Finding]()

    async def attempt(server: str) -> Finding | None:
        try:
            async with open_visit(settings, msgspec.structs.replace(connection, servers=(server,))) as visit:
                if why := unusable(release_of(visit.client)):
                    return bad(subject, f"{server}: {why}", kinds.SERVER_TOO_OLD.remedy, kinds.SERVER_TOO_OLD)
                began = time.monotonic()
                await visit.client.flush(int(CONNECT_DEADLINE))
                spent = (time.monotonic() - began) * 1000
                if not await visit.hears():
                    refused = f"not permitted: subscribe to {_inboxes(settings)}.>, as {visit.whom}"
                    text = f"{server}: {refused}: no answer is heard"
                    return bad(
                        subject, text, f"correct site if that is mistyped; else allow {visit.whom} to subscribe there"
                    )
                noticed.extend(_of_server(subject, server, visit, wanted))
                version = visit.client.connected_server_version
                found.append(f"{server} ({version.major}.{version.minor}.{version.patch}, {spent:.1f} ms)")
                return None
        except ConnectFailed as error:
            # Errors of our own files are reported with the secrets.
            return None if error.is_ours else bad(subject, str(error), error.remedy, kind)
        except nats.errors.Error as error:
            return bad(subject, f"{server}: {error}", "try again: it could be reached a moment ago")

    found: list[str] = []
    failures = [each for each in await asyncio.gather(*map(attempt, connection.servers)) if each]
    findings = [warning(subject, each.text, each.remedy) if found else each for each in failures]
    return [*findings, *noticed, *([good(subject, f"reached {', '.join(sorted(found))}")] if found else [])]


def _of_server(subject: str, server: str, visit: Visit, needs: Iterable[Need]) -> Iterator[Finding]:
    """Yield findings about a server that is too old, and about its certificate that expires soon."""
    release = release_of(visit.client)
    version = release[:2]
    for why in doubts(release):
        yield warning(subject, f"{server}: {why}", kinds.SERVER_TOO_OLD.remedy, kinds.SERVER_TOO_OLD)
    for need in needs:
        if version < need.since:
            text, remedy = f"{server}: {need.unmet(version)}", "upgrade it, or change that setting"
            level = bad if need.is_essential else warning
            yield level(subject, text, remedy, kinds.SERVER_TOO_OLD)
    if (shown := visit.client.peer_certificate) is not None and (said := expiry_of_server(shown)):
        # One that has expired lets nobody connect.
        yield warning(subject, f"{server}: {said}", kinds.CERTIFICATE_EXPIRES.remedy, kinds.CERTIFICATE_EXPIRES)
