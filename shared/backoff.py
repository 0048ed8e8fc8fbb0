"""Say how soon what has failed is tried again: each time after twice as long, and never in step with others."""

import random


class Backoff:
    """Waits that double from ``first`` to ``longest``, in any unit of time."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def reset(self) -> None:
        """Begin with the first again: it went well."""
        self._next = self._first

    def next(self) -> float:
        """Give the next wait.

        >>> backoff = Backoff(1.0, 5.0)
        >>> [backoff.next() for _ in range(5)]
        [1.0, 2.0, 4.0, 5.0, 5.0]
        """
        wait, self._next = self._next, min(self._next * 2, self._longest)
        return wait


def jitter() -> float:
    """Give a part of a wait, between its half and its whole, so that many agents do not come back in step."""
    return random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
