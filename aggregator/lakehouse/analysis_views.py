"""Say what the views for analysts are: sums over longer times, incidents, reliability, inventory.

Each is one query in a dialect that Spark and DuckDB share; what they call differently stands in braces (``views.py``).
"""

from aggregator.lakehouse.table import Column, Table

FEWEST_TOGETHER = 4
"""So many senders of a site make an incident."""

_SITE = (Column("region", "STRING", "region"), Column("site", "STRING", "site"))
_BLOCK = (*_SITE, Column("block", "STRING", "stream block of the site's agent"))
_SENDER = (*_BLOCK, Column("sender_id", "STRING", "the sender"))
TERMS = {
    "fewest": str(FEWEST_TOGETHER),
    "summed": """sum(up_us) AS up_us, sum(down_us) AS down_us, sum(unknown_us) AS unknown_us,
    sum(maintenance_us) AS maintenance_us, sum(absent_us) AS absent_us""",
    "ratios": """CASE WHEN up_us + down_us > 0 THEN CAST(up_us AS DOUBLE) / (up_us + down_us) END AS availability_known,
  CASE WHEN up_us + down_us + unknown_us > 0
    THEN CAST(up_us AS DOUBLE) / (up_us + down_us + unknown_us) END AS availability_total,
  CASE WHEN up_us + down_us + unknown_us > 0
    THEN CAST(up_us + down_us AS DOUBLE) / (up_us + down_us + unknown_us) END AS coverage""",
}
"""What several queries say alike, by the name that stands for it in braces."""

RATIO_COLUMNS = (
    Column("availability_known", "DOUBLE", "up / (up + down): of known time; null where nothing is known"),
    Column("availability_total", "DOUBLE", "up / (up + down + unknown): of total time, maintenance left out"),
    Column("coverage", "DOUBLE", "(up + down) / (up + down + unknown): how much of the time is known"),
)
_SUM_COLUMNS = (
    Column("up_us", "DECIMAL(38,0)", "sender-microseconds up"),
    Column("down_us", "DECIMAL(38,0)", "sender-microseconds down"),
    Column("unknown_us", "DECIMAL(38,0)", "sender-microseconds that nobody observed"),
    Column("maintenance_us", "DECIMAL(38,0)", "sender-microseconds of declared maintenance"),
    Column("absent_us", "DECIMAL(38,0)", "sender-microseconds outside every life of the senders counted"),
)

REGION_AVAILABILITY_HOURLY = Table(
    "region_availability_hourly",
    "A view: availability of each region by hour.",
    (
        Column("hour", "TIMESTAMP", "start of the UTC hour"),
        Column("day", "DATE", "its UTC day"),
        Column("region", "STRING", "region"),
        Column("sender_count", "BIGINT", "senders that lived in the hour, however short"),
        Column("window_us", "BIGINT", "microseconds of the hour that lie in known time"),
        *_SUM_COLUMNS,
        Column("complete", "BOOLEAN", "false: known time ends within this hour"),
        *RATIO_COLUMNS,
        Column("error_bound_us", "DECIMAL(38,0)", "microseconds by which up_us and down_us may be off"),
    ),
    identity=("hour", "region"),
)
REGION_AVAILABILITY_HOURLY_QUERY = """
WITH hours AS (
  SELECT hour, day, region, sum(sender_count) AS sender_count, max(window_us) AS window_us, {summed},
    bool_and(complete) AS complete, sum(error_bound_us) AS error_bound_us
  FROM {prefix}site_availability_hourly
  GROUP BY hour, day, region
)
SELECT hour, day, region, CAST(sender_count AS BIGINT) AS sender_count, window_us, up_us, down_us, unknown_us,
  maintenance_us, absent_us, complete,
  {ratios},
  error_bound_us
FROM hours
"""

FLEET_AVAILABILITY_MONTHLY = Table(
    "fleet_availability_monthly",
    "A view: availability of the whole fleet by month.",
    (
        Column("month", "DATE", "first day of the UTC month"),
        Column("day_count", "BIGINT", "days of the month that have figures"),
        Column("most_senders", "BIGINT", "senders that lived on its fullest day"),
        Column("window_us", "BIGINT", "microseconds of the month that lie in known time"),
        *_SUM_COLUMNS,
        Column("complete", "BOOLEAN", "false: known time ends within this month, or it began within"),
        *RATIO_COLUMNS,
        Column("error_bound_us", "DECIMAL(38,0)", "microseconds by which up_us and down_us may be off"),
    ),
    identity=("month",),
)
FLEET_AVAILABILITY_MONTHLY_QUERY = """
WITH months AS (
  SELECT CAST(date_trunc('month', day) AS DATE) AS month, count(*) AS day_count, max(sender_count) AS most_senders,
    CAST(sum(window_us) AS BIGINT) AS window_us, {summed}, bool_and(complete) AS complete,
    sum(error_bound_us) AS error_bound_us
  FROM {prefix}fleet_availability_daily
  GROUP BY CAST(date_trunc('month', day) AS DATE)
)
SELECT month, day_count, most_senders, window_us, up_us, down_us, unknown_us, maintenance_us, absent_us,
  complete AND day_count = day(last_day(month)) AS complete,
  {ratios},
  error_bound_us
FROM months
"""

OUTAGES = Table(
    "outages",
    "A view: every outage of every sender, from its last word before to its first word after.",
    (
        *_SENDER,
        Column("started_at", "TIMESTAMP", "its last word"),
        Column("ended_at", "TIMESTAMP", "its first word again, or its retirement; null: still down"),
        Column("ended_by", "STRING", "recovered | retired | new | rebuilt | lost_store | stale; null: still down"),
        Column("noticed_at", "TIMESTAMP", "when it became stale"),
        Column("duration_us", "BIGINT", "microseconds from started_at to ended_at; null: still down"),
        Column("episode", "STRING", "which life of the sender"),
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
WITH downs AS (
  SELECT *, {micros}(started_at) AS started_us,
    CASE WHEN advisory_at > started_at THEN ({micros}(advisory_at) - {micros}(started_at)) / 2 ELSE 300000000 END
      AS near_us
  FROM {prefix}sender_intervals
  WHERE state = 'down'
),
marked AS (
  SELECT *, CASE WHEN started_us - lag(started_us) OVER (
      PARTITION BY region, site ORDER BY started_at, block, sender_id) <= near_us THEN 0 ELSE 1 END AS begins
  FROM downs
),
numbered AS (
  SELECT *, sum(begins) OVER (PARTITION BY region, site ORDER BY started_at, block, sender_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS number
  FROM marked
),
together AS (
  SELECT *, count(*) OVER (PARTITION BY region, site, number) AS size,
    min(started_at) OVER (PARTITION BY region, site, number) AS began_at
  FROM numbered
)
SELECT region, site, block, sender_id, started_at, ended_at, ended_by, advisory_at AS noticed_at,
  {micros}(ended_at) - started_us AS duration_us, episode,
  CASE WHEN size >= {fewest} THEN began_at END AS incident_started_at
FROM together
"""

INCIDENTS = Table(
    "incidents",
    "A view: many senders of a site that fell silent one soon after the other. An outage belongs to the incident of the"
    f" one before it at its site where it began within half of stale_after of that; fewer than {FEWEST_TOGETHER}"
    " outages are no incident.",
    (
        *_SITE,
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
    "A view: how reliable each sender was in each month. Ask for the worst with a minimum of coverage:"
    " WHERE coverage > 0.9 ORDER BY availability_known.",
    (
        Column("month", "DATE", "first day of the UTC month"),
        *_SENDER,
        Column("up_us", "BIGINT", "microseconds up"),
        Column("down_us", "BIGINT", "microseconds down"),
        Column("unknown_us", "BIGINT", "microseconds that nobody observed"),
        *RATIO_COLUMNS,
        Column("outage_count", "BIGINT", "outages that began in the month"),
        Column("flap_count", "BIGINT", "those of them that began within an hour after the one before had ended"),
        Column("mtbf_us", "BIGINT", "mean time between failures: up_us / outage_count; null without an outage"),
        Column("mttr_us", "BIGINT", "mean time to repair: of the outages that began in the month and are over"),
        Column("median_outage_us", "BIGINT", "half of those were shorter"),
        Column("p95_outage_us", "BIGINT", "95 % of those were shorter"),
        Column("longest_outage_us", "BIGINT", "the longest of those"),
        Column("error_bound_us", "BIGINT", "microseconds by which up_us and down_us may be off"),
    ),
    identity=("month", "region", "site", "block", "sender_id"),
)
SENDER_RELIABILITY_QUERY = """
WITH spans AS (
  SELECT region, site, block, sender_id, CAST(date_trunc('month', started_at) AS DATE) AS month,
    {micros}(ended_at) - {micros}(started_at) AS duration_us,
    {micros}(started_at) - {micros}(lag(ended_at) OVER (
      PARTITION BY region, site, block, sender_id ORDER BY started_at)) AS since_us
  FROM {prefix}sender_intervals
  WHERE state = 'down'
),
failures AS (
  SELECT region, site, block, sender_id, month, count(*) AS outage_count,
    sum(CASE WHEN since_us <= 3600000000 THEN 1 ELSE 0 END) AS flap_count,
    avg(duration_us) AS mttr_us, {percentile}(duration_us, 0.5) AS median_outage_us,
    {percentile}(duration_us, 0.95) AS p95_outage_us, max(duration_us) AS longest_outage_us
  FROM spans
  GROUP BY region, site, block, sender_id, month
),
months AS (
  SELECT CAST(date_trunc('month', day) AS DATE) AS month, region, site, block, sender_id,
    CAST(sum(up_us) AS BIGINT) AS up_us, CAST(sum(down_us) AS BIGINT) AS down_us,
    CAST(sum(unknown_us) AS BIGINT) AS unknown_us, CAST(sum(error_bound_us) AS BIGINT) AS error_bound_us
  FROM {prefix}sender_availability_daily
  GROUP BY CAST(date_trunc('month', day) AS DATE), region, site, block, sender_id
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
"""

_INVENTORY_COLUMNS = (
    *_SENDER,
    Column("stored_at", "TIMESTAMP", "when the site's stream stored it"),
    Column("reason", "STRING", "why it was forwarded, see registrations"),
    Column("content", "STRING", "JSON: the inventory, out of Choria's envelope where it came in one; null: compressed"),
    Column("facts", "STRING", "JSON: its facts, $.facts of content"),
    Column("classes", "STRING", "JSON: its classes, $.classes of content"),
    Column("agents", "STRING", "JSON: its agents with their versions, $.agents of content"),
    Column("payload", "STRING", "the payload as the sender wrote it"),
)
INVENTORY_HISTORY = Table(
    "inventory_history",
    "A view: what senders said of themselves, and until when that was the latest. A sample of what they published.",
    (*_INVENTORY_COLUMNS, Column("replaced_at", "TIMESTAMP", "when the next one was stored; null: the latest")),
    identity=("region", "site", "block", "sender_id", "stored_at"),
)
INVENTORY_HISTORY_QUERY = """
WITH told AS (
  SELECT region, site, block, sender_id, stored_at, reason, payload, coalesce(
      {json}({parsed}payload{end}, '$.data'), payload) AS body,
    lead(stored_at) OVER (
      PARTITION BY region, site, block, sender_id ORDER BY stored_at, incarnation, sequence) AS replaced_at
  FROM {prefix}registrations
  WHERE sender_id IS NOT NULL
),
bodies AS (
  SELECT *, CASE WHEN {json}({parsed}body{end}, '$.zcontent') IS NULL
    THEN coalesce({json}({parsed}body{end}, '$.content'), body) END AS content
  FROM told
)
SELECT region, site, block, sender_id, stored_at, reason, content,
  {json}({parsed}content{end}, '$.facts') AS facts, {json}({parsed}content{end}, '$.classes') AS classes,
  {json}({parsed}content{end}, '$.agents') AS agents, payload, replaced_at
FROM bodies
"""

INVENTORY = Table(
    "inventory",
    "A view: the latest that each sender said of itself.",
    _INVENTORY_COLUMNS,
    identity=("region", "site", "block", "sender_id"),
)
INVENTORY_QUERY = """
SELECT region, site, block, sender_id, stored_at, reason, content, facts, classes, agents, payload
FROM {prefix}inventory_history
WHERE replaced_at IS NULL
"""

ANALYSIS_VIEWS = (
    (REGION_AVAILABILITY_HOURLY, REGION_AVAILABILITY_HOURLY_QUERY),
    (FLEET_AVAILABILITY_MONTHLY, FLEET_AVAILABILITY_MONTHLY_QUERY),
    (OUTAGES, OUTAGES_QUERY),
    (INCIDENTS, INCIDENTS_QUERY),
    (SENDER_RELIABILITY, SENDER_RELIABILITY_QUERY),
    (INVENTORY_HISTORY, INVENTORY_HISTORY_QUERY),
    (INVENTORY, INVENTORY_QUERY),
)
"""Each view with its query, behind those that it rests on."""
