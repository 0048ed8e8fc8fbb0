"""Tell whether everything that a stream stores was delivered, whichever server of a cluster delivers it, and to whom.

A consumer's leader counts and delivers what its own copy of the stream holds. One that was down, or is new, may be made
the leader while it is sent what it missed, minutes of it, and says meanwhile that nothing waits. What is stored, only
the stream's leader knows.
"""

import asyncio
from typing import Protocol

from edge_agent.core.stream_past import StreamFacts
from edge_agent.source.own_messages import is_denied


class StreamLeader(Protocol):
    """The server that leads a stream, as far as it is asked here; ``message_subject`` is where."""

    @property
    def message_subject(self) -> str:
        """Name the subject."""

    async def next_behind(self, sequence: int) -> int | None:
        """Ask for the first message behind a sequence that we read, None: there is none; raise SourceUnavailable."""


class MayNotAsk(Exception):
    """The stream's leader may not be asked for single messages."""


class Completeness:
    """What is known of one stream since it was opened."""

    def __init__(self, leader: StreamLeader) -> None:
        self._leader = leader
        self._complete: StreamFacts | None = None
        self._is_asking = False
        self._denied = asyncio.Event()

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation that a question to the leader has caused: reading goes on."""
        is_ours = self._is_asking and is_denied(self._leader.message_subject, reason)
        if is_ours:
            self._denied.set()
        return is_ours

    async def doubt(self, facts: StreamFacts, server: str, delivered: int) -> str:
        """Say why what ``server`` has ``delivered``, up to that sequence, may not be all; "" where it is.

        Raise SourceUnavailable where the stream's leader does not answer.
        """
        if not facts.leader or facts.is_empty or facts.last_sequence <= delivered or facts.holds_what(self._complete):
            return ""
        try:
            if await self.next_behind(delivered) is not None:
                return f"is not complete on {server}, which delivers it"
        except MayNotAsk:
            return f"may hold more than it delivers: not permitted: publish on {self._leader.message_subject}"
        self._complete = facts
        return ""

    async def next_behind(self, sequence: int) -> int | None:
        """Ask the leader for the first message behind a sequence; raise MayNotAsk, or SourceUnavailable."""
        if self._denied.is_set():
            raise MayNotAsk
        self._is_asking = True
        asking = asyncio.ensure_future(self._leader.next_behind(sequence))
        denied = asyncio.ensure_future(self._denied.wait())
        try:
            await asyncio.wait({asking, denied}, return_when=asyncio.FIRST_COMPLETED)
            if self._denied.is_set():
                raise MayNotAsk
            return asking.result()
        finally:
            self._is_asking = False
            for each in (asking, denied):
                each.cancel()
            await asyncio.gather(asking, denied, return_exceptions=True)
