"""Say what the views for analysts are: sums over longer times, inventory; outages have modules of their own.

Each is one query in a dialect that Spark and DuckDB share; what they call differently stands in braces (``views.py``).
"""

from aggregator.lakehouse.tables.definition import RATIO_COLUMNS, SENDER_COLUMNS, Column, Table
from aggregator.lakehouse.tables.outage_views import FEWEST_TOGETHER, OUTAGE_VIEWS
from aggregator.lakehouse.tables.reliability_view import SENDER_RELIABILITY, SENDER_RELIABILITY_QUERY

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
        Column("sender_count", "BIGINT", "senders that lived in the hour, however short, one for each block"),
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
        Column("most_senders", "BIGINT", "senders that lived on its fullest day, one for each block"),
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

_INVENTORY_COLUMNS = (
    *SENDER_COLUMNS,
    Column("stored_at", "TIMESTAMP", "when the site's stream stored it"),
    Column("reason", "STRING", "why it was forwarded, see registrations"),
    Column("content", "STRING", "JSON: the inventory, out of Choria's envelopes, unzipped; null: see unopened"),
    Column(
        "unopened",
        "STRING",
        "why there is no inventory: no_content | not_base64 | not_zipped | not_whole | too_large | not_text (content is"
        " null) | not_json (content has it) | zipped (Spark unzips nothing); null: there is one",
    ),
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
# Choria's adapters put what they take into an envelope, and its registration plugins a file or an inventory into
# another. Each is told by its protocol: a node may well call a key of its own data, content or zcontent. Where an
# adapter's body says none, and has no facts either, zcontent is a plugin's, and so is a content with fields.
INVENTORY_HISTORY_QUERY = """
WITH told AS (
  SELECT region, site, block, sender_id, stored_at, reason, payload, coalesce(repaired, payload) AS said,
    coalesce({json}({parsed}coalesce(repaired, payload){end}, '$.protocol') LIKE 'choria:adapters:%:output:%', FALSE)
      AS is_enveloped,
    lead(stored_at) OVER (
      PARTITION BY region, site, block, sender_id ORDER BY stored_at, incarnation, sequence) AS replaced_at
  FROM {prefix}registrations
  WHERE sender_id IS NOT NULL
),
unwrapped AS (
  SELECT *, CASE WHEN is_enveloped THEN {json}({parsed}said{end}, '$.data') ELSE said END AS body
  FROM told
),
bodies AS (
  SELECT *, coalesce({json}({parsed}body{end}, '$.protocol'), '') AS protocol,
    {json}({parsed}body{end}, '$.content') AS packed, {json}({parsed}body{end}, '$.zcontent') AS zipped
  FROM unwrapped
),
forms AS (
  SELECT *, CASE
      WHEN body IS NULL THEN 'nothing'
      WHEN protocol LIKE 'choria:registration:%content:%' OR (
          is_enveloped AND protocol = '' AND {json}({parsed}body{end}, '$.facts') IS NULL
          AND (zipped IS NOT NULL OR packed LIKE '{{%'))
        THEN CASE WHEN zipped IS NOT NULL THEN 'zipped' WHEN packed IS NULL THEN 'nothing'
          WHEN protocol LIKE 'choria:registration:filecontent:%' THEN 'base64' ELSE 'packed' END
      ELSE 'plain' END AS form
  FROM bodies
),
opened AS (
  SELECT *, CASE form WHEN 'plain' THEN body WHEN 'packed' THEN packed WHEN 'base64' THEN {decoded}
    WHEN 'zipped' THEN {unzipped} END AS content
  FROM forms
)
SELECT region, site, block, sender_id, stored_at, reason, content,
  CASE WHEN content IS NOT NULL AND {json}({parsed}content{end}, '$') IS NULL THEN 'not_json'
    WHEN content IS NOT NULL THEN NULL
    WHEN form = 'nothing' THEN 'no_content' WHEN form = 'base64' THEN {not_decoded} ELSE {not_unzipped} END AS unopened,
  {json}({parsed}content{end}, '$.facts') AS facts, {json}({parsed}content{end}, '$.classes') AS classes,
  {json}({parsed}content{end}, '$.agents') AS agents, payload, replaced_at
FROM opened
"""

INVENTORY = Table(
    "inventory",
    "A view: the latest that each sender said of itself.",
    _INVENTORY_COLUMNS,
    identity=("region", "site", "block", "sender_id"),
)
INVENTORY_QUERY = """
SELECT region, site, block, sender_id, stored_at, reason, content, unopened, facts, classes, agents, payload
FROM {prefix}inventory_history
WHERE replaced_at IS NULL
"""

ANALYSIS_VIEWS = (
    (REGION_AVAILABILITY_HOURLY, REGION_AVAILABILITY_HOURLY_QUERY),
    (FLEET_AVAILABILITY_MONTHLY, FLEET_AVAILABILITY_MONTHLY_QUERY),
    *OUTAGE_VIEWS,
    (SENDER_RELIABILITY, SENDER_RELIABILITY_QUERY),
    (INVENTORY_HISTORY, INVENTORY_HISTORY_QUERY),
    (INVENTORY, INVENTORY_QUERY),
)
"""Each view with its query, behind those that it rests on."""
