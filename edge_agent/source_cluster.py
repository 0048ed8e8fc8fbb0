"""Tell whether everything that a stream stores was delivered, whichever server of a cluster delivers it.

A consumer's leader counts and delivers what its own copy of the stream holds. One that was down, or is new, may be made
the leader while it is sent what it missed, minutes of it, and says meanwhile that nothing waits. What is stored, only
the stream's leader knows.
"""

from collections.abc import Awaitable, Callable

from edge_agent.core.resume import StreamFacts
from edge_agent.pacing import loop_time
from edge_agent.ports import SourceUnavailable

ASK_AGAIN_AFTER = 300.0
"""Seconds until a question is asked again that was not answered, for which reading had to wait."""


class Completeness:
    """What is known of one stream. ``last_sequence`` asks its leader for the last message that we read, 0 for none."""

    def __init__(self, last_sequence: Callable[[], Awaitable[int]]) -> None:
        self._last_sequence = last_sequence
        self._complete: StreamFacts | None = None
        self._unanswered, self._asks_from = "", 0.0

    async def doubt(self, facts: StreamFacts, server: str, delivered: int) -> str:
        """Say why what ``server`` has ``delivered``, up to that sequence, may not be all; "" where it is."""
        if not facts.leader or facts.is_empty or facts.last_sequence <= delivered:
            return ""
        if facts.holds_what(self._complete):
            return ""
        if loop_time() < self._asks_from:
            return self._unanswered
        try:
            last_sequence = await self._last_sequence()
        except SourceUnavailable as error:
            self._unanswered, self._asks_from = f"does not tell what it holds: {error}", loop_time() + ASK_AGAIN_AFTER
            return self._unanswered
        if last_sequence > delivered:
            return f"is not complete on {server}, which delivers it"
        self._complete = facts
        return ""
