"""A member's lead: it appends the inputs of every commit to the pair's log before the commit, and renews the lead.

An append that fails, or is not answered, ends the lead: only reading the log shows its end then. So does resigning:
this lead appends nothing behind that.
"""

import asyncio
import contextlib

import msgspec

from edge_agent.core.block_state import BlockState, PairMark
from edge_agent.core.decisions import RecordedInput
from edge_agent.pair.deliveries import Deliveries
from edge_agent.pair.log import Entry, EntryKind, LogOutrun, LogUnavailable, PairLog, Writer
from edge_agent.runtime.pace import loop_time
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId
from shared.tasks import is_cancelled, to_its_end

RESIGN_WITHIN = 1.0


class LeadLost(Exception):
    """This member no longer leads, for the reason in the text."""


class Lead:
    """One member's lead, which began at ``mark``. ``renew_every`` is in seconds."""

    def __init__(
        self,
        log: PairLog,
        writer: Writer,
        mark: PairMark,
        *,
        store: SqliteStore,
        deliveries: Deliveries,
        renew_every: float,
    ) -> None:
        self._log = log
        self._writer = writer
        self._generation, self._sequence = mark.generation, mark.sequence
        self._store = store
        self._deliveries = deliveries
        self._renew_every = renew_every
        self._lock = asyncio.Lock()
        self._appended_at = loop_time()
        self._proved_at: dict[str, float] = {}
        self._lost = ""

    async def record(self, batch: BatchCommit) -> BatchCommit:
        """Append a batch's inputs to the log; return the batch with its place in the log; raise LeadLost."""
        block, state = batch.block_id.block, batch.state
        kind = EntryKind.DECIDED if self._deliveries.knows(block) else EntryKind.BEGUN
        sequence = await self._append(kind, block, state, tuple(batch.recorded), batch.oldest_forwarded)
        self._deliveries.begin(block, sequence)
        return msgspec.structs.replace(
            batch, state=msgspec.structs.replace(state, mark=PairMark(self._generation, sequence))
        )

    def committed(self, batch: BatchCommit) -> None:
        self._deliveries.committed(batch.block_id.block, self._store.last_row_ids())

    async def prove(self, block_id: BlockId, state: BlockState) -> None:
        """Append, as often as the lead is renewed, that only time has advanced; raise LeadLost."""
        if loop_time() - self._proved_at.get(block_id.block, 0.0) >= self._renew_every:
            self._proved_at[block_id.block] = loop_time()
            await self._append(EntryKind.PROVED, block_id.block, state)

    async def keep(self) -> None:
        """Renew the lead until it is lost: raise LeadLost."""
        while not is_cancelled():
            due_at = self._appended_at + self._renew_every
            await asyncio.sleep(max(due_at - loop_time(), 0.0))
            if loop_time() >= self._appended_at + self._renew_every:
                await self._append(EntryKind.RENEWED)

    async def hand_over(self) -> None:
        """Resign so that the other takes over; always raise LeadLost."""
        await self._append(EntryKind.RESIGNED)
        raise LeadLost(self._lost)

    async def resign(self) -> None:
        """Resign so that the other takes over at once, if the log can be reached."""
        with contextlib.suppress(LeadLost, TimeoutError):
            async with asyncio.timeout(RESIGN_WITHIN):
                await self._append(EntryKind.RESIGNED)

    async def _append(
        self,
        kind: EntryKind,
        block: str = "",
        state: BlockState | None = None,
        recorded: tuple[RecordedInput, ...] = (),
        oldest_forwarded: int = 0,
    ) -> int:
        entry = Entry(
            kind=kind,
            generation=self._generation,
            writer=self._writer,
            block=block,
            state=state,
            recorded=recorded,
            oldest_forwarded=oldest_forwarded,
        )
        # Half-way, nobody would know what is in the log; of a failure that nobody waits for, the next append tells.
        return await to_its_end(self._append_wholly(entry))

    async def _append_wholly(self, entry: Entry) -> int:
        async with self._lock:
            if self._lost:
                raise LeadLost(self._lost)
            self._deliveries.acknowledged(self._store.acknowledged_through())
            entry = msgspec.structs.replace(entry, delivered=self._deliveries.delivered)
            try:
                self._sequence = await self._log.append(entry, self._sequence)
            except (LogUnavailable, LogOutrun) as error:
                self._lost = str(error)
                raise LeadLost(self._lost) from error
            self._appended_at = loop_time()
            if entry.kind is EntryKind.RESIGNED:
                self._lost = "this member has resigned"
            return self._sequence
