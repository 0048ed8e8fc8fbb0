"""Draw the heat map: sites, or other groups of senders, by hour.

By less where the period is short, by day or week where it is long. A map is a table: every cell has its figure, the
darkness of its colour is its badness, and what was not watched is hatched, so that it reads aloud, in black and white
and on paper.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import Cell, Group, PageFigures, SenderTimes
from aggregator.lakehouse.page.period import Window
from aggregator.lakehouse.page.words import NOTHING, Clock, count, duration, figure, percent, rest, step_name
from shared.instants import DAY, HOUR

_MOST_HOUR_CELLS: Final = 8_000
_MOST_ROWS: Final = 2_000
_MOST_EVENTFUL_ROWS: Final = 2_000
_MOST_OPEN_DAYS: Final = 31
_SHADES: Final = (("100", 1000), ("≥ 99.9", 999), ("≥ 99", 990), ("≥ 95", 950), ("≥ 80", 800), ("≥ 50", 500))
"""What the colours mean, in per cent and per mille, but for the last, which is anything less."""


class Drawn(NamedTuple):
    """One cell as it is drawn; without ``note`` there were no senders. ``unknown`` is the height of its hatched bar."""

    class_: str = ""
    note: str = ""
    figure: str = ""
    unknown: int = 0


class HeatRow(NamedTuple):
    """One row: its title, a note in small letters below it, its cells, and the figure of all of them together."""

    title: str
    note: str
    cells: list[Drawn]
    total: str


class Hours(NamedTuple):
    """The hours of one group, a row for each day, and the cells behind them."""

    title: str
    rows: list[HeatRow]
    cells: list[Cell]
    is_open: bool


class HeatMap:
    """The map of a period, the maps of its hours where it is coarser, and the cells of the table behind it."""

    def __init__(self, figures: PageFigures, clock: Clock) -> None:
        self._figures, self._clock = figures, clock
        step = figures.heat.step
        windows, times = list(figures.heat.windows(figures.period)), by_group(figures.cells)
        self.step, self.is_unit, self.by_hour = step_name(step), step in (HOUR, DAY, 7 * DAY), step > HOUR
        self.shades = [label for label, _ in _SHADES] + ["< 50"]
        self.hour_labels = [f"{hour:02d}" for hour in range(24)]
        self.labels = [clock.tick(window.started_at, step) for window in windows]
        self.rows = [
            self._row(
                group.title,
                f"{f'{group.place}, ' if group.place else ''}{count(group.sender_count, 'sender')}",
                windows,
                {cell.started_at: cell.times for cell in times[group.place, group.name]},
                group.times,
            )
            for group in figures.groups
        ]
        self.hours_left_out: list[str] = []
        self.hours = list(self._hours()) if self.by_hour else []
        self.is_whole, self.parts_left_out = len(figures.cells) <= _MOST_ROWS, list[str]()
        self.parts = [] if self.is_whole else self._parts()

    def ticks(self, labels: Sequence[str]) -> list[tuple[str, int]]:
        """Return the labels that have room over their windows, and how many windows each spans."""
        # A label may be wider than its column, which on a phone is some three letters wide.
        every = 1 + max(map(len, labels)) // 3
        return [(labels[index], min(every, len(labels) - index)) for index in range(0, len(labels), every)]

    def _hours(self) -> Iterator[Hours]:
        """Yield the days that were not wholly up and watched, the groups with the most down time first."""
        cells, room, is_first = by_group(self._figures.hours), _MOST_HOUR_CELLS, True
        for group in self._worst_first():
            theirs = cells[group.place, group.name]
            rows = [self._day(day, list(hours)) for day, hours in groupby(theirs, lambda cell: cell.started_at // DAY)]
            room -= 24 * len(rows)
            if rows and room < 0:
                self.hours_left_out.append(group.title)
            elif rows:
                eventful = [cell for cell in theirs if cell.times.is_eventful]
                yield Hours(group.title, rows, eventful, is_first and len(rows) <= _MOST_OPEN_DAYS)
                is_first = False

    def _day(self, day: int, cells: list[Cell]) -> HeatRow:
        begin, period = day * DAY, self._figures.period
        windows = [Window(at, at + HOUR, period.holds(at, at + HOUR)) for at in range(begin, begin + DAY, HOUR)]
        total = SenderTimes().plus(*(cell.times for cell in cells))
        return self._row(
            self._clock.tick(begin, DAY), "", windows, {cell.started_at: cell.times for cell in cells}, total
        )

    def _parts(self) -> list[tuple[str, list[Cell]]]:
        """Return the cells in which something happened by group, of the worst where that is too much for a page."""
        cells = by_group(cell for cell in self._figures.cells if cell.times.is_eventful)
        shown, room = set[Group](), _MOST_EVENTFUL_ROWS
        for group in self._worst_first():
            row_count = len(cells[group.place, group.name])
            room -= row_count
            if row_count and room < 0:
                self.parts_left_out.append(group.title)
            elif row_count:
                shown.add(group)
        return [(group.title, cells[group.place, group.name]) for group in self._figures.groups if group in shown]

    def _worst_first(self) -> list[Group]:
        return sorted(self._figures.groups, key=lambda group: (-group.times.down, group.place, group.name))

    def _row(
        self, title: str, note: str, windows: Sequence[Window], times: Mapping[int, SenderTimes], total: SenderTimes
    ) -> HeatRow:
        cells = [self._cell(times.get(window.started_at, SenderTimes()), title, window) for window in windows]
        return HeatRow(title, note, cells, figure(total.up, total.known) if total.known else NOTHING)

    def _cell(self, times: SenderTimes, title: str, window: Window) -> Drawn:
        if not times.lived and not times.maintenance:
            return Drawn()
        begin, end = map(self._clock.instant, window[:2])
        note, part = f"{title}, {begin} to {end}: {_times_text(times)}", "" if window.complete else " part"
        if not times.lived:
            return Drawn("planned" + part, note, "m")
        if not times.known:
            return Drawn("unwatched" + part, note, "?")
        # A sliver of unknown must still be seen.
        bar = max(times.unknown * 100 // times.lived, 8) if times.unknown else 0
        return Drawn(f"s{_shade(times)}{part}", note, figure(times.up, times.known), bar)


def by_group(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    grouped: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        grouped[cell.place, cell.name].append(cell)
    return grouped


def _shade(times: SenderTimes) -> int:
    """Return how bad an availability is, from 0 (always up) to 6 (down more than half of the time).

    >>> _shade(SenderTimes(1000)), _shade(SenderTimes(995, 5)), _shade(SenderTimes(0, 1))
    (0, 2, 6)
    """
    fitting = (index for index, (_, least) in enumerate(_SHADES) if times.up * 1000 >= least * times.known)
    return next(fitting, len(_SHADES))


def _times_text(times: SenderTimes) -> str:
    watched = f"{percent(times.up, times.known)} up of the time watched"
    parts = [watched if times.known else "nobody watched" if times.lived else "nothing but maintenance"]
    if times.down:
        parts.append(f"{duration(times.down)} of sender time down")
    if times.unknown and times.known:
        parts.append(f"{rest(times.known, times.lived)} not watched")
    if times.maintenance:
        parts.append(f"{duration(times.maintenance)} of sender time in maintenance")
    return "; ".join(parts)
