"""Give the SQL of the views, once for Spark and once for DuckDB. Nothing here needs Spark.

DuckDB reads the tables without Java: register each Iceberg table (the file list of pyiceberg's ``plan_files()``) under
its bare name, then run ``duckdb_statements()``. Instants come with a time zone: ``SET TimeZone = 'UTC'`` first.
"""

from collections.abc import Iterator

from aggregator.lakehouse.schemas import NAMESPACE, OUTAGES, SENDER_AVAILABILITY_DAILY, Table

_SENDER_AVAILABILITY_DAILY = """
WITH days AS (
  SELECT d.day, d.region, d.site, d.block, i.sender_id, d.window_us, d.known_us AS up_us,
    CAST(0 AS BIGINT) AS down_us, d.window_us - d.known_us AS unknown_us, CAST(0 AS BIGINT) AS maintenance_us,
    CAST(0 AS BIGINT) AS absent_us, CAST(0 AS BIGINT) AS outage_count, d.complete, CAST(0 AS BIGINT) AS error_bound_us
  FROM {prefix}site_coverage_daily d
  JOIN {prefix}sender_intervals i
    ON i.region = d.region AND i.site = d.site AND i.block = d.block
    AND d.day BETWEEN i.first_whole_day AND i.last_whole_day
  WHERE i.state = 'up'
  UNION ALL
  SELECT day, region, site, block, sender_id, window_us, up_us, down_us, unknown_us, maintenance_us, absent_us,
    outage_count, complete, error_bound_us
  FROM {prefix}sender_day_exceptions
)
SELECT day, region, site, block, sender_id, window_us, up_us, down_us, unknown_us, maintenance_us, absent_us,
  outage_count, complete,
  CASE WHEN up_us + down_us > 0 THEN CAST(up_us AS DOUBLE) / (up_us + down_us) END AS availability_known,
  CASE WHEN up_us + down_us + unknown_us > 0
    THEN CAST(up_us AS DOUBLE) / (up_us + down_us + unknown_us) END AS availability_total,
  CASE WHEN up_us + down_us + unknown_us > 0
    THEN CAST(up_us + down_us AS DOUBLE) / (up_us + down_us + unknown_us) END AS coverage,
  error_bound_us
FROM days
"""

_OUTAGES = """
SELECT region, site, block, sender_id, started_at, ended_at, ended_by, advisory_at AS noticed_at,
  {micros}(ended_at) - {micros}(started_at) AS duration_us, episode
FROM {prefix}sender_intervals
WHERE state = 'down'
"""

_QUERIES = ((SENDER_AVAILABILITY_DAILY, _SENDER_AVAILABILITY_DAILY), (OUTAGES, _OUTAGES))


def spark_queries() -> Iterator[tuple[Table, str]]:
    """Give every view with its query, to be stored in the catalog."""
    for view, query in _QUERIES:
        yield view, query.format(prefix=f"{NAMESPACE}.", micros="unix_micros").strip()


def duckdb_statements() -> Iterator[str]:
    """Give ``CREATE OR REPLACE VIEW`` for every view, over tables registered under their bare names."""
    for view, query in _QUERIES:
        yield f"CREATE OR REPLACE VIEW {view.name} AS {query.format(prefix='', micros='epoch_us').strip()}"
