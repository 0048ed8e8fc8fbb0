"""Pass events on to whoever listens, and let nobody who is slow delay or burden the others.

Each event has a number; the last ones are kept, so that a listener who lost the connection goes on behind the last
number it saw. One that cannot go on (too long away, or another process) begins with ``reset``: it asks anew. A listener
whose queue is full is dropped, and comes back by itself.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

KEPT = 2_000
KEPT_BYTES = 16 << 20
_NUMBER = re.compile("[0-9]{1,18}")
WAITING = 256
"""So many events may wait for one listener."""


class Event(NamedTuple):
    """One event, as it is sent: written once for all listeners."""

    number: int
    frame: bytes


class Broadcast:
    """All listeners. ``run_id`` tells the numbers of one process from another's."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id.encode()
        self._kept: deque[Event] = deque()
        self._kept_bytes = 0
        self._number = 0
        self._queues: set[asyncio.Queue[Event | None]] = set()
        self.dropped_count = 0

    @property
    def listener_count(self) -> int:
        """Count who listens now."""
        return len(self._queues)

    def publish(self, name: str, data: bytes) -> None:
        """Give everybody an event; ``data`` is JSON in one line."""
        self._number += 1
        event = Event(self._number, self._frame(name, data))
        self._kept.append(event)
        self._kept_bytes += len(event.frame)
        while len(self._kept) > KEPT or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft().frame)
        for queue in list(self._queues):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._drop(queue)

    def end(self) -> None:
        """Let all listeners end."""
        for queue in list(self._queues):
            self._drop(queue, count=0)

    async def listen(self, last_id: str) -> AsyncIterator[bytes]:
        """Give what comes after the event ``last_id``; end where the listener was too slow."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(WAITING)
        missed = self._since(last_id)
        self._queues.add(queue)
        try:
            if missed is None:
                yield self._frame("reset", b"{}")
            for event in missed or ():
                yield event.frame
            while (following := await queue.get()) is not None:
                yield following.frame
        finally:
            self._queues.discard(queue)

    def _frame(self, name: str, data: bytes) -> bytes:
        """Write an event of the last number, which is what a listener may go on behind."""
        return b"id: %b-%d\r\nevent: %b\r\ndata: %b\r\n\r\n" % (self._run_id, self._number, name.encode(), data)

    def _drop(self, queue: asyncio.Queue[Event | None], count: int = 1) -> None:
        self._queues.discard(queue)
        self.dropped_count += count
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    def _since(self, last_id: str) -> list[Event] | None:
        """Give what was published behind an event; None where that is not known any more."""
        run_id, _, number = last_id.rpartition("-")
        if run_id.encode() != self._run_id or not _NUMBER.fullmatch(number) or int(number) > self._number:
            return None
        first_kept = self._kept[0].number if self._kept else self._number + 1
        if int(number) + 1 < first_kept:
            return None
        return [event for event in self._kept if event.number > int(number)]
