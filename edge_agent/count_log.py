"""Decide when a counter of something unwanted becomes a line of the log: at its first step, then ever more rarely.

What was lost, refused, or not seen is counted by the block; a person who reads the log must meet it there too, but not
in a line for each. Pure: instants are given, in microseconds.
"""

from collections.abc import Iterator, Mapping

import msgspec

from edge_agent.core.block_state import Counters
from edge_agent.core.decisions import BlindCause
from edge_agent.observability.fault_log import FIRST_QUIET, LONGEST_QUIET

WATCHED = ("dropped", "set_apart", "rejected", "blind", "clamped")
SAID_WHEN_IT_BEGINS = {"blind": set(BlindCause) - {BlindCause.UNPROVEN, BlindCause.GAP}}
"""Of these a condition, or a line of its own, tells with the cause, before they are counted."""


class CountLine(msgspec.Struct, frozen=True):
    """One line: what a block has counted since the last one, by cause."""

    block: str
    what: str
    text: str


class _Told(msgspec.Struct):
    counts: dict[str, int]
    quiet: int = 0
    quiet_until: int = 0


class CountLog:
    """What each block had counted when it was last told. What stood there at the start was told by another run."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], _Told] = {}
        self._known: set[str] = set()

    def take(self, at: int, counters: Mapping[str, Counters]) -> Iterator[CountLine]:
        """Compare with what was told; give the lines that are due."""
        for block, counted in counters.items():
            for what in WATCHED:
                counts = counted.get(what, {})
                if block not in self._known:
                    self._told[block, what] = _Told(dict(counts))
                elif at >= self._told[block, what].quiet_until:
                    yield from self._compare(at, block, what, counts)
            self._known.add(block)

    def _compare(self, at: int, block: str, what: str, counts: Mapping[str, int]) -> Iterator[CountLine]:
        told = self._told[block, what]
        unsaid = counts.keys() - SAID_WHEN_IT_BEGINS.get(what, set())
        more = {cause: counts[cause] - told.counts.get(cause, 0) for cause in sorted(unsaid)}
        said = ", ".join(f"{_named(what, cause)} {count:,}" for cause, count in more.items() if count > 0)
        if not said:
            told.quiet = 0
            return
        told.counts = dict(counts)
        told.quiet = min(told.quiet * 2 or FIRST_QUIET, LONGEST_QUIET)
        told.quiet_until = at + told.quiet
        yield CountLine(block, what, f"stream {block}: {what}: {said}; in all {sum(counts.values()):,}")


def _named(what: str, cause: str) -> str:
    return f"{cause} ({BlindCause(cause).meaning})" if what == "blind" and cause in set(BlindCause) else cause
