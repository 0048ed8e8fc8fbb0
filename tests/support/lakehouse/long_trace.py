"""Draw a long thin history, of the shape of traces that computing centres publish: few events in many years."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from aggregator.lakehouse.imports.mapping import Mapping
from shared.instants import DAY, HOUR, SECOND, parse_instant

BEGIN = parse_instant("1996-01-01T00:00:00Z") // SECOND
MAPPING = Mapping(
    source="centre",
    sender=("node",),
    start="begin",
    stop="end",
    state="state",
    shape="{region}/{site}/{}",
)
_MEAN_OUTAGE = 4 * HOUR / SECOND


def write_trace(
    path: Path, seed: int, intervals: int = 43_325, nodes: int = 3_577, sites: int = 12, days: int = 3_650
) -> None:
    """Write as many intervals of as many nodes as ``MAPPING`` reads them; sites come and go in the time of ``days``."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        file.write("node,state,begin,end\n")
        for node, state, begin, end in _intervals(draw, intervals, nodes, sites, days):
            file.write(f"centre/site{node % sites}/n{node},{state},{begin},{end}\n")


def _intervals(
    draw: random.Random, intervals: int, nodes: int, sites: int, days: int
) -> Iterator[tuple[int, str, int, int]]:
    """Give (node, state, begin, end: seconds): up and down by turns, without gaps."""
    whole = days * DAY // SECOND
    lives = []
    for site in range(sites):
        # The first is there throughout: the trace is as long as it says.
        born, died = sorted(draw.randrange(whole) for _ in range(2)) if site else (0, whole)
        lives.append((BEGIN + born // 2, BEGIN + (whole + died) // 2))
    weights = [draw.paretovariate(1.5) for _ in range(nodes)]
    beyond_one = Counter(draw.choices(range(nodes), weights, k=intervals - nodes))
    for node in range(nodes):
        born, died = lives[node % sites]
        count = 1 + beyond_one[node]
        # Two seconds apart at least: an outage has room before the next.
        failures = sorted(draw.sample(range(born + 1, died - 1, 2), count // 2))
        begin = born
        for failed, next_failed in pairwise([*failures, died]):
            back = min(failed + 1 + int(draw.expovariate(1 / _MEAN_OUTAGE)), next_failed - 1)
            if next_failed == died and count % 2 == 0:
                back = died
            yield node, "up", begin, failed
            yield node, "down", failed, back
            begin = back
        if count % 2:
            yield node, "up", begin, died
