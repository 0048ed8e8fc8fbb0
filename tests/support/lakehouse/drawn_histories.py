"""Let Hypothesis draw what else a random generator would: histories at the edges, all of a test at once.

Spark takes seconds for one history, and the same for many. So a test has its histories drawn first, without Spark, and
then computes them in one go. The seed is pytest-randomly's, which stands in a run's first lines: ``--randomly-seed=N``.
"""

import random
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Drawn = TypeVar("Drawn")
_CHUNK = st.integers(0, (1 << 16) - 1)
"""Wide enough that few are drawn, and so narrow that Hypothesis draws evenly but for its favourites."""


class HypothesisRandom(random.Random):
    """Random choices that Hypothesis makes. (Its own ``randoms()`` prefers small numbers: lives of microseconds.)"""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__(0)
        self._draw = draw

    def random(self) -> float:
        """Give a number in [0, 1)."""
        chunk: int = self._draw(_CHUNK)
        return chunk / (1 << 16)

    def getrandbits(self, k: int, /) -> int:
        """Give ``k`` random bits."""
        bits = 0
        for _ in range(0, k, 16):
            bits = bits << 16 | self._draw(_CHUNK)
        return bits >> -k % 16


def drawn(count: int, make: Callable[[random.Random, int], Drawn]) -> list[Drawn]:
    """Have Hypothesis draw up to ``count`` examples of what ``make`` makes of a generator and the example's number."""
    found: list[Drawn] = []

    @seed(random.getrandbits(64))
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_generators())
    def collect(generator: random.Random) -> None:
        found.append(make(generator, len(found)))

    collect()
    return found


@st.composite
def _generators(draw: st.DrawFn) -> random.Random:
    return HypothesisRandom(draw)
