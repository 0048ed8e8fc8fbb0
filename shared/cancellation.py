"""End tasks for sure: one cancellation is not always enough."""

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN = 1.0


async def cancelled(parts: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: before Python 3.12, wait_for() loses a cancellation that meets its answer."""
    left = set(parts)
    while left:
        for part in left:
            part.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)
