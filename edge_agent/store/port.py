"""Define what the reading loop and the uploader need of a store: commits, the outbox, and why a commit fails."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Counters, Decision, RecordedInput
from edge_agent.core.records import Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.core.senders import SenderChanges
from shared.identifiers import BlockId
from shared.instants import HOUR

EVERYTHING = (1 << 63) - 1


DROPPED_LATELY = 24 * HOUR
"""For so long people are told of records that were dropped for their size, unless a limit has risen that is enough."""


class StoreUnwritable(Exception):
    """A commit cannot be made now; nothing was changed. Try again: ``cause`` and the message say what is in the way."""

    cause: ClassVar[str]


class StoreFull(StoreUnwritable):
    """The disk has no room for it."""

    cause = "disk full"


class StoreFailing(StoreUnwritable):
    """The disk has room, and fails."""

    cause = "disk failing"


class StoreLocked(StoreUnwritable):
    """Another process keeps the store locked."""

    cause = "store locked"


class BatchCommit(msgspec.Struct, frozen=True):
    """Everything that one batch changes: committed together or not at all.

    ``decisions``, where there are any, are what ``rows`` say, one each, for the log. What was stored before
    ``oldest_forwarded`` was too old to be forwarded. ``is_behind``: much more waits to be read.
    """

    block_id: BlockId
    state: BlockState
    changes: SenderChanges
    rows: Sequence[OutboxRow]
    recorded: Sequence[RecordedInput] = ()
    decisions: Sequence[Decision] = ()
    oldest_forwarded: int = 0
    is_behind: bool = False


class LaneDepth(msgspec.Struct, frozen=True):
    """How much waits in one lane."""

    rows: int = 0
    size: int = 0


class LaneRows(Protocol):
    """What a lane needs of where its rows are."""

    @property
    def append_count(self) -> int:
        """Count how often rows were appended: while it stays the same there is nothing more to read."""

    def at_hand(self, lane: Lane, after_row_id: int, row_limit: int) -> list[OutboxRow] | None:
        """Give what ``pending`` does where that takes no time; None where it may take some."""

    async def pending(
        self, lane: Lane, after_row_id: int, row_limit: int, byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        """Read a lane's rows after one, in order; from then on they are in flight and are not replaced.

        Out of the file no more than the row that reaches ``byte_limit``.
        """

    def delete_through(self, lane: Lane, row_id: int) -> None:
        """Let rows that were acknowledged go with the next transaction; losing this only sends them again."""

    def is_filling(self) -> bool:
        """Tell whether reading is behind and brings registrations by the hundred."""

    def release(self, lane: Lane) -> None:
        """Take back that rows are in flight: they will be read and sent again."""

    async def set_apart(self, rows: Sequence[tuple[OutboxRow, TooLarge]]) -> None:
        """Keep rows that their target cannot take where they hold up nobody; registrations, watermarks go, counted.

        Raise StoreUnwritable.
        """


class SetApart(msgspec.Struct, frozen=True):
    """The smallest row of one block in one lane that is over one limit, and what it needs."""

    lane: Lane
    block: str
    row_id: int
    too_large: TooLarge


class DroppedTooLarge(msgspec.Struct, frozen=True):
    """Registrations or watermarks of a block were dropped for one limit; what the largest needs, when the last was."""

    block: str
    too_large: TooLarge
    at: int


class SetApartSum(msgspec.Struct, frozen=True):
    """Records of one stream block and lane that are over one limit, the oldest of them since ``oldest_at``.

    ``needed`` is how large messages have to be allowed to be for all of them, in bytes, headers included.
    """

    stream: str
    lane: str
    limit: SizeLimit
    count: int
    size: int
    needed: int
    oldest_at: int

    @property
    def records(self) -> str:
        return {"copies": "copy", "advisories": "advisory"}[self.lane] if self.count == 1 else self.lane


class OutboxLevel(msgspec.Struct, frozen=True):
    """How much waits in the outbox, of how much at most, in bytes; and what is too large for the region, beside it."""

    size: int = 0
    limit: int = 0
    set_apart: tuple[SetApartSum, ...] = ()
    dropped: tuple[DroppedTooLarge, ...] = ()


class PutBack(msgspec.Struct, frozen=True):
    """Rows of a block in a lane that are over a limit, need at most so many bytes, and are to be sent again.

    Those before a row, and of them, the smallest first, no more than the one that reaches ``byte_limit``.
    """

    lane: Lane
    block: str
    limit: SizeLimit
    needed: int
    before: int = EVERYTHING
    byte_limit: int = EVERYTHING


class OutboxStore(LaneRows, Protocol):
    """What the uploader needs of the store."""

    async def wait_for_too_large(self) -> None:
        """Wait until something is set apart, or is known to have been dropped for its size."""

    async def dropped_too_large(self) -> list[DroppedTooLarge]:
        """Say what is known to have been dropped for its size."""

    async def forget_dropped(self, dropped: Sequence[DroppedTooLarge]) -> None:
        """Forget what was dropped, where nothing was since; raise StoreUnwritable."""

    async def smallest_set_apart(self) -> list[SetApart]:
        """Name what is set apart, for each block, lane and limit the smallest row."""

    async def put_back(self, which: PutBack) -> list[int]:
        """Append rows that are set apart to their lane again; give their new ids."""

    async def has_set_apart(self, row_id: int) -> bool:
        """Tell whether a row is set apart."""

    def acknowledged_through(self) -> dict[Lane, int]:
        """Name by lane the row up to which none waits any more."""

    async def wait_for_rows(self, seen: int) -> int:
        """Wait until ``append_count`` differs from ``seen``; give it."""

    def reads_ahead(self, lane: Lane, give_back: Callable[[], int]) -> None:
        """Let ``give_back`` be called before an operator drops a lane's rows: what was read and has not left.

        It gives the last row that may have left; those behind it are read again, where they are still there.
        """


class BatchStore(Protocol):
    """What the ingest loop needs of the store."""

    def is_paused(self) -> bool:
        """Tell whether what may not be dropped has reached the outbox's limit."""

    async def wait_for_room(self) -> None:
        """Wait until it has not."""

    async def commit(self, batch: BatchCommit) -> None:
        """Make one batch durable; raise StoreUnwritable, having changed nothing, where that cannot be done now."""

    async def let_uploads_follow(self) -> None:
        """Wait a moment where copies are read faster than they leave."""

    def depths(self) -> dict[Lane, LaneDepth]:
        """Measure what waits."""

    def outbox_counters(self, block: str) -> Counters:
        """Give what was compacted and dropped, by cause."""
