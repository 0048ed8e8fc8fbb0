"""Flow control of one lane: the rows in flight, the acknowledged ones, and those that may be deleted.

Rows leave in their order. Only the acknowledged prefix may be deleted; after a failure everything after it is sent
again under the same ids. A watermark is a barrier: it leaves only when everything before it is acknowledged.
"""

from collections import OrderedDict
from collections.abc import Iterable


class UploadWindow:
    """The rows of one lane that were sent and are not all acknowledged up to, in the order of their ids."""

    def __init__(self, message_limit: int, byte_limit: int) -> None:
        self._message_limit = message_limit
        self.byte_limit = byte_limit
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._acknowledged: set[int] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def last_row_id(self) -> int:
        """The last row in flight, or 0."""
        return next(reversed(self._sizes), 0)

    def admits(self, size: int, *, is_barrier: bool = False) -> bool:
        """Return True if a row may be sent now. One row is always admitted, however large."""
        if not self._sizes:
            return True
        return not is_barrier and len(self._sizes) < self._message_limit and self._bytes + size <= self.byte_limit

    def add(self, row_id: int, size: int) -> None:
        self._sizes[row_id] = size
        self._bytes += size

    def acknowledge(self, row_id: int) -> int:
        """Note an acknowledgement; give the last row of the acknowledged prefix that it completed, or 0."""
        if row_id not in self._sizes:
            return 0
        self._acknowledged.add(row_id)
        through = 0
        while self._sizes and (first_id := next(iter(self._sizes))) in self._acknowledged:
            through = first_id
            self._acknowledged.remove(first_id)
            self._bytes -= self._sizes.pop(first_id)
        return through

    def is_first(self, row_id: int) -> bool:
        """Return True if everything before a row in flight is acknowledged."""
        return next(iter(self._sizes), 0) == row_id

    def take_back(self, row_ids: Iterable[int]) -> None:
        """Forget rows that were refused, as if they had never been sent; those behind them stay in flight."""
        for row_id in row_ids:
            self._bytes -= self._sizes.pop(row_id, 0)
            self._acknowledged.discard(row_id)

    def rewind(self) -> None:
        """Forget the rows in flight: they will be read and sent again."""
        self._sizes.clear()
        self._acknowledged.clear()
        self._bytes = 0

    def check_invariants(self) -> None:
        """Assert the invariants; for tests."""
        assert self._bytes == sum(self._sizes.values())
        assert self._acknowledged <= self._sizes.keys()
        assert not self._sizes or next(iter(self._sizes)) not in self._acknowledged
        assert list(self._sizes) == sorted(self._sizes)


FIRST = 256 << 10
SMALLEST_FIRST = 2 << 10
LEAST = 32 << 10
MOST = 12 << 20
QUICK = 0.25
SLOW = 1.0


class FlightLimit:
    """The limit in bytes. Durations are in seconds, and measured by others."""

    def __init__(self, most: int = MOST) -> None:
        self._most = max(min(most, MOST), 1)
        self._first = self.limit = min(FIRST, self._most)
        self._fastest = float("inf")

    def restart(self, *, is_lost: bool) -> None:
        """Start again, for the link that comes may be another one.

        With less, where something was sent (``is_lost``) and nothing at all was answered: it may take too long.
        """
        is_silent = is_lost and self._fastest == float("inf")
        self._first = max(self._first // 2, min(SMALLEST_FIRST, self._most)) if is_silent else min(FIRST, self._most)
        self.limit = self._first
        self._fastest = float("inf")

    def note_answer(self, size: int, after: float) -> None:
        """Note that ``size`` bytes were answered ``after`` so long."""
        self._fastest = min(self._fastest, after)
        if after < QUICK + 2 * self._fastest:
            self.limit = min(self.limit + size, self._most)
        elif after > SLOW + 4 * self._fastest:
            self.limit = max(self.limit - size, min(LEAST, self._most, self.limit))
