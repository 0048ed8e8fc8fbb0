"""Draw the fleet over time: how many senders were up, down and unknown, stacked, so that nothing is left out.

The picture stretches with the screen, its labels do not: they are text around it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import PageFigures, SenderTimes
from aggregator.lakehouse.page.words import Clock
from shared.instants import DAY, HOUR, MINUTE, SECOND

_WIDTH: Final = 1000
_HEIGHT: Final = 1000
_FEW: Final = 0.4
_MOST_TICKS: Final = 6
_TICK_STEPS: Final = (
    *(unit * factor for unit in (SECOND, MINUTE) for factor in (1, 2, 5, 10, 15, 30)),
    *(HOUR * factor for factor in (1, 2, 3, 6, 12, 24)),
)


class Point(NamedTuple):
    """How many senders were in each state, on average over ``[started_at, ended_at)``."""

    started_at: int
    ended_at: int
    up: float
    down: float
    unknown: float
    maintenance: float


class Plot(NamedTuple):
    """One picture of the points.

    ``bands`` are (state, path that fills its band), ``targets`` (text, left, width), ``ticks`` (label, left, whether
    it stands before its line); left and width are per cent.
    """

    name: str
    title: str
    top: float
    bands: list[tuple[str, str]]
    targets: list[tuple[str, float, float]]
    ticks: list[tuple[str, float, bool]]


def fleet_plots(figures: PageFigures, clock: Clock) -> list[Plot]:
    """Return the picture of the whole fleet, and where few senders were down, one of those drawn larger."""
    points = fleet_points(figures)
    most, most_down = max(sum(point[2:]) for point in points), max(point.down for point in points)
    bands = ["up", "down", "unknown", *(["maintenance"] if any(point.maintenance for point in points) else [])]
    plots = [_plot("fleet", "All senders", points, bands, most, clock)]
    if 0 < most_down < _FEW * most:
        plots.append(_plot("down", "Only those that were down", points, ["down"], most_down, clock))
    return plots


def fleet_points(figures: PageFigures) -> list[Point]:
    """Turn sender time into numbers of senders, window by window."""
    points = []
    for window in figures.curve.windows(figures.period):
        started_at = max(window.started_at, figures.period.started_at)
        ended_at = min(window.ended_at, figures.period.ended_at)
        times = figures.points.get(window.started_at, SenderTimes())
        points.append(Point(started_at, ended_at, *(time / (ended_at - started_at) for time in times)))
    return points


def _plot(name: str, title: str, points: Sequence[Point], bands: Sequence[str], most: float, clock: Clock) -> Plot:
    top = _nice_ceiling(most)
    begin, end = points[0].started_at, points[-1].ended_at
    edges = [0, *((point.ended_at - begin) * _WIDTH // (end - begin) for point in points)]
    below, paths = [0.0] * len(points), []
    for band in bands:
        above = [lower + getattr(point, band) for lower, point in zip(below, points, strict=True)]
        paths.append((band, _area(edges, [_height(up, top) for up in above], [_height(low, top) for low in below])))
        below = above
    spans = zip(points, edges, edges[1:], strict=False)
    targets = [
        (_note(point, clock), left * 100 / _WIDTH, (right - left) * 100 / _WIDTH) for point, left, right in spans
    ]
    return Plot(name, title, top, paths, targets, _ticks(begin, end, clock))


def _area(edges: Sequence[int], above: Sequence[float], below: Sequence[float]) -> str:
    there = "".join(f"V{height}H{right}" for height, right in zip(above, edges[1:], strict=True))
    back = "".join(f"V{height}H{left}" for height, left in zip(reversed(below), reversed(edges[:-1]), strict=True))
    return f"M0 {below[0]}{there}{back}Z"


def _height(senders: float, top: float) -> float:
    return round(_HEIGHT - senders * _HEIGHT / top, 1)


def _note(point: Point, clock: Clock) -> str:
    planned = f", {point.maintenance:,.1f} in maintenance" if point.maintenance else ""
    return (
        f"{clock.instant(point.started_at)} to {clock.instant(point.ended_at)}:"
        f" {point.up:,.1f} up, {point.down:,.1f} down, {point.unknown:,.1f} unknown{planned}"
    )


def _ticks(begin: int, end: int, clock: Clock) -> list[tuple[str, float, bool]]:
    """Label the axis of time at round instants."""
    fits = (step for step in _TICK_STEPS if end - begin <= step * _MOST_TICKS)
    step = next(fits, -(-(end - begin) // (_MOST_TICKS * DAY)) * DAY)
    instants = range(-(-begin // step) * step, end - (end - begin) // 20, step)
    placed = ((clock.tick(at, step), (at - begin) / (end - begin)) for at in instants)
    # On a phone a letter takes a fiftieth of the axis: where the rest is too short, the label stands before its line.
    return [(label, place * 100, len(label) / 50 > 1 - place) for label, place in placed]


def _nice_ceiling(most: float) -> float:
    """Return a round number not below ``most``, so that the labels of an axis are round.

    >>> [_nice_ceiling(most) for most in (600, 23, 3, 0.4)]
    [600, 24, 4, 4]
    """
    power = 1
    while True:
        for factor in (4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 30):
            if factor * power >= most:
                return factor * power
        power *= 10
