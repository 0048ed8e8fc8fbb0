"""Follower of a leader's block, entry by entry: read the same messages, replay its decisions, commit, send nothing.

A follower makes no decisions of its own. If a commit cannot be replayed, because a message that the leader has read is
deleted, it raises OutOfStep: then only a copy of the leader's store helps.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import msgspec

from edge_agent.core.block_state import BlockState, PairMark
from edge_agent.core.decisions import EpochBegun
from edge_agent.core.draft import Draft
from edge_agent.core.observation import SourceMessage
from edge_agent.core.replay import CommitReplay, OtherCommit, OutOfStep
from edge_agent.core.senders import NO_CHANGES
from edge_agent.core.tracker import Tracker
from edge_agent.ingest.block import BlockRules, IngestPhase, phase_of, report_pause, watermark_context
from edge_agent.ingest.commits import ReopenBackoff, commit_when_writable
from edge_agent.ingest.port import Progress
from edge_agent.pair.deliveries import Deliveries
from edge_agent.pair.log import Entry, EntryKind, LogRecord
from edge_agent.runtime.pace import Stretch, loop_time
from edge_agent.source.port import Source, SourceUnavailable
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import Incarnation
from shared.instants import SECOND
from shared.tasks import is_cancelled

MOST_ENTRIES = 64
READ_PATIENCE = 0.5
MISSING_AFTER = 5.0
"""Seconds for which a message that the leader has read may be missing although all messages are read."""


class Follower:
    """One block. ``decider`` is None if the store does not hold it; ``report`` is called with phase and reason."""

    def __init__(
        self,
        rules: BlockRules[Draft],
        source: Source,
        store: SqliteStore,
        decider: Tracker | None,
        deliveries: Deliveries,
        report: Callable[[IngestPhase, str], None],
    ) -> None:
        self._rules = rules
        self._source = source
        self._store = store
        self.decider = decider
        self._deliveries = deliveries
        self._report = report
        self._entries: asyncio.Queue[LogRecord] = asyncio.Queue(MOST_ENTRIES)
        self._ahead: deque[SourceMessage] = deque()
        self._read_past: Incarnation | None = None
        self._newest: LogRecord | None = None
        self._newest_at = 0.0

    @property
    def given(self) -> int:
        """The newest entry that is to be followed; 0 if there is none yet."""
        return self._newest.sequence if self._newest is not None else 0

    def has_followed(self, sequence: int) -> bool:
        return self._mark >= sequence

    @property
    def progress(self) -> Progress | None:
        """The progress of following; None before the first entry."""
        if self.decider is None or self._newest is None:
            return None
        state = self.decider.state
        ago = int((loop_time() - self._newest_at) * SECOND)
        return Progress(
            pending=self._entries.qsize(),
            server_at=self._newest.stored_at + ago,
            checked_ago=ago,
            observed_through=state.observed_through,
            senders=self.decider.sender_counts(),
            mode=state.mode,
            blind_after=state.policy.blind_after,
            loss=state.loss,
            is_covered=not state.is_suspended,
            has_unopened_batches=bool(state.seen.batch),
            contradiction=self._rules.contradiction(state, self._newest.stored_at + ago),
        )

    @property
    def state(self) -> BlockState | None:
        """The state after the last entry followed; None before the first entry."""
        return self.decider.state if self.decider else None

    async def give(self, logged: LogRecord) -> None:
        """Queue an entry of this block, in the log's order; wait while the queue is full."""
        if self.decider is not None and logged.sequence <= self._mark:
            return
        self._newest, self._newest_at = logged, loop_time()
        await self._entries.put(logged)

    async def run(self) -> None:
        """Follow until cancelled; raise OutOfStep."""
        self._report(IngestPhase.STARTING, "")
        logged = await self._entries.get()
        backoff = ReopenBackoff(self._source)
        while not is_cancelled():
            try:
                await self._open()
                self._report(IngestPhase.FOLLOWING, "")
                while not is_cancelled():
                    await self._take(logged)
                    backoff.reset()
                    logged = await self._entries.get()
            except SourceUnavailable as error:
                self._report(phase_of(error), str(error))
                await backoff.wait()

    @property
    def _mark(self) -> int:
        mark = self.decider.state.mark if self.decider is not None else None
        return mark.sequence if mark is not None else 0

    async def _open(self) -> None:
        """Read behind the position if its past is still there; the leader's entries name the past that it reads."""
        self._ahead.clear()
        self._read_past = None
        if self.decider is not None:
            state = self.decider.state
            opened = await self._source.open(state)
            if opened.change is None:
                self._read_past = state.position.incarnation

    async def _take(self, logged: LogRecord) -> None:
        entry, state = logged.entry, _with_mark(logged)
        if self.decider is not None and self._mark >= logged.sequence:
            return
        if self.decider is None:
            if entry.kind is not EntryKind.BEGUN:
                raise OutOfStep(f"block {entry.block} began before this member knew of it")
            await self._commit(logged, BatchCommit(self._rules.emitter.block_id, state, NO_CHANGES, []))
            self.decider = Tracker(state)
            await self._open()
            return
        # If the source fails, this replay is abandoned and begins again behind the last commit.
        following = CommitReplay(
            self.decider, self._rules.intake, OtherCommit(state, entry.recorded, entry.oldest_forwarded)
        )
        async for messages in self._messages_through(state):
            stretch = Stretch()
            for _ in following.take(messages):
                await stretch.yield_to_loop()
        draft = following.finish()
        if entry.kind is not EntryKind.PROVED:
            emitter, counts = self._rules.emitter, self.decider.sender_counts()
            watermark = watermark_context(counts, self._store, emitter.block_id.block, self._rules.conditions())
            rows = emitter.rows(draft.decisions, state, watermark)
            await self._commit(
                logged,
                BatchCommit(emitter.block_id, state, draft.changes(), rows, draft.recorded, draft.decisions),
            )
        self.decider.adopt(draft)
        self.decider.state = state
        await self._source.acknowledge(state.position.sequence)
        if any(isinstance(item, EpochBegun) for item in entry.recorded):
            await self._open()

    async def _messages_through(self, state: BlockState) -> AsyncIterator[Sequence[SourceMessage]]:
        """Yield the messages that the leader has read for an entry with ``state``."""
        assert self.decider is not None
        position, last = self.decider.state.position, state.position.sequence
        if state.position.incarnation != position.incarnation or last == position.sequence:
            # The leader reads no more of a past that ends.
            return
        if self._read_past != position.incarnation:
            raise OutOfStep(f"the past of stream {position.stream} changed before it was read up to {last}")
        reached, silent_since = 0, loop_time()
        while True:
            taken = []
            while self._ahead and self._ahead[0].sequence <= last:
                taken.append(self._ahead.popleft())
            if taken:
                reached = taken[-1].sequence
                yield taken
            if reached == last:
                return
            if self._ahead or loop_time() - silent_since > MISSING_AFTER:
                raise OutOfStep(f"message {last} of stream {position.stream}, which the other has read, is gone")
            messages = await self._source.read(READ_PATIENCE)
            self._ahead.extend(messages)
            if messages or not (await self._source.check(self.decider.state.policy.blind_after)).examined_sequence:
                silent_since = loop_time()

    async def _commit(self, logged: LogRecord, batch: BatchCommit) -> None:
        block = batch.block_id.block
        # Never paused for a full outbox: the leader's pause bounds both, and only a member in step can take over.
        self._deliveries.begin(block, logged.sequence)
        await commit_when_writable(self._store, batch, partial(report_pause, self._report, IngestPhase.FOLLOWING))
        self._deliveries.committed(block, self._store.last_row_ids())


def _with_mark(logged: LogRecord) -> BlockState:
    entry: Entry = logged.entry
    assert entry.state is not None, f"entry {logged.sequence} has no state"
    return msgspec.structs.replace(entry.state, mark=PairMark(entry.generation, logged.sequence))
