"""Read out of the tables what is held against the truth, as any analyst could: SQL over the published tables."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec

from aggregator.catalog_settings import CatalogSettings
from aggregator.demo.comparison import Figures, Interval, Rules, Verdict, judge
from aggregator.demo.spans import Span, common
from aggregator.lakehouse.query.engine import Tables, open_tables
from shared.truth import Truth

Sender = tuple[str, str]

RECORD_TABLES: Final = ("advisories", "watermarks", "registrations")

_INTERVALS = """
SELECT site, sender_id, state, epoch_us(started_at), coalesce(epoch_us(ended_at), ?), epoch_us(advisory_at)
FROM sender_intervals WHERE NOT starts_with(block, 'import:') ORDER BY site, sender_id, started_at
"""
_DAILY = """
SELECT site, sender_id, sum(up_us), sum(down_us), sum(unknown_us)
FROM sender_availability_daily WHERE NOT starts_with(block, 'import:') GROUP BY ALL
"""
_UNEVEN_DAYS = """
SELECT count(*) FROM sender_availability_daily
WHERE up_us + down_us + unknown_us + maintenance_us + absent_us <> window_us
"""
_COVERAGE = """
SELECT site, epoch_us(started_at), epoch_us(ended_at), known FROM site_coverage WHERE NOT starts_with(block, 'import:')
ORDER BY site, started_at
"""
_MAINTENANCE = """
SELECT DISTINCT i.site, i.sender_id, epoch_us(m.started_at), epoch_us(m.ended_at)
FROM maintenance m
JOIN sender_intervals i ON i.region = m.region AND i.site = coalesce(m.site, i.site)
  AND i.block = coalesce(m.block, i.block) AND (m.sender_ids IS NULL OR array_contains(m.sender_ids, i.sender_id))
WHERE m.cancelled_at IS NULL AND NOT starts_with(i.block, 'import:')
"""
_KNOWN_THROUGH = """
SELECT coalesce(max(epoch_us(known_through)), 0) FROM positions WHERE table_name = 'sender_intervals'
"""
_SITES = """
SELECT site, sum(up_us), sum(down_us), sum(unknown_us)
FROM site_availability_hourly GROUP BY ALL ORDER BY ALL
"""
_FLEET = """
SELECT coalesce(sum(up_us), 0), coalesce(sum(down_us), 0), coalesce(sum(unknown_us), 0)
FROM fleet_availability_daily
"""


class Times(msgspec.Struct, frozen=True):
    """Sender-microseconds of a site, or of the fleet."""

    up: int
    down: int
    unknown: int

    @property
    def availability(self) -> float:
        """Give up / (up + down): of known time."""
        return self.up / max(1, self.up + self.down)

    @property
    def coverage(self) -> float:
        """Tell how much of the senders' time is known."""
        return (self.up + self.down) / max(1, self.up + self.down + self.unknown)


class TableFigures(msgspec.Struct, frozen=True):
    """What the tables say of each sender and of what was watched, imports left out. Instants in microseconds."""

    known_through: int
    figures: dict[Sender, Figures]
    known: dict[str, list[Span]]
    unknown: dict[str, list[Span]]


class Published(TableFigures, frozen=True):
    """What else the demo holds against each other; ``uneven_days`` counts days whose parts do not add up.

    The sums over sites and the fleet have imports in them: these tables cannot tell.
    """

    sites: dict[str, Times]
    fleet: Times
    record_counts: dict[str, int]
    quarantined: int
    uneven_days: int


def read(warehouse: Path) -> Published:
    """Read the tables below ``warehouse``, of which none may be imported; raise TablesUnreadable."""
    with open_tables(warehouse) as tables:
        return Published(
            **msgspec.structs.asdict(_table_figures(tables)),
            sites={site: _times(times) for site, *times in tables.rows(_SITES)},
            fleet=_times(tables.rows(_FLEET)[0]),
            record_counts={name: _count(tables, name) for name in RECORD_TABLES},
            quarantined=_count(tables, "quarantine"),
            uneven_days=tables.rows(_UNEVEN_DAYS)[0][0],
        )


def _table_figures(tables: Tables) -> TableFigures:
    known_through: int = tables.rows(_KNOWN_THROUGH)[0][0]
    coverage: dict[bool, dict[str, list[Span]]] = {True: defaultdict(list), False: defaultdict(list)}
    for site, started_at, ended_at, known in tables.rows(_COVERAGE):
        coverage[known][site].append((started_at, ended_at))
    return TableFigures(known_through, _figures(tables, known_through), coverage[True], coverage[False])


def _times(sums: Iterable[Decimal]) -> Times:
    """Take sums as the tables have them: a BIGINT has room for 292,000 years of senders only."""
    return Times(*map(int, sums))


def _figures(tables: Tables, known_through: int) -> dict[Sender, Figures]:
    intervals: dict[Sender, list[Interval]] = defaultdict(list)
    for site, sender, *interval in tables.rows(_INTERVALS, [known_through]):
        intervals[site, sender].append(Interval(*interval))
    sums = {(site, sender): (up, down, unknown) for site, sender, up, down, unknown in tables.rows(_DAILY)}
    maintenance: dict[Sender, list[Span]] = defaultdict(list)
    for site, sender, *span in tables.rows(_MAINTENANCE):
        maintenance[site, sender].append((span[0], span[1]))
    return {
        sender: Figures(tuple(intervals[sender]), *sums.get(sender, (0, 0, 0)), tuple(maintenance[sender]))
        for sender in intervals.keys() | sums.keys()
    }


def _count(tables: Tables, name: str) -> int:
    return int(tables.rows(f"SELECT count(*) FROM {name}")[0][0])  # noqa: S608 - names of ours


class Judgement(msgspec.Struct, frozen=True):
    """The outcome: ``unwatched`` names the sites of the truth of which nothing is known in all of its time."""

    verdicts: list[Verdict]
    unwatched: list[str]


def judged(truth: Truth, warehouse: Path, catalog: CatalogSettings) -> Judgement:
    """Compare each sender; raise TablesUnreadable.

    Whoever was never heard, because it was never up for as long as a registration takes, is in no table and left out.
    """
    with open_tables(warehouse, catalog) as tables:
        published = _table_figures(tables)
        stale_after = int(tables.rows("SELECT coalesce(max(stale_after_us), 0) FROM watermarks")[0][0])
    began_at, ended_at = truth.header.started_at_us, min(published.known_through, truth.through)
    watched = {site for site, known in published.known.items() if common(known, [(began_at, ended_at)])}
    return Judgement(
        [each for each in verdicts(truth, published, stale_after, ended_at) if each.observed or each.unmet],
        unwatched=sorted({site for site, _ in truth.senders} - watched),
    )


def verdicts(truth: Truth, published: TableFigures, stale_after: int, ended_at: int) -> Iterator[Verdict]:
    """Compare every sender that ever was with what the tables have of it; instants and durations in microseconds."""
    for site, sender in truth.senders:
        rules = Rules(tuple(published.known.get(site, ())), stale_after, ended_at)
        yield judge(truth, site, sender, published.figures.get((site, sender), Figures(())), rules)
