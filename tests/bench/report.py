"""Take turns between a measure and its yardstick, and print figures with their ratio."""

import statistics
from collections.abc import Awaitable, Callable

import msgspec

Turn = Callable[[], Awaitable[float]]


class Measure(msgspec.Struct, frozen=True):
    """A rate (per second) or a size, its yardstick measured in the same run, and what both are."""

    what: str
    unit: str
    ours: float
    yardstick: str
    theirs: float


async def in_turns(ours: Turn, theirs: Turn, turns: int) -> tuple[float, float]:
    """Measure both alternately; give the medians."""
    our_figures, their_figures = [], []
    for _ in range(turns):
        our_figures.append(await ours())
        their_figures.append(await theirs())
    return statistics.median(our_figures), statistics.median(their_figures)


def print_measures(name: str, measures: list[Measure]) -> None:
    """Print one table."""
    print(f"\n{name}")
    print(f"  {'measure':58} {'ours':>12} {'yardstick':>12} {'ratio':>7}  unit, yardstick")
    for each in measures:
        ratio = each.ours / each.theirs if each.theirs else float("nan")
        print(f"  {each.what:58} {each.ours:12,.0f} {each.theirs:12,.0f} {ratio:7.2f}  {each.unit}, {each.yardstick}")
