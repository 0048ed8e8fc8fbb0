"""Say to the hub why a block's time does not pass, and that the agent was told to stop, while there is a link.

Then no watermark would come, as if the agent were dead. The last one is sent again, with the name of the condition: it
vouches for nothing new. It is published beside the outbox, and only while no advisory and no watermark waits there:
nothing is stored, and what does not arrive is not missed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import nats.errors
from nats.aio.client import Client

from edge_agent.ingest.loop import Ingest
from edge_agent.observability.conditions import STARTING, Condition, errors
from shared.tasks import is_cancelled
from shared.wire import STOPPING

_DEADLINE = 1.0


class Announcements:
    """The announcements of one agent over one link; ``interval`` in seconds."""

    def __init__(
        self,
        client: Client,
        readers: Callable[[], Iterable[tuple[str, Ingest[Any]]]],
        conditions: Callable[[], list[Condition]],
        interval: float,
    ) -> None:
        self._client, self._readers, self._conditions, self._interval = client, readers, conditions, interval
        self._counts: dict[str, int] = {}
        self._number = 0

    async def run(self) -> None:
        """Say, not quite as often as watermarks come, what keeps the next one from coming."""
        while not is_cancelled():
            await asyncio.sleep(1.5 * self._interval)
            wrong = [each for each in errors(self._conditions()) if each.name != STARTING.name]
            for block, reader in self._readers():
                before, self._counts[block] = self._counts.get(block), reader.watermark_count
                condition = next((each.name for each in wrong if each.stream in ("", block)), "")
                if condition and before == reader.watermark_count:
                    await self._say(reader, condition)

    async def say_stopping(self) -> None:
        """Say that this run of the agent ends, and wait for a moment until the region has heard it."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _DEADLINE
        for _, reader in self._readers():
            while self._client.is_connected and not reader.has_left and loop.time() < ends_at:  # noqa: ASYNC110
                await asyncio.sleep(_DEADLINE / 50)
            await self._say(reader, STOPPING)
        if self._client.is_connected and (left := ends_at - loop.time()) > 0:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.flush(left)  # type: ignore[arg-type]

    async def _say(self, reader: Ingest[Any], condition: str) -> None:
        self._number += 1
        row = reader.restatement(condition, self._number)
        if row is not None and self._client.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.publish(row.subject, row.payload, headers=dict(row.headers))
