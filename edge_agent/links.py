"""Open the agent's links, however long it takes, and let whoever works over one know of every change."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from shared.nats_client import EdgeClient
from shared.nats_connection import ConnectFailed, ConnectionSettings, LinkEvent, LinkState, connect

log = logging.getLogger("muster.agent")

CONNECT_DEADLINE = 10.0
LONGEST_RETRY = 10.0
ASK_DEADLINE = 4.0
FLUSH_DEADLINE = 2


class Adapter(Protocol):
    """What works over a link."""

    def break_off(self, reason: str) -> None:
        """Begin anew: the connection has changed."""

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation that concerns nobody else."""


class Links:
    """The connections of one site's agent."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._clients: list[EdgeClient] = []

    async def open(
        self, settings: ConnectionSettings, part: str, adapters: list[Adapter], report: Callable[[str, str], None]
    ) -> EdgeClient:
        """Connect, however long it takes; afterwards let the adapters know of every change."""
        retry_after = 1.0
        report("connecting", "")
        while True:
            try:
                client = await connect(
                    settings,
                    name=f"muster-agent {self._site} {part}",
                    inbox_prefix=f"_INBOX_{self._site}",
                    deadline=CONNECT_DEADLINE,
                    on_state=partial(_take_link_state, adapters, report),
                )
            except ConnectFailed as error:
                report("not connected", str(error))
                await asyncio.sleep(retry_after)
                retry_after = min(retry_after * 2, LONGEST_RETRY)
            else:
                self._clients.append(client)
                return client

    async def close(self) -> None:
        """Close them all at once; one that does not close well is left to the end of the process."""
        ends = await asyncio.gather(*(client.close() for client in self._clients), return_exceptions=True)
        for error in ends:
            if error is not None:
                log.debug("a link did not close well", exc_info=error)


async def max_payload_of(client: EdgeClient, settings: ConnectionSettings) -> int:
    """Ask the server that an open connection leads to how large a message may be; raise ConnectFailed.

    Another server's word would not do: the one that we are connected to ends the connection of who sends more.
    """
    url = client.connected_url
    if url is None:
        raise ConnectFailed("the connection is down")
    here = msgspec.structs.replace(settings, servers=(f"{url.scheme}://{url.netloc.rpartition('@')[2]}",))
    fresh = await connect(here, name="muster-agent asks for max_payload", deadline=ASK_DEADLINE)
    try:
        # The limit of a user comes behind the answer to the first ping.
        await fresh.flush(FLUSH_DEADLINE)
        return fresh.max_payload
    finally:
        await fresh.close()


def _take_link_state(adapters: list[Adapter], report: Callable[[str, str], None], state: LinkState) -> None:
    is_denial = state.event is LinkEvent.DENIED
    # Each hears of it: several may have asked for the same.
    takers = [adapter for adapter in adapters if is_denial and adapter.takes_denial(state.reason)]
    match state.event:
        case LinkEvent.CONNECTED | LinkEvent.RECONNECTED:
            report("connected", "")
            reason = "the connection is new"
        case LinkEvent.DENIED if takers:
            return
        case LinkEvent.DENIED:
            report("denied", state.reason)
            reason = state.reason
        case LinkEvent.RETRY_FAILED:
            report("not connected", f"{state.server}: {state.reason}")
            return
        case _:
            reason = f"{state.server}: {state.reason or state.event}"
            report("not connected", reason)
    for adapter in adapters:
        adapter.break_off(reason)
