"""Read the rows of one lane before they leave: at once what is at hand, beside everything else what is in the file."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.ingest.port import LaneRows

READ_ROWS = 2_000
READ_BYTES = 4 << 20


class LaneReader:
    """``ready`` holds what was read and has not been taken. ``wake`` is called when a reading of the file has ended."""

    def __init__(self, lane: Lane, store: LaneRows, wake: Callable[[], None]) -> None:
        self.ready: deque[OutboxRow] = deque()
        self.through = 0
        self._lane, self._store, self._wake = lane, store, wake
        self._most_rows = READ_ROWS // 10
        self._appends_read = -1
        self._reading: asyncio.Task[list[OutboxRow]] | None = None
        self._appends_asked = 0

    @property
    def is_reading(self) -> bool:
        """Tell whether the file is being read."""
        return self._reading is not None and not self._reading.done()

    def read_on(self, appends: int) -> bool:
        """Read on where that is of use; tell whether there was nothing more as of ``appends``.

        Raise what reading the file raised.
        """
        if self._reading is not None:
            if not self._reading.done():
                return False
            reading, self._reading = self._reading, None
            self._take(reading.result(), self._appends_asked)
        if len(self.ready) >= self._most_rows // 2 or appends == self._appends_read:
            return appends == self._appends_read
        at_hand = self._store.at_hand(self._lane, self.through, self._most_rows)
        if at_hand is not None:
            self._take(at_hand, appends)
            return not at_hand
        self._appends_asked = appends
        pending = self._store.pending(self._lane, self.through, self._most_rows, READ_BYTES)
        self._reading = asyncio.create_task(pending, name=f"read {self._lane.name.lower()}")
        self._reading.add_done_callback(self._has_read)
        return False

    def rewind(self, through: int) -> None:
        """Begin again behind a row."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self.ready.clear()
        self.through, self._appends_read = through, -1

    def _has_read(self, reading: asyncio.Task[list[OutboxRow]]) -> None:
        if not reading.cancelled():
            # Who asks for the result hears of it; one that nobody wants any more is no news.
            reading.exception()
        self._wake()

    def _take(self, rows: Sequence[OutboxRow], appends: int) -> None:
        if not rows:
            self._appends_read = appends
            return
        # As many as are of use, and no more than memory should hold: what waits may be large.
        usual_size = sum([row.size for row in rows]) // len(rows)
        self._most_rows = max(min(READ_BYTES // usual_size, READ_ROWS), 2)
        self.through = rows[-1].row_id
        self.ready.extend(rows)
