"""Let copies pass the store by: hold them in memory while they are on their way to the region.

What was stored before must not be overtaken, and what is held here is known to nobody else. So:

1. The fast path takes rows while it is open and no copy waits in the store; it opens when, besides, the link is up. Who
   hands over asks each time, after the end of its own commit: it may be open already, for another block that could not
   see what that commit brought into the store.
2. Who handed rows over commits how far it has read when they are acknowledged, or takes them back and stores them, in
   their order, behind everything else. It does the latter when the fast path has closed.
3. It closes when the link fails, when a row is refused, or when who handed rows over has waited for too long. Nothing
   leaves a closed fast path, and it stays closed until every row in it was taken back.

A row that was taken back may have reached the region all the same: its message id tells, as after every lost answer.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.records import Lane, OutboxRow, TooLarge
from edge_agent.runtime.backoff import loop_time
from edge_agent.store.port import EVERYTHING

ROOM = 8 << 20


class FastPath:
    """The rows of all blocks that copy, an outbox to the lane that delivers them.

    ``copies_wait`` tells whether the store holds copies that the region has not acknowledged.
    """

    def __init__(self, copies_wait: Callable[[], bool]) -> None:
        self._copies_wait = copies_wait
        self._wake: Callable[[], None] = _nobody
        self._rows: deque[OutboxRow] = deque()
        self._size = 0
        self._last_row_id = 0
        self._is_linked = False
        self._is_open = self._is_barred = False
        self._changed, self._emptied = asyncio.Event(), asyncio.Event()
        self.acknowledged_through = 0
        self.append_count = 0
        self.closed_count = 0

    # For who hands over

    def try_open(self) -> bool:
        """Tell whether the fast path takes rows, opening it where it may be; ask when no own commit is under way."""
        if self._is_barred or self._copies_wait():
            return False
        if not self._is_open and self._is_linked and not self._rows:
            self._is_open = True
            # What came before was acknowledged or taken back.
            self.acknowledged_through = self._last_row_id
        return self._is_open

    @property
    def is_open(self) -> bool:
        """Tell whether what was handed over is still on its way."""
        return self._is_open

    @property
    def is_full(self) -> bool:
        """Tell whether so much is on its way that more would only wait."""
        return self._size >= ROOM

    def hand_over(self, rows: Sequence[OutboxRow]) -> int:
        """Take rows, behind all others, and give the last one's id here."""
        assert self._is_open, "nothing passes a closed passage"
        for row_id, row in enumerate(rows, self._last_row_id + 1):
            msgspec.structs.force_setattr(row, "row_id", row_id)
            self._size += row.size
        self._last_row_id += len(rows)
        self._rows.extend(rows)
        self.append_count += 1
        self._wake()
        return self._last_row_id

    def take_back(self, block: str) -> None:
        """Let go of a block's rows: they are being stored."""
        assert not self._is_open, "what is taken back must no longer leave"
        self._rows = deque(row for row in self._rows if row.block != block)
        self._size = sum(row.size for row in self._rows)
        self._emptied.set()

    async def change(self, within: float) -> None:
        """Wait until something was acknowledged or the fast path closed, for so many seconds at most."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.wait()

    def close(self) -> None:
        """Let nothing more leave until every row was taken back."""
        if self._is_open:
            self._is_open = False
            self.closed_count += 1
            self._changed.set()

    @contextlib.contextmanager
    def hold_closed(self) -> Iterator[None]:
        """Close, and stay closed for a while: copies come into the store that no ingest commits."""
        self._is_barred = True
        self.close()
        try:
            yield
        finally:
            self._is_barred = False

    async def wait_until_empty(self, within: float) -> bool:
        """Wait until every row of a closed fast path was taken back; False if that takes longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._rows:
                    self._emptied.clear()
                    await self._emptied.wait()
        return not self._rows

    # For the uploader

    def link_is_up(self, wake: Callable[[], None]) -> None:
        """Let rows be handed over; ``wake`` is called when there are some."""
        self._is_linked, self._wake = True, wake

    def link_is_down(self) -> None:
        """Close, and stay closed."""
        self._is_linked = False
        self.close()

    # As an outbox

    def at_hand(self, _lane: Lane, after_row_id: int, row_limit: int) -> list[OutboxRow]:
        """Give the rows after one, in order; none of a closed fast path."""
        if not self._is_open or not self._rows:
            return []
        known = max(after_row_id - self._rows[0].row_id + 1, 0)
        return list(islice(self._rows, known, known + row_limit))

    async def pending(
        self, lane: Lane, after_row_id: int, row_limit: int, _byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        """Give the same."""
        return self.at_hand(lane, after_row_id, row_limit)

    def delete_through(self, _lane: Lane, row_id: int) -> None:
        """Let rows go that were acknowledged."""
        while self._rows and self._rows[0].row_id <= row_id:
            self._size -= self._rows.popleft().size
        self.acknowledged_through = max(self.acknowledged_through, row_id)
        self._changed.set()

    def is_filling(self) -> bool:
        """Say no: reading waits for what is on its way here."""
        return False

    def release(self, _lane: Lane) -> None:
        """Do nothing: no row here is replaced, in flight or not."""

    async def set_apart(self, _rows: Sequence[tuple[OutboxRow, TooLarge]]) -> None:
        """Refuse: what a target cannot take is stored first."""
        raise AssertionError("nothing is set apart here")


def _nobody() -> None:
    """Wake nobody: there is no link."""


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
        """Tell whether anything was handed over and is not concluded."""
        return bool(self._pieces)

    @property
    def has_room(self) -> bool:
        """Tell whether more can be handed over before something is concluded."""
        return not (self._pieces and self._fast_path.is_full)

    def hand_over(self, state: BlockState, rows: Sequence[OutboxRow]) -> bool:
        """Let rows pass that lead to ``state``; False where they have to be stored, behind what is under way."""
        if not self._fast_path.try_open():
            return False
        through = self._fast_path.hand_over(rows)
        self._pieces.append(_Piece(state, rows, through, loop_time()))
        return True

    def conclude(self) -> DeliveredCopies | None:
        """Give what is to be committed now, which is then no longer under way; None where there is nothing."""
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
        """Wait until there may be something to conclude, for so many seconds at most."""
        await self._fast_path.change(within)
