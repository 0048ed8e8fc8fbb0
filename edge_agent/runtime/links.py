"""Links of the agent: open them, however long it takes, and notify their adapters of every change."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from shared.backoff import Backoff
from shared.nats.client import EdgeClient
from shared.nats.connection import ConnectFailed, ConnectionSettings, LinkEvent, LinkState, connect
from shared.tasks import wait_for_event

log = logging.getLogger("muster.agent")

T = TypeVar("T")

CONNECT_DEADLINE = 10.0
FIRST_RETRY, LONGEST_RETRY = 1.0, 10.0
ASK_DEADLINE = 4.0
FLUSH_DEADLINE = 2
RECONNECTS_APART = 10 * 60.0


class Adapter(Protocol):
    """Adapter that works over a link."""

    def break_off(self, reason: str) -> None:
        """Start again: the connection has changed."""

    def takes_denial(self, reason: str) -> bool:
        """Apply a permission violation that concerns this adapter; return True if it does."""


class OpenLink(NamedTuple):
    """A connection that stands, or comes back, until the agent ends."""

    part: str
    settings: ConnectionSettings
    client: EdgeClient


class Links:
    """The connections of one site's agent: ``opened`` are those that stood once."""

    def __init__(self, site: str) -> None:
        self._site = site
        self.opened: list[OpenLink] = []
        self._has_opened = asyncio.Event()

    async def open(
        self, settings: ConnectionSettings, part: str, adapters: list[Adapter], report: Callable[[str, str], None]
    ) -> EdgeClient:
        """Connect, however long it takes; afterwards let the adapters know of every change."""
        backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        report("connecting", "")
        while True:
            try:
                client = await connect(
                    settings,
                    name=f"muster-agent {self._site} {part}",
                    inbox_prefix=f"_INBOX_{self._site}",
                    deadline=CONNECT_DEADLINE,
                    on_state=_LinkWatch(part, adapters, report).take,
                )
            except ConnectFailed as error:
                report("not connected", str(error))
                await asyncio.sleep(backoff.next())
            else:
                client.reconnects = True
                self.opened.append(OpenLink(part, settings, client))
                self._has_opened.set()
                return client

    async def opened_one(self, within: float) -> None:
        """Wait until another connection was opened, for at most ``within`` seconds."""
        await wait_for_event(self._has_opened, within)
        self._has_opened.clear()

    async def close(self) -> None:
        """Close them all at once; one that does not close well is left to the end of the process."""
        ends = await asyncio.gather(*(each.client.close() for each in self.opened), return_exceptions=True)
        for error in ends:
            if error is not None:
                log.debug("a link did not close well", exc_info=error)


async def max_payload_of(client: EdgeClient, settings: ConnectionSettings) -> int:
    """Ask the server that an open connection leads to how large a message may be; raise ConnectFailed.

    Another server's word would not do: the one that we are connected to ends the connection of who sends more.
    """
    return await beside(client, settings, lambda fresh: fresh.max_payload)


async def beside(client: EdgeClient, settings: ConnectionSettings, ask: Callable[[EdgeClient], T]) -> T:
    """Ask over a connection of a moment to the server that an open one leads to; raise ConnectFailed."""
    url = client.connected_url
    if url is None:
        raise ConnectFailed("the connection is down")
    here = msgspec.structs.replace(settings, servers=(f"{url.scheme}://{url.netloc.rpartition('@')[2]}",))
    fresh = await connect(here, name="muster-agent asks", deadline=ASK_DEADLINE)
    try:
        # The limit of a user comes behind the answer to the first ping.
        await fresh.flush(FLUSH_DEADLINE)
        return ask(fresh)
    finally:
        await fresh.close()


class _LinkWatch:
    """Observer of one link: report its changes, and restart its adapters."""

    def __init__(self, part: str, adapters: list[Adapter], report: Callable[[str, str], None]) -> None:
        self._part = part
        self._adapters = adapters
        self._report = report
        self._reconnected_at = float("-inf")
        self._is_reconnecting = False

    def take(self, state: LinkState) -> None:
        is_denial = state.event is LinkEvent.DENIED
        # Each hears of it: several may have asked for the same.
        takers = [adapter for adapter in self._adapters if is_denial and adapter.takes_denial(state.reason)]
        match state.event:
            case LinkEvent.CONNECTED | LinkEvent.RECONNECTED:
                if not self._is_reconnecting:
                    # Whether a connection that is recreated mends what was wrong shows when it is used.
                    self._report("connected", "")
                self._is_reconnecting = False
                reason = "the connection is new"
            case LinkEvent.DENIED if takers:
                return
            case LinkEvent.DENIED:
                self._report("denied", state.reason)
                reason = state.reason
            case LinkEvent.RENEWED:
                self._report_reconnect(state.reason)
                reason = f"the connection is made anew: {state.reason}"
            case LinkEvent.RETRY_FAILED:
                self._is_reconnecting = False
                self._report("not connected", f"{state.server}: {state.reason}")
                return
            case _:
                reason = f"{state.server}: {state.reason or state.event}"
                self._report("not connected", reason)
        for adapter in self._adapters:
            adapter.break_off(reason)

    def _report_reconnect(self, reason: str) -> None:
        """Report a fault once for as long as it lasts."""
        self._is_reconnecting, reconnected_at = True, self._reconnected_at
        self._reconnected_at = asyncio.get_running_loop().time()
        if self._reconnected_at - reconnected_at > RECONNECTS_APART:
            text = "%s: %s: the connection is made anew, and again as long as that lasts"
            log.warning(text, self._part, reason, extra={"fields": {"part": self._part}})
