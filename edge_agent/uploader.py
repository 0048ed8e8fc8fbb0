"""Empty the outbox into the region: pipelined, advisories first, only the acknowledged prefix deleted.

After any failure everything unacknowledged is read and sent again under the same message ids. A watermark leaves only
when everything before it in its lane is acknowledged.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable

from edge_agent.core.outgoing import Lane, OutboxRow
from edge_agent.core.upload_window import UploadWindow
from edge_agent.ports import Acknowledgement, OutboxStore, StoreFull, Upstream, UpstreamUnavailable
from edge_agent.tallies import Tally

WINDOW_MESSAGES = 4_096
WINDOW_BYTES = 8 << 20
READ_ROWS = 500
SEND_ROWS = 256
TOO_LARGE = "too_large"
ACKNOWLEDGEMENT_PATIENCE = 10.0
IDLE_PATIENCE = 5.0
FIRST_RETRY = 0.25
LONGEST_RETRY = 5.0
BURST_BYTES = 64 << 10


class Pace:
    """Keep to a number of bytes per second (0: no limit), bursts of 64 KiB allowed."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def wait(self, size: int) -> None:
        """Wait until ``size`` bytes may go."""
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - BURST_BYTES / self._rate) + size / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class UploadLane:
    """One lane's rows: read ahead, in flight, acknowledged."""

    def __init__(self, lane: Lane, store: OutboxStore) -> None:
        self.lane = lane
        self._store = store
        self._window = UploadWindow(WINDOW_MESSAGES, WINDOW_BYTES)
        self._ready: deque[OutboxRow] = deque()
        self._read_through = 0
        self._acknowledged_through = 0
        self._in_flight: dict[int, OutboxRow] = {}
        self._appends_read = -1

    @property
    def in_flight(self) -> int:
        """Count the rows that wait for their acknowledgement."""
        return len(self._window)

    async def next_row(self, appends: int) -> OutboxRow | None:
        """Give the next row if it may leave now; ``appends`` tells whether reading again is worth it."""
        if not self._ready and appends != self._appends_read:
            rows = await self._store.pending(self.lane, self._read_through, READ_ROWS)
            if len(rows) < READ_ROWS:
                self._appends_read = appends
            if rows:
                self._read_through = rows[-1].row_id
                self._ready.extend(rows)
        if self._ready and self._window.admits(self._ready[0].size, is_barrier=self._ready[0].is_watermark):
            return self._ready[0]
        return None

    def sent(self, row: OutboxRow) -> None:
        """Note that the row that next_row() gave is in flight."""
        self._ready.popleft()
        self._in_flight[row.row_id] = row
        self._window.sent(row.row_id, row.size)

    def acknowledged(self, row_id: int) -> None:
        """Note an acknowledgement, and let the acknowledged prefix be deleted."""
        self._in_flight.pop(row_id, None)
        through = self._window.acknowledge(row_id)
        if through:
            self._acknowledged_through = through
            self._store.delete_through(self.lane, through)

    def row_in_flight(self, row_id: int) -> OutboxRow | None:
        """Give a row that waits for its acknowledgement."""
        return self._in_flight.get(row_id)

    def rewind(self) -> None:
        """Begin again behind the acknowledged prefix."""
        self._window.rewind()
        self._ready.clear()
        self._in_flight.clear()
        self._read_through, self._appends_read = self._acknowledged_through, -1
        self._store.release(self.lane)


class Uploader:
    """The loop. ``report`` hears an empty text when all goes well, else why nothing leaves."""

    def __init__(
        self, store: OutboxStore, upstream: Upstream, *, bytes_per_second: int, report: Callable[[str], None]
    ) -> None:
        self._store = store
        self._upstream = upstream
        self._pace = Pace(bytes_per_second)
        self._report = report
        self._lanes = [UploadLane(lane, store) for lane in Lane]
        self._appends = 0
        self._retry_after = FIRST_RETRY
        self.publishes = Tally()

    async def run(self) -> None:
        """Upload for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_appends(), name="outbox watcher")
            tasks.create_task(self._retry_for_ever(), name="uploader")

    async def _watch_appends(self) -> None:
        while True:
            self._appends = await self._store.wait_for_rows(self._appends)
            self._upstream.poke()

    async def _retry_for_ever(self) -> None:
        while True:
            try:
                await self._upstream.ready()
                await self._upload()
            except UpstreamUnavailable as error:
                self._report(str(error))
            except StoreFull as error:
                self._report(f"disk full: {error}")
            for lane in self._lanes:
                lane.rewind()
            await asyncio.sleep(self._retry_after * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, no secret
            self._retry_after = min(self._retry_after * 2, LONGEST_RETRY)

    async def _upload(self) -> None:
        loop = asyncio.get_running_loop()
        progressed_at = loop.time()
        while True:
            has_more = await self._send_some()
            in_flight = sum(lane.in_flight for lane in self._lanes)
            if not in_flight:
                progressed_at = loop.time()
                self._report("")
            patience = progressed_at + ACKNOWLEDGEMENT_PATIENCE - loop.time() if in_flight else IDLE_PATIENCE
            answers = await self._upstream.acknowledgements(0.0 if has_more else patience)
            for answer in answers:
                await self._settle(answer)
            if answers:
                progressed_at = loop.time()
                self._retry_after = FIRST_RETRY
                self._report("")
            elif in_flight and loop.time() - progressed_at >= ACKNOWLEDGEMENT_PATIENCE:
                raise UpstreamUnavailable(f"no acknowledgement for {ACKNOWLEDGEMENT_PATIENCE:g} s")

    async def _send_some(self) -> bool:
        """Send what may leave, advisories first; tell whether more may follow at once."""
        for _ in range(SEND_ROWS):
            for lane in self._lanes:
                row = await lane.next_row(self._appends)
                if row is not None:
                    await self._pace.wait(row.size)
                    await self._upstream.publish(row)
                    lane.sent(row)
                    break
            else:
                return False
        return True

    async def _settle(self, answer: Acknowledgement) -> None:
        lane = self._lanes[answer.lane]
        row = lane.row_in_flight(answer.row_id)
        if answer.refused:
            self.publishes.failed += 1
            if not (answer.is_final and row is not None and answer.lane is Lane.REGISTRATIONS):
                raise UpstreamUnavailable(f"{row.subject}: {answer.refused}" if row else answer.refused)
            await self._store.discard(row, TOO_LARGE)
        else:
            self.publishes.done += 1
        lane.acknowledged(answer.row_id)
