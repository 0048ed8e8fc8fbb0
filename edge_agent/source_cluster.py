"""Tell whether everything that a stream stores was delivered, whichever server of a cluster delivers it.

A consumer's leader counts and delivers what its own copy of the stream holds. One that was down, or is new, may be made
the leader while it is sent what it missed, minutes of it, and says meanwhile that nothing waits. What is stored, only
the stream's leader knows.
"""

from typing import Protocol

from edge_agent.core.resume import StreamFacts
from edge_agent.ports import SourceUnavailable
from edge_agent.storing import is_denied


class StreamLeader(Protocol):
    """The server that leads a stream, as far as it is asked here; ``message_subject`` is where."""

    @property
    def message_subject(self) -> str:
        """Name the subject."""

    async def holds_behind(self, sequence: int) -> bool:
        """Ask whether it holds any message behind a sequence that we read; raise SourceUnavailable."""


class Completeness:
    """What is known of one stream since it was opened."""

    def __init__(self, leader: StreamLeader) -> None:
        self._leader = leader
        self._complete: StreamFacts | None = None
        self._is_asking = self._is_denied = False

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation that the question of doubt() has caused: reading goes on."""
        is_ours = self._is_asking and is_denied(self._leader.message_subject, reason)
        self._is_denied = self._is_denied or is_ours
        return is_ours

    async def doubt(self, facts: StreamFacts, server: str, delivered: int) -> str:
        """Say why what ``server`` has ``delivered``, up to that sequence, may not be all; "" where it is.

        Raise SourceUnavailable where the stream's leader does not answer.
        """
        if not facts.leader or facts.is_empty or facts.last_sequence <= delivered or facts.holds_what(self._complete):
            return ""
        if not self._is_denied and await self._waits_behind(delivered):
            return f"is not complete on {server}, which delivers it"
        if self._is_denied:
            return f"may hold more than it delivers: not permitted: publish on {self._leader.message_subject}"
        self._complete = facts
        return ""

    async def _waits_behind(self, delivered: int) -> bool:
        self._is_asking = True
        try:
            return await self._leader.holds_behind(delivered)
        except SourceUnavailable:
            if not self._is_denied:
                raise
            return False
        finally:
            self._is_asking = False
