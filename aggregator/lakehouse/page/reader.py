"""Read every figure of the page out of the tables: one state of them, and queries that stand in ``reader.sql``."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from aggregator.lakehouse.page.figures import (
    BlockFigures,
    Cell,
    Group,
    OutageRow,
    PageFigures,
    Sender,
    SenderTimes,
    Site,
    Unwatched,
)
from aggregator.lakehouse.page.grouping import MOST_GROUPS, Choice, InvalidGrouping
from aggregator.lakehouse.page.period import Grid, Period, choose_period, curve_grid, heat_grid
from aggregator.lakehouse.page.words import listed, natural
from aggregator.lakehouse.query.engine import Tables
from aggregator.lakehouse.query.table_scan import quoted
from aggregator.lakehouse.tables.imports import BLOCK_PREFIX
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.instants import DAY, HOUR, InvalidInstant, format_instant

_TOLD = re.compile(r"\[(place|name|nobody|chosen|imported)\]")
_IMPORTED = f"starts_with(block, {quoted(BLOCK_PREFIX)})"
_NAMED = re.compile(r"^-- name: (\w+)\n(.*?);$", re.MULTILINE | re.DOTALL)


def read_figures(tables: Tables, choice: Choice, registration_interval: int) -> PageFigures:
    """Read the figures of the senders and the time that were chosen.

    Raise TablesUnreadable where the tables hold nothing, InvalidInstant where they hold nothing of that time,
    InvalidGrouping where they know no such region or site, or where there are too many groups to show.
    """
    queries = dict(_NAMED.findall(files(__package__).joinpath("reader.sql").read_text(encoding="utf-8")))
    ((first, last),) = tables.rows(queries["known_time"])
    if first is None:
        raise TablesUnreadable(
            "the tables are there, but nothing is known yet: let agents report, then run rollup again"
        )
    recorded = [f"{stream} {sequence:,}" for stream, sequence in tables.rows(queries["position"])]
    _check_places(choice, tables.rows(queries["places"]))
    period = choose_period(Period(first, last), choice.since, choice.until)
    return _FigureReader(tables, queries, period, choice).figures("".join(recorded), last, registration_interval)


def _check_places(choice: Choice, places: Sequence[tuple[str, str]]) -> None:
    regions, sites = ({place[index] for place in places} for index in (0, 1))
    for noun, wanted, known in (("region", choice.regions, regions), ("site", choice.sites, sites)):
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise InvalidGrouping(f"there is no {noun} {unknown[0]}; there are {listed(sorted(known))}")
    if not any(region in (choice.regions or regions) and site in (choice.sites or sites) for region, site in places):
        raise InvalidGrouping(f"no site of {listed(list(choice.sites))} is in region {listed(list(choice.regions))}")


class _FigureReader:
    """Queries over the period's cut of the tables."""

    def __init__(self, tables: Tables, queries: dict[str, str], period: Period, choice: Choice) -> None:
        self._tables, self._queries, self._period, self._choice = tables, queries, period, choice
        for name in ("planned", "lives", "watched", "grouped", "members", "steps"):
            self._rows(name)

    def figures(self, position: str, known_through: int, registration_interval: int) -> PageFigures:
        self._check_coverage()
        heat, curve = heat_grid(self._period), curve_grid(self._period)
        outages = [OutageRow(*row) for row in self._rows("outages")]
        ((shortest, longest),) = self._rows("stale_after")
        ((assumed, imported),) = self._rows("borrowed")
        return PageFigures(
            grouping=self._choice.grouping,
            period=self._period,
            known_through=known_through,
            position=position,
            heat=heat,
            curve=curve,
            cells=self._cells(heat),
            points=_over_sites(self._cells(curve)),
            hours=_eventful(self._cells(Grid(HOUR))) if heat.step > HOUR else [],
            groups=self._groups(),
            sites=self._sites(outages),
            senders=self._senders(),
            outages=outages,
            unwatched=[Unwatched(*row) for row in self._rows("unwatched")],
            unknown_by_cause=dict(self._rows("causes")),
            assumed=assumed,
            imported=imported,
            stale_after=(shortest, longest) if shortest is not None else None,
            registration_interval=registration_interval,
        )

    def _check_coverage(self) -> None:
        if self._rows("sites"):
            return
        ((before, after),) = self._rows("around")
        ends = [] if before is None else [f"what is known before it ends at {format_instant(before)}"]
        begins = [] if after is None else [f"what is known after it begins at {format_instant(after)}"]
        raise InvalidInstant(f"nothing is known of that time: {', '.join([*ends, *begins])}")

    def _cells(self, grid: Grid) -> list[Cell]:
        rows = self._rows("cells", step=grid.step, origin=grid.origin)
        return [Cell(place, name, at, SenderTimes(*times)) for place, name, at, *times in rows]

    def _groups(self) -> list[Group]:
        groups = [
            Group(place, name, sender_count, SenderTimes(*times), outage_count, heard_through)
            for place, name, sender_count, *times, outage_count, heard_through in self._rows("groups")
        ]
        if self._choice.grouping.is_by_name and len(groups) > MOST_GROUPS:
            raise InvalidGrouping(
                f"these are {len(groups):,} groups, and a page has room for {MOST_GROUPS}: name fewer parts, or choose"
                " sites with --site"
            )
        return sorted(groups, key=lambda group: (not group.name, natural(group.place), natural(group.name)))

    def _senders(self) -> list[Sender]:
        return [
            Sender(region, site, sender_id, SenderTimes(*times), outage_count, noticed_count)
            for region, site, sender_id, *times, outage_count, noticed_count in self._rows("senders")
        ]

    def _sites(self, outages: list[OutageRow]) -> list[Site]:
        senders = {(region, site): count for region, site, count in self._rows("sender_counts")}
        blocks: dict[tuple[str, str], list[BlockFigures]] = defaultdict(list)
        for region, site, *block in self._rows("blocks"):
            blocks[region, site].append(BlockFigures(*block))
        went_down = Counter((outage.region, outage.site) for outage in outages)
        sites = [
            Site(*name, senders.get(name, 0), SenderTimes(*times), went_down[name], blocks[name])
            for region, site, *times in self._rows("sites")
            for name in ((region, site),)
        ]
        return sorted(sites, key=lambda site: (natural(site.region), natural(site.site)))

    def _rows(self, name: str, **parameters: int) -> list[Any]:
        grouping = self._choice.grouping
        told = {"place": grouping.place, "name": grouping.name, "chosen": self._choice.condition, "imported": _IMPORTED}
        told["nobody"] = "''" if grouping.is_by_name else grouping.name
        sql = _TOLD.sub(lambda match: told[match[1]], self._queries[name])
        known = {"since": self._period.started_at, "until": self._period.ended_at, **parameters}
        return self._tables.rows(sql, {key: value for key, value in known.items() if f"${key}" in sql})


def _over_sites(cells: Iterable[Cell]) -> dict[int, SenderTimes]:
    summed: dict[int, SenderTimes] = {}
    for cell in cells:
        summed[cell.started_at] = summed.get(cell.started_at, SenderTimes()).plus(cell.times)
    return dict(sorted(summed.items()))


def _eventful(hours: list[Cell]) -> list[Cell]:
    """Leave out the days on which a group was up, and watched, all the time."""
    days = {_day_of(cell) for cell in hours if cell.times.up < cell.times.lived}
    return [cell for cell in hours if _day_of(cell) in days]


def _day_of(cell: Cell) -> tuple[str, str, int]:
    return cell.place, cell.name, cell.started_at // DAY
