"""Decide how many bytes may be under way: as many as the link carries without making them wait in a queue.

What is sent faster than a thin link carries it waits in buffers, where no advisory can overtake it, and answers come so
late that a living link looks dead. What is sent slower than a long link carries it leaves the link idle. So, as in TCP
Vegas: the limit rises while answers come about as fast as the fastest did, and falls when they take much longer.
"""

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
        """Begin anew, for the link that comes may be another one.

        With less, where something was sent (``is_lost``) and nothing at all was answered: it may take too long.
        """
        is_silent = is_lost and self._fastest == float("inf")
        self._first = max(self._first // 2, min(SMALLEST_FIRST, self._most)) if is_silent else min(FIRST, self._most)
        self.limit = self._first
        self._fastest = float("inf")

    def answered(self, size: int, after: float) -> None:
        """Note that ``size`` bytes were answered ``after`` so long."""
        self._fastest = min(self._fastest, after)
        if after < QUICK + 2 * self._fastest:
            self.limit = min(self.limit + size, self._most)
        elif after > SLOW + 4 * self._fastest:
            self.limit = max(self.limit - size, min(LEAST, self._most, self.limit))
