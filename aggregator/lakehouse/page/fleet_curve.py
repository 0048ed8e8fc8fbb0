"""Draw the fleet over time: how many senders were up, down and unknown, stacked, so that nothing is left out.

The picture stretches with the screen, its labels do not: they are text beside it.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import Figures, SenderTimes
from aggregator.lakehouse.page.markup import Html, element
from aggregator.lakehouse.page.tables import Field, data_table, folded, section
from aggregator.lakehouse.page.words import Clock, step_name
from shared.instants import DAY, HOUR, MINUTE, SECOND

_WIDTH: Final = 1000
_HEIGHT: Final = 1000
_FEW: Final = 0.4
_MOST_TICKS: Final = 6
_TICK_STEPS: Final = tuple(
    unit * factor
    for unit, factors in (
        (SECOND, (1, 2, 5, 10, 15, 30)),
        (MINUTE, (1, 2, 5, 10, 15, 30)),
        (HOUR, (1, 2, 3, 6, 12, 24)),
    )
    for factor in factors
)


class Point(NamedTuple):
    """How many senders were in each state, on average over ``[started_at, ended_at)``."""

    started_at: int
    ended_at: int
    up: float
    down: float
    unknown: float
    maintenance: float


Band = tuple[str, Callable[[Point], float]]
_UP: Final[Band] = ("up", lambda point: point.up)
_DOWN: Final[Band] = ("down", lambda point: point.down)
_UNKNOWN: Final[Band] = ("unknown", lambda point: point.unknown)
_MAINTENANCE: Final[Band] = ("maintenance", lambda point: point.maintenance)


def fleet_curve_section(figures: Figures, clock: Clock) -> Html:
    """Write the section: the whole fleet, those that were down drawn larger, and the table behind both."""
    points = fleet_points(figures)
    most = max((point.up + point.down + point.unknown + point.maintenance for point in points), default=0)
    was_planned = any(point.maintenance for point in points)
    bands = (_UP, _DOWN, _UNKNOWN, *((_MAINTENANCE,) if was_planned else ()))
    most_down = max((point.down for point in points), default=0)
    plots = [_plot("fleet", "All senders", points, bands, most, clock)]
    if 0 < most_down < _FEW * most:
        plots.append(_plot("down", "Only those that were down", points, (_DOWN,), most_down, clock))
    columns = [
        Field[Point]("from (UTC)", lambda point: clock.time(point.started_at), lambda point: point.started_at),
        Field[Point]("up", lambda point: f"{point.up:,.1f}", number=True),
        Field[Point]("down", lambda point: f"{point.down:,.1f}", number=True),
        Field[Point]("unknown", lambda point: f"{point.unknown:,.1f}", number=True),
    ]
    if was_planned:
        columns.append(Field[Point]("maintenance", lambda point: f"{point.maintenance:,.1f}", number=True))
    return section(
        "curve",
        "The fleet over time",
        f"How many senders were up, down and unknown, on average over each {step_name(figures.curve.step)}.",
        _legend(bands),
        *plots,
        folded("The table behind these curves", data_table(columns, points)),
    )


def fleet_points(figures: Figures) -> list[Point]:
    """Turn sender time into numbers of senders, window by window."""
    points = []
    for window in figures.curve.windows(figures.period):
        started_at = max(window.started_at, figures.period.started_at)
        ended_at = min(window.ended_at, figures.period.ended_at)
        times = figures.points.get(window.started_at, SenderTimes())
        points.append(Point(started_at, ended_at, *(time / (ended_at - started_at) for time in times)))
    return points


def _legend(bands: Sequence[Band]) -> Html:
    names = {"unknown": "unknown: nobody watched", "maintenance": "maintenance: it was planned"}
    return element(
        "ul",
        *(element("li", element("span", class_=f"swatch band-{band}"), names.get(band, band)) for band, _ in bands),
        class_="legend",
    )


def _plot(name: str, title: str, points: Sequence[Point], bands: Sequence[Band], most: float, clock: Clock) -> Html:
    top = _nice_ceiling(most)
    begin, end = points[0].started_at, points[-1].ended_at
    edges = [0, *((point.ended_at - begin) * _WIDTH // (end - begin) for point in points)]
    below = [0.0] * len(points)
    shapes: list[Html] = []
    for band, value in bands:
        above = [lower + value(point) for lower, point in zip(below, points, strict=True)]
        shapes += _area(
            f"{name}-{band}",
            f"band-{band}",
            edges,
            [_height(up, top) for up in above],
            [_height(low, top) for low in below],
        )
        below = above
    lines = [
        element("line", x1=0, x2="100%", y1=f"{quarter}%", y2=f"{quarter}%", class_="grid")
        for quarter in range(0, 101, 25)
    ]
    targets = [_target(point, left, right, clock) for point, left, right in zip(points, edges, edges[1:], strict=False)]
    label = f"{title}: the figures are in the table below"
    heights = (element("span", f"{top * part / 2:,.4g}", style=f"top:{100 - 50 * part}%") for part in range(3))
    return element(
        "figure",
        element("figcaption", title),
        element("div", *heights, class_="heights", aria_hidden="true"),
        element("div", element("svg", *shapes, *lines, *targets, role="img", aria_label=label), class_="picture"),
        element("div", *_ticks(begin, end, clock), class_="ticks", aria_hidden="true"),
    )


def _area(
    name: str, class_: str, edges: Sequence[int], above: Sequence[float], below: Sequence[float]
) -> tuple[Html, Html]:
    """Fill what lies between two stepped lines.

    Only the outline stretches with the picture: a pattern that did would be no hatching any more on a narrow screen.
    """
    there = "".join(f"V{height}H{right}" for height, right in zip(above, edges[1:], strict=True))
    back = "".join(f"V{height}H{left}" for height, left in zip(reversed(below), reversed(edges[:-1]), strict=True))
    outline = element("path", d=f"M0 {below[0]}{there}{back}Z", transform=f"scale({1 / _WIDTH} {1 / _HEIGHT})")
    return (
        element("clipPath", outline, id=name, clipPathUnits="objectBoundingBox"),
        element("rect", width="100%", height="100%", class_=class_, clip_path=f"url(#{name})"),
    )


def _height(senders: float, top: float) -> float:
    return round(_HEIGHT - senders * _HEIGHT / top, 1)


def _target(point: Point, left: int, right: int, clock: Clock) -> Html:
    told = (
        f"{clock.instant(point.started_at)} to {clock.instant(point.ended_at)}:"
        f" {point.up:,.1f} up, {point.down:,.1f} down, {point.unknown:,.1f} unknown"
        + (f", {point.maintenance:,.1f} in maintenance" if point.maintenance else "")
    )
    x, width = f"{left * 100 / _WIDTH}%", f"{(right - left) * 100 / _WIDTH:.2f}%"
    return element("rect", element("title", told), x=x, width=width, height="100%", class_="target")


def _ticks(begin: int, end: int, clock: Clock) -> list[Html]:
    """Label the axis of time at round instants."""
    fits = (step for step in _TICK_STEPS if end - begin <= step * _MOST_TICKS)
    step = next(fits, -(-(end - begin) // (_MOST_TICKS * DAY)) * DAY)
    first = -(-begin // step) * step
    return [
        _tick(clock.tick(at, step), (at - begin) / (end - begin))
        for at in range(first, end - (end - begin) // 20, step)
    ]


def _tick(label: str, place: float) -> Html:
    # On a phone a letter takes a fiftieth of the axis: where the rest is too short, the label stands before its line.
    fits = len(label) / 50 <= 1 - place
    return element("span", label, class_=None if fits else "before", style=f"left:{place * 100:.2f}%")


def _nice_ceiling(most: float) -> float:
    """Give a round number not below ``most``, so that the labels of an axis are round.

    >>> [_nice_ceiling(most) for most in (600, 23, 3, 0.4)]
    [600, 24, 4, 4]
    """
    power = 1
    while True:
        for factor in (4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 30):
            if factor * power >= most:
                return factor * power
        power *= 10
