"""Count what one transaction changes in the outbox: how much waits, what is dropped by cause, the fate of each record.

The counts start from the outbox index and do not change it: it adopts them when the transaction was durable.
"""

import sqlite3

from edge_agent.core.decisions import Counters
from edge_agent.core.records import Lane
from edge_agent.store import decision_log_sql, schema
from edge_agent.store.outbox_index import OutboxIndex
from edge_agent.store.port import LaneDepth

NEWER_SAMPLE = "newer_sample"


class OutboxDelta:
    """The counts of one transaction.

    ``depths`` is what waits by lane, ``chunked`` how much of that in chunks, in bytes. ``additions`` is what was let go
    by block, ``dropped`` how much of it for an operator. ``set_apart`` waits beside the lanes, for a larger limit.
    """

    def __init__(self, index: OutboxIndex) -> None:
        self.depths = dict(index.depths)
        self.chunked = dict(index.chunked)
        self.additions: dict[str, Counters] = {}
        self.dropped = LaneDepth()
        self.set_apart = index.set_apart
        self._max_outbox = index.max_outbox
        self._fates: list[tuple[str, int]] = []

    @property
    def excess(self) -> int:
        """Give how far the outbox is over its limit, in bytes; below 0 where it is not."""
        return sum(depth.size for depth in self.depths.values()) - self._max_outbox

    def has_single_rows(self, lane: Lane) -> bool:
        """Tell whether any rows of a lane are in no chunk."""
        return self.depths[lane].size > self.chunked[lane]

    def resize(self, lane: Lane, rows: int, size: int) -> None:
        """Count rows that come, or go where that is negative; ``size`` in bytes."""
        depth = self.depths[lane]
        self.depths[lane] = LaneDepth(depth.rows + rows, depth.size + size)

    def resize_chunked(self, lane: Lane, rows: int, size: int) -> None:
        """Count rows that come, or go, as chunks."""
        self.resize(lane, rows, size)
        self.chunked[lane] += size

    def replace(self, block: str, row_id: int) -> None:
        """Count a registration in whose place a newer one of its sender leaves; its size is the caller's to count."""
        self._count(block, "compacted", NEWER_SAMPLE)
        self._fates.append((NEWER_SAMPLE, row_id))

    def drop(self, block: str, cause: str, row_id: int, size: int) -> None:
        """Count a registration, of ``size`` bytes, that is dropped."""
        self._count(block, "dropped", cause)
        self._fates.append((cause, row_id))
        self.resize(Lane.REGISTRATIONS, -1, -size)

    def drop_together(self, block: str, cause: str, rows: int, size: int) -> None:
        """Count registrations that an operator has dropped; what became of each is left to who deletes them."""
        self._count(block, "dropped", cause, rows)
        self.resize(Lane.REGISTRATIONS, -rows, -size)
        self.dropped = LaneDepth(self.dropped.rows + rows, self.dropped.size + size)

    def resize_set_apart(self, rows: int, size: int) -> None:
        """Count rows that are set apart, or no longer."""
        self.set_apart = LaneDepth(self.set_apart.rows + rows, self.set_apart.size + size)

    def count_set_apart(self, block: str, cause: str) -> None:
        """Count one that was not set apart before."""
        self._count(block, "set_apart", cause)

    def drop_set_apart(self, block: str, cause: str, size: int) -> None:
        """Count one of those that are set apart, of ``size`` bytes, that is dropped."""
        self._count(block, "dropped", cause)
        self.resize_set_apart(-1, -size)
        self.dropped = LaneDepth(self.dropped.rows + 1, self.dropped.size + size)

    def count_dropped(self, block: str, cause: str) -> None:
        """Count a watermark that is dropped; its size is the caller's to count."""
        self._count(block, "dropped", cause)

    def write(self, database: sqlite3.Connection) -> None:
        """Write what was counted, and what became of the registrations that were let go one by one."""
        if self._fates:
            database.executemany(decision_log_sql.SET_FATE, self._fates)
            database.executemany(decision_log_sql.SET_FATE_IN_CHUNK, self._fates)
        counts = [
            (block, what, cause, count)
            for block, additions in self.additions.items()
            for what, causes in additions.items()
            for cause, count in causes.items()
        ]
        if counts:
            database.executemany(schema.ADD_COUNT, counts)

    def _count(self, block: str, what: str, cause: str, count: int = 1) -> None:
        causes = self.additions.setdefault(block, {}).setdefault(what, {})
        causes[cause] = causes.get(cause, 0) + count
