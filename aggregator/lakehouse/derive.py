"""Bring the derived tables to one position of the bronze tables, and prove that the accounting adds up.

Every table is committed with the position that it stands for, so a kill between two commits heals by the next run.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse import availability, catalog, coverage, losses
from aggregator.lakehouse.accounting_check import check
from aggregator.lakehouse.catalog import HubPosition
from aggregator.lakehouse.import_schemas import IMPORT_AVAILABILITY, IMPORT_SENDER_AVAILABILITY, IMPORTS
from aggregator.lakehouse.imports.availability import import_availability, import_sender_availability
from aggregator.lakehouse.imports.intervals import imported_coverage, imported_intervals
from aggregator.lakehouse.intervals import BLOCK, sender_intervals
from aggregator.lakehouse.schemas import (
    ADVISORIES,
    FLEET_AVAILABILITY_DAILY,
    REGION_AVAILABILITY_DAILY,
    SENDER_DAY_EXCEPTIONS,
    SENDER_INTERVALS,
    SITE_AVAILABILITY_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_BUCKETS,
    SITE_COVERAGE,
    SITE_COVERAGE_DAILY,
    WATERMARKS,
    Table,
)
from aggregator.lakehouse.windows import DAY_US, HOUR_US

EVERYTHING = "true"


def derive(
    spark: SparkSession,
    position: HubPosition,
    imported: HubPosition | None,
    registration_interval: int,
    progress: Callable[[str], None],
) -> None:
    """Recompute every derived table in full; raise AccountingError before a wrong sum is committed.

    ``imported`` is the position of the imports, None where there are none. Known time ends where the hub's does; what
    was imported from later on waits for it. Before any word from a hub, it ends with the imports.
    ``registration_interval`` is in microseconds.
    """
    known_through = position.known_through or (imported.known_through if imported is not None else 0)

    def read(table: Table) -> DataFrame:
        rows = spark.table(table.identifier)
        return rows.where(f.col("hub_sequence") <= position.sequence) if "hub_sequence" in table.column_names else rows

    def write(rows: DataFrame, table: Table) -> None:
        catalog.replace(rows, table, EVERYTHING, position)
        progress(f"  {table.name}")

    advisories, watermarks = read(ADVISORIES), read(WATERMARKS)
    rebuilds = watermarks.where("rebuilt_at IS NOT NULL").select(*BLOCK, "rebuilt_at").distinct()
    lives = sender_intervals(advisories, rebuilds, known_through)
    seen = coverage.site_coverage(watermarks, advisories, losses.spans(spark, position), known_through)
    if imported is not None:
        imports = read(IMPORTS)
        lives = lives.unionByName(imported_intervals(imports, known_through))
        seen = seen.unionByName(imported_coverage(imports, known_through))
    write(lives, SENDER_INTERVALS)
    write(seen, SITE_COVERAGE)

    intervals, covered = read(SENDER_INTERVALS), read(SITE_COVERAGE)
    by_day = coverage.coverage_windows(covered, DAY_US, known_through).persist()
    by_hour = coverage.coverage_windows(covered, HOUR_US, known_through)
    spans = availability.spans_since(intervals, dict.fromkeys(range(SITE_BUCKETS), 0), known_through)
    try:
        write(coverage.site_coverage_daily(by_day), SITE_COVERAGE_DAILY)
        exceptions = availability.sender_day_exceptions(spans, by_day, known_through, registration_interval)
        write(exceptions, SENDER_DAY_EXCEPTIONS)
        site_days = availability.site_availability_daily(
            spans, read(SENDER_DAY_EXCEPTIONS), by_day, known_through, registration_interval
        ).persist()
        site_hours = availability.site_availability_hourly(
            spans, by_day, by_hour, known_through, registration_interval
        ).persist()
        check(spans, site_days, site_hours, known_through)
        write(site_hours, SITE_AVAILABILITY_HOURLY)
        write(site_days, SITE_AVAILABILITY_DAILY)
        write(availability.over_sites(site_days, "region"), REGION_AVAILABILITY_DAILY)
        write(availability.over_sites(site_days), FLEET_AVAILABILITY_DAILY)
    finally:
        spark.catalog.clearCache()


def derive_from_imports(spark: SparkSession, imported: HubPosition, progress: Callable[[str], None]) -> None:
    """Recompute the tables that speak of imports alone, which stands at ``imported``."""
    imports = spark.table(IMPORTS.identifier)
    for table, make in (
        (IMPORT_SENDER_AVAILABILITY, import_sender_availability),
        (IMPORT_AVAILABILITY, _import_availability),
    ):
        catalog.replace(make(imports), table, EVERYTHING, imported)
        progress(f"  {table.name}")


def _import_availability(imports: DataFrame) -> DataFrame:
    return import_availability(imports, imports.sparkSession.table(IMPORT_SENDER_AVAILABILITY.identifier))
