"""Draw a grid of availability: a row for each of something, a column for each window of time.

It is a table: every cell has its figure, the darkness of its colour is its badness, and what nobody watched is
hatched, so that it reads aloud, in black and white and on paper.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aggregator.lakehouse.page.figures import SenderTimes
from aggregator.lakehouse.page.markup import Html, element
from aggregator.lakehouse.page.period import Window
from aggregator.lakehouse.page.words import NOTHING, Clock, duration, figure, percent, rest

SHADES: Final = (("100", 1000), ("≥ 99.9", 999), ("≥ 99", 990), ("≥ 95", 950), ("≥ 80", 800), ("≥ 50", 500))
"""What the colours mean, in per cent and per mille, but for the last, which is anything less."""


class GridRow(NamedTuple):
    """One row: its title, what stands small below it, its windows, their sender time, and all of it together."""

    title: str
    note: str
    windows: Sequence[Window]
    times: Mapping[int, SenderTimes]
    total: SenderTimes


def draw_grid(rows: Sequence[GridRow], labels: Sequence[str], clock: Clock) -> Html:
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


def shade(times: SenderTimes) -> int:
    """Give how bad an availability is, from 0 (always up) to 6 (down more than half of the time).

    >>> shade(SenderTimes(1000)), shade(SenderTimes(995, 5)), shade(SenderTimes(0, 1))
    (0, 2, 6)
    """
    fitting = (index for index, (_, least) in enumerate(SHADES) if times.up * 1000 >= least * times.known)
    return next(fitting, len(SHADES))


def _line(row: GridRow, clock: Clock) -> Html:
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
    return element("td", element("b", figure(times.up, times.known)), bar, class_=f"s{shade(times)}{part}", title=told)


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
