"""Say what the view of each sender's reliability is: its months, from its days and its outages.

One query in a dialect that Spark and DuckDB share; what they call differently stands in braces (``views.py``).
"""

from aggregator.lakehouse.tables.definition import RATIO_COLUMNS, SENDER_COLUMNS, Column, Table
from aggregator.lakehouse.tables.outage_views import COVERED

SENDER_RELIABILITY = Table(
    "sender_reliability",
    "A view: how reliable each sender was in each month. Outages that lie wholly in declared maintenance are left out."
    " Ask for the worst with a minimum of coverage and of life: WHERE coverage > 0.9 AND lived_share > 0.9 ORDER BY"
    " availability_known. Without the second, senders that lived for minutes come first.",
    (
        Column("month", "DATE", "first day of the UTC month"),
        *SENDER_COLUMNS,
        Column("up_us", "BIGINT", "microseconds up"),
        Column("down_us", "BIGINT", "microseconds down"),
        Column("unknown_us", "BIGINT", "microseconds that nobody observed"),
        *RATIO_COLUMNS,
        Column(
            "lived_share",
            "DOUBLE",
            "for how much of the month, as far as time is known, the sender existed; coverage is of that time alone",
        ),
        Column("outage_count", "BIGINT", "outages that began in the month, planned ones left out"),
        Column("flap_count", "BIGINT", "those of them that began within an hour after the one before had ended"),
        Column(
            "mtbf_us",
            "BIGINT",
            "mean time between failures, in microseconds: up_us / outage_count; null without an outage",
        ),
        Column(
            "mttr_us",
            "BIGINT",
            "mean time to repair, in microseconds: of duration_us of the outages that began in the month and are over:"
            " from word to word, with what nobody watched or was planned in between; down_us has what counts",
        ),
        Column("median_outage_us", "BIGINT", "microseconds, rounded down: half of those were shorter"),
        Column("p95_outage_us", "BIGINT", "microseconds: 95 % of those were shorter"),
        Column("longest_outage_us", "BIGINT", "microseconds of the longest of those"),
        Column("error_bound_us", "BIGINT", "microseconds by which up_us and down_us may be off"),
    ),
    identity=("month", "region", "site", "block", "sender_id"),
)
# Not of the view outages: what incidents cost is nothing to a sender's figures. An outage is listed in the month in
# which it began, and, as the one before, in those that its end and an hour after that lie in. And not of the view of
# days: days that a sender was up throughout are those of its block, all of a month at once; each day of
# sender_day_exceptions lies between its block's first and last of the month in site_coverage_daily, which a test
# holds. Days and intervals are joined to the months by ranges of what their files are parted by: asked for one month,
# DuckDB, which hands what one side of a join found to the reading of the other, reads the days of that month and the
# intervals that ended since it began or go on, and of other files their ends. Spark reads the files of all months.
SENDER_RELIABILITY_QUERY = """
WITH {covered},
block_days AS (
  SELECT *,
    sum(known_us) OVER (PARTITION BY month, region, site, block ORDER BY day
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS known_so_far_us,
    sum(unknown_us) OVER (PARTITION BY month, region, site, block ORDER BY day
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS unknown_so_far_us,
    sum(window_us) OVER (PARTITION BY month, region, site, block ORDER BY day
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS window_so_far_us
  FROM (
    SELECT region, site, block, day, CAST(date_trunc('month', day) AS DATE) AS month, known_us,
      window_us - known_us - maintenance_us AS unknown_us, window_us
    FROM {prefix}site_coverage_daily) coverage_days
),
block_months AS (
  SELECT month, region, site, block, min(day) AS first_day, max(day) AS last_day,
    {month_begins_at} AS begins_at, {month_ends_at} AS ends_at
  FROM block_days
  GROUP BY month, region, site, block
),
by_month AS (
  SELECT b.month, d.region, d.site, d.block, d.sender_id, d.started_at, d.ended_at, true AS began
  FROM block_months b
  JOIN {prefix}sender_intervals d
    ON d.region = b.region AND d.site = b.site AND d.block = b.block
    AND d.started_at >= b.begins_at AND d.started_at < b.ends_at
  WHERE d.state = 'down'
  UNION ALL
  SELECT b.month, d.region, d.site, d.block, d.sender_id, d.started_at, d.ended_at, false AS began
  FROM block_months b
  JOIN {prefix}sender_intervals d
    ON d.region = b.region AND d.site = b.site AND d.block = b.block AND d.started_at < b.begins_at
    AND d.ended_at >= b.begins_at - INTERVAL '1' HOUR AND d.ended_at < b.ends_at
  WHERE d.state = 'down'
),
unplanned AS (
  SELECT *
  FROM by_month
  WHERE NOT EXISTS (
    SELECT 1 FROM covered c
    WHERE c.region = by_month.region AND c.site = by_month.site AND c.block = by_month.block
      AND c.sender_id = by_month.sender_id AND c.started_at = by_month.started_at)
),
spans AS (
  SELECT month, region, site, block, sender_id, began, {micros}(ended_at) - {micros}(started_at) AS duration_us,
    {micros}(started_at) - {micros}(lag(ended_at) OVER (
      PARTITION BY month, region, site, block, sender_id ORDER BY started_at)) AS since_us
  FROM unplanned
),
failures AS (
  SELECT region, site, block, sender_id, month, count(*) AS outage_count,
    sum(CASE WHEN since_us <= 3600000000 THEN 1 ELSE 0 END) AS flap_count,
    avg(duration_us) AS mttr_us, {percentile}(duration_us, 0.5) AS median_outage_us,
    {percentile}(duration_us, 0.95) AS p95_outage_us, max(duration_us) AS longest_outage_us
  FROM spans
  WHERE began
  GROUP BY region, site, block, sender_id, month
),
up_months AS (
  SELECT b.month, b.region, b.site, b.block, i.sender_id, greatest(i.first_whole_day, b.first_day) AS from_day,
    least(i.last_whole_day, b.last_day) AS to_day
  FROM block_months b
  JOIN {prefix}sender_intervals i
    ON i.region = b.region AND i.site = b.site AND i.block = b.block
    AND i.first_whole_day <= b.last_day AND i.last_whole_day >= b.first_day
  WHERE i.state = 'up'
),
parts AS (
  SELECT u.month, u.region, u.site, u.block, u.sender_id, t.known_so_far_us - s.known_so_far_us + s.known_us AS up_us,
    0 AS down_us, t.unknown_so_far_us - s.unknown_so_far_us + s.unknown_us AS unknown_us, 0 AS error_bound_us,
    t.window_so_far_us - s.window_so_far_us + s.window_us AS lived_us
  FROM up_months u
  JOIN block_days s ON s.month = u.month AND s.region = u.region AND s.site = u.site AND s.block = u.block
    AND s.day = u.from_day
  JOIN block_days t ON t.month = u.month AND t.region = u.region AND t.site = u.site AND t.block = u.block
    AND t.day = u.to_day
  UNION ALL
  SELECT d.month, i.region, i.site, i.block, i.sender_id, -d.known_us, 0, -d.unknown_us, 0, -d.window_us
  FROM {prefix}sender_maintenance_days m
  JOIN {prefix}sender_intervals i
    ON i.region = m.region AND i.site = m.site AND i.block = m.block AND i.sender_id = m.sender_id
    AND m.day BETWEEN i.first_whole_day AND i.last_whole_day
  JOIN block_days d ON d.region = m.region AND d.site = m.site AND d.block = m.block AND d.day = m.day
  WHERE i.state = 'up'
  UNION ALL
  SELECT b.month, e.region, e.site, e.block, e.sender_id, e.up_us, e.down_us, e.unknown_us, e.error_bound_us,
    e.window_us - e.absent_us
  FROM block_months b
  JOIN {prefix}sender_day_exceptions e
    ON e.region = b.region AND e.site = b.site AND e.block = b.block AND e.day BETWEEN b.first_day AND b.last_day
),
months AS (
  SELECT month, region, site, block, sender_id,
    CAST(sum(up_us) AS BIGINT) AS up_us, CAST(sum(down_us) AS BIGINT) AS down_us,
    CAST(sum(unknown_us) AS BIGINT) AS unknown_us, CAST(sum(error_bound_us) AS BIGINT) AS error_bound_us,
    CAST(sum(lived_us) AS DOUBLE) / ({micros}(least({month_ends_at}, max(known_through)))
      - {micros}({month_begins_at})) AS lived_share
  FROM parts
  CROSS JOIN known
  GROUP BY month, region, site, block, sender_id
)
SELECT m.month, m.region, m.site, m.block, m.sender_id, up_us, down_us, unknown_us,
  {ratios}, lived_share,
  coalesce(f.outage_count, 0) AS outage_count, CAST(coalesce(f.flap_count, 0) AS BIGINT) AS flap_count,
  CASE WHEN f.outage_count > 0 THEN CAST(floor(up_us / f.outage_count) AS BIGINT) END AS mtbf_us,
  CAST(floor(f.mttr_us) AS BIGINT) AS mttr_us, CAST(floor(f.median_outage_us) AS BIGINT) AS median_outage_us,
  CAST(floor(f.p95_outage_us) AS BIGINT) AS p95_outage_us, f.longest_outage_us, error_bound_us
FROM months m
LEFT JOIN failures f
  ON f.month = m.month AND f.region = m.region AND f.site = m.site AND f.block = m.block AND f.sender_id = m.sender_id
""".replace("{covered}", COVERED.strip())
