"""Let senders live as the nodes of one site of the Grid'5000 trace did, many times as fast, or as a seed draws it.

The trace is not part of Muster (docs/explanation/exactness.md): MUSTER_GRID5000 names the directory that has it.
"""

import lzma
import os
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from edge_agent.simulator.fleet import Lifetime, Span
from edge_agent.simulator.intervals_file import lifetimes
from shared.instants import SECOND

DIRECTORY = Path(os.environ.get("MUSTER_GRID5000", Path(__file__).parents[3] / "shared" / "data" / "grid5000"))
TRACE = DIRECTORY / "event_trace.tab.xz"
BUSIEST_ONE_IN = 20
UP = 120.0
DOWN = (2.0, 1.0)


def drawn_lives(draw: random.Random, count: int, lasts: int, speed: int, outage: int) -> tuple[list[Lifetime], str]:
    """Give the lives of ``count`` senders at most, for ``lasts`` microseconds, and where they come from.

    The trace goes ``speed`` times as fast; drawn is a time in which something failed often, for ``outage`` microseconds
    or longer.
    """
    if not TRACE.exists():
        return _invented(draw, count, lasts), f"drawn lives, since the Grid'5000 trace is not there: {TRACE}"
    sites = _read()
    span, least = lasts * speed // SECOND, outage * speed // SECOND
    instants = [at for nodes in sites.values() for spans in nodes.values() for at in (spans[0][0], spans[-1][1])]
    found = []
    for site, nodes in sorted(sites.items()):
        for begin in range(min(instants), max(instants) - span, span):
            up_count, failing = _business(nodes.values(), (begin, begin + span), least)
            if up_count >= count / 3:
                found.append((failing, site, begin))
    # In most hours of most sites nobody fails.
    _, site, begin = draw.choice(sorted(found)[-max(1, len(found) // BUSIEST_ONE_IN) :])
    nodes = sites[site]
    chosen = {
        name: [(start * SECOND // speed, end * SECOND // speed) for start, end in nodes[name]]
        for name in draw.sample(sorted(nodes), min(count, len(nodes)))
    }
    told = f"Grid'5000, {site}, {span / 3600:.0f} hours from {begin} (Unix seconds) on, {speed} times as fast"
    return lifetimes(chosen, begin * SECOND // speed, lasts), told


def _invented(draw: random.Random, count: int, lasts: int) -> list[Lifetime]:
    found = [Lifetime(sender_id=f"node-{number}", rack=1) for number in range(count)]
    for lifetime in found:
        at = draw.expovariate(1 / UP)
        while at * SECOND < lasts:
            down = draw.lognormvariate(*DOWN)
            lifetime.outages.append((round(at * SECOND), round((at + down) * SECOND)))
            at += down + draw.expovariate(1 / UP)
    return found


def _read() -> dict[str, dict[str, list[Span]]]:
    """Read when each node of each site was up, in order, in seconds."""
    sites: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    with lzma.open(TRACE, "rt", encoding="ascii") as lines:
        next(lines)
        for line in lines:
            _, _, _, _, name, state, begin, end, _ = line.split()
            if state == "1" and end > begin:
                sites[name.split("/")[1]][name].append((int(begin), int(end)))
    return sites


def _business(nodes: Iterable[Sequence[Span]], window: Span, least: int) -> tuple[int, int]:
    """Count the nodes that are up within a window, and the instants at which any failed for as long as ``least``."""
    began_at, ended_at = window
    up_count = 0
    failed_at: set[int] = set()
    for spans in nodes:
        first = bisect_left(spans, began_at, key=lambda span: span[1])
        last = bisect_left(spans, ended_at, key=lambda span: span[0])
        up_count += first < last
        pairs = pairwise(spans[first : last + 1])
        failed_at |= {end for (_, end), (back, _) in pairs if end < ended_at and back - end >= least}
    return up_count, len(failed_at)
