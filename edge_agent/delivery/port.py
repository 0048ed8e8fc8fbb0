"""Port of the region for the uploader. One contract suite tests every adapter."""

from collections.abc import Sequence
from typing import Protocol

from edge_agent.delivery.shipment import Answer, Shipment


class UpstreamUnavailable(Exception):
    """The upstream takes nothing now; the message says why. Everything unacknowledged is to be sent again."""


class Upstream(Protocol):
    """Connection to the region. Every method may raise UpstreamUnavailable."""

    async def ready(self) -> None:
        """Wait until there is a connection; rows in flight on an older one are lost."""

    async def send(self, shipment: Shipment) -> None:
        """Publish without waiting for the answer. One that no server takes is answered at once."""

    async def answers(self, patience: float) -> Sequence[Answer]:
        """Return the answers since the last call; none if none came within ``patience`` seconds or before poke()."""

    @property
    def max_payload(self) -> int:
        """The largest message in bytes, headers included, as last learnt."""

    async def ask_max_payload(self) -> int:
        """Ask the server for the same; the answer may be some seconds old."""

    def poke(self) -> None:
        """Make answers() return, because there is something to send."""

    def give_up(self) -> None:
        """Stop publishing shipments that still wait for a question."""

    def takes_more(self) -> bool:
        """Return True if the link has taken bytes since the last call and has more to take."""
