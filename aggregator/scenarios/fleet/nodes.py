"""Nodes that register as Choria's do: every five minutes, each on a subject of its own, in the envelope of an adapter.

An hour of theirs takes four seconds here.

Source: https://choria.io/schemas/choria/adapters/choria_streams/v1/output.json
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from aggregator.scenarios.stage import JetStream
from shared.instants import MINUTE, SECOND, format_instant

REGISTRATION = "choria.stream.input.registration"
ADVISORIES = "choria.stream.input.registration_advisories"
HOUR_HERE = 4 * SECOND
INTERVAL = 5
_BODY_SIZE = 2_000


def here(minutes: float) -> int:
    """Say how long minutes of the nodes' are here, in microseconds."""
    return round(minutes * HOUR_HERE / 60)


def in_minutes(duration: float) -> float:
    """Say how many of the nodes' minutes a duration here is, in microseconds."""
    return duration / HOUR_HERE * 60


class Nodes:
    """The nodes of one city. While a name is in ``silent``, that node says nothing."""

    def __init__(self, city: JetStream, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.silent: set[str] = set()
        self._city = city

    @asynccontextmanager
    async def registering(self) -> AsyncIterator[None]:
        """Let them register, one after the other, until the end."""
        task = asyncio.create_task(self._register())
        try:
            yield
        finally:
            task.cancel()

    async def _register(self) -> None:
        """Publish without waiting for an answer, as adapters do; who is late does not catch up."""
        clock = asyncio.get_running_loop().time
        pause = here(INTERVAL) / SECOND / len(self.names)
        due_at = clock()
        number = 0
        while True:
            for name in self.names:
                if name not in self.silent:
                    await self._city.client.publish(f"{REGISTRATION}.{name}", _registration(name, number))
                due_at = max(due_at + pause, clock())
                await asyncio.sleep(due_at - clock())
            number += 1


def _registration(name: str, number: int) -> bytes:
    """Write an envelope; the inventory in it is text, and of one size whatever its content."""
    at = format_instant(1_700_000_000 * SECOND + number * INTERVAL * MINUTE)
    content = {"facts": {"fqdn": name, "uptime": 1_000_000 + number}, "filler": "x" * _BODY_SIZE}
    data = {"protocol": "choria:registration:inventorycontent:1", "content": content}
    envelope = {
        "protocol": "choria:adapters:choria_streams:output:1",
        "data": msgspec.json.encode(data).decode(),
        "sender": name,
        "time": at,
    }
    return msgspec.json.encode(envelope)
