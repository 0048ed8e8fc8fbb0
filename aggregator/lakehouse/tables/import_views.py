"""Views of imported history: pieces of each sender's time, and availability by five definitions.

The queries are in the dialect that Spark and DuckDB share (``view_sql.py``). ``PIECES`` is the rule of gaps and of
watching; ``sender_intervals`` and ``site_coverage`` are derived from it too.

The views ask ``imports`` and not ``sender_intervals``, which joins neighbours of one state and drops intervals of no
length: of the Grid'5000 trace it has 588,414 intervals instead of 588,463, and their mean is 32.409 hours up instead of
the published 32.406.

Rules. A sender's time runs from its first start to its last stop, or for as long as its source watched: the watch of
one import holds for all senders of the source, so files imported one after another give what they give at once. Between
two of its intervals a sender is what the former says of gaps; before the first, and after a time in which its source
did not watch, what the next one says. In such a time, also before the first ``watched_from`` and after the last
``watched_to``, only its intervals count. From an interval in which it is absent to its next one it is absent too. An
import that does not say when watching began, or ended, leaves no unwatched time before it, or after it. Intervals that
overlap are of one state, and are one; one of no length stays separate.
"""

from aggregator.lakehouse.tables.causes import Cause
from aggregator.lakehouse.tables.definition import Column, Table
from aggregator.lakehouse.tables.imports import IMPORT_BLOCK

_NEVER = (1 << 63) - 1
_SENDER = "region, site, block, sender_id"
# Of those at one instant, the interval in which a sender is absent counts last.
_IN_TIME = f"PARTITION BY {_SENDER} ORDER BY started_us, ended_us, state = 'absent', state"
_SO_FAR = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"


def _joined(spans: str, key: str) -> str:
    """Return the query that joins those of ``spans`` (started_us, ended_us) of one key that touch or overlap."""
    in_time = f"PARTITION BY {key} ORDER BY started_us, ended_us"
    return f"""
  SELECT {key}, min(started_us) AS started_us, max(ended_us) AS ended_us
  FROM (
    SELECT *, count(CASE WHEN started_us > reached_us THEN 1 END) OVER ({in_time} {_SO_FAR}) AS run
    FROM (SELECT *, max(ended_us) OVER ({in_time} {_BEFORE}) AS reached_us FROM ({spans}))
  )
  GROUP BY {key}, run"""


_WATCHES = f"""
  SELECT DISTINCT block, coalesce({{micros}}(watched_from), -{_NEVER}) AS started_us,
    coalesce({{micros}}(watched_to), {_NEVER}) AS ended_us
  FROM {{imports}}"""
WATCHED = f"""
watches AS (
  SELECT block, min({{micros}}(watched_from)) AS since_us, max({{micros}}(watched_to)) AS until_us
  FROM {{imports}} GROUP BY block
),
watched AS ({_joined(_WATCHES, "block")}
)"""
"""From when to when each source watched: over all, null where no import says, and in spans that do not touch."""

PIECES = f"""{WATCHED},
timed AS (
  SELECT {_SENDER}, state, gaps, {{micros}}(started_at) AS started_us, {{micros}}(ended_at) AS ended_us
  FROM {{imports}}
),
reaching AS (
  SELECT *, max(CASE WHEN started_us < ended_us THEN ended_us END) OVER ({_IN_TIME} {_BEFORE}) AS reached_us,
    CASE WHEN started_us = ended_us THEN row_number() OVER ({_IN_TIME}) END AS alone
  FROM timed
),
joined AS (
  SELECT {_SENDER}, min(state) AS state, max_by(gaps, ended_us) AS gaps,
    min(started_us) AS started_us, max(ended_us) AS ended_us
  FROM (
    SELECT *, count(CASE WHEN alone IS NULL AND coalesce(started_us >= reached_us, true) THEN 1 END) OVER (
      {_IN_TIME} {_SO_FAR}) AS run
    FROM reaching
  )
  GROUP BY {_SENDER}, run, alone
),
placed AS (
  SELECT *, max(ended_us) OVER ({_IN_TIME} {_SO_FAR}) AS reached_us, lead(started_us) OVER ({_IN_TIME}) AS next_us,
    lead(gaps) OVER ({_IN_TIME}) AS next_gaps, lag(started_us) OVER ({_IN_TIME}) IS NULL AS is_first
  FROM joined JOIN watches USING (block)
),
gap_spans AS (
  SELECT {_SENDER}, since_us AS from_us, started_us AS to_us, gaps AS sooner, gaps AS later
  FROM placed WHERE is_first
  UNION ALL
  SELECT {_SENDER}, reached_us, coalesce(next_us, until_us),
    CASE WHEN state = 'absent' THEN state ELSE gaps END,
    CASE WHEN state = 'absent' THEN state ELSE coalesce(next_gaps, gaps) END
  FROM placed
),
pieces AS (
  SELECT {_SENDER}, state, started_us, ended_us, false AS is_gap FROM joined WHERE state <> 'absent'
  UNION ALL
  SELECT region, site, g.block, sender_id, CASE WHEN started_us <= from_us THEN sooner ELSE later END,
    greatest(from_us, started_us), least(to_us, ended_us), true
  FROM gap_spans g JOIN watched w ON w.block = g.block AND started_us < to_us AND ended_us > from_us
  WHERE from_us < to_us AND sooner <> 'absent'
)"""
"""The imported intervals and the gaps between them, in microseconds, as the last of several WITH queries."""

PIECES_QUERY = f"WITH {PIECES} SELECT * FROM pieces"

_COVERED = """
  SELECT region, site, block, greatest(from_us, started_us) AS started_us, least(to_us, ended_us) AS ended_us
  FROM whole JOIN watched USING (block)
  WHERE greatest(from_us, started_us) < least(to_us, ended_us)
  UNION ALL
  SELECT region, site, block, started_us, ended_us
  FROM timed t
  WHERE state <> 'absent' AND started_us < ended_us AND NOT EXISTS (
    SELECT 1 FROM watched w WHERE w.block = t.block AND w.started_us <= t.started_us AND w.ended_us >= t.ended_us)"""
COVERAGE_QUERY = f"""
WITH {WATCHED},
timed AS (
  SELECT region, site, block, state, {{micros}}(started_at) AS started_us, {{micros}}(ended_at) AS ended_us
  FROM {{imports}}
),
whole AS (
  SELECT region, site, block, least(min(started_us), min(since_us)) AS from_us,
    greatest(max(ended_us), max(until_us)) AS to_us
  FROM timed JOIN watches USING (block)
  GROUP BY region, site, block
),
covered AS ({_joined(_COVERED, "region, site, block")}
)
SELECT *, true AS known, '{Cause.IMPORTED}' AS cause FROM covered
UNION ALL
SELECT region, site, block, reached_us, started_us, false, '{Cause.UNWATCHED}'
FROM (
  SELECT *, lag(ended_us) OVER (PARTITION BY region, site, block ORDER BY started_us) AS reached_us FROM covered
)
WHERE reached_us IS NOT NULL
"""
"""The time that each block's source watched, and intervals of its senders beyond it; and the time between these."""

_NO_ERROR_BOUND = (
    "There is no error bound: the source's instants are taken as they are, and how exact they are it does not say."
)
_OF_TOTAL_TIME = (
    Column("availability_total", "DOUBLE", "up / (up + down + unknown): of total time"),
    Column("coverage", "DOUBLE", "(up + down) / (up + down + unknown): how much of the time the source tells of"),
)
_OBSERVED = (
    Column("observed_from", "TIMESTAMP", "the first start, or when the source began to watch"),
    Column("observed_to", "TIMESTAMP", "the last stop, or when the source ceased to watch"),
)

IMPORT_SENDER_AVAILABILITY = Table(
    "import_sender_availability",
    f"A view: each imported sender, for as long as its source watched it. {_NO_ERROR_BOUND}",
    (
        *IMPORT_BLOCK,
        Column("sender_id", "STRING", "the sender"),
        Column("groups", "MAP<STRING, STRING>", "further groups out of parts of its name"),
        *_OBSERVED,
        Column("up_us", "BIGINT", "microseconds up"),
        Column("down_us", "BIGINT", "microseconds down"),
        Column("unknown_us", "BIGINT", "microseconds that no interval says anything of"),
        Column("initial_down_us", "BIGINT", "microseconds of down_us that lie before it was up for the first time"),
        Column("up_interval_count", "BIGINT", "intervals up"),
        Column("down_interval_count", "BIGINT", "intervals down"),
        Column("zero_length_count", "BIGINT", "intervals among them, of any state, that end where they start"),
        Column("availability_observed", "DOUBLE", "up / (up + down): of known time; null where nothing is known"),
        *_OF_TOTAL_TIME,
        Column("availability_after_first_up", "DOUBLE", "up / (up + down - initial down)"),
    ),
    identity=("region", "site", "block", "sender_id"),
)

_RATIOS = """CAST(up_us AS DOUBLE) / nullif(CAST(up_us + down_us AS DOUBLE), 0) AS availability_observed,
  CAST(up_us AS DOUBLE) / nullif(CAST(up_us + down_us + unknown_us AS DOUBLE), 0) AS availability_total,
  CAST(up_us + down_us AS DOUBLE) / nullif(CAST(up_us + down_us + unknown_us AS DOUBLE), 0) AS coverage,
  CAST(up_us AS DOUBLE) / nullif(CAST(up_us + down_us AS DOUBLE) - CAST(initial_down_us AS DOUBLE), 0)
    AS availability_after_first_up"""

_SENDERS = f"""{PIECES},
lengths AS (
  SELECT *, ended_us - started_us AS length_us,
    min(CASE WHEN state = 'up' AND started_us < ended_us THEN started_us END) OVER (PARTITION BY {_SENDER})
      AS first_up_us
  FROM pieces
),
sums AS (
  SELECT {_SENDER}, {{instant}}(min(started_us)) AS observed_from, {{instant}}(max(ended_us)) AS observed_to,
    CAST(sum(CASE WHEN state = 'up' THEN length_us ELSE 0 END) AS BIGINT) AS up_us,
    CAST(sum(CASE WHEN state = 'down' THEN length_us ELSE 0 END) AS BIGINT) AS down_us,
    CAST(sum(CASE WHEN state = 'unknown' THEN length_us ELSE 0 END) AS BIGINT) AS unknown_us,
    CAST(sum(CASE WHEN state = 'down' AND coalesce(started_us < first_up_us, true) THEN length_us ELSE 0 END)
      AS BIGINT) AS initial_down_us,
    count(CASE WHEN state = 'up' THEN 1 END) AS up_interval_count,
    count(CASE WHEN state = 'down' THEN 1 END) AS down_interval_count,
    count(CASE WHEN length_us = 0 THEN 1 END) AS zero_length_count
  FROM lengths
  GROUP BY {_SENDER}
),
senders AS (
  SELECT *, {_RATIOS}
  FROM sums JOIN (
    SELECT {_SENDER}, max_by(groups, started_at) AS groups FROM {{imports}} GROUP BY {_SENDER}
  ) USING ({_SENDER})
)"""
IMPORT_SENDER_AVAILABILITY_QUERY = (
    f"WITH {_SENDERS} SELECT {', '.join(IMPORT_SENDER_AVAILABILITY.column_names)} FROM senders"
)

IMPORT_AVAILABILITY = Table(
    "import_availability",
    "A view: what was imported, by five definitions of availability, with the lengths of its intervals: for all"
    f" senders of a source, by region, by site, and by every group that their names tell. {_NO_ERROR_BOUND}",
    (
        Column("block", "STRING", "import:<source>"),
        Column("grouping", "STRING", "all | region | site | the name of a group, such as cluster"),
        Column("region", "STRING", "region; null: all"),
        Column("site", "STRING", "site; null: all of the region"),
        Column("group_name", "STRING", "the group's value, within its site; null: all of the site"),
        Column(
            "sender_count",
            "BIGINT",
            "senders, also those of which all intervals end where they start: no figure of the fleet counts these",
        ),
        *_OBSERVED,
        Column(
            "period_us", "BIGINT", "microseconds from the first observed_from to the last observed_to of the source"
        ),
        Column("up_us", "DECIMAL(38,0)", "sender-microseconds up"),
        Column("down_us", "DECIMAL(38,0)", "sender-microseconds down"),
        Column("unknown_us", "DECIMAL(38,0)", "sender-microseconds that no interval says anything of"),
        Column("initial_down_us", "DECIMAL(38,0)", "sender-microseconds of down_us before each first time up"),
        Column("availability_observed", "DOUBLE", "up / (up + down), over all its senders: each weighs what it lived"),
        *_OF_TOTAL_TIME,
        Column("availability_sender_mean", "DOUBLE", "mean of each sender's own up / (up + down): all weigh the same"),
        Column("availability_after_first_up", "DOUBLE", "up / (up + down - initial down)"),
        Column(
            "availability_whole_period",
            "DOUBLE",
            "up / (sender_count x period_us): what is not known, and the time before and after, counts as down",
        ),
        Column("up_interval_count", "BIGINT", "intervals up, those of no length included, as in all that follows"),
        Column("down_interval_count", "BIGINT", "intervals down"),
        Column("zero_length_count", "BIGINT", "intervals, of any state, that end where they start"),
        Column("up_mean_hours", "DOUBLE", "mean length of an interval up, in hours"),
        Column("down_mean_hours", "DOUBLE", "mean length of an interval down, in hours"),
        Column("up_lognormal_mu", "DOUBLE", "mean of ln(hours) of intervals up; those of no length are left out"),
        Column("up_lognormal_sigma", "DOUBLE", "standard deviation of the same"),
        Column("down_lognormal_mu", "DOUBLE", "mean of ln(hours) of intervals down; those of no length are left out"),
        Column("down_lognormal_sigma", "DOUBLE", "standard deviation of the same"),
        Column("down_median_us", "BIGINT", "median length of an interval down, in microseconds"),
        Column("down_over_5m_count", "BIGINT", "intervals down that last longer than 5 minutes"),
        Column("down_over_15m_count", "BIGINT", "intervals down that last longer than 15 minutes"),
    ),
    identity=("block", "grouping", "region", "site", "group_name"),
)

_SUMS = ", ".join(
    f"CAST(sum({name}) AS DECIMAL(38,0)) AS {name}" for name in ("up_us", "down_us", "unknown_us", "initial_down_us")
)
_COUNTS = ", ".join(
    f"CAST(sum({name}) AS BIGINT) AS {name}"
    for name in ("up_interval_count", "down_interval_count", "zero_length_count")
)


def _lengths(state: str) -> str:
    return f"""avg(CASE WHEN state = '{state}' THEN hours END) AS {state}_mean_hours,
    avg(ln(CASE WHEN state = '{state}' AND hours > 0 THEN hours END)) AS {state}_lognormal_mu,
    stddev_pop(ln(CASE WHEN state = '{state}' AND hours > 0 THEN hours END)) AS {state}_lognormal_sigma"""


IMPORT_AVAILABILITY_QUERY = f"""
WITH {_SENDERS},
members AS (
  SELECT {_SENDER}, 'all' AS grouping, CAST(NULL AS STRING) AS of_region, CAST(NULL AS STRING) AS of_site,
    CAST(NULL AS STRING) AS group_name
  FROM senders
  UNION ALL SELECT {_SENDER}, 'region', region, NULL, NULL FROM senders
  UNION ALL SELECT {_SENDER}, 'site', region, site, NULL FROM senders
  UNION ALL SELECT {_SENDER}, name, region, site, groups[name]
  FROM (SELECT *, {{each}}(map_keys(groups)) AS name FROM senders)
),
periods AS (
  SELECT block, {{micros}}(max(observed_to)) - {{micros}}(min(observed_from)) AS period_us FROM senders GROUP BY block
),
totals AS (
  SELECT block, grouping, of_region, of_site, group_name, count(*) AS sender_count,
    min(observed_from) AS observed_from, max(observed_to) AS observed_to, min(period_us) AS period_us, {_SUMS},
    avg(availability_observed) AS availability_sender_mean, {_COUNTS}
  FROM members JOIN senders USING ({_SENDER}) JOIN periods USING (block)
  GROUP BY block, grouping, of_region, of_site, group_name
),
distributions AS (
  SELECT block, grouping, of_region, of_site, group_name,
    {_lengths("up")},
    {_lengths("down")},
    CAST(round({{percentile}}(CASE WHEN state = 'down' THEN length_us END, 0.5)) AS BIGINT) AS down_median_us,
    count(CASE WHEN state = 'down' AND length_us > 300000000 THEN 1 END) AS down_over_5m_count,
    count(CASE WHEN state = 'down' AND length_us > 900000000 THEN 1 END) AS down_over_15m_count
  FROM members JOIN (SELECT *, CAST(length_us AS DOUBLE) / 3600000000 AS hours FROM lengths) USING ({_SENDER})
  GROUP BY block, grouping, of_region, of_site, group_name
),
shares AS (
  SELECT s.*, {_RATIOS},
    CAST(up_us AS DOUBLE) / nullif(CAST(sender_count AS DOUBLE) * CAST(period_us AS DOUBLE), 0)
      AS availability_whole_period,
    {", ".join(IMPORT_AVAILABILITY.column_names[-9:])}
  FROM totals s JOIN distributions l ON l.block = s.block AND l.grouping = s.grouping
    AND l.of_region IS NOT DISTINCT FROM s.of_region AND l.of_site IS NOT DISTINCT FROM s.of_site
    AND l.group_name IS NOT DISTINCT FROM s.group_name
)
SELECT block, grouping, of_region AS region, of_site AS site, {", ".join(IMPORT_AVAILABILITY.column_names[4:])}
FROM shares
"""

IMPORT_VIEWS = (
    (IMPORT_SENDER_AVAILABILITY, IMPORT_SENDER_AVAILABILITY_QUERY),
    (IMPORT_AVAILABILITY, IMPORT_AVAILABILITY_QUERY),
)
