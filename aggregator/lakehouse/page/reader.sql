-- What the page reads. Statements end in a semicolon at the end of a line and are named by the comment before them.
-- $since and $until bound the period, in microseconds; [chosen] is the condition for regions and sites, [imported] that
-- for blocks of another system's history, [place] and [name] are what senders are grouped by; [nobody] is the name of the
-- group of a block that has none. Every figure follows from intervals and coverage alone, so that
-- it is exact for any period and any grid, and costs what happened, not how many senders there are.

-- name: planned
-- Maintenance in the period; of whole blocks where it names nobody.
CREATE TEMP TABLE planned AS
SELECT region, site, block, CASE WHEN sender_ids IS NULL THEN [NULL] ELSE sender_ids END AS sender_ids,
  epoch_us(started_at) AS planned_from, epoch_us(ended_at) AS planned_to
FROM maintenance
WHERE cancelled_at IS NULL AND started_at < make_timestamptz($until) AND ended_at > make_timestamptz($since);

-- name: lives
-- The intervals of senders, cut to the period, those of named senders also at their maintenance.
CREATE TEMP TABLE lives AS
WITH whole AS (
  SELECT region, site, block, sender_id, CASE WHEN advisory_kind = 'retired' THEN 'unheard' ELSE state END AS state,
    greatest(epoch_us(started_at), $since) AS started_at,
    least(coalesce(epoch_us(ended_at), $until), $until) AS ended_at
  FROM sender_intervals
  WHERE started_at < make_timestamptz($until) AND (ended_at IS NULL OR ended_at > make_timestamptz($since))
    AND [chosen]
),
named AS (
  SELECT region, site, block, unnest(sender_ids) AS sender_id, planned_from, planned_to FROM planned
),
theirs AS (
  SELECT w.*, planned_from, planned_to
  FROM whole w
  JOIN named n ON n.sender_id = w.sender_id AND n.region = w.region AND coalesce(n.site, w.site) = w.site
    AND coalesce(n.block, w.block) = w.block AND planned_from < w.ended_at AND planned_to > w.started_at
),
edges AS (
  SELECT DISTINCT region, site, block, sender_id, state, started_at,
    unnest([started_at, ended_at, greatest(planned_from, started_at), least(planned_to, ended_at)]) AS happened_at
  FROM theirs
),
pieces AS (
  SELECT *, lead(happened_at) OVER (
    PARTITION BY region, site, block, sender_id, started_at ORDER BY happened_at) AS until
  FROM edges
)
SELECT region, site, block, sender_id,
  CASE WHEN EXISTS (
    SELECT 1 FROM theirs t
    WHERE t.region = p.region AND t.site = p.site AND t.block = p.block AND t.sender_id = p.sender_id
      AND t.started_at = p.started_at AND t.planned_from <= p.happened_at AND t.planned_to >= p.until
  ) THEN 'maintenance' ELSE state END AS state,
  happened_at AS started_at, until AS ended_at
FROM pieces p
WHERE until IS NOT NULL
UNION ALL
SELECT * FROM whole w
WHERE NOT EXISTS (
  SELECT 1 FROM theirs t
  WHERE t.region = w.region AND t.site = w.site AND t.block = w.block AND t.sender_id = w.sender_id
    AND t.started_at = w.started_at);

-- name: watched
-- Coverage, cut to the period, and where whole blocks were in maintenance: that outranks what was seen.
CREATE TEMP TABLE watched AS
WITH whole AS (
  SELECT region, site, block, known AS seen, cause,
    greatest(epoch_us(started_at), $since) AS started_at,
    least(epoch_us(ended_at), $until) AS ended_at
  FROM site_coverage
  WHERE started_at < make_timestamptz($until) AND ended_at > make_timestamptz($since) AND [chosen]
),
theirs AS (
  SELECT w.*, planned_from, planned_to
  FROM whole w
  JOIN planned p ON p.sender_ids = [NULL] AND p.region = w.region AND coalesce(p.site, w.site) = w.site
    AND coalesce(p.block, w.block) = w.block AND planned_from < w.ended_at AND planned_to > w.started_at
),
edges AS (
  SELECT region, site, block, seen, cause, started_at, started_at AS happened_at FROM whole
  UNION
  SELECT region, site, block, seen, cause, started_at, ended_at FROM whole
  UNION
  SELECT region, site, block, seen, cause, started_at,
    unnest([greatest(planned_from, started_at), least(planned_to, ended_at)])
  FROM theirs
),
pieces AS (
  SELECT *, lead(happened_at) OVER (PARTITION BY region, site, block, started_at ORDER BY happened_at) AS until
  FROM edges
),
marked AS (
  SELECT *, EXISTS (
    SELECT 1 FROM theirs t
    WHERE t.region = p.region AND t.site = p.site AND t.block = p.block AND t.started_at = p.started_at
      AND t.planned_from <= p.happened_at AND t.planned_to >= p.until) AS in_maintenance
  FROM pieces p
  WHERE until IS NOT NULL
)
SELECT region, site, block, seen AND NOT in_maintenance AS known,
  CASE WHEN in_maintenance THEN 'maintenance' ELSE cause END AS cause,
  happened_at AS started_at, until AS ended_at, seen
FROM marked;

-- name: around
-- Where what is told before the period ends, and what is told after it begins.
SELECT max(epoch_us(ended_at)) FILTER (epoch_us(ended_at) <= $since),
  min(epoch_us(started_at)) FILTER (epoch_us(started_at) >= $until)
FROM site_coverage
WHERE [chosen];

-- name: grouped
CREATE TEMP TABLE grouped AS SELECT *, [place] AS place, [name] AS name FROM lives;

-- name: members
-- The groups that each block has senders in; where it has none, that of its place, or one of no name.
CREATE TEMP TABLE members AS
SELECT DISTINCT w.region, w.site, w.block, coalesce(g.place, [place]) AS place, coalesce(g.name, [nobody]) AS name
FROM watched w
LEFT JOIN grouped g USING (region, site, block)
UNION
SELECT region, site, block, place, name FROM grouped;

-- name: steps
-- How many senders of each group in each block were in each state, and whether and why anybody knew it: constant in each row.
CREATE TEMP TABLE steps AS
WITH changes AS (
  SELECT region, site, block, place, name, started_at AS happened_at, state, 1 AS change FROM grouped
  UNION ALL
  SELECT region, site, block, place, name, ended_at, state, -1 FROM grouped
),
summed AS (
  SELECT region, site, block, place, name, happened_at,
    sum(change) FILTER (state = 'up') AS up,
    sum(change) FILTER (state = 'down') AS down,
    sum(change) FILTER (state = 'unknown') AS lost,
    sum(change) FILTER (state = 'unheard') AS unheard,
    sum(change) FILTER (state = 'maintenance') AS planned,
    NULL AS cause
  FROM changes
  GROUP BY ALL
  UNION ALL
  SELECT region, site, block, place, name, started_at, 0, 0, 0, 0, 0,
    CASE WHEN known THEN 'known:' || cause ELSE cause END
  FROM watched
  JOIN members USING (region, site, block)
),
instants AS (
  SELECT region, site, block, place, name, happened_at, sum(up) AS up, sum(down) AS down, sum(lost) AS lost,
    sum(unheard) AS unheard, sum(planned) AS planned, max(cause) AS cause
  FROM summed
  GROUP BY ALL
),
so_far AS (
  SELECT region, site, block, place, name, happened_at AS started_at,
    lead(happened_at) OVER in_time AS ended_at,
    coalesce(sum(up) OVER in_time, 0) AS up,
    coalesce(sum(down) OVER in_time, 0) AS down,
    coalesce(sum(lost) OVER in_time, 0) AS lost,
    coalesce(sum(unheard) OVER in_time, 0) AS unheard,
    coalesce(sum(planned) OVER in_time, 0) AS planned,
    coalesce(last_value(cause IGNORE NULLS) OVER in_time, 'unobserved') AS cause
  FROM instants
  WINDOW in_time AS (PARTITION BY region, site, block, place, name ORDER BY happened_at
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT region, site, block, place, name, started_at, ended_at,
  CASE WHEN known THEN up ELSE 0 END AS up,
  CASE WHEN known THEN down ELSE 0 END AS down,
  CASE WHEN known THEN lost + unheard WHEN cause = 'maintenance' THEN 0 ELSE up + down + lost + unheard END AS unknown,
  CASE WHEN known THEN unheard ELSE 0 END AS unheard,
  CASE WHEN cause = 'maintenance' THEN up + down + lost + unheard + planned ELSE planned END AS maintenance,
  CASE WHEN cause = 'known:imported' THEN 'import_gap' WHEN known THEN 'lost_store' ELSE cause END AS unknown_cause,
  cause = 'known:assumed' AS assumed,
  cause = 'known:imported' AS imported
FROM (SELECT *, cause LIKE 'known:%' AS known FROM so_far WHERE ended_at IS NOT NULL);

-- name: cells
-- Sender time by group and window of $step, counted from $origin.
WITH cut AS (
  SELECT place, name, up, down, unknown, maintenance, window_at,
    least(ended_at, window_at + $step) - greatest(started_at, window_at) AS length
  FROM (
    SELECT *, unnest(range(started_at - (started_at - $origin) % $step, ended_at, $step)) AS window_at
    FROM steps
  )
)
SELECT place, name, window_at, sum(up * length), sum(down * length), sum(unknown * length),
  sum(maintenance * length)
FROM cut
GROUP BY ALL
ORDER BY ALL;

-- name: sites
-- Those at which nobody was as well, as long as anything is told of them.
SELECT region, site, coalesce(sum(up * length), 0), coalesce(sum(down * length), 0), coalesce(sum(unknown * length), 0),
  coalesce(sum(maintenance * length), 0)
FROM (SELECT region, site FROM watched UNION SELECT region, site FROM lives)
LEFT JOIN (SELECT *, (ended_at - started_at)::HUGEINT AS length FROM steps) USING (region, site)
GROUP BY ALL
ORDER BY ALL;

-- name: groups
-- Of each group its senders, its sender time, its outages, and until when one of its sites was watched.
WITH times AS (
  SELECT place, name, sum(up * length) AS up, sum(down * length) AS down, sum(unknown * length) AS unknown,
    sum(maintenance * length) AS maintenance
  FROM (SELECT *, (ended_at - started_at)::HUGEINT AS length FROM steps)
  GROUP BY ALL
),
counts AS (
  SELECT place, name, count(DISTINCT (region, site, sender_id)) AS sender_count FROM grouped GROUP BY ALL
),
went_down AS (
  SELECT [place] AS place, [name] AS name, count(*) AS outage_count
  FROM outages
  WHERE NOT planned AND started_at < make_timestamptz($until)
    AND (ended_at IS NULL OR ended_at > make_timestamptz($since)) AND [chosen]
  GROUP BY ALL
),
heard AS (
  SELECT place, name, max(ended_at) AS heard_through
  FROM watched
  JOIN members USING (region, site, block)
  WHERE seen
  GROUP BY ALL
)
SELECT place, name, coalesce(sender_count, 0), coalesce(up, 0), coalesce(down, 0), coalesce(unknown, 0),
  coalesce(maintenance, 0), coalesce(outage_count, 0), heard_through
FROM (SELECT DISTINCT place, name FROM members)
LEFT JOIN times USING (place, name)
LEFT JOIN counts USING (place, name)
LEFT JOIN went_down USING (place, name)
LEFT JOIN heard USING (place, name)
WHERE name <> '' OR sender_count > 0;

-- name: sender_counts
SELECT region, site, count(DISTINCT sender_id) FROM lives GROUP BY ALL;

-- name: blocks
-- Of each block from when to when anything is told, until when it was watched, and whether it was imported.
SELECT region, site, min(started_at), max(ended_at), max(ended_at) FILTER (seen), [imported]
FROM watched
GROUP BY region, site, block
ORDER BY ALL;

-- name: causes
SELECT cause, sum(unknown * (ended_at - started_at)::HUGEINT) AS unknown
FROM (
  SELECT unknown_cause AS cause, unknown - unheard AS unknown, started_at, ended_at FROM steps
  UNION ALL
  SELECT 'unheard', unheard, started_at, ended_at FROM steps
)
GROUP BY ALL
HAVING unknown > 0
ORDER BY unknown DESC;

-- name: borrowed
-- What of known sender time is assumed, and what was imported.
SELECT coalesce(sum(known) FILTER (assumed), 0), coalesce(sum(known) FILTER (imported), 0)
FROM (SELECT (up + down) * (ended_at - started_at)::HUGEINT AS known, assumed, imported FROM steps);

-- name: unwatched
SELECT w.region, w.site, w.block, w.started_at, w.ended_at, w.cause,
  coalesce(sum(s.unknown * (s.ended_at - s.started_at)::HUGEINT), 0)
FROM watched w
LEFT JOIN steps s ON s.region = w.region AND s.site = w.site AND s.block = w.block
  AND s.started_at >= w.started_at AND s.ended_at <= w.ended_at
WHERE NOT w.known AND w.cause <> 'maintenance'
GROUP BY ALL
ORDER BY w.started_at, w.site, w.block;

-- name: outages
SELECT region, site, sender_id, epoch_us(started_at),
  CASE WHEN epoch_us(ended_at) <= $until THEN epoch_us(ended_at) END,
  CASE WHEN epoch_us(ended_at) <= $until THEN ended_by END, epoch_us(incident_started_at), [imported]
FROM outages
WHERE NOT planned AND started_at < make_timestamptz($until)
  AND (ended_at IS NULL OR ended_at > make_timestamptz($since)) AND [chosen]
ORDER BY site, started_at, sender_id;

-- name: senders
-- Every sender that was down in the period, not as planned: its time is cut by what was watched, sender by sender.
WITH affected AS (
  SELECT region, site, sender_id, count(*) AS outage_count, count(*) FILTER (NOT [imported]) AS noticed_count
  FROM outages
  WHERE NOT planned AND started_at < make_timestamptz($until)
    AND (ended_at IS NULL OR ended_at > make_timestamptz($since))
  GROUP BY ALL
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
  WHERE t.state IN ('up', 'down')
  GROUP BY ALL
),
in_maintenance AS (
  SELECT region, site, sender_id, sum(length)::BIGINT AS maintenance
  FROM (
    SELECT region, site, sender_id, ended_at - started_at AS length FROM theirs WHERE state = 'maintenance'
    UNION ALL
    SELECT t.region, t.site, t.sender_id, least(t.ended_at, w.ended_at) - greatest(t.started_at, w.started_at)
    FROM theirs t
    JOIN watched w ON w.region = t.region AND w.site = t.site AND w.block = t.block AND w.cause = 'maintenance'
      AND w.started_at < t.ended_at AND w.ended_at > t.started_at
    WHERE t.state <> 'maintenance'
  )
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
SELECT region, site, sender_id, coalesce(up, 0), coalesce(down, 0),
  lived - coalesce(up, 0) - coalesce(down, 0) - coalesce(maintenance, 0), coalesce(maintenance, 0), outage_count,
  noticed_count
FROM affected
JOIN lived USING (region, site, sender_id)
LEFT JOIN known USING (region, site, sender_id)
LEFT JOIN in_maintenance USING (region, site, sender_id)
ORDER BY coalesce(up, 0) / nullif(up + down, 0) NULLS LAST, coalesce(down, 0) DESC, site, sender_id;

-- name: stale_after
SELECT min(stale_after_us), max(stale_after_us)
FROM watermarks
-- Of whole days: of those that are long over, only the first and the last of a day may be left.
WHERE observed_through BETWEEN make_timestamptz($since - $since % 86400000000)
  AND make_timestamptz($until - $until % 86400000000 + 86400000000) AND [chosen];

-- name: known_time
SELECT min(epoch_us(started_at)), max(epoch_us(ended_at)) FROM site_coverage;

-- name: position
-- Of the hub's stream: there is none where all was imported.
SELECT stream, sequence FROM positions WHERE table_name = 'sender_intervals' AND epoch_us(known_through) > 0;

-- name: places
SELECT DISTINCT region, site FROM site_coverage ORDER BY ALL;
