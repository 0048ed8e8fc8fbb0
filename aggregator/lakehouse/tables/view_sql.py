"""Give the SQL of the views, once for Spark and once for DuckDB. Nothing here needs Spark.

DuckDB reads the tables without Java: register each Iceberg table (the file list of pyiceberg's ``plan_files()``) under
its bare name, then run ``duckdb_statements()``. Instants come with a time zone: ``SET TimeZone = 'UTC'`` first.
"""

from collections.abc import Iterator

from aggregator.lakehouse.tables.policy import MAINTENANCE, MAINTENANCE_QUERY
from aggregator.lakehouse.tables.schemas import NAMESPACE, SENDER_AVAILABILITY_DAILY, Table
from aggregator.lakehouse.tables.views import ANALYSIS_VIEWS, TERMS

_SENDER_AVAILABILITY_DAILY = """
WITH days AS (
  SELECT d.day, d.region, d.site, d.block, i.sender_id, d.window_us, d.known_us AS up_us,
    CAST(0 AS BIGINT) AS down_us, d.window_us - d.known_us - d.maintenance_us AS unknown_us, d.maintenance_us,
    CAST(0 AS BIGINT) AS absent_us, CAST(0 AS BIGINT) AS outage_count, d.complete, CAST(0 AS BIGINT) AS error_bound_us
  FROM {prefix}site_coverage_daily d
  JOIN {prefix}sender_intervals i
    ON i.region = d.region AND i.site = d.site AND i.block = d.block
    AND d.day BETWEEN i.first_whole_day AND i.last_whole_day
  WHERE i.state = 'up' AND NOT EXISTS (
    SELECT 1 FROM {prefix}sender_maintenance_days m
    WHERE m.day = d.day AND m.region = i.region AND m.site = i.site AND m.block = i.block
      AND m.sender_id = i.sender_id)
  UNION ALL
  SELECT day, region, site, block, sender_id, window_us, up_us, down_us, unknown_us, maintenance_us, absent_us,
    outage_count, complete, error_bound_us
  FROM {prefix}sender_day_exceptions
)
SELECT day, region, site, block, sender_id, window_us, up_us, down_us, unknown_us, maintenance_us, absent_us,
  outage_count, complete,
  {ratios},
  CASE WHEN window_us > 0 THEN CAST(window_us - absent_us AS DOUBLE) / window_us END AS lived_share, error_bound_us
FROM days
"""

_QUERIES = (
    (SENDER_AVAILABILITY_DAILY, _SENDER_AVAILABILITY_DAILY),
    (MAINTENANCE, MAINTENANCE_QUERY),
    *ANALYSIS_VIEWS,
)
_SPARK = {
    "micros": "unix_micros",
    "percentile": "percentile",
    "month_begins_at": "timestamp_micros(unix_date(month) * 86400000000)",
    "month_ends_at": "timestamp_micros(unix_date(add_months(month, 1)) * 86400000000)",
    "json": "get_json_object",
    "parsed": "",
    "end": "",
    # Spark has no function that unzips, and a view in a catalog can bring none along.
    "unzipped": "CAST(NULL AS STRING)",
    "not_unzipped": "'zipped'",
    "decoded": "CAST(try_to_binary(regexp_replace(packed, '[ \\\\n\\\\r\\\\t]', ''), 'base64') AS STRING)",
    "not_decoded": "'not_base64'",
}
_DUCKDB = {
    "micros": "epoch_us",
    "percentile": "quantile_cont",
    "month_begins_at": "make_timestamptz(epoch_us(month))",
    "month_ends_at": "make_timestamptz(epoch_us(month + INTERVAL '1' MONTH))",
    "json": "json_extract_string",
    # What is no JSON has no fields, as in Spark, and is no error.
    "parsed": "TRY_CAST(",
    "end": " AS JSON)",
    "unzipped": "unzipped(zipped)",
    "not_unzipped": "not_unzipped(zipped)",
    "decoded": "decoded(packed)",
    "not_decoded": "not_decoded(packed)",
}


def spark_queries() -> Iterator[tuple[Table, str]]:
    """Give every view with its query, to be stored in the catalog; each behind those that it rests on."""
    for view, query in _QUERIES:
        yield view, query.format(prefix=f"{NAMESPACE}.", **_SPARK, **TERMS).strip()


def duckdb_statements() -> Iterator[str]:
    """Give ``CREATE OR REPLACE VIEW`` for every view, over tables registered under their bare names, in order."""
    for view, query in _QUERIES:
        yield f"CREATE OR REPLACE VIEW {view.name} AS {query.format(prefix='', **_DUCKDB, **TERMS).strip()}"
