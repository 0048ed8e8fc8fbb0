"""Wait for a condition with a deadline, never for a time that should be enough."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(condition: Callable[[], object], what: str, deadline: float = 180.0) -> Any:
    """Ask until the answer, awaited where it can be, is true, and give it: asked once more, it may be another.

    After ``deadline`` seconds fail: not yet ``what``.

    What takes long to ask, as what starts a program, is asked again after a longer while: others need the processor.
    """
    ends_at = time.monotonic() + deadline
    while True:
        asked_at = time.monotonic()
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer
        answered_at = time.monotonic()
        if answered_at > ends_at:
            raise AssertionError(f"after {deadline:g} s not yet: {what}; last answer: {answer!r}")
        await asyncio.sleep(min(max(0.02, 2 * (answered_at - asked_at)), 0.5))
