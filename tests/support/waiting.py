"""Wait for a condition with a deadline, never for a time that should be enough."""

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], object], what: str, deadline: float = 180.0) -> None:
    """Ask until the answer, awaited where it can be, is true; after ``deadline`` seconds fail: not yet ``what``."""
    ends_at = time.monotonic() + deadline
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return
        if time.monotonic() > ends_at:
            raise AssertionError(f"after {deadline:g} s not yet: {what}; last answer: {answer!r}")
        await asyncio.sleep(0.02)
