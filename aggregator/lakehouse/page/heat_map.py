"""Write the section of the heat map: sites, or other groups of senders, by hour.

By less where the period is short, by day or week where it is long. A map is a table: every cell has its figure, the
darkness of its colour is its badness, and what nobody watched is hatched, so that it reads aloud, in black and white
and on paper.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import Cell, Figures, Group, SenderTimes
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.period import Window
from aggregator.lakehouse.page.tables import Field, data_table, folded, section, time_columns
from aggregator.lakehouse.page.words import (
    NOTHING,
    OTHER_NAMES,
    Clock,
    count,
    duration,
    figure,
    listed,
    percent,
    rest,
    step_name,
)
from shared.instants import DAY, HOUR

_MOST_HOUR_CELLS: Final = 8_000
_MOST_ROWS: Final = 2_000
_MOST_EVENTFUL_ROWS: Final = 2_000
_MOST_OPEN_DAYS: Final = 31
_SHADES: Final = (("100", 1000), ("≥ 99.9", 999), ("≥ 99", 990), ("≥ 95", 950), ("≥ 80", 800), ("≥ 50", 500))
"""What the colours mean, in per cent and per mille, but for the last, which is anything less."""


class _Row(NamedTuple):
    """One row: its title, what stands small below it, its windows, their sender time, and all of it together."""

    title: str
    note: str
    windows: Sequence[Window]
    times: Mapping[int, SenderTimes]
    total: SenderTimes


def heat_map_section(figures: Figures, clock: Clock) -> Html:
    """Write the section: legend, map, the hours behind a coarser map, and the table behind the picture."""
    step = figures.heat.step
    name, is_unit = step_name(step), step in (HOUR, DAY, 7 * DAY)
    article = {"hour": "an "}.get(name, "a ") if is_unit else ""
    windows = list(figures.heat.windows(figures.period))
    times = _by_group(figures.cells)
    rows = [
        _Row(
            title_of(group),
            f"{f'{group.place}, ' if group.place else ''}{count(group.sender_count, 'sender')}",
            windows,
            {cell.started_at: cell.times for cell in times[group.place, group.name]},
            group.times,
        )
        for group in figures.groups
    ]
    what, part = figures.grouping.noun, ", a part of the senders' names" if figures.grouping.is_by_name else ""
    return section(
        "map",
        f"Each {what} by {name}" if is_unit else f"Each {what}, {name} at a time",
        f"Each row is a {what}{part}, each column {article}{name} of time. The figure is"
        " availability in per cent: of the time that somebody watched, how much its senders were up. The stronger the"
        " colour, the worse; hatched is what nobody watched.",
        _legend(figures),
        _draw_grid(rows, [clock.tick(window.started_at, step) for window in windows], clock),
        element("output", class_="told", hidden=True),
        _hour_maps(figures, clock) if step > HOUR else None,
        _table_behind(figures, clock),
    )


def _by_group(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    by_group: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        by_group[cell.place, cell.name].append(cell)
    return by_group


def _legend(figures: Figures) -> Html:
    labels = [label for label, _ in _SHADES] + ["< 50"]
    shades = [element("li", element("span", class_=f"swatch s{index}"), label) for index, label in enumerate(labels)]
    others = [
        element("li", element("span", element("i", style="--u:60%"), class_="swatch s0"), "in part not watched"),
        element("li", element("span", class_="swatch unwatched"), "? nobody watched"),
        element("li", element("span", "·", class_="swatch none"), "no senders"),
        element("li", element("span", class_="swatch part"), "not whole: the period starts or ends within"),
    ]
    if figures.times.maintenance:
        others.append(element("li", element("span", class_="swatch planned"), "m nothing but maintenance"))
    return element("ul", element("li", "% up:"), *shades, *others, class_="legend")


def _hour_maps(figures: Figures, clock: Clock) -> Html | None:
    """Draw the days that were not wholly up and watched hour by hour, the groups with the most down time first."""
    by_group = _by_group(figures.hours)
    if not figures.times.lived:
        return None
    if not by_group:
        but = " but for maintenance" if figures.times.maintenance else ""
        told = f"Hour by hour there is nothing to add: every sender was up, and watched, all the time{but}."
        return element("p", told)
    maps: list[Html] = []
    room, left_out = _MOST_HOUR_CELLS, []
    for group in _worst_first(figures.groups):
        cells = by_group[group.place, group.name]
        rows = [_day_row(day, list(hours), figures, clock) for day, hours in groupby(cells, _day_of)]
        room -= 24 * len(rows)
        if rows and room < 0:
            left_out.append(title_of(group))
        elif rows:
            is_open = not maps and len(rows) <= _MOST_OPEN_DAYS
            maps.append(_hour_map(title_of(group), rows, cells, clock, is_open=is_open))
    if left_out:
        maps.append(element("p", f"Not drawn here: {listed(left_out)}. A shorter period (--from, --to) has room."))
    return join(*maps)


def _hour_map(title: str, rows: list[_Row], cells: list[Cell], clock: Clock, *, is_open: bool) -> Html:
    summary = join(element("b", title), f" hour by hour, on {count(len(rows), 'day')} with anything but up")
    behind = folded(
        "The table behind this map: the hours with anything but up",
        data_table(_cell_columns(clock), filter(_is_eventful, cells), sortable=False),
    )
    return folded(summary, _draw_grid(rows, [f"{hour:02d}" for hour in range(24)], clock), behind, is_open=is_open)


def _day_of(cell: Cell) -> int:
    return cell.started_at // DAY * DAY


def _day_row(day: int, cells: list[Cell], figures: Figures, clock: Clock) -> _Row:
    windows = [Window(at, at + HOUR, figures.period.holds(at, at + HOUR)) for at in range(day, day + DAY, HOUR)]
    total = SenderTimes().plus(*(cell.times for cell in cells))
    return _Row(clock.tick(day, DAY), "", windows, {cell.started_at: cell.times for cell in cells}, total)


def _table_behind(figures: Figures, clock: Clock) -> Html:
    """Write every cell of the map; where those are too many, those in which something happened, group by group."""
    noun = figures.grouping.noun
    if len(figures.cells) <= _MOST_ROWS:
        name = Field[Cell](noun, lambda cell: cell.name or OTHER_NAMES)
        return folded("The table behind this map", data_table([name, *_cell_columns(clock)], figures.cells))
    by_group = _by_group(filter(_is_eventful, figures.cells))
    shown: set[Group] = set()
    room, left_out = _MOST_EVENTFUL_ROWS, []
    for group in _worst_first(figures.groups):
        row_count = len(by_group[group.place, group.name])
        room -= row_count
        if row_count and room < 0:
            left_out.append(title_of(group))
        elif row_count:
            shown.add(group)
    said = "What is left out: where all were up, and watched, all the time."
    if left_out:
        said += f" Too much for one page: {listed(left_out)}. A shorter period (--from, --to) has room."
    tables = (
        folded(title_of(group), data_table(_cell_columns(clock), by_group[group.place, group.name], sortable=False))
        for group in figures.groups
        if group in shown
    )
    title = f"The table behind this map, a part for each {noun} with anything but up"
    return folded(title, element("p", said), *tables)


def _cell_columns(clock: Clock) -> list[Field[Cell]]:
    return [
        Field[Cell]("from (UTC)", lambda cell: clock.time(cell.started_at), lambda cell: cell.started_at),
        *time_columns(),
    ]


def _is_eventful(cell: Cell) -> bool:
    return cell.times.up < cell.times.lived or cell.times.maintenance > 0


def _worst_first(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (-group.times.down, group.place, group.name))


def title_of(group: Group) -> str:
    return group.name or OTHER_NAMES


def _draw_grid(rows: Sequence[_Row], labels: Sequence[str], clock: Clock) -> Html:
    """Draw the rows; ``labels`` stand over the windows, as many of them as there is room for."""
    # A label may be wider than its column, which on a phone is some three letters wide.
    every = 1 + max(map(len, labels)) // 3
    ticks = (
        element("th", labels[index], colspan=min(every, len(labels) - index), scope="colgroup")
        for index in range(0, len(labels), every)
    )
    head = element("tr", element("td"), *ticks, element("th", "all", scope="col", class_="all"))
    table = element(
        "table", element("thead", head), element("tbody", *(_line(row, clock) for row in rows)), class_="heat"
    )
    return element("div", table, class_="scroll", tabindex="0")


def _shade(times: SenderTimes) -> int:
    """Give how bad an availability is, from 0 (always up) to 6 (down more than half of the time).

    >>> _shade(SenderTimes(1000)), _shade(SenderTimes(995, 5)), _shade(SenderTimes(0, 1))
    (0, 2, 6)
    """
    fitting = (index for index, (_, least) in enumerate(_SHADES) if times.up * 1000 >= least * times.known)
    return next(fitting, len(_SHADES))


def _line(row: _Row, clock: Clock) -> Html:
    note = element("small", row.note) if row.note else None
    cells = (_cell(row.times.get(window.started_at, SenderTimes()), row.title, window, clock) for window in row.windows)
    total = figure(row.total.up, row.total.known) if row.total.known else NOTHING
    return element("tr", element("th", row.title, note, scope="row"), *cells, element("td", total, class_="all"))


def _cell(times: SenderTimes, title: str, window: Window, clock: Clock) -> Html:
    if not times.lived and not times.maintenance:
        return element("td", "·", class_="none")
    told = f"{title}, {clock.instant(window.started_at)} to {clock.instant(window.ended_at)}: {_times_text(times)}"
    part = "" if window.complete else " part"
    if not times.lived:
        return element("td", element("b", "m"), class_="planned" + part, title=told)
    if not times.known:
        return element("td", element("b", "?"), class_="unwatched" + part, title=told)
    # A sliver of unknown must still be seen.
    bar = element("i", style=f"--u:{max(times.unknown * 100 // times.lived, 8)}%") if times.unknown else None
    return element("td", element("b", figure(times.up, times.known)), bar, class_=f"s{_shade(times)}{part}", title=told)


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
