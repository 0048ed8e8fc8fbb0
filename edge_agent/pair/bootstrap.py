"""Begin the log of the pair, or find out where in it this member's store stands.

The log is begun by the member named first; after its loss, by who led, or else by one whose store was in it. A store
goes on behind the entry that its last commit names, and only in the log that it was in: an empty one, only where the
pair began with empty ones.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec

from edge_agent.core.block_state import PairMark
from edge_agent.core.replay import OutOfStep
from edge_agent.core.senders import NO_CHANGES
from edge_agent.observability.status_board import PairPhase
from edge_agent.pair.deliveries import Deliveries
from edge_agent.pair.log import Entry, EntryKind, LogOutrun, LogRecord, LogUnavailable, PairLog, Writer
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite_store import SqliteStore

BEGIN_AGAIN_AFTER = 10.0
EMPTY, HISTORY = "empty", "history"


class NotYet(Exception):
    """The pair cannot begin yet; the text says what it waits for."""


class LogBootstrap(msgspec.Struct, frozen=True):
    """What one member's store has to do with the log.

    ``is_first`` tells whether the settings name this member first; ``other`` is the other's name. ``say`` is told of
    phases, with the reason.
    """

    log: PairLog
    writer: Writer
    store: SqliteStore
    blocks: Sequence[str]
    is_first: bool
    other: str
    say: Callable[[PairPhase, str], None]

    async def marks(self) -> dict[str, PairMark | None]:
        """Name for every block of the settings that the store knows where it stands in the log."""
        known = {block_id.block: state.mark for block_id, state in await self.store.known_blocks()}
        return {name: mark for name, mark in known.items() if name in self.blocks}

    def may_bootstrap(self, last: LogRecord, marks: Mapping[str, PairMark | None]) -> bool:
        """Tell whether the log has lost its end (its server was restored, say), or ends where this member began it."""
        if last.entry.founds and last.entry.writer.member == self.writer.member:
            return True
        return any(
            mark is not None and mark.generation == last.entry.generation and mark.sequence > last.sequence
            for mark in marks.values()
        )

    async def begins_after(self, last: LogRecord, marks: Mapping[str, PairMark | None]) -> int:
        """Give the entry behind which following begins; raise OutOfStep."""
        if not marks:
            first = await self.log.next_after(0)
            if first is None or first.entry.founds != EMPTY or first.entry.generation != last.entry.generation:
                raise OutOfStep("this member's store is empty")
            return first.sequence
        sequences = []
        for name, mark in marks.items():
            if mark is None or mark.generation != last.entry.generation:
                raise OutOfStep(f"block {name} of this member's store has another past than the pair")
            sequences.append(mark.sequence)
        return min(sequences)

    async def begin(self, behind: int, last_leader: str) -> tuple[PairMark, Deliveries]:
        """Begin the log with this member's store as it is; give where it leads from, and what it has delivered.

        ``last_leader`` is who led when the log was last heard of, or nobody. Raise NotYet where it is the other's turn,
        LogUnavailable where the other was quicker.
        """
        states = await self.store.known_blocks()
        if not self.is_first and not any(state.mark is not None for _, state in states):
            raise NotYet(f"{self.other} begins the pair, as it is named first: start it")
        if last_leader == self.other or not (self.is_first or last_leader):
            # The other knows more, or as much.
            self.say(PairPhase.WAITING, f"the log is lost: {self.other} may begin it anew, or else this member")
            await asyncio.sleep(BEGIN_AGAIN_AFTER)
        entry = Entry(
            kind=EntryKind.LEADS,
            generation=uuid.uuid4().hex[:12],
            writer=self.writer,
            founds=HISTORY if states else EMPTY,
        )
        try:
            mark = PairMark(entry.generation, await self.log.append(entry, behind))
        except LogOutrun as error:
            raise LogUnavailable(f"{self.other} has begun the pair") from error
        for block_id, state in states:
            marked = msgspec.structs.replace(state, mark=mark)
            await self.store.commit(BatchCommit(block_id, marked, NO_CHANGES, []))
        reached = {block_id.block: mark.sequence for block_id, _ in states}
        return mark, Deliveries(reached, self.store.last_row_ids())
