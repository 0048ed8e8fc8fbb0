"""Health of a member: whether it can read its streams, commit, and reach the region's stream. Each checks itself.

A member asks the region's stream with a publish that the stream must refuse, since it expects another stream: the
answer proves the way, and nothing is stored. A member that delivers does not ask: on a slow link the publishes under
way would delay the answer.
"""

import asyncio
from enum import StrEnum

import nats.errors
from nats.aio.client import Client

from edge_agent.ingest.block import IngestPhase
from edge_agent.observability.status_board import CONNECTED, StatusBoard, source_part, stream_part
from edge_agent.store.sqlite_store import SqliteStore
from shared.nats.jetstream_api import stream_behind
from shared.tasks import is_cancelled

ASK_EVERY = 2.0
ANSWER_DEADLINE = 3.0
_UNREAD = (IngestPhase.UNAVAILABLE, IngestPhase.CONSUMER_PAUSED, IngestPhase.CONSUMER_SHARED)
_PAUSED = (IngestPhase.DISK_FULL, IngestPhase.DISK_FAILING, IngestPhase.STORE_LOCKED)


class Trouble(StrEnum):
    """A task that a member cannot do, for status and messages."""

    READING = "read the site's stream"
    COMMITTING = "write its store"
    DELIVERING = "reach the region"


class MemberHealth:
    """One member's; it asks the region's stream on ``subject``."""

    def __init__(self, board: StatusBoard, blocks: list[str], store: SqliteStore, subject: str) -> None:
        self._board = board
        self._blocks = blocks
        self._store = store
        self._subject = subject
        self._reaches_region = False

    def troubles(self) -> frozenset[Trouble]:
        checks = {
            Trouble.READING: not all(self._reads(block) for block in self._blocks),
            Trouble.COMMITTING: not self._commits(),
            Trouble.DELIVERING: not self._reaches_region,
        }
        return frozenset(trouble for trouble, is_there in checks.items() if is_there)

    async def watch_region(self, client: Client) -> None:
        """Ask the region's stream, as long as nothing was delivered, until cancelled."""
        delivered = self._board.publishes.done
        while not is_cancelled():
            before, delivered = delivered, self._board.publishes.done
            self._reaches_region = delivered != before or (client.is_connected and await self._answers(client))
            await asyncio.sleep(ASK_EVERY)

    async def _answers(self, client: Client) -> bool:
        try:
            await stream_behind(client, self._subject, ANSWER_DEADLINE)
        except (nats.errors.Error, TimeoutError):
            return False
        return True

    def _reads(self, block: str) -> bool:
        link, reading = (self._board.parts.get(part) for part in (source_part(block), stream_part(block)))
        is_there = link is not None and link.phase == CONNECTED
        return is_there and (reading is None or reading.phase not in _UNREAD)

    def _commits(self) -> bool:
        phases = [part.phase for block in self._blocks if (part := self._board.parts.get(stream_part(block)))]
        try:
            has_room = self._store.has_room
        except OSError:
            # The disk fails or its mount is gone: a commit that fails reports more.
            return False
        return has_room and not any(phase in _PAUSED for phase in phases)


class Handover:
    """Timer of a handover: it is due once the other can do all that we can, and more, for ``after`` seconds.

    It is not due if each cannot do something else: the lead would change back and forth. No I/O.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._since: float | None = None

    def is_due(self, at: float, ours: frozenset[Trouble], theirs: frozenset[Trouble] | None) -> bool:
        """Return True if a handover is due at ``at`` (seconds); ``theirs`` is None if the other could not lead."""
        if theirs is None or not theirs < ours:
            self._since = None
            return False
        if self._since is None:
            self._since = at
        return at - self._since >= self._after


def unlike(ours: frozenset[Trouble], theirs: frozenset[Trouble]) -> str:
    """Return the tasks that we cannot do and the other can, as text.

    >>> unlike(frozenset(Trouble), frozenset({Trouble.READING}))
    'reach the region, write its store'
    """
    return ", ".join(sorted(ours - theirs))
