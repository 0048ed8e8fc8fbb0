"""Bounds of the instants that a record may claim, and the rule that moves them. Nothing here needs Spark.

A record has one main instant (``at_us`` of an advisory, ``observed_through_us`` of a watermark) and others that the
same clock wrote: a last sighting, the start of observation, the end of being unheard. The hub stored the record at an
instant of its own clock, so the main instant is believed no later than that. All others move back by the same amount,
up to ``LEAD``: a clock that is ahead by a constant then changes no duration.
"""

from collections.abc import Callable
from typing import Any, Protocol, Self, TypeVar

from shared.instants import DAY, HOUR, MINUTE

REACH = 5 * 365 * DAY
"""So long before the hub stored it may be what a record tells of: no link is cut for as long, and no store keeps as
much."""

LOOK_BACK = 400 * DAY
"""So long before its own instant may lie a last sighting, or since when an agent observed: else one body would make
every table as long as its claim."""

UNSUPPORTED = 30 * DAY
"""The same of the first word of a sender, where nothing else tells that it lived before."""

_N = TypeVar("_N", bound="_Number")

SKEW = MINUTE
"""Clocks of sites and of the hub differ by less; what claims more beyond the hub's time has no place in it."""

LEAD = HOUR
"""A clock ahead of the hub's by less is taken to have been so for long. Agents follow no clock further by default
(``max_clock_ahead``); a claim of more shows a clock that was set, and says nothing of the instants before that."""


class _Number(Protocol):
    """An int, or a column of them."""

    def __sub__(self, other: Any, /) -> Self: ...


def believed_lead(claimed_at: int, believed_at: int) -> int:
    """Return the amount by which the instants of a record move back with its main instant."""
    lead = claimed_at - believed_at
    return lead if lead <= LEAD else 0


def believed_earlier(
    earlier: _N,
    believed_at: _N,
    lead: _N,
    created_at: _N,
    least: Callable[..., _N] = min,
    most: Callable[..., _N] = max,
) -> _N:
    """Return the believed instant of ``earlier``, which a record claims next to its main instant.

    ``created_at`` is the creation of the stream unless the record claims to be older; ``least`` and ``most`` return
    the least and the greatest of their arguments.
    """
    return least(most(earlier - lead, created_at - lead, believed_at - LOOK_BACK), believed_at)
