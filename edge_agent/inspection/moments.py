"""Instants and durations in the form for people. Clocks are read here for people alone."""

import contextlib

from edge_agent.observability.status_board import now
from shared.instants import SECOND, InvalidInstant, format_duration, format_instant, parse_duration, parse_instant


def moment(at: int) -> str:
    """Write an instant to the second, "-" where there was none.

    >>> moment(1769817600999999)
    '2026-01-31T00:00:00Z'
    """
    return format_instant(at - at % SECOND) if at else "-"


def relative(at: int, to: int) -> str:
    """Return how far an instant is before or after another.

    >>> relative(60_000_000, to=125_000_000), relative(125_000_000, to=60_000_000)
    ('1m 5s ago', 'in 1m 5s')
    >>> relative(60_000_000, to=60_022_900)
    'just now'
    """
    distance = to - at
    if abs(distance) < SECOND:
        return "just now"
    return f"{rough(distance)} ago" if distance >= 0 else f"in {rough(-distance)}"


def rough(duration: int) -> str:
    """Write a duration in whole seconds where it is longer than one.

    >>> rough(1_700_000), rough(300_000)
    ('1s', '300ms')
    """
    return format_duration(duration - duration % SECOND if duration >= SECOND else duration)


def since(text: str) -> int:
    """Read an instant, or a duration that ends now (``2026-01-31T00:00:00Z``, ``90s``); raise InvalidInstant."""
    for read in (lambda text: now() - parse_duration(text), parse_instant):
        with contextlib.suppress(InvalidInstant):
            return read(text)
    raise InvalidInstant(f"{text!r} is neither a duration (90s, 1h30m) nor an instant (2026-01-31T00:00:00Z)")
