"""Announcements to the hub, while there is a link: why a block's time does not pass, and that the agent stops.

Without them no watermark would come, as if the agent were dead. The last watermark is sent again with the name of the
condition and covers no new time. It bypasses the outbox, and is published only while no advisory and no watermark waits
there: nothing is stored, and a lost announcement does no harm.
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
        """Announce the condition that stops watermarks, a little less often than watermarks are due."""
        while not is_cancelled():
            await asyncio.sleep(1.5 * self._interval)
            wrong = [each for each in errors(self._conditions()) if each.name != STARTING.name]
            for block, reader in self._readers():
                before, self._counts[block] = self._counts.get(block), reader.watermark_count
                condition = next((each.name for each in wrong if each.stream in ("", block)), "")
                if condition and before == reader.watermark_count:
                    await self._announce(reader, condition)

    async def announce_stop(self) -> None:
        """Announce that this run of the agent ends; wait briefly until the region has it."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _DEADLINE
        for _, reader in self._readers():
            while self._client.is_connected and not reader.has_left and loop.time() < ends_at:  # noqa: ASYNC110
                await asyncio.sleep(_DEADLINE / 50)
            await self._announce(reader, STOPPING)
        if self._client.is_connected and (left := ends_at - loop.time()) > 0:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.flush(left)  # type: ignore[arg-type]

    async def _announce(self, reader: Ingest[Any], condition: str) -> None:
        self._number += 1
        row = reader.restatement(condition, self._number)
        if row is not None and self._client.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.publish(row.subject, row.payload, headers=dict(row.headers))
