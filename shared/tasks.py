"""End tasks for sure, notice that one's own was told to end, and wait no longer than is asked for.

Before Python 3.12 a wait loses a cancellation that meets its answer, and a task group passes on no more than one.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_AGAIN = 1.0


def is_cancelled() -> bool:
    """Tell whether the task was told to end, also where the wait that should have said so did not."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel_all(parts: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended."""
    left = set(parts)
    while left:
        for part in left:
            part.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)


@contextlib.contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise the cancellation that came meanwhile and was lost, around code of others that waits."""
    task = asyncio.current_task()
    cancel_count = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > cancel_count:
            raise asyncio.CancelledError


async def wait_for_event(event: asyncio.Event, within: float) -> None:
    """Wait until an event is set, for so many seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()


class Interrupted(Exception):
    """An event was set before what was awaited had ended."""


async def unless_set(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Give what ``work`` gives or raises, as long as the event is not set: give it up and raise Interrupted then."""
    parts = working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        if event.is_set():
            raise Interrupted
        return working.result()
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


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
