"""Know in which chunk the last registration of each sender waits, if it waits in one: a newer one replaces it.

Forty bytes for each that waits, and nothing while registrations leave as fast as they come. What has gone is not taken
out at once: whoever asks finds no such chunk any more.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.store import chunks

WORTH_LOOKING = 100_000


class ChunkedSenders:
    """The senders in chunks of registrations, by block, as last committed."""

    def __init__(self) -> None:
        self._chunks: dict[str, dict[str, int]] = {}
        self._most = WORTH_LOOKING

    def load(self, database: sqlite3.Connection) -> None:
        """Read what waits in a file that was just opened."""
        after = 0
        while chunk := chunks.first_chunk_behind(database, Lane.REGISTRATIONS, after):
            self.add(chunks.rows_of(database, Lane.REGISTRATIONS, chunk))
            after = chunk.last_row_id

    def add(self, rows: Sequence[OutboxRow]) -> None:
        """Note the rows of one chunk."""
        last = rows[-1]
        of_block = self._chunks.setdefault(last.block, {})
        of_block.update(dict.fromkeys([row.sender_id for row in rows], last.row_id))

    def chunks_with(self, rows: Iterable[OutboxRow], unsent_after: int) -> list[int]:
        """Name, by their last rows, the chunks with other unsent rows of these rows' senders; some may have gone."""
        chunks_of = self._chunks
        found = {chunks_of.get(row.block, {}).get(row.sender_id, 0) for row in rows if row.sender_id}
        return sorted(last_row_id for last_row_id in found if last_row_id > unsent_after)

    def forget_through(self, row_id: int) -> None:
        """Forget chunks that have gone up to a row, where they have become many."""
        if sum(map(len, self._chunks.values())) < self._most:
            return
        for block, of_block in self._chunks.items():
            self._chunks[block] = {sender_id: last for sender_id, last in of_block.items() if last > row_id}
        self._most = max(2 * sum(map(len, self._chunks.values())), WORTH_LOOKING)

    def clear(self) -> None:
        """Forget all: nothing waits in a chunk."""
        self._chunks.clear()
