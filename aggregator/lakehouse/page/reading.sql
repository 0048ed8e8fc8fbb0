-- What the page reads. Statements end in a semicolon at the end of a line and are named by the comment before them.
-- $since and $until bound the period, in microseconds. Every figure follows from intervals and coverage alone, so that
-- it is exact for any period and any grid, and costs what happened, not how many senders there are.

-- name: lives
-- The intervals of senders, cut to the period.
CREATE TEMP TABLE lives AS
SELECT region, site, block, sender_id, state,
  greatest(epoch_us(started_at), $since) AS started_at,
  least(coalesce(epoch_us(ended_at), $until), $until) AS ended_at
FROM sender_intervals
WHERE started_at < make_timestamptz($until) AND (ended_at IS NULL OR ended_at > make_timestamptz($since));

-- name: watched
-- Coverage, cut to the period.
CREATE TEMP TABLE watched AS
SELECT region, site, block, known, cause,
  greatest(epoch_us(started_at), $since) AS started_at,
  least(epoch_us(ended_at), $until) AS ended_at
FROM site_coverage
WHERE started_at < make_timestamptz($until) AND ended_at > make_timestamptz($since);

-- name: steps
-- How many senders of each block were in each state, and whether and why anybody knew it: constant in each row.
CREATE TEMP TABLE steps AS
WITH changes AS (
  SELECT region, site, block, started_at AS happened_at, state, 1 AS change FROM lives
  UNION ALL
  SELECT region, site, block, ended_at, state, -1 FROM lives
),
summed AS (
  SELECT region, site, block, happened_at,
    sum(change) FILTER (state = 'up') AS up,
    sum(change) FILTER (state = 'down') AS down,
    sum(change) FILTER (state = 'unknown') AS lost,
    NULL AS cause
  FROM changes
  GROUP BY ALL
  UNION ALL
  SELECT region, site, block, started_at, 0, 0, 0, CASE WHEN known THEN 'known:' || cause ELSE cause END FROM watched
),
instants AS (
  SELECT region, site, block, happened_at, sum(up) AS up, sum(down) AS down, sum(lost) AS lost, max(cause) AS cause
  FROM summed
  GROUP BY ALL
),
so_far AS (
  SELECT region, site, block, happened_at AS started_at,
    lead(happened_at) OVER in_time AS ended_at,
    coalesce(sum(up) OVER in_time, 0) AS up,
    coalesce(sum(down) OVER in_time, 0) AS down,
    coalesce(sum(lost) OVER in_time, 0) AS lost,
    coalesce(last_value(cause IGNORE NULLS) OVER in_time, 'unobserved') AS cause
  FROM instants
  WINDOW in_time AS (PARTITION BY region, site, block ORDER BY happened_at
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT region, site, block, started_at, ended_at,
  CASE WHEN known THEN up ELSE 0 END AS up,
  CASE WHEN known THEN down ELSE 0 END AS down,
  CASE WHEN known THEN lost ELSE up + down + lost END AS unknown,
  CASE WHEN known THEN 'lost_store' ELSE cause END AS unknown_cause,
  cause = 'known:assumed' AS assumed
FROM (SELECT *, cause LIKE 'known:%' AS known FROM so_far WHERE ended_at IS NOT NULL);

-- name: cells
-- Sender time by site and window of $step, counted from $origin.
WITH cut AS (
  SELECT region, site, up, down, unknown, window_at,
    least(ended_at, window_at + $step) - greatest(started_at, window_at) AS length
  FROM (
    SELECT *, unnest(range(started_at - (started_at - $origin) % $step, ended_at, $step)) AS window_at
    FROM steps
  )
)
SELECT region, site, window_at, sum(up * length), sum(down * length), sum(unknown * length)
FROM cut
GROUP BY ALL
ORDER BY ALL;

-- name: sites
SELECT region, site, sum(up * length), sum(down * length), sum(unknown * length)
FROM (SELECT *, (ended_at - started_at)::HUGEINT AS length FROM steps)
GROUP BY ALL
ORDER BY ALL;

-- name: sender_counts
SELECT region, site, count(DISTINCT sender_id) FROM lives GROUP BY ALL;

-- name: heard
SELECT region, site, max(ended_at) FROM watched WHERE known GROUP BY ALL;

-- name: causes
SELECT unknown_cause, sum(unknown * (ended_at - started_at)::HUGEINT) AS unknown
FROM steps
GROUP BY ALL
HAVING unknown > 0
ORDER BY unknown DESC;

-- name: assumed
SELECT coalesce(sum((up + down) * (ended_at - started_at)::HUGEINT), 0) FROM steps WHERE assumed;

-- name: unwatched
SELECT w.region, w.site, w.block, w.started_at, w.ended_at, w.cause,
  coalesce(sum(s.unknown * (s.ended_at - s.started_at)::HUGEINT), 0)
FROM watched w
LEFT JOIN steps s ON s.region = w.region AND s.site = w.site AND s.block = w.block
  AND s.started_at >= w.started_at AND s.ended_at <= w.ended_at
WHERE NOT w.known
GROUP BY ALL
ORDER BY w.started_at, w.site, w.block;

-- name: outages
SELECT region, site, sender_id, epoch_us(started_at),
  CASE WHEN epoch_us(ended_at) <= $until THEN epoch_us(ended_at) END,
  CASE WHEN epoch_us(ended_at) <= $until THEN ended_by END
FROM outages
WHERE started_at < make_timestamptz($until) AND (ended_at IS NULL OR ended_at > make_timestamptz($since))
ORDER BY site, started_at, sender_id;

-- name: senders
-- Every sender that was down in the period: its time is cut by what was watched, sender by sender.
WITH affected AS (
  SELECT region, site, sender_id, count(*) AS outage_count FROM lives WHERE state = 'down' GROUP BY ALL
),
theirs AS (
  SELECT l.* FROM lives l JOIN affected USING (region, site, sender_id)
),
seen AS (
  SELECT t.region, t.site, t.sender_id, t.state,
    sum(least(t.ended_at, w.ended_at) - greatest(t.started_at, w.started_at))::BIGINT AS seen
  FROM theirs t
  JOIN watched w ON w.region = t.region AND w.site = t.site AND w.block = t.block AND w.known
    AND w.started_at < t.ended_at AND w.ended_at > t.started_at
  WHERE t.state <> 'unknown'
  GROUP BY ALL
),
known AS (
  SELECT region, site, sender_id,
    coalesce(sum(seen) FILTER (state = 'up'), 0) AS up, coalesce(sum(seen) FILTER (state = 'down'), 0) AS down
  FROM seen
  GROUP BY ALL
),
lived AS (
  SELECT region, site, sender_id, sum(ended_at - started_at) AS lived FROM theirs GROUP BY ALL
)
SELECT region, site, sender_id, coalesce(up, 0), coalesce(down, 0), lived - coalesce(up, 0) - coalesce(down, 0),
  outage_count
FROM affected
JOIN lived USING (region, site, sender_id)
LEFT JOIN known USING (region, site, sender_id)
ORDER BY coalesce(up, 0) / nullif(up + down, 0) NULLS LAST, coalesce(down, 0) DESC, site, sender_id;

-- name: stale_after
SELECT min(stale_after_us), max(stale_after_us)
FROM watermarks
WHERE observed_through BETWEEN make_timestamptz($since) AND make_timestamptz($until);

-- name: known_time
SELECT min(epoch_us(started_at)), max(epoch_us(ended_at)) FROM site_coverage;

-- name: position
SELECT stream, sequence FROM positions WHERE table_name = 'sender_intervals';
