"""Say what the views of outages are: one by one, many at once, and how reliable each sender is.

Each is one query in a dialect that Spark and DuckDB share; what they call differently stands in braces (``views.py``).
"""

from aggregator.lakehouse.table import RATIO_COLUMNS, SENDER_COLUMNS, SITE_COLUMNS, Column, Table

FEWEST_TOGETHER = 4
"""So few outages of a site may make an incident."""

_COVERED = """
downs AS (
  SELECT *, {micros}(started_at) AS started_us,
    CASE WHEN advisory_at > started_at THEN ({micros}(advisory_at) - {micros}(started_at)) / 2 ELSE 300000000 END
      AS near_us
  FROM {prefix}sender_intervals
  WHERE state = 'down'
),
known AS (
  SELECT max(known_through) AS known_through FROM {prefix}positions WHERE table_name = 'sender_intervals'
),
touched AS (
  SELECT d.region, d.site, d.block, d.sender_id, d.started_at, coalesce(d.ended_at, k.known_through) AS ended_at,
    p.started_at AS planned_from, p.ended_at AS planned_to
  FROM downs d
  CROSS JOIN known k
  JOIN {prefix}maintenance p
    ON p.region = d.region AND coalesce(p.site, d.site) = d.site AND coalesce(p.block, d.block) = d.block
    AND (p.sender_ids IS NULL OR array_contains(p.sender_ids, d.sender_id))
    AND p.started_at < coalesce(d.ended_at, k.known_through) AND p.ended_at > d.started_at
  WHERE p.cancelled_at IS NULL AND d.started_at < coalesce(d.ended_at, k.known_through)
),
in_turn AS (
  SELECT *, max(planned_to) OVER (PARTITION BY region, site, block, sender_id, started_at
      ORDER BY planned_from, planned_to ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
  FROM touched
),
covered AS (
  SELECT region, site, block, sender_id, started_at
  FROM in_turn
  GROUP BY region, site, block, sender_id, started_at
  HAVING min(planned_from) <= started_at AND max(planned_to) >= max(ended_at)
    AND bool_and(reached IS NULL OR planned_from <= reached)
)
"""
"""Every outage (``downs``), and which of them lie wholly in declared maintenance (``covered``)."""

OUTAGES = Table(
    "outages",
    "A view: every outage of every sender, from its last word before to its first word after.",
    (
        *SENDER_COLUMNS,
        Column("started_at", "TIMESTAMP", "its last word"),
        Column("ended_at", "TIMESTAMP", "its first word again, or its retirement; null: still down"),
        Column("ended_by", "STRING", "recovered | retired | new | rebuilt | lost_store | stale; null: still down"),
        Column("noticed_at", "TIMESTAMP", "when it became stale"),
        Column("duration_us", "BIGINT", "microseconds from started_at to ended_at; null: still down"),
        Column("episode", "STRING", "which life of the sender"),
        Column("planned", "BOOLEAN", "true: it lies wholly in declared maintenance, and counts nowhere as an outage"),
        Column(
            "incident_started_at",
            "TIMESTAMP",
            "the incident at (region, site) that it is part of, by its start: see incidents; null: of none",
        ),
    ),
    identity=("region", "site", "block", "sender_id", "started_at"),
)
# Engines leave out the windows where nobody asks for the incident: then a sender's outages cost what they are.
OUTAGES_QUERY = """
WITH {covered},
watched AS (
  SELECT region, site, {micros}(max(ended_at)) - {micros}(min(started_at)) AS watched_us
  FROM {prefix}site_coverage
  GROUP BY region, site
),
judged AS (
  SELECT d.*, c.sender_id IS NOT NULL AS planned, w.watched_us
  FROM downs d
  LEFT JOIN covered c
    ON c.region = d.region AND c.site = d.site AND c.block = d.block AND c.sender_id = d.sender_id
    AND c.started_at = d.started_at
  LEFT JOIN watched w ON w.region = d.region AND w.site = d.site
),
sited AS (
  SELECT *, max(near_us) OVER (PARTITION BY region, site, planned) AS span_us,
    count(*) OVER (PARTITION BY region, site, planned) AS site_outage_count
  FROM judged
),
placed AS (
  SELECT *, CAST(floor(CAST(started_us AS DOUBLE) / span_us * 1000000) AS BIGINT) AS place,
    CASE WHEN watched_us > span_us THEN CAST(site_outage_count AS DOUBLE) * span_us / watched_us ELSE 0.0 END AS usual
  FROM sited
),
counted AS (
  SELECT *, count(*) OVER (PARTITION BY region, site, planned ORDER BY place
      RANGE BETWEEN CURRENT ROW AND 1000000 FOLLOWING) AS ahead,
    greatest({fewest}, 3 + usual + 6 * sqrt(usual)) AS enough
  FROM placed
),
crowded AS (
  SELECT *, max(ahead) OVER (PARTITION BY region, site, planned ORDER BY place
      RANGE BETWEEN 1000000 PRECEDING AND CURRENT ROW) >= enough AND NOT planned AS is_crowded
  FROM counted
),
marked AS (
  SELECT *, CASE WHEN place - lag(place) OVER (
      PARTITION BY region, site, is_crowded ORDER BY place, block, sender_id) <= 1000000 THEN 0 ELSE 1 END AS begins
  FROM crowded
),
numbered AS (
  SELECT *, sum(begins) OVER (PARTITION BY region, site, is_crowded ORDER BY place, block, sender_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS number
  FROM marked
),
anchored AS (
  SELECT *, first_value(place) OVER (PARTITION BY region, site, is_crowded, number
      ORDER BY ahead DESC, place ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS anchor
  FROM numbered
),
cut AS (
  SELECT *, floor((place - anchor) / 1000001.0) AS part FROM anchored
),
together AS (
  SELECT *, count(*) OVER (PARTITION BY region, site, is_crowded, number, part) AS size,
    min(started_at) OVER (PARTITION BY region, site, is_crowded, number, part) AS began_at
  FROM cut
)
SELECT region, site, block, sender_id, started_at, ended_at, ended_by, advisory_at AS noticed_at,
  {micros}(ended_at) - started_us AS duration_us, episode, planned,
  CASE WHEN is_crowded AND size >= enough THEN began_at END AS incident_started_at
FROM together
""".replace("{covered}", _COVERED.strip())

INCIDENTS = Table(
    "incidents",
    "A view: many senders of a site that fell silent one soon after the other: within half of the site's longest"
    f" stale_after, at least {FEWEST_TOGETHER}, and more than chance explains: where a site has e outages in such a"
    " span on the average of its known time, at least 3 + e + 6 * sqrt(e). What goes on for longer than the span is"
    " several incidents; planned outages are part of none.",
    (
        *SITE_COLUMNS,
        Column("started_at", "TIMESTAMP", "the first last word of a member"),
        Column("ended_at", "TIMESTAMP", "when the last member was heard again, or retired; null: somebody is down"),
        Column("duration_us", "BIGINT", "microseconds from started_at to ended_at; null: not over"),
        Column("noticed_at", "TIMESTAMP", "when the first member became stale"),
        Column("sender_count", "BIGINT", "how many senders fell silent"),
        Column("outage_count", "BIGINT", "how many outages: more where a sender flaps"),
        Column("still_down_count", "BIGINT", "outages that go on"),
        Column("site_sender_count", "BIGINT", "senders that the site had on that day"),
        Column("share", "DOUBLE", "sender_count / site_sender_count"),
    ),
    identity=("region", "site", "started_at"),
)
INCIDENTS_QUERY = """
WITH found AS (
  SELECT region, site, incident_started_at AS started_at, max(ended_at) AS last_ended_at, min(noticed_at) AS noticed_at,
    count(DISTINCT sender_id) AS sender_count, count(*) AS outage_count, count(*) - count(ended_at) AS still_down_count
  FROM {prefix}outages
  WHERE incident_started_at IS NOT NULL
  GROUP BY region, site, incident_started_at
)
SELECT f.region, f.site, f.started_at,
  CASE WHEN f.still_down_count = 0 THEN f.last_ended_at END AS ended_at,
  CASE WHEN f.still_down_count = 0 THEN {micros}(f.last_ended_at) - {micros}(f.started_at) END AS duration_us,
  f.noticed_at, f.sender_count, f.outage_count, f.still_down_count, d.sender_count AS site_sender_count,
  CAST(f.sender_count AS DOUBLE) / d.sender_count AS share
FROM found f
LEFT JOIN {prefix}site_availability_daily d
  ON d.region = f.region AND d.site = f.site AND d.day = CAST(f.started_at AS DATE)
"""

SENDER_RELIABILITY = Table(
    "sender_reliability",
    "A view: how reliable each sender was in each month. Outages that lie wholly in declared maintenance are left out."
    " Ask for the worst with a minimum of coverage: WHERE coverage > 0.9 ORDER BY availability_known.",
    (
        Column("month", "DATE", "first day of the UTC month"),
        *SENDER_COLUMNS,
        Column("up_us", "BIGINT", "microseconds up"),
        Column("down_us", "BIGINT", "microseconds down"),
        Column("unknown_us", "BIGINT", "microseconds that nobody observed"),
        *RATIO_COLUMNS,
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
            "mean time to repair, in microseconds: of the outages that began in the month and are over",
        ),
        Column("median_outage_us", "BIGINT", "microseconds: half of those were shorter"),
        Column("p95_outage_us", "BIGINT", "microseconds: 95 % of those were shorter"),
        Column("longest_outage_us", "BIGINT", "microseconds of the longest of those"),
        Column("error_bound_us", "BIGINT", "microseconds by which up_us and down_us may be off"),
    ),
    identity=("month", "region", "site", "block", "sender_id"),
)
# Not of the view outages: what incidents cost is nothing to a sender's figures. An outage is listed in the month in
# which it began, and in the one that an hour after its end lies in. And not of the view of days: days that a sender was
# up throughout are those of its block, all of a month at once. Days and outages are joined to the months by ranges of
# what their files are sorted by: whoever asks for one month has engines read the files of that month alone.
SENDER_RELIABILITY_QUERY = """
WITH {covered},
block_days AS (
  SELECT *,
    sum(known_us) OVER (PARTITION BY month, region, site, block ORDER BY day
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS known_so_far_us,
    sum(unknown_us) OVER (PARTITION BY month, region, site, block ORDER BY day
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS unknown_so_far_us
  FROM (
    SELECT region, site, block, day, CAST(date_trunc('month', day) AS DATE) AS month, known_us,
      window_us - known_us - maintenance_us AS unknown_us
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
    AND d.ended_at >= b.begins_at - INTERVAL '1' HOUR AND d.ended_at < b.ends_at - INTERVAL '1' HOUR
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
    0 AS down_us, t.unknown_so_far_us - s.unknown_so_far_us + s.unknown_us AS unknown_us, 0 AS error_bound_us
  FROM up_months u
  JOIN block_days s ON s.month = u.month AND s.region = u.region AND s.site = u.site AND s.block = u.block
    AND s.day = u.from_day
  JOIN block_days t ON t.month = u.month AND t.region = u.region AND t.site = u.site AND t.block = u.block
    AND t.day = u.to_day
  UNION ALL
  SELECT d.month, i.region, i.site, i.block, i.sender_id, -d.known_us, 0, -d.unknown_us, 0
  FROM {prefix}sender_maintenance_days m
  JOIN {prefix}sender_intervals i
    ON i.region = m.region AND i.site = m.site AND i.block = m.block AND i.sender_id = m.sender_id
    AND m.day BETWEEN i.first_whole_day AND i.last_whole_day
  JOIN block_days d ON d.region = m.region AND d.site = m.site AND d.block = m.block AND d.day = m.day
  WHERE i.state = 'up'
  UNION ALL
  SELECT b.month, e.region, e.site, e.block, e.sender_id, e.up_us, e.down_us, e.unknown_us, e.error_bound_us
  FROM block_months b
  JOIN {prefix}sender_day_exceptions e
    ON e.region = b.region AND e.site = b.site AND e.block = b.block AND e.day BETWEEN b.first_day AND b.last_day
),
months AS (
  SELECT month, region, site, block, sender_id,
    CAST(sum(up_us) AS BIGINT) AS up_us, CAST(sum(down_us) AS BIGINT) AS down_us,
    CAST(sum(unknown_us) AS BIGINT) AS unknown_us, CAST(sum(error_bound_us) AS BIGINT) AS error_bound_us
  FROM parts
  GROUP BY month, region, site, block, sender_id
)
SELECT m.month, m.region, m.site, m.block, m.sender_id, up_us, down_us, unknown_us,
  {ratios},
  coalesce(f.outage_count, 0) AS outage_count, CAST(coalesce(f.flap_count, 0) AS BIGINT) AS flap_count,
  CASE WHEN f.outage_count > 0 THEN CAST(floor(up_us / f.outage_count) AS BIGINT) END AS mtbf_us,
  CAST(floor(f.mttr_us) AS BIGINT) AS mttr_us, CAST(floor(f.median_outage_us) AS BIGINT) AS median_outage_us,
  CAST(floor(f.p95_outage_us) AS BIGINT) AS p95_outage_us, f.longest_outage_us, error_bound_us
FROM months m
LEFT JOIN failures f
  ON f.month = m.month AND f.region = m.region AND f.site = m.site AND f.block = m.block AND f.sender_id = m.sender_id
""".replace("{covered}", _COVERED.strip())

OUTAGE_VIEWS = (
    (OUTAGES, OUTAGES_QUERY),
    (INCIDENTS, INCIDENTS_QUERY),
    (SENDER_RELIABILITY, SENDER_RELIABILITY_QUERY),
)
"""Each view with its query, behind those that it rests on."""
