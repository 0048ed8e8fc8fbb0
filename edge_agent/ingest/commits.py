"""Commits of one block, in order and one at a time, while the next batch is read and decided.

The loop continues as if a batch that it has handed over were committed. This is safe: a store that cannot be written
now is retried until it can be, and batches lost in a crash are read and decided again.
"""

import asyncio
from collections.abc import Callable, Sequence

from edge_agent.core.observation import SourceMessage
from edge_agent.core.senders import NO_CHANGES
from edge_agent.delivery.fast_path import BlockFastPath
from edge_agent.ingest.port import Journal
from edge_agent.source.port import Source
from edge_agent.store.port import BatchCommit, BatchStore, StoreUnwritable
from shared.backoff import Backoff
from shared.identifiers import BlockId

RETRY_AFTER = 0.5
WORTH_A_COMMIT = 500
MOST_DECISIONS = 8_000
MOST_MESSAGES = 20_000
MOST_DECIDED_BYTES = 8 << 20
LONGEST_FILLING = 0.5


class BatchLimit:
    """Limit of a batch that is read behind the stream: in decisions, in messages, in bytes, and half a second.

    A larger batch saves commits, and rows of senders with several sightings. A few decisions are enough, unless the
    batch would have to wait for the one before and can grow meanwhile.
    """

    def __init__(self) -> None:
        self._until = asyncio.get_running_loop().time() + LONGEST_FILLING
        self._messages = self._bytes = 0

    def takes_more(self, messages: Sequence[SourceMessage], decisions: int, *, must_wait: bool) -> bool:
        """Return True if the batch should grow, after ``messages`` and with ``decisions`` in all."""
        self._messages += len(messages)
        if decisions >= WORTH_A_COMMIT:
            # Messages to be forwarded stay in memory until they are committed.
            self._bytes += sum([len(message.payload) for message in messages])
            if not must_wait or decisions >= MOST_DECISIONS or self._bytes >= MOST_DECIDED_BYTES:
                return False
        return self._messages < MOST_MESSAGES and asyncio.get_running_loop().time() < self._until


Pauses = Callable[[StoreUnwritable | None], None]
"""Called with the error that delays a batch, and with None when that is over."""


async def commit_when_writable(store: BatchStore, batch: BatchCommit, pauses: Pauses) -> None:
    """Commit a batch, and retry until the store can be written."""
    is_paused = False
    while True:
        try:
            await store.commit(batch)
        except StoreUnwritable as error:
            is_paused = True
            pauses(error)
            await asyncio.sleep(RETRY_AFTER)
        else:
            break
    if is_paused:
        pauses(None)


class CommitQueue:
    """The commits of one block. ``journal``, if any, records every batch before it is committed."""

    def __init__(
        self,
        store: BatchStore,
        source: Source,
        pauses: Pauses,
        journal: Journal | None = None,
    ) -> None:
        self._store = store
        self._source = source
        self._pauses = pauses
        self._journal = journal
        self._under_way: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """True if the next batch would have to wait."""
        return self._under_way is not None and not self._under_way.done()

    @property
    def has_undelivered(self) -> bool:
        """True if rows that were handed over are neither delivered nor stored; see FastPathCommits."""
        return False

    def read_patience(self, patience: float) -> float:
        """Return for how long, in seconds, the loop may wait for messages before it calls keep_up()."""
        return patience

    async def hand_over(self, batch: BatchCommit) -> None:
        await self.begin(batch)

    async def keep_up(self, *, has_read: bool) -> None:
        """Commit delivered rows; called after each read(), which may have returned messages (``has_read``)."""

    async def settle(self) -> None:
        """Wait until a commit of the state in memory has begun."""

    async def begin(self, batch: BatchCommit) -> None:
        """Commit a batch behind the one under way, which is waited for."""
        await self.finish()
        self._under_way = asyncio.create_task(self._commit(batch), name="commit")

    async def finish(self) -> None:
        """Wait until no commit is under way: every batch that was begun is on disk and acknowledged."""
        task = self._under_way
        if task is not None:
            await asyncio.shield(task)
            self._under_way = None

    async def stop(self) -> None:
        """Abandon a batch that is not on disk yet; a transaction that has begun is completed."""
        task, self._under_way = self._under_way, None
        if task is not None:
            task.cancel()
            # An error of an abandoned commit is not reported here.
            await asyncio.gather(task, return_exceptions=True)

    async def _commit(self, batch: BatchCommit) -> None:
        if self._journal is not None:
            batch = await self._journal.record(batch)
        await commit_when_writable(self._store, batch, self._pauses)
        if self._journal is not None:
            self._journal.committed(batch)
        await self._source.acknowledge(batch.state.position.sequence)


POLL_EVERY = 0.05
"""How often, in seconds, the fast path is polled while nothing is read."""


class FastPathCommits(CommitQueue):
    """The commits of a block that copies: its rows need not be stored while the region takes them at once.

    Then only the state is committed, when they are acknowledged. Where the fast path is closed, or takes too long, rows
    are stored as any others.
    """

    def __init__(
        self,
        store: BatchStore,
        source: Source,
        pauses: Pauses,
        block_id: BlockId,
        fast_path: BlockFastPath,
    ) -> None:
        super().__init__(store, source, pauses)
        self._block_id = block_id
        self._fast_path = fast_path

    @property
    def has_undelivered(self) -> bool:
        return self._fast_path.is_under_way

    def read_patience(self, patience: float) -> float:
        return min(patience, POLL_EVERY) if self._fast_path.is_under_way else patience

    async def hand_over(self, batch: BatchCommit) -> None:
        """Send a batch's rows on the fast path, or commit them."""
        # Rows that are still being stored must not be overtaken.
        await self.finish()
        if batch.recorded or not self._fast_path.hand_over(batch.state, batch.rows):
            await self.settle()
            await self.begin(batch)

    async def keep_up(self, *, has_read: bool) -> None:
        """Commit delivered rows, and store those not delivered in time; wait while the fast path is full."""
        if has_read and not self._fast_path.is_under_way:
            await self._store.wait_for_uploads()
        await self._conclude()
        while not self._fast_path.has_room:
            await self._fast_path.change(POLL_EVERY)
            await self._conclude()

    async def settle(self) -> None:
        await self._conclude()
        while self._fast_path.is_under_way:
            await self._fast_path.change(POLL_EVERY)
            await self._conclude()

    async def _conclude(self) -> None:
        concluded = self._fast_path.conclude()
        if concluded is not None:
            await self.begin(BatchCommit(self._block_id, concluded.state, NO_CHANGES, concluded.rows))
            await self.finish()


FIRST_RETRY = 0.1
LONGEST_RETRY = 5.0


class ReopenBackoff(Backoff):
    """How long one source is left alone after it could not be read, in seconds."""

    def __init__(self, source: Source) -> None:
        super().__init__(FIRST_RETRY, LONGEST_RETRY)
        self._source = source

    async def wait(self) -> None:
        """Wait; a connection that is restored ends the wait at once."""
        if await self._source.await_reconnect(self.next()):
            self.reset()
