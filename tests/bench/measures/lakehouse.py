"""How long it takes from advisories to committed tables, beside DuckDB; what one more day costs; what queries take."""

from collections.abc import Mapping
from math import log10
from pathlib import Path

import duckdb
from pyspark import SparkContext

from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.tables.schemas import SENDER_DAY_EXCEPTIONS
from shared.instants import DAY, HOUR
from tests.bench.answers import rows_of_answers
from tests.bench.fleet_history import START, Fleet, write_history
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options
from tests.bench.warehouses import MASTER, Cost, Warehouse, derive_in_duckdb

DAYS, MANY_DAYS = 90, 360
SHARE_OF_MANY_DAYS = 4
"""Of all senders one in so many is looked at over many days: as many advisories as all of them make in 90."""
SENDERS, SITES, OUTAGES_A_DAY = 100_000, 100, 100 / 90
YEAR = 365
FLEETS = ((10_000, 2), (100_000, 2), (100_000, 20), (1_000_000, 2))
"""Senders, and outages a year of each. The last two have about as many events, of days of senders one a tenth."""

# Each asks for the number of rows and for a sum of their hashes, whatever their order.
_OURS: Mapping[str, str] = {
    "intervals": """
        hash(region, site, block, sender_id, episode, epoch_us(episode_started_at), state, epoch_us(started_at),
            epoch_us(ended_at), ended_by, epoch_us(advisory_at), advisory_kind, advisory_id) AS row_hash
        FROM sender_intervals
    """,
    "coverage": """
        hash(region, site, block, epoch_us(started_at), epoch_us(ended_at), known) AS row_hash FROM site_coverage
    """,
    "sender days": """
        hash(epoch_us(day::TIMESTAMP), region, site, block, sender_id, window_us, up_us, down_us, unknown_us, absent_us,
            outage_count, error_bound_us) AS row_hash
        FROM sender_day_exceptions
    """,
    "site hours": """
        hash(epoch_us(hour), region, site, sender_count, up_us::BIGINT, down_us::BIGINT, unknown_us::BIGINT,
            outage_count) AS row_hash
        FROM site_availability_hourly
    """,
}
_THEIRS: Mapping[str, str] = {
    "intervals": """
        hash(region, site, block, sender_id, episode, episode_started, state, started, ended, ended_by, advisory_at,
            advisory_kind, advisory_id) AS row_hash
        FROM '{0}/intervals.parquet'
    """,
    "coverage": "hash(region, site, block, started, ended, known) AS row_hash FROM '{0}/coverage.parquet'",
    "sender days": """
        hash(moment, region, site, block, sender_id, window_us, coalesce(up_us, 0), coalesce(down_us, 0), unknown_us,
            absent_us, outage_count, error_bound_us) AS row_hash
        FROM '{0}/sender_days.parquet'
    """,
    "site hours": """
        hash(moment, region, site, sender_count, coalesce(up_us, 0), coalesce(down_us, 0), unknown_us, outage_count)
            AS row_hash
        FROM '{0}/site_hours.parquet'
    """,
}


_OF_PROCESSORS = "  processor time of that"
_COUNTED = "SELECT count(*), sum(row_hash::HUGEINT)::VARCHAR FROM (SELECT {0})"


async def history(options: Options) -> Table:
    """Measure a whole computation beside DuckDB's of the same, and one more day on top of it."""
    senders, sites = options.scaled(SENDERS), max(4, options.scaled(SITES))
    fleet = _busy(senders, sites, DAYS)
    files = write_history(fleet, options.directory / "history")
    _warm_up(options)
    warehouse = Warehouse(options.directory / "lake", files)
    through = START + DAYS * DAY
    taken = warehouse.take(through)
    theirs = derive_in_duckdb(files, through, options.directory / "duckdb")
    full = warehouse.derive()
    _compare(options.directory / "lake", options.directory / "duckdb")
    warehouse.take(fleet.end)
    more = warehouse.derive()
    SparkContext.getOrCreate().stop()
    return Table(
        measure="lakehouse-history",
        title=f"{fleet.advisory_count:,} advisories of {senders:,} senders on {sites} sites;"
        f" {MASTER}, DuckDB with as many threads",
        command=options.command("lakehouse-history"),
        yardstick="DuckDB",
        rows=[
            Row(f"{DAYS} days, from bronze to committed tables", "s", full.seconds, theirs.seconds),
            Row("  in times of DuckDB's", "times", full.seconds / theirs.seconds, must=3, better="less"),
            Row(_OF_PROCESSORS, "s", full.processor_seconds, theirs.processor_seconds),
            Row(f"one more day on top of {DAYS}", "s", more.seconds, must=full.seconds / 10, better="less"),
            Row(_OF_PROCESSORS, "s", more.processor_seconds, must=full.processor_seconds / 10, better="less"),
            Row("appending to the bronze tables", "rows/s", fleet.advisory_count / taken.seconds),
        ],
        notes=["ours writes six tables more than DuckDB: days of sites, regions and the fleet, coverage by day, sums"],
    )


async def longer_history(options: Options) -> Table:
    """Measure what one more day costs on top of few days, and of many."""
    senders, sites = max(1, options.scaled(SENDERS) // SHARE_OF_MANY_DAYS), max(4, options.scaled(SITES))
    _warm_up(options)
    few, many = (_one_day_more(options, _busy(senders, sites, days)) for days in (DAYS, MANY_DAYS))
    SparkContext.getOrCreate().stop()
    return Table(
        measure="lakehouse-longer",
        title=f"one more day of {senders:,} senders on {sites} sites, after few days and after many; {MASTER}",
        command=options.command("lakehouse-longer"),
        rows=[
            Row(f"one more day on top of {DAYS}", "s", few.seconds),
            Row(_OF_PROCESSORS, "s", few.processor_seconds),
            Row(f"one more day on top of {MANY_DAYS}", "s", many.seconds, must=1.3 * few.seconds, better="less"),
            Row(_OF_PROCESSORS, "s", many.processor_seconds, must=1.3 * few.processor_seconds, better="less"),
        ],
    )


def _busy(senders: int, sites: int, days: int) -> Fleet:
    return Fleet(senders, sites, days + 1, round(OUTAGES_A_DAY * (days + 1)))


def _one_day_more(options: Options, fleet: Fleet) -> Cost:
    """Give what the last day of a fleet's history costs on top of all days before it."""
    warehouse = Warehouse(options.directory / "lake", write_history(fleet, options.directory / "history"))
    warehouse.take(fleet.end - DAY)
    warehouse.derive()
    warehouse.take(fleet.end)
    return warehouse.derive()


async def fleets(options: Options) -> Table:
    """Measure a year of fleets that are mostly up, and what is asked of the largest."""
    rows, drawn = [], {}
    _warm_up(options)
    for senders, outages in ((options.scaled(senders), outages) for senders, outages in FLEETS):
        name = f"{senders:,} senders, down {outages} times"
        fleet = Fleet(senders, max(4, senders // 1_000), YEAR, outages, mark_every=HOUR)
        warehouse = Warehouse(options.directory / "lake", write_history(fleet, options.directory / "history"))
        warehouse.take(fleet.end)
        cost = warehouse.derive()
        with open_tables(options.directory / "lake") as tables:
            ((exceptions, days),) = tables.rows(
                f"SELECT (SELECT count(*) FROM {SENDER_DAY_EXCEPTIONS.name}),"
                " (SELECT sum(sender_count)::BIGINT FROM fleet_availability_daily)"
            )
        rows += [
            Row(f"{name}: {fleet.advisory_count:,} advisories", "s", cost.seconds),
            Row(_OF_PROCESSORS, "s", cost.processor_seconds),
            Row("  for each thousand advisories", "ms", 1e6 * cost.processor_seconds / fleet.advisory_count),
            Row("  for each thousand days of senders", "us", 1e9 * cost.processor_seconds / (senders * YEAR)),
            Row("  rows stored of sender days", "rows", exceptions, days),
        ]
        drawn[name] = {
            "days of senders": days,
            "advisories": fleet.advisory_count,
            "rows of days": exceptions,
            "processor time": cost.processor_seconds,
        }
    SparkContext.getOrCreate().stop()
    answers, without_rows = rows_of_answers(options.directory / "lake", must=2)
    return Table(
        measure="lakehouse-fleets",
        title=f"a year of fleets that are mostly up; {MASTER}",
        command=options.command("lakehouse-fleets"),
        yardstick="all there are",
        rows=rows + answers,
        notes=without_rows + _plot(drawn),
    )


def _plot(fleets: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Draw what each fleet has and costs against the first and smallest, on a scale of powers of ten."""
    least = next(iter(fleets.values()))
    return ["against the smallest fleet, 20 # for each ten times as much:"] + [
        f"{name:>31}  {what:16}{'#' * round(20 * log10(figure / least[what]))}"
        for name, figures in fleets.items()
        for what, figure in figures.items()
    ]


def _warm_up(options: Options) -> None:
    """Start Spark, and have it compute something before anything is measured."""
    fleet = Fleet(200, 4, 3, 3)
    warehouse = Warehouse(options.directory / "warm", write_history(fleet, options.directory / "warm-history"))
    warehouse.take(fleet.end)
    warehouse.derive()


def _compare(ours: Path, theirs: Path) -> None:
    """Raise RecordsLost where both did not find the same rows."""
    with open_tables(ours) as tables, duckdb.connect() as connection:
        for what, rows in _OURS.items():
            found = tables.rows(_COUNTED.format(rows))
            wanted = connection.execute(_COUNTED.format(_THEIRS[what].format(theirs))).fetchall()
            if list(map(tuple, found)) != wanted:
                raise RecordsLost(f"{what}: {found}, DuckDB has {wanted}")


MEASURES = {"lakehouse-history": history, "lakehouse-longer": longer_history, "lakehouse-fleets": fleets}
