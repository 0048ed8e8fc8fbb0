"""End tasks for sure: one cancellation is not always enough, and a task group passes on no more than one."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

CANCEL_AGAIN = 1.0


async def cancel_all(parts: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: before Python 3.12, wait_for() loses a cancellation that meets its answer."""
    left = set(parts)
    while left:
        for part in left:
            part.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)


@contextlib.contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise what came meanwhile and was lost, around code of others that waits: see cancelled() for how."""
    task = asyncio.current_task()
    cancel_count = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > cancel_count:
            raise asyncio.CancelledError
