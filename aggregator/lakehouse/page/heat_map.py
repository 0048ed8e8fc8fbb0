"""Write the section of the heat map: sites, or other groups of senders, by hour.

By less where the period is short, by day or week where it is long.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from aggregator.lakehouse.page.figures import Cell, Figures, Group, SenderTimes
from aggregator.lakehouse.page.heat_cells import SHADES, GridRow, draw_grid
from aggregator.lakehouse.page.markup import Html, element, join
from aggregator.lakehouse.page.period import Window
from aggregator.lakehouse.page.tables import Column, data_table, folded, section, time_columns
from aggregator.lakehouse.page.words import OTHER_NAMES, Clock, count, listed, step_name
from shared.instants import DAY, HOUR

_MOST_HOUR_CELLS: Final = 8_000
_MOST_ROWS: Final = 2_000
_MOST_EVENTFUL_ROWS: Final = 2_000
_MOST_OPEN_DAYS: Final = 31


def heat_map_section(figures: Figures, clock: Clock) -> Html:
    """Write the section: legend, map, the hours behind a coarser map, and the table behind the picture."""
    step = figures.heat.step
    name, is_unit = step_name(step), step in (HOUR, DAY, 7 * DAY)
    article = {"hour": "an "}.get(name, "a ") if is_unit else ""
    windows = list(figures.heat.windows(figures.period))
    times = _by_group(figures.cells)
    rows = [
        GridRow(
            title_of(group),
            f"{f'{group.place}, ' if group.place else ''}{count(group.sender_count, 'sender')}",
            windows,
            {cell.started_at: cell.times for cell in times[group.place, group.name]},
            group.times,
        )
        for group in figures.groups
    ]
    what = figures.grouping.noun
    return section(
        "map",
        f"Each {what} by {name}" if is_unit else f"Each {what}, {name} at a time",
        f"Each row is a {what}{_explained(figures)}, each column {article}{name} of time. The figure is"
        " availability in per cent: of the time that somebody watched, how much its senders were up. The stronger the"
        " colour, the worse; hatched is what nobody watched.",
        _legend(figures),
        draw_grid(rows, [clock.tick(window.started_at, step) for window in windows], clock),
        element("output", class_="told", hidden=True),
        _hour_maps(figures, clock) if step > HOUR else None,
        _table_behind(figures, clock),
    )


def _explained(figures: Figures) -> str:
    return ", a part of the senders' names" if figures.grouping.is_by_name else ""


def _by_group(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    by_group: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        by_group[cell.place, cell.name].append(cell)
    return by_group


def _legend(figures: Figures) -> Html:
    labels = [label for label, _ in SHADES] + ["< 50"]
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


def _hour_map(title: str, rows: list[GridRow], cells: list[Cell], clock: Clock, *, is_open: bool) -> Html:
    summary = join(element("b", title), f" hour by hour, on {count(len(rows), 'day')} with anything but up")
    behind = folded(
        "The table behind this map: the hours with anything but up",
        data_table(_cell_columns(clock), filter(_is_eventful, cells), sortable=False),
    )
    return folded(summary, draw_grid(rows, [f"{hour:02d}" for hour in range(24)], clock), behind, is_open=is_open)


def _day_of(cell: Cell) -> int:
    return cell.started_at // DAY * DAY


def _day_row(day: int, cells: list[Cell], figures: Figures, clock: Clock) -> GridRow:
    windows = [Window(at, at + HOUR, figures.period.holds(at, at + HOUR)) for at in range(day, day + DAY, HOUR)]
    total = SenderTimes()
    for cell in cells:
        total = total.plus(cell.times)
    return GridRow(clock.tick(day, DAY), "", windows, {cell.started_at: cell.times for cell in cells}, total)


def _table_behind(figures: Figures, clock: Clock) -> Html:
    """Write every cell of the map; where those are too many, those in which something happened, group by group."""
    noun = figures.grouping.noun
    if len(figures.cells) <= _MOST_ROWS:
        name = Column[Cell](noun, lambda cell: cell.name or OTHER_NAMES)
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


def _cell_columns(clock: Clock) -> list[Column[Cell]]:
    return [
        Column[Cell]("from (UTC)", lambda cell: clock.time(cell.started_at), lambda cell: cell.started_at),
        *time_columns(_times_of),
    ]


def _is_eventful(cell: Cell) -> bool:
    return cell.times.up < cell.times.lived or cell.times.maintenance > 0


def _worst_first(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (-group.times.down, group.place, group.name))


def title_of(group: Group) -> str:
    """Give what a group is called."""
    return group.name or OTHER_NAMES


def _times_of(cell: Cell) -> SenderTimes:
    return cell.times
