"""Decide when a connection that stands is recreated, since over it nothing works that a new one would mend.

A server drops a subscription whose permission is taken away, and does not restore it when that is given back: only a
new connection subscribes again; and what it allows, it says when a connection begins. So one is wanted where a
subscription was denied, where a message is too large for what it said, and where several requests in a row had no
answer, whatever the cause. Each wait is twice as long as the one before, until none was wanted for a while.
"""

import asyncio
import random
from collections.abc import Callable

FEW = 3
FIRST_WAIT, LONGEST_WAIT = 5.0, 60.0


class ReconnectPolicy:
    """One client's. ``reconnect`` makes its connection again, for a reason."""

    def __init__(self, reconnect: Callable[[str], None]) -> None:
        self._reconnect = reconnect
        self._unanswered = 0
        self._wait = FIRST_WAIT
        self._wanted_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._is_of_silence = False

    def note_answer(self) -> None:
        """Note that a request was answered, well or not."""
        self._unanswered = 0
        if self._is_of_silence:
            self.stop()

    def note_silence(self) -> None:
        """Note that a request was not answered in time, on a connection that stands."""
        self._unanswered += 1
        if self._unanswered >= FEW:
            self._want(f"{self._unanswered} requests in a row had no answer", is_of_silence=True)

    def note_denial(self) -> None:
        """Note that the server has dropped or refused a subscription."""
        self._want("a subscription was denied", is_of_silence=False)

    def note_limit(self) -> None:
        """Note that a message is larger than the server said when the connection began: it says so no other time."""
        self._want("a message is larger than the server said it takes", is_of_silence=False)

    def stop(self) -> None:
        """Want nothing more of this connection: another begins, or none."""
        self._unanswered, self._is_of_silence = 0, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _want(self, reason: str, *, is_of_silence: bool) -> None:
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._wanted_at > 2 * LONGEST_WAIT:
            self._wait = FIRST_WAIT
        self._wanted_at = loop.time()
        # Without jitter, all agents of a region would come at once.
        delay = self._wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        self._wait = min(self._wait * 2, LONGEST_WAIT)
        self._is_of_silence = is_of_silence
        self._timer = loop.call_later(delay, self._due, reason)

    def _due(self, reason: str) -> None:
        self.stop()
        self._reconnect(reason)
