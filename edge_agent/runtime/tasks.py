"""Detect a cancellation that a wait has lost, and finish what must not stop half-way in spite of one."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def is_cancelled() -> bool:
    """Tell whether the task was told to end: before Python 3.12, a wait loses a cancellation that meets its answer."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Give what ``work`` gives or raises; it goes on where whoever waits is cancelled, and nobody hears how it ended.

    asyncio's own shield() would call what is raised then an exception that nobody fetched, and log it as an error.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_fetch_error)
    return await asyncio.shield(task)


def _fetch_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
