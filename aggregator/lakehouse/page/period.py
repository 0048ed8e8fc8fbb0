"""Choose the period of a page, and the windows that it is cut into. Pure; microseconds, UTC."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from shared.instants import DAY, HOUR, MINUTE, SECOND, InvalidInstant, format_instant, parse_duration, parse_instant

_LADDER: Final = tuple(
    factor * unit
    for unit, factors in ((SECOND, (1, 2, 5, 10, 15, 30)), (MINUTE, (1, 2, 5, 10, 15, 30)), (HOUR, (1, 3, 6, 12)))
    for factor in factors
)
_WEEK = 7 * DAY
_MONDAY = 4 * DAY
"""1970-01-05: what weeks are counted from."""
MOST_COLUMNS: Final = 36
MOST_HOURS: Final = 48
MOST_DAYS: Final = 45
MOST_WEEKS: Final = 135
_WEEKS: Final = tuple(weeks * _WEEK for weeks in (1, 4, 13, 52))
"""What a step is of a time of years."""
MOST_POINTS: Final = 240
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class Period(NamedTuple):
    """The time a page is about: ``[started_at, ended_at)``, never empty, wholly within known time."""

    started_at: int
    ended_at: int

    @property
    def length(self) -> int:
        return self.ended_at - self.started_at

    def strip_style(self, started_at: int, ended_at: int) -> str:
        """Place ``[started_at, ended_at)`` on a strip that is as wide as the period."""
        left, width = started_at - self.started_at, ended_at - started_at
        return f"left:{left * 100 / self.length:.3f}%;width:{width * 100 / self.length:.3f}%"

    def holds(self, started_at: int, ended_at: int) -> bool:
        """Return True if all of ``[started_at, ended_at)`` lies in it."""
        return self.started_at <= started_at and ended_at <= self.ended_at


class Window(NamedTuple):
    """One window of a grid; ``complete`` where all of it lies in the period."""

    started_at: int
    ended_at: int
    complete: bool


class Grid(NamedTuple):
    """Windows of ``step``, counted from ``origin`` so that hours begin on the hour and weeks on Monday."""

    step: int
    origin: int = 0

    def first(self, period: Period) -> int:
        """Return the start of the first window that the period touches."""
        return period.started_at - (period.started_at - self.origin) % self.step

    def windows(self, period: Period) -> Iterator[Window]:
        """Yield every window that the period touches, in order."""
        for started_at in range(self.first(period), period.ended_at, self.step):
            ended_at = started_at + self.step
            yield Window(started_at, ended_at, period.holds(started_at, ended_at))


def heat_grid(period: Period) -> Grid:
    """Choose the columns of the heat map: hours from 8 to 48 hours on, finer before, days and weeks after.

    Of some years each is four weeks or more.

    >>> heat_grid(Period(0, 95 * SECOND)).step // SECOND, heat_grid(Period(0, DAY)).step // HOUR
    (5, 1)
    """
    if period.length <= MOST_HOURS * HOUR:
        fits = (step for step in _LADDER if period.length <= MOST_COLUMNS * step)
        return Grid(min(next(fits, HOUR), HOUR) if period.length < 8 * HOUR else HOUR)
    if period.length <= MOST_DAYS * DAY:
        return Grid(DAY)
    return Grid(next((step for step in _WEEKS if period.length <= MOST_WEEKS * step), _WEEKS[-1]), _MONDAY)


def curve_grid(period: Period) -> Grid:
    steps = (*_LADDER, DAY, *_WEEKS)
    fitting = next((step for step in steps if period.length <= MOST_POINTS * step), _WEEKS[-1])
    return Grid(fitting, _MONDAY if fitting in _WEEKS else 0)


def choose_period(known: Period, since: str | None, until: str | None) -> Period:
    """Cut known time to the instants asked for; raise InvalidInstant, a text of one line, where nothing is left.

    ``since`` and ``until`` are instants, dates (their midnight) or, for ``since``, a duration before the end.
    """
    ended_at = min(known.ended_at, known.ended_at if until is None else _instant(until))
    started_at = known.started_at
    if since is not None:
        try:
            started_at = max(started_at, ended_at - parse_duration(since))
        except InvalidInstant:
            started_at = max(started_at, _instant(since))
    if started_at >= ended_at:
        first, last = map(format_instant, known)
        raise InvalidInstant(f"nothing is known of that time: known is {first} to {last}")
    return Period(started_at, ended_at)


def _instant(text: str) -> int:
    try:
        return parse_instant(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    except InvalidInstant:
        raise InvalidInstant(
            f"not an instant: {text!r}, write 2026-01-31, 2026-01-31T12:00:00Z or, as a start, 7d"
        ) from None
