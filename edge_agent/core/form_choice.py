"""Decide in which form many copies leave: as atomic batches, or as chains.

A server writes a batch twice, and a chain's rows once; but where it writes to disk before it answers, it does so four
times for a batch, and for every row of a chain. Which is the case nobody says, so both are measured, now and then.
Small rows take about as long either way. A chain that broke, because somebody else wrote to the stream, has cost much:
the next one follows later each time.
"""

from edge_agent.delivery.shipment import Form

LARGE_ROW = 4 << 10
MEASURED = 8
MEASURED_AGAIN_AFTER = 128
FIRST_PAUSE = 16
LONGEST_PAUSE = 1024
_KEPT = 0.75
"""What earlier shipments count for beside the next one."""


class _Speed:
    """How fast one form was lately."""

    def __init__(self) -> None:
        self.count = 0
        self._size = self._seconds = 0.0

    def take(self, size: int, seconds: float) -> None:
        """Take one shipment."""
        # Sums, because two answers that are read at once say little each, and together the truth.
        self.count += 1
        self._size = self._size * _KEPT + size
        self._seconds = self._seconds * _KEPT + seconds

    @property
    def bytes_per_second(self) -> float:
        """Give it, 0 where nothing was taken."""
        return self._size / max(self._seconds, 1e-6)


class FormChoice:
    """The choice, for one connection. Sizes are in bytes, durations in seconds."""

    def __init__(self) -> None:
        self._batches, self._chains = _Speed(), _Speed()
        self._unmeasured = 0
        self._pause = FIRST_PAUSE
        self._paused_for = 0

    def of(self, row_size: int) -> Form:
        """Choose for rows of about a size."""
        if row_size < LARGE_ROW or self._paused_for or self._batches.count < MEASURED:
            return Form.BATCH
        if self._chains.count < MEASURED:
            return Form.CHAIN
        chains_are_faster = self._chains.bytes_per_second > self._batches.bytes_per_second
        if self._unmeasured >= MEASURED_AGAIN_AFTER:
            chains_are_faster = not chains_are_faster
        return Form.CHAIN if chains_are_faster else Form.BATCH

    def stored(self, form: Form, size: int, seconds: float) -> None:
        """Note that ``size`` bytes were stored, ``seconds`` after they had left or those before them were."""
        chains_were_faster = self._chains.bytes_per_second > self._batches.bytes_per_second
        self._unmeasured = self._unmeasured + 1 if (form is Form.CHAIN) == chains_were_faster else 0
        self._paused_for = max(self._paused_for - 1, 0)
        if form is Form.CHAIN:
            self._chains.take(size, seconds)
            self._pause = max(self._pause // 2, FIRST_PAUSE)
        else:
            self._batches.take(size, seconds)

    def broke(self) -> None:
        """Note that a chain was not stored whole."""
        self._paused_for = self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
