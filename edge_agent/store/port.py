"""Port of the store: commits for the reading loop, the outbox for the uploader, and why a commit fails."""

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
"""Duration for which dropped oversized records are reported, unless a limit has risen far enough."""


class StoreUnwritable(Exception):
    """A commit failed and changed nothing; try again. ``cause`` and the message name the obstacle."""

    cause: ClassVar[str]


class StoreFull(StoreUnwritable):
    """The disk has no room for the commit."""

    cause = "disk full"


class StoreFailing(StoreUnwritable):
    """The disk has room, and fails."""

    cause = "disk failing"


class StoreLocked(StoreUnwritable):
    """Another process has locked the store."""

    cause = "store locked"


class BatchCommit(msgspec.Struct, frozen=True):
    """Everything that one batch changes: committed together or not at all.

    ``decisions``, if any, belong to ``rows`` one by one, for the log. Messages stored before ``oldest_forwarded`` were
    too old to be forwarded. ``is_behind``: much more is still to be read.
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
    """The rows in one lane and their size in bytes."""

    rows: int = 0
    size: int = 0


class LaneRows(Protocol):
    """Source of the rows of a lane."""

    @property
    def append_count(self) -> int:
        """How often rows were appended: while it stays the same there is nothing more to read."""

    def at_hand(self, lane: Lane, after_row_id: int, row_limit: int) -> list[OutboxRow] | None:
        """Return the rows that ``pending`` returns if no wait is necessary, otherwise None."""

    async def pending(
        self, lane: Lane, after_row_id: int, row_limit: int, byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        """Return a lane's rows after one, in order; from then on they are in flight and are not replaced.

        From the file, the list ends with the row that reaches ``byte_limit``.
        """

    def delete_through(self, lane: Lane, row_id: int) -> None:
        """Delete acknowledged rows with the next transaction; if that is lost, they are only sent again."""

    def is_filling(self) -> bool:
        """Return True while reading is behind and brings registrations by the hundred."""

    def release(self, lane: Lane) -> None:
        """Mark a lane's rows as no longer in flight: they will be read and sent again."""

    async def set_apart(self, rows: Sequence[tuple[OutboxRow, TooLarge]]) -> None:
        """Dead-letter rows that their target refuses, so that they block no others; drop registrations and watermarks.

        Raise StoreUnwritable.
        """


class SetApart(msgspec.Struct, frozen=True):
    """The smallest dead letter of one block, lane and limit, and the size that it needs."""

    lane: Lane
    block: str
    row_id: int
    too_large: TooLarge


class DroppedTooLarge(msgspec.Struct, frozen=True):
    """Registrations or watermarks of a block dropped for one limit: the largest size needed, and the last instant."""

    block: str
    too_large: TooLarge
    at: int


class SetApartSum(msgspec.Struct, frozen=True):
    """Dead letters of one stream block, lane and limit, the oldest refused at ``oldest_at``.

    ``needed`` is the message size in bytes, headers included, that would admit all of them.
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
    """The size of the outbox and its limit, in bytes, and the records that are too large for the region."""

    size: int = 0
    limit: int = 0
    set_apart: tuple[SetApartSum, ...] = ()
    dropped: tuple[DroppedTooLarge, ...] = ()


class Retry(msgspec.Struct, frozen=True):
    """Dead letters of a block and lane that are over a limit, need at most ``needed`` bytes, and are to be sent again.

    Only rows before ``before``; of them, the smallest first, ending with the one that reaches ``byte_limit``.
    """

    lane: Lane
    block: str
    limit: SizeLimit
    needed: int
    before: int = EVERYTHING
    byte_limit: int = EVERYTHING


class OutboxStore(LaneRows, Protocol):
    """Part of the store that the uploader uses."""

    async def wait_for_too_large(self) -> None:
        """Wait until there is a dead letter, or a note of a record dropped for its size."""

    async def dropped_too_large(self) -> list[DroppedTooLarge]:
        """Return the notes of records dropped for their size."""

    async def forget_dropped(self, dropped: Sequence[DroppedTooLarge]) -> None:
        """Delete such notes, unless another record was dropped since; raise StoreUnwritable."""

    async def smallest_set_apart(self) -> list[SetApart]:
        """Return the smallest dead letter of each block, lane and limit."""

    async def retry(self, which: Retry) -> list[int]:
        """Append dead letters to their lane again; return their new ids."""

    async def has_set_apart(self, row_id: int) -> bool:
        """Return True if a row is dead-lettered."""

    def acknowledged_through(self) -> dict[Lane, int]:
        """Return the row id of each lane up to which all rows are acknowledged."""

    async def wait_for_rows(self, seen: int) -> int:
        """Wait until ``append_count`` differs from ``seen``; return it."""

    def reads_ahead(self, lane: Lane, give_back: Callable[[], int]) -> None:
        """Register ``give_back``, which is called before an operator drops a lane's rows.

        It returns the last row id that may have left; rows after that are read again, if they still exist.
        """


class BatchStore(Protocol):
    """Part of the store that the reading loop uses."""

    def is_paused(self) -> bool:
        """Return True if the records that may not be dropped have reached the outbox's limit."""

    async def wait_for_room(self) -> None:
        """Wait until the outbox is below its limit again."""

    async def commit(self, batch: BatchCommit) -> None:
        """Commit one batch; raise StoreUnwritable, with nothing changed, if that is impossible now."""

    async def wait_for_uploads(self) -> None:
        """Wait briefly if copies are read faster than they leave."""

    def depths(self) -> dict[Lane, LaneDepth]:
        """Return the depth of each lane."""

    def outbox_counters(self, block: str) -> Counters:
        """Return the counts of a block's compacted and dropped records, by cause."""
