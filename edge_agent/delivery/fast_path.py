"""Fast path: send copies without writing them to the outbox while the link is up.

A copy in the store must not be overtaken, and a row on the fast path is in memory only. So:

1. The fast path takes rows while it is open and no copy waits in the store. It opens when, in addition, the link is up.
   A block asks each time, after its own commit: the fast path may have been opened for another block, which could not
   see the rows that this commit brought into the store.
2. A block commits the position of the rows that it handed over when they are acknowledged. When the fast path has
   closed, the block takes the rest back and stores them, in their order, behind everything else.
3. The fast path closes when the link fails, when a row is refused, or when a block has waited for too long. Nothing
   leaves a closed fast path, and it stays closed until every row in it was taken back.

A row that was taken back may still have reached the region: its message id shows that, as after every lost answer.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.records import Lane, OutboxRow, TooLarge
from edge_agent.runtime.pace import loop_time
from edge_agent.store.port import EVERYTHING
from shared.tasks import wait_for_event

ROOM = 8 << 20


class FastPath:
    """The copies of all blocks on the fast path; an outbox for the lane that delivers them.

    ``copies_wait`` returns True while the store holds copies that the region has not acknowledged.
    """

    def __init__(self, copies_wait: Callable[[], bool]) -> None:
        self._copies_wait = copies_wait
        self._wake: Callable[[], None] = _wake_no_lane
        self._rows: deque[OutboxRow] = deque()
        self._size = 0
        self._last_row_id = 0
        self._is_linked = False
        self._is_barred = False
        self.is_open = False
        """Whether rows that were handed over may still leave."""
        self._changed = asyncio.Event()
        self.acknowledged_through = 0
        self.append_count = 0
        self.closed_count = 0

    # For reading loops

    def try_open(self) -> bool:
        """Open if permitted, and return True if rows are taken; call it with no own commit open."""
        if self._is_barred or self._copies_wait():
            return False
        if not self.is_open and self._is_linked and not self._rows:
            self.is_open = True
            # What came before was acknowledged or taken back.
            self.acknowledged_through = self._last_row_id
        return self.is_open

    @property
    def is_full(self) -> bool:
        return self._size >= ROOM

    def hand_over(self, rows: Sequence[OutboxRow]) -> int:
        """Append rows; give the last one's id on the fast path."""
        assert self.is_open, "a closed fast path takes no rows"
        for row_id, row in enumerate(rows, self._last_row_id + 1):
            msgspec.structs.force_setattr(row, "row_id", row_id)
            self._size += row.size
        self._last_row_id += len(rows)
        self._rows.extend(rows)
        self.append_count += 1
        self._wake()
        return self._last_row_id

    def take_back(self, block: str) -> None:
        """Remove a block's rows, which are being stored."""
        assert not self.is_open, "what is taken back must no longer leave"
        self._rows = deque(row for row in self._rows if row.block != block)
        self._size = sum(row.size for row in self._rows)
        self._changed.set()

    async def change(self, within: float) -> None:
        """Wait until rows were acknowledged or taken back, or the path closed, for at most ``within`` seconds."""
        self._changed.clear()
        await wait_for_event(self._changed, within)

    def close(self) -> None:
        """Close until every row was taken back: nothing leaves meanwhile."""
        if self.is_open:
            self.is_open = False
            self.closed_count += 1
            self._changed.set()

    @contextlib.contextmanager
    def hold_closed(self) -> Iterator[None]:
        """Stay closed within the block: copies come into the store that no reading loop commits."""
        self._is_barred = True
        self.close()
        try:
            yield
        finally:
            self._is_barred = False

    async def wait_until_empty(self, within: float) -> bool:
        """Wait until every row of a closed fast path was acknowledged or taken back; False if that takes longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._rows:
                    self._changed.clear()
                    await self._changed.wait()
        return not self._rows

    # For the uploader

    def link_is_up(self, wake: Callable[[], None]) -> None:
        """Allow opening; ``wake`` is called when rows are handed over."""
        self._is_linked, self._wake = True, wake

    def link_is_down(self) -> None:
        """Close, and stay closed."""
        self._is_linked = False
        self.close()

    # As an outbox

    def at_hand(self, _lane: Lane, after_row_id: int, row_limit: int) -> list[OutboxRow]:
        """Return the rows after one, in order; none if the path is closed."""
        if not self.is_open or not self._rows:
            return []
        known = max(after_row_id - self._rows[0].row_id + 1, 0)
        return list(islice(self._rows, known, known + row_limit))

    async def pending(
        self, lane: Lane, after_row_id: int, row_limit: int, _byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        return self.at_hand(lane, after_row_id, row_limit)

    def delete_through(self, _lane: Lane, row_id: int) -> None:
        while self._rows and self._rows[0].row_id <= row_id:
            self._size -= self._rows.popleft().size
        self.acknowledged_through = max(self.acknowledged_through, row_id)
        self._changed.set()

    def is_filling(self) -> bool:
        """Return False: reading waits for the rows on this path."""
        return False

    def release(self, _lane: Lane) -> None:
        """Do nothing: rows on the fast path are never replaced."""

    async def set_apart(self, _rows: Sequence[tuple[OutboxRow, TooLarge]]) -> None:
        """Fail: a row that the target cannot take closes the fast path, and is stored first."""
        raise AssertionError("nothing is set apart here")


def _wake_no_lane() -> None:
    """Wake no lane: there is no link."""


PATIENCE = 2.0
"""How long the region may take to acknowledge a copy before it is stored, in seconds."""


class DeliveredCopies(msgspec.Struct, frozen=True):
    """A state to be committed, with the rows that were not delivered and have to be stored with it."""

    state: BlockState
    rows: Sequence[OutboxRow] = ()


class _Piece(msgspec.Struct, frozen=True):
    state: BlockState
    rows: Sequence[OutboxRow]
    through: int
    handed_at: float


class BlockFastPath:
    """One block's pieces on their way."""

    def __init__(self, fast_path: FastPath, block: str) -> None:
        self._fast_path = fast_path
        self._block = block
        self._pieces: deque[_Piece] = deque()

    @property
    def is_under_way(self) -> bool:
        """True if rows were handed over and are not concluded."""
        return bool(self._pieces)

    @property
    def has_room(self) -> bool:
        """True if more rows can be handed over before any are concluded."""
        return not (self._pieces and self._fast_path.is_full)

    def hand_over(self, state: BlockState, rows: Sequence[OutboxRow]) -> bool:
        """Hand over rows that lead to ``state``; return False if they must be stored, after those under way."""
        if not self._fast_path.try_open():
            return False
        through = self._fast_path.hand_over(rows)
        self._pieces.append(_Piece(state, rows, through, loop_time()))
        return True

    def conclude(self) -> DeliveredCopies | None:
        """Return the state and rows to commit now, which are then no longer under way; None if there are none."""
        fast_path, pieces = self._fast_path, self._pieces
        delivered = fast_path.acknowledged_through
        concluded = None
        while pieces and pieces[0].through <= delivered:
            concluded = DeliveredCopies(pieces.popleft().state)
        if pieces and loop_time() - pieces[0].handed_at >= PATIENCE:
            fast_path.close()
        if pieces and not fast_path.is_open:
            rows = [row for piece in pieces for row in piece.rows if row.row_id > delivered]
            concluded = DeliveredCopies(pieces[-1].state, rows)
            pieces.clear()
            fast_path.take_back(self._block)
        return concluded

    async def change(self, within: float) -> None:
        """Wait until there may be something to conclude, for at most ``within`` seconds."""
        await self._fast_path.change(within)
