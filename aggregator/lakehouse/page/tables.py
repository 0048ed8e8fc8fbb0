"""Write tables and the folded parts that hold them: the same everywhere on the page."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from aggregator.lakehouse.page.figures import SenderTimes
from aggregator.lakehouse.page.markup import Child, Html, element, join
from aggregator.lakehouse.page.words import duration, percent

T = TypeVar("T")


class Field(NamedTuple, Generic[T]):
    """One column: its title, the text of a row's cell, and the sort key of a row if that is not the text."""

    title: str
    cell: Callable[[T], Child]
    sort_key: Callable[[T], int | str] | None = None
    number: bool = False


def time_columns() -> list[Field[Any]]:
    """Return the columns of sender time for rows that have ``times``, the same in every table."""
    return [
        Field("availability", lambda row: _meter(row.times), lambda row: _share(row.times), number=True),
        Field("known", lambda row: percent(row.times.known, row.times.lived), number=True),
        *map(_state_column, SenderTimes._fields),
    ]


def _state_column(state: str) -> Field[Any]:
    length = attrgetter(f"times.{state}")
    return Field(state, lambda row: duration(length(row)), length, number=True)


def _meter(times: SenderTimes) -> Html:
    """Write an availability with a bar below it that is as long."""
    text = percent(times.up, times.known)
    if not times.known:
        return join(text)
    return element("span", text, class_="meter", style=f"--p:{_share(times) / 100}%")


def _share(times: SenderTimes) -> int:
    """Give an availability in hundredths of a per cent, -1 where nothing is known."""
    return times.up * 10_000 // times.known if times.known else -1


def data_table(columns: Sequence[Field[T]], rows: Iterable[T], *, sortable: bool = True) -> Html:
    """Write rows as a table that scrolls by itself where the screen is narrow."""
    titles = (
        element("th", column.title, scope="col", class_="number" if column.number else None) for column in columns
    )
    lines = (
        element(
            "tr",
            *(
                element(
                    "td",
                    column.cell(row),
                    class_="number" if column.number else None,
                    data_sort=str(column.sort_key(row)) if sortable and column.sort_key is not None else None,
                )
                for column in columns
            ),
        )
        for row in rows
    )
    table = element(
        "table",
        element("thead", element("tr", *titles)),
        element("tbody", *lines),
        class_="data sortable" if sortable else "data",
    )
    return element("div", table, class_="scroll", tabindex="0")


def folded(summary: Child, *content: Child, is_open: bool = False) -> Html:
    """Fold content away behind one line."""
    return element("details", element("summary", summary), *content, open=is_open)


def section(anchor: str, title: str, lead: Child, *content: Child) -> Html:
    """Write one section with its heading and the sentence that says how to read it."""
    return element(
        "section", element("h2", title), element("p", lead, class_="lead") if lead else None, join(*content), id=anchor
    )
