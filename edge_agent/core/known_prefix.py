"""Find out how many of the first waiting rows are known elsewhere, by as few questions as it takes.

Rows are known from the first one on, without a hole: whoever knows one knows all before it. So look further and further
ahead until one is not known, then halve what lies between. That nothing is known takes one question.
"""

STRIDE = 4


class KnownPrefix:
    """The search among ``count`` rows; ``known`` of them are known for certain."""

    def __init__(self, count: int) -> None:
        self.known = 0
        self._unknown_from = count
        self._is_bounded = False
        self._step = 1

    @property
    def question(self) -> int | None:
        """Give the place of the row to be asked for next; None when all is said."""
        if self.known == self._unknown_from:
            return None
        if self._is_bounded:
            return (self.known + self._unknown_from) // 2
        return min(self.known + self._step, self._unknown_from) - 1

    def learn(self, place: int, *, is_known: bool) -> None:
        """Take an answer."""
        if is_known:
            self.known = max(self.known, place + 1)
            self._step *= STRIDE
        else:
            self._unknown_from, self._is_bounded = place, True

    @property
    def has_met_unknown(self) -> bool:
        """Tell whether a row was asked for that is not known."""
        return self._is_bounded
