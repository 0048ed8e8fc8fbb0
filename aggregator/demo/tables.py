"""Read out of the tables what is held against the truth, as any analyst could: SQL over the published tables."""

from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES, CatalogSettings
from aggregator.demo.comparison import Figures, Interval
from aggregator.demo.spans import Span
from aggregator.lakehouse.query import Tables, open_tables

Sender = tuple[str, str]

RECORD_TABLES: Final = ("advisories", "watermarks", "registrations")

_INTERVALS = """
SELECT site, sender_id, state, epoch_us(started_at), coalesce(epoch_us(ended_at), ?), epoch_us(advisory_at)
FROM sender_intervals WHERE NOT starts_with(block, 'import:') ORDER BY site, sender_id, started_at
"""
_DAILY = """
SELECT site, sender_id, sum(up_us)::BIGINT, sum(down_us)::BIGINT, sum(unknown_us)::BIGINT
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
_KNOWN_THROUGH = """
SELECT coalesce(max(epoch_us(known_through)), 0) FROM positions WHERE table_name = 'sender_intervals'
"""
_SITES = """
SELECT site, sum(up_us)::BIGINT, sum(down_us)::BIGINT, sum(unknown_us)::BIGINT
FROM site_availability_hourly GROUP BY ALL ORDER BY ALL
"""
_FLEET = """
SELECT coalesce(sum(up_us), 0)::BIGINT, coalesce(sum(down_us), 0)::BIGINT, coalesce(sum(unknown_us), 0)::BIGINT
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


class Published(msgspec.Struct, frozen=True):
    """What the tables say. Instants in microseconds; ``uneven_days`` counts days whose parts do not add up."""

    known_through: int
    figures: dict[Sender, Figures]
    known: dict[str, list[Span]]
    unknown: dict[str, list[Span]]
    sites: dict[str, Times]
    fleet: Times
    record_counts: dict[str, int]
    quarantined: int
    uneven_days: int


def read(warehouse: Path, catalog: CatalogSettings = FILE_BESIDE_THE_TABLES) -> Published:
    """Read the tables below ``warehouse``, or those that ``catalog`` names; raise TablesUnreadable."""
    with open_tables(warehouse, catalog) as tables:
        known_through: int = tables.rows(_KNOWN_THROUGH)[0][0]
        coverage: dict[bool, dict[str, list[Span]]] = {True: defaultdict(list), False: defaultdict(list)}
        for site, started_at, ended_at, known in tables.rows(_COVERAGE):
            coverage[known][site].append((started_at, ended_at))
        return Published(
            known_through=known_through,
            figures=_figures(tables, known_through),
            known=coverage[True],
            unknown=coverage[False],
            sites={site: Times(*times) for site, *times in tables.rows(_SITES)},
            fleet=Times(*tables.rows(_FLEET)[0]),
            record_counts={name: _count(tables, name) for name in RECORD_TABLES},
            quarantined=_count(tables, "quarantine"),
            uneven_days=tables.rows(_UNEVEN_DAYS)[0][0],
        )


def longest_silence(warehouse: Path, catalog: CatalogSettings = FILE_BESIDE_THE_TABLES) -> int:
    """Give the longest ``stale_after`` of any agent, in microseconds; raise TablesUnreadable."""
    with open_tables(warehouse, catalog) as tables:
        return int(tables.rows("SELECT coalesce(max(stale_after_us), 0) FROM watermarks")[0][0])


def _figures(tables: Tables, known_through: int) -> dict[Sender, Figures]:
    intervals: dict[Sender, list[Interval]] = defaultdict(list)
    for site, sender, *interval in tables.rows(_INTERVALS, [known_through]):
        intervals[site, sender].append(Interval(*interval))
    sums = {(site, sender): times for site, sender, *times in tables.rows(_DAILY)}
    return {
        sender: Figures(tuple(intervals[sender]), *sums.get(sender, (0, 0, 0)))
        for sender in intervals.keys() | sums.keys()
    }


def _count(tables: Tables, name: str) -> int:
    return int(tables.rows(f"SELECT count(*) FROM {name}")[0][0])  # noqa: S608 - names of ours
