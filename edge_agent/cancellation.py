"""Know a cancellation that a wait has lost."""

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN = 1.0


def is_cancelled() -> bool:
    """Tell whether the task was told to end: before Python 3.12, a wait loses a cancellation that meets its answer."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancelled(parts: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: before Python 3.12, wait_for() loses a cancellation that meets its answer."""
    left = set(parts)
    while left:
        for part in left:
            part.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)
