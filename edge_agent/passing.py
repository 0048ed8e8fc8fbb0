"""Know what one block has in the passage, and what of it is to be committed now.

A piece is what one draft made: copies, and the state that holds when they are delivered. Pieces build on each other, so
they are committed in their order, several at once where several are delivered; and what is not delivered in time is
stored with the state that it leads to.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.records import OutboxRow
from edge_agent.delivery.fast_path import Passage
from edge_agent.runtime.backoff import loop_time

PATIENCE = 2.0
"""How long the region may take to acknowledge a copy before it is stored, in seconds."""


class Concluded(msgspec.Struct, frozen=True):
    """A state to be committed, with rows that have to be stored with it."""

    state: BlockState
    rows: Sequence[OutboxRow] = ()


class _Piece(msgspec.Struct, frozen=True):
    state: BlockState
    rows: Sequence[OutboxRow]
    through: int
    handed_at: float


class Passing:
    """One block's pieces on their way."""

    def __init__(self, passage: Passage, block: str) -> None:
        self._passage = passage
        self._block = block
        self._pieces: deque[_Piece] = deque()

    @property
    def is_under_way(self) -> bool:
        """Tell whether anything was handed over and is not concluded."""
        return bool(self._pieces)

    @property
    def has_room(self) -> bool:
        """Tell whether more can be handed over before something is concluded."""
        return not (self._pieces and self._passage.is_full)

    def hand_over(self, state: BlockState, rows: Sequence[OutboxRow]) -> bool:
        """Let rows pass that lead to ``state``; False where they have to be stored, behind what is under way."""
        if not self._passage.opens():
            return False
        through = self._passage.hand_over(rows)
        self._pieces.append(_Piece(state, rows, through, loop_time()))
        return True

    def conclude(self) -> Concluded | None:
        """Give what is to be committed now, which is then no longer under way; None where there is nothing."""
        passage, pieces = self._passage, self._pieces
        delivered = passage.acknowledged_through
        concluded = None
        while pieces and pieces[0].through <= delivered:
            concluded = Concluded(pieces.popleft().state)
        if pieces and loop_time() - pieces[0].handed_at >= PATIENCE:
            passage.close()
        if pieces and not passage.is_open:
            rows = [row for piece in pieces for row in piece.rows if row.row_id > delivered]
            concluded = Concluded(pieces[-1].state, rows)
            pieces.clear()
            passage.take_back(self._block)
        return concluded

    async def change(self, within: float) -> None:
        """Wait until there may be something to conclude, for so many seconds at most."""
        await self._passage.change(within)
