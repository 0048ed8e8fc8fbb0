"""Tell whether the server that delivers a stream holds all of it: in a cluster, another one may store what is new.

A consumer's leader counts and delivers what its own copy of the stream holds. One that was down, or is new, may be made
the leader while it is sent what it missed, minutes of it, and says meanwhile that nothing waits. The stream's leader
knows who has been sent everything. To store it takes those a moment longer, as it does whoever was just elected.
"""

from collections.abc import Callable

from edge_agent.core.resume import StreamFacts

UNWATCHED = 5.0
"""Seconds without a look, within which a server may have gone, come back, and been made to deliver again."""


class Completeness:
    """What was seen of one stream and consumer. ``settle`` and ``time``, which never goes back, are in seconds."""

    def __init__(self, settle: float, time: Callable[[], float]) -> None:
        self._settle, self._time = settle, time
        self._servers: tuple[str, str] | None = None
        self._since = self._seen_at = 0.0

    def doubt(self, facts: StreamFacts, server: str) -> str:
        """Say why ``server`` may not deliver all that is stored, "" where it does: ``settle`` after it was sent it."""
        if not facts.leader:
            return ""
        seen_at, self._seen_at = self._seen_at, self._time()
        if server not in facts.complete_on:
            self._servers = None
            return f"is not complete on {server}, which delivers it"
        if self._servers != (facts.leader, server) or self._seen_at - seen_at > UNWATCHED:
            self._servers, self._since = (facts.leader, server), self._seen_at
        if self._seen_at - self._since < self._settle:
            return f"is delivered by {server}, which may still be storing what it was sent"
        return ""
