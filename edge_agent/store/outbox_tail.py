"""Keep the rows that were committed last, so that what leaves at once need not be read back from the file.

Bounded in bytes: a lane that waits longer is forgotten here, and read from the file up to where it begins again.
"""

from collections.abc import Iterable, Mapping, Sequence

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.store.schema import EVERY_ROW

MOST_BYTES = 16 << 20


class _LaneTail:
    """Every row of one lane behind ``begins_after``, by row id."""

    def __init__(self, begins_after: int) -> None:
        self.begins_after = begins_after
        self.rows: dict[int, OutboxRow] = {}
        self.size = 0

    def forget(self, begins_after: int) -> None:
        self.begins_after = begins_after
        self.rows.clear()
        self.size = 0


class OutboxTail:
    """The ends of all lanes, as last committed."""

    def __init__(self, last_row_ids: Mapping[Lane, int]) -> None:
        self._lanes = {lane: _LaneTail(last_row_ids[lane]) for lane in Lane}

    def append(self, lane: Lane, rows: Sequence[OutboxRow], size: int) -> None:
        """Keep rows that were committed, each with its id; ``size`` is that of all, in bytes."""
        tail = self._lanes[lane]
        tail.size += size
        if tail.size > MOST_BYTES:
            tail.forget(rows[-1].row_id)
        else:
            tail.rows |= {row.row_id: row for row in rows}

    def remove(self, lane: Lane, row_ids: Iterable[int]) -> None:
        """Let rows go that were replaced or dropped before they were sent."""
        tail = self._lanes[lane]
        for row_id in row_ids:
            row = tail.rows.pop(row_id, None)
            if row is not None:
                tail.size -= row.size

    def pass_over(self, lane: Lane, through: int) -> None:
        """Let rows go up to one, which nobody here will send: another has delivered what they say."""
        tail = self._lanes[lane]
        while tail.rows and (first := next(iter(tail.rows))) <= through:
            tail.size -= tail.rows.pop(first).size
            tail.begins_after = first

    def forget(self, lane: Lane, last_row_id: int) -> None:
        """Keep nothing of a lane whose last row is ``last_row_id``."""
        self._lanes[lane].forget(last_row_id)

    def take(self, lane: Lane, after_row_id: int, row_limit: int, before: int = EVERY_ROW) -> list[OutboxRow] | None:
        """Hand out the rows between two, at most so many; None where the file must be read.

        What is handed out is not kept: should it have to be sent again, it is read.
        """
        tail = self._lanes[lane]
        if after_row_id < tail.begins_after:
            return None
        taken: list[OutboxRow] = []
        gone: list[OutboxRow] = []
        for row_id, row in tail.rows.items():
            if len(taken) == row_limit or row_id >= before:
                break
            # What the file was read for before it began here is kept in vain.
            (taken if row_id > after_row_id else gone).append(row)
        for row in (*gone, *taken):
            del tail.rows[row.row_id]
            tail.size -= row.size
            tail.begins_after = row.row_id
        return taken
