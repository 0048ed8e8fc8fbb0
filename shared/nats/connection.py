"""Open a connection to NATS that ends well or says in one line what is wrong; later on, tell what becomes of it.

Once open, a connection is kept for ever: it reconnects with growing, jittered delays, notices a silent link within
seconds, and ``on_state`` hears of every change. Every wait has a deadline.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
import nats.errors
from nats.protocol.parser import PERMISSIONS_ERR

from shared.nats.causes import MEND_FILE, LinkCause, explain
from shared.nats.client import EdgeClient
from shared.nats.jetstream_api import ApiError, RequestFailed, api_prefix, request_json
from shared.nats.secrets import Login, UnusableSecret, login, tls_context
from shared.nats.settings import AuthSettings, ConnectionSettings, TlsSettings
from shared.tasks import cancel_all

__all__ = [
    "ApiError",
    "AuthSettings",
    "ConnectFailed",
    "ConnectionSettings",
    "LinkEvent",
    "LinkState",
    "RequestFailed",
    "TlsSettings",
    "api_prefix",
    "connect",
    "request_json",
]

PING_INTERVAL = 2.0
ATTEMPT_DEADLINE = 5.0
PENDING_SIZE = 8 << 20
_PAUSE_BETWEEN_FIRST_ATTEMPTS = 0.2
_PUBLISH_DEADLINE = 10.0


class ConnectFailed(Exception):
    """No connection could be opened. The text is one line that names server and cause, ``remedy`` what helps.

    ``is_ours``: a file of our own is of no use, and nobody was called.
    """

    def __init__(self, text: str, remedy: str = "try again", *, is_ours: bool = False) -> None:
        super().__init__(text)
        self.remedy = remedy
        self.is_ours = is_ours


class LinkEvent(StrEnum):
    """What became of a connection."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    RETRY_FAILED = "retry failed"
    RECONNECTED = "reconnected"
    RENEWED = "renewed"
    DENIED = "denied"
    SLOW_CONSUMER = "slow consumer"
    CLOSED = "closed"


class LinkState(msgspec.Struct, frozen=True):
    """One change: ``server`` is the one concerned, ``reason`` why, where there is one.

    DENIED is a permission violation: the connection stays, the publish or subscription that caused it has no effect.
    RENEWED is a disconnect of our own doing, to be followed by a connection that is new.
    """

    event: LinkEvent
    server: str
    reason: str = ""


async def connect(
    settings: ConnectionSettings,
    *,
    name: str,
    deadline: float,
    inbox_prefix: str = "_INBOX",
    on_state: Callable[[LinkState], None] | None = None,
    pending_size: int = PENDING_SIZE,
) -> EdgeClient:
    """Connect to one of the servers within ``deadline`` seconds; raise ConnectFailed.

    Servers that cannot be reached are tried again until the deadline; when every server has refused us for a reason
    that time does not mend (credentials, certificates, TLS), it ends at once. ``name`` is shown in the server's
    monitoring. While disconnected, up to ``pending_size`` bytes of publishes are held, beyond that they raise
    ``OutboundBufferLimitError``; with 0 nothing is held, nor sent late.
    """
    credentials = login(settings.auth, settings.tls)
    try:
        credentials.check()
        if settings.tls is not None:
            tls_context(settings.tls)
    except UnusableSecret as error:
        text = f"cannot connect to {', '.join(settings.servers)}: {error}"
        raise ConnectFailed(text, MEND_FILE, is_ours=True) from error

    link = _LinkReporter(settings, credentials, on_state)
    client = link.client = EdgeClient(
        credentials,
        settings.tls,
        wants_tls=settings.wants_tls,
        on_disconnect=link.on_disconnect,
        on_own_disconnect=link.on_own_disconnect,
    )
    options: dict[str, Any] = {
        "servers": [server if "://" in server else f"nats://{server}" for server in settings.servers],
        "name": name,
        "inbox_prefix": inbox_prefix,
        "user": credentials.user,
        "password": credentials.password,
        "token": credentials.token,
        "user_jwt_cb": credentials.jwt,
        "signature_cb": client.signature if credentials.seed else None,
        "tls_handshake_first": settings.tls is not None and settings.tls.handshake_first,
        "connect_timeout": min(ATTEMPT_DEADLINE, deadline),
        "reconnect_time_wait": _PAUSE_BETWEEN_FIRST_ATTEMPTS,
        "reconnect_to_server_handler": client.next_server,
        "max_reconnect_attempts": -1,
        "ping_interval": PING_INTERVAL,
        "max_outstanding_pings": 2,
        "pending_size": pending_size,
        "flush_timeout": _PUBLISH_DEADLINE,
        "error_cb": link.on_error,
        "reconnected_cb": link.on_reconnect,
        "closed_cb": link.on_close,
    }
    opening = asyncio.ensure_future(client.connect(**options))
    is_open = False
    try:
        await asyncio.wait({opening, link.hopeless}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            raise link.why_not(deadline)
        opening.result()
        is_open = True
    except (OSError, nats.errors.Error) as error:
        cause = link.cause_of(error)
        text = f"cannot connect to {', '.join(settings.servers)}: {cause.text}"
        raise ConnectFailed(text, cause.remedy) from error
    finally:
        if not is_open:
            await _given_up(opening, client)
    link.on_open()
    return client


async def _given_up(opening: asyncio.Task[None], client: EdgeClient) -> None:
    """End an attempt for sure: nats-py, left alone, goes on for ever with a client that is nobody's."""
    try:
        await cancel_all([opening])
        # It may have just connected: its answer met the deadline, or the end of who would own it.
        await client.close()
    finally:
        client.abort()


class _LinkReporter:
    """Listen to one client's callbacks: collect why the first attempts fail, later report every change."""

    def __init__(
        self, settings: ConnectionSettings, login: Login, on_state: Callable[[LinkState], None] | None
    ) -> None:
        self.client: EdgeClient
        self.hopeless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._servers = settings.servers
        self._login = login
        self._on_state = on_state
        self._opened = False
        self._causes: dict[str, LinkCause] = {}

    def cause_of(self, error: Exception) -> LinkCause:
        """Say why, of the server that was tried last."""
        return explain(error, reached=self.client.reached, login=self._login)

    def why_not(self, deadline: float) -> ConnectFailed:
        """Name every server that was tried, and why it did not work."""
        self._causes.setdefault(self.client.attempted, self.cause_of(TimeoutError()))
        causes = "; ".join(f"{server}: {cause.text}" for server, cause in self._causes.items())
        waited = "" if self.hopeless.done() else f" within {deadline:g} s"
        remedies = dict.fromkeys(cause.remedy for cause in self._causes.values())
        return ConnectFailed(f"cannot connect{waited} to {causes}", "; ".join(remedies))

    def on_open(self) -> None:
        self._opened = True
        self._report(LinkEvent.CONNECTED)

    def on_disconnect(self, error: Exception) -> None:
        self._report(LinkEvent.DISCONNECTED, self.cause_of(error).text)

    def on_own_disconnect(self, reason: str) -> None:
        self._report(LinkEvent.RENEWED, reason)

    async def on_error(self, error: Exception) -> None:
        cause = self.cause_of(error)
        if not self._opened:
            known = self._causes.get(self.client.attempted)
            if known is None or not (known.lasting or known.by_server):
                # One attempt can fail twice: refused, and then, in clearing up, reset. The first says why.
                self._causes[self.client.attempted] = cause
            lasting = [each.lasting for each in self._causes.values()]
            if len(lasting) >= len(set(self._servers)) and all(lasting) and not self.hopeless.done():
                self.hopeless.set_result(None)
        elif isinstance(error, nats.errors.SlowConsumerError):
            self._report(
                LinkEvent.SLOW_CONSUMER, f"messages on {error.subject} came faster than they were read; dropped"
            )
        elif PERMISSIONS_ERR in str(error):
            self._report(LinkEvent.DENIED, cause.text)
        elif self.client.is_reconnecting or self.client.is_connecting:
            self._report(LinkEvent.RETRY_FAILED, cause.text)

    async def on_reconnect(self) -> None:
        self._report(LinkEvent.RECONNECTED)

    async def on_close(self) -> None:
        self._report(LinkEvent.CLOSED)

    def _report(self, event: LinkEvent, reason: str = "") -> None:
        if self._on_state is not None and self._opened:
            self._on_state(LinkState(event, self.client.attempted, reason))
