"""Periodic check of the servers behind the agent's links: too old for a setting, or an expiring certificate.

The certificate is the one that was shown when a connection began. A server may have a newer one since, so before a
condition is raised, a short connection asks for it.
"""

import contextlib
from collections.abc import Iterator

import msgspec
import nats.errors

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.observability import conditions
from edge_agent.observability.status_board import UPSTREAM, StatusBoard, now, source_part
from edge_agent.runtime.links import Links, OpenLink, beside
from shared.certificates import NotACertificate, valid_until
from shared.nats.connection import ConnectFailed
from shared.nats.expiry import expiry, own_expiries
from shared.nats.server_version import RESETS_CONSUMERS, TAKES_BATCHES, Version, doubts, release_of, unusable
from shared.tasks import is_cancelled

LOOK_EVERY = 60.0


class Need(msgspec.Struct, frozen=True):
    """A setting that needs a minimum server version; ``otherwise`` is the effect of an older server.

    ``is_essential``: the agent has no other way.
    """

    setting: str
    since: Version
    otherwise: str
    is_essential: bool

    def unmet(self, found: Version) -> str:
        older = f"nats-server {_version_text(found)} is older than {_version_text(self.since)}"
        return f"{older}, which {self.setting} needs: {self.otherwise}"


def needs_of_source(block: StreamSettings, retention: str = "limits") -> Iterator[Need]:
    """Yield the server versions that a block requires, for a stream of the given retention."""
    if not block.source.create_consumer:
        otherwise = "the consumer cannot be reset, nor made anew, and the stream is not read"
        yield Need("source.create_consumer = false", RESETS_CONSUMERS, otherwise, is_essential=True)
    elif retention == "interest":
        otherwise = "without its consumer the stream would drop what was not read, so it is not read"
        yield Need("a stream with interest retention (source.stream)", RESETS_CONSUMERS, otherwise, is_essential=True)


def needs_of_region(settings: AgentSettings) -> Iterator[Need]:
    copies = [block.name for block in settings.stream if block.mode == "copy"]
    if copies:
        otherwise = "copies leave one at a time, each after the answer to the one before"
        yield Need(f'mode = "copy" ({", ".join(copies)})', TAKES_BATCHES, otherwise, is_essential=False)


def _version_text(version: Version) -> str:
    return ".".join(map(str, version))


class ServerWatch:
    """The watch over all links of an agent."""

    def __init__(self, settings: AgentSettings, links: Links, board: StatusBoard) -> None:
        self._links = links
        self._board = board
        self._needs = {UPSTREAM: list(needs_of_region(settings))} | {
            source_part(block.name): list(needs_of_source(block)) for block in settings.stream
        }

    async def run(self) -> None:
        while not is_cancelled():
            await self._links.opened_one(LOOK_EVERY)
            at, judged = now(), set[str]()
            for opened in self._links.opened:
                if opened.client.is_established:
                    await self._look_at(opened, at, judged)

    async def _look_at(self, opened: OpenLink, at: int, judged: set[str]) -> None:
        """Report the conditions of a link; servers and expiring files in ``judged`` were reported of another link."""
        part = opened.part
        release, url = release_of(opened.client), opened.client.connected_url
        server = url.netloc.rpartition("@")[2] if url else part
        is_judged = server in judged
        unmet = [] if is_judged else [*filter(None, [unusable(release)]), *doubts(release)]
        unmet += [need.unmet(release[:2]) for need in self._needs.get(part, ()) if release[:2] < need.since]
        self._board.condition(conditions.SERVER_TOO_OLD, part)("; ".join(unmet))
        expiring = [text for text in own_expiries(opened.settings, at) if text not in judged]
        judged.update((server, *expiring))
        if not is_judged and (text := await self._expiry_of_server(opened)):
            expiring.append(text)
        self._board.condition(conditions.CERTIFICATE_EXPIRES, part)("; ".join(expiring))

    async def _expiry_of_server(self, opened: OpenLink) -> str:
        shown = opened.client.peer_certificate
        if shown is None or not expiry_of_server(shown):
            return ""
        # A server that cannot be asked has shown no other.
        with contextlib.suppress(ConnectFailed, nats.errors.Error, OSError):
            shown = await beside(opened.client, opened.settings, lambda fresh: fresh.peer_certificate)
        return expiry_of_server(shown) if shown is not None else ""


def expiry_of_server(certificate: bytes) -> str:
    """Return the same sentence for a server's certificate, in DER; "" if it does not expire soon."""
    try:
        return expiry("the server's certificate", valid_until(certificate), now())
    except NotACertificate:
        return ""
