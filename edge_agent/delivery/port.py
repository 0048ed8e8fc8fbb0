"""Define what the uploader needs of a region. Tests hold every adapter to it."""

from collections.abc import Sequence
from typing import Protocol

from edge_agent.delivery.shipment import Answer, Shipment


class UpstreamUnavailable(Exception):
    """The upstream takes nothing now; the message says why. Everything unacknowledged is to be sent again."""


class Upstream(Protocol):
    """What the uploader needs of the region. Everything may raise UpstreamUnavailable."""

    async def ready(self) -> None:
        """Wait until there is a connection; what was in flight on an older one is lost."""

    async def send(self, shipment: Shipment) -> None:
        """Publish without waiting for the answer. One that no server takes is answered at once."""

    async def answers(self, patience: float) -> Sequence[Answer]:
        """Give what was answered since the last call; none if none came within ``patience`` seconds or poke()."""

    @property
    def max_payload(self) -> int:
        """Give how many bytes a message may have, headers included, as far as is known."""

    async def ask_max_payload(self) -> int:
        """Ask the server for the same; the answer may be some seconds old."""

    def poke(self) -> None:
        """Let answers() return: there is something to send."""

    def give_up(self) -> None:
        """Publish nothing more of what was sent."""

    def takes_more(self) -> bool:
        """Tell whether the link has taken bytes since the last call, and has more to take."""
