-- What a rollup computes out of advisories and watermarks, by the same rules, as DuckDB would best be asked.
-- Times are microseconds; ${known_through} ends known time, ${bound} is twice the registration interval.
-- Sums are HUGEINT, which Parquet has not: it would keep them as DOUBLE, and not exactly.

CREATE TABLE intervals AS
WITH ranked AS (
    SELECT region, site, block, sender_id, kind, rebuilt, event_id,
        epoch_us(occurred_at) AS moment, epoch_us(last_seen_at) AS seen,
        CASE kind WHEN 'stale' THEN 0 WHEN 'retired' THEN 1 WHEN 'recovered' THEN 2 ELSE 3 END AS rank
    FROM ${advisories}
),
before AS (
    SELECT *, lag(kind) OVER life AS kind_before FROM ranked
    WINDOW life AS (PARTITION BY region, site, block, sender_id ORDER BY moment, rank, event_id)
),
begun AS (
    SELECT *,
        max(if(kind = 'stale' OR kind = 'retired' AND kind_before IS DISTINCT FROM 'stale', seen, moment)) OVER so_far AS started,
        last_value(if(opens, event_id, NULL) IGNORE NULLS) OVER so_far AS episode,
        last_value(if(opens, moment, NULL) IGNORE NULLS) OVER so_far AS episode_started
    FROM (
        SELECT *, kind <> 'retired' AND (coalesce(kind_before = 'retired', true) OR kind = 'new' AND NOT rebuilt) AS opens
        FROM before
    )
    WINDOW so_far AS (
        PARTITION BY region, site, block, sender_id ORDER BY moment, rank, event_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
),
ended AS (
    SELECT *, lead(started) OVER life AS ended, lead(kind) OVER life AS ended_by FROM begun
    WINDOW life AS (PARTITION BY region, site, block, sender_id ORDER BY moment, rank, event_id)
)
SELECT region, site, block, sender_id, episode, episode_started, if(kind = 'stale', 'down', 'up') AS state,
    started, ended, ended_by, moment AS advisory_at, kind AS advisory_kind, event_id AS advisory_id
FROM ended WHERE kind <> 'retired' AND (ended IS NULL OR started < ended);

CREATE TABLE coverage AS
WITH marks AS (
    SELECT region, site, block, incarnation, epoch_us(observed_since) AS since, epoch_us(observed_through) AS through,
        advisory_ordinal AS reached
    FROM ${watermarks}
),
held AS (
    SELECT region, site, block, incarnation, ordinal, row_number() OVER (
        PARTITION BY region, site, block, incarnation ORDER BY ordinal
    ) AS held_count
    FROM ${advisories}
),
counted AS (
    SELECT marks.*, coalesce(held_count, 0) AS held_count
    FROM marks ASOF LEFT JOIN held
    ON marks.region = held.region AND marks.site = held.site AND marks.block = held.block
        AND marks.incarnation = held.incarnation AND marks.reached >= held.ordinal
),
spoken AS (
    SELECT region, site, block, through,
        greatest(since, lag(through) OVER life) AS since,
        -- No stream's past changes here.
        reached = held_count AS whole
    FROM counted WINDOW life AS (PARTITION BY region, site, block, incarnation ORDER BY through, reached, since)
),
edges AS (
    SELECT region, site, block, unnest([since, through, ${known_through}]) AS moment, unnest([1, -1, 0]) AS step
    FROM spoken WHERE whole
),
pieces AS (
    SELECT region, site, block, moment AS started, lead(moment) OVER life AS ended, sum(step) OVER life > 0 AS known
    FROM (SELECT region, site, block, moment, sum(step) AS step FROM edges GROUP BY ALL)
    WINDOW life AS (PARTITION BY region, site, block ORDER BY moment ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
changes AS (
    SELECT *, known IS DISTINCT FROM lag(known) OVER (PARTITION BY region, site, block ORDER BY started) AS changed
    FROM pieces WHERE ended IS NOT NULL
),
runs AS (
    SELECT *, sum(changed::INT) OVER (PARTITION BY region, site, block ORDER BY started) AS run FROM changes
)
SELECT region, site, block, min(started) AS started, max(ended) AS ended, first(known) AS known
FROM runs GROUP BY region, site, block, run;

CREATE TABLE spans AS
SELECT region, site, block, sender_id, state, started, least(coalesce(ended, ${known_through}), ${known_through}) AS ended
FROM intervals WHERE started < ${known_through};

CREATE MACRO windows_of(unit) AS TABLE
SELECT region, site, block, moment, least(moment + unit, ${known_through}) - moment AS window_us,
    sum(greatest(0, least(ended, moment + unit) - greatest(started, moment))) FILTER (known) AS known_us,
    list({started: greatest(started, moment), ended: least(ended, moment + unit)}) FILTER (known) AS known_spans
FROM (
    SELECT *, unnest(range(started - started % unit, ended, unit)) AS moment FROM coverage
) GROUP BY ALL;

CREATE TABLE known_days AS SELECT * FROM windows_of(86400000000);
CREATE TABLE known_hours AS SELECT * FROM windows_of(3600000000);

-- The parts of intervals in windows that they do not fill: two moment most.
CREATE MACRO pieces_of(unit) AS TABLE
SELECT region, site, block, sender_id, state, moment, greatest(started, moment) AS piece_from, least(ended, moment + unit) AS piece_to
FROM (
    SELECT *, unnest(list_distinct([started - started % unit, (ended - 1) - (ended - 1) % unit])) AS moment FROM spans
)
WHERE piece_from > moment OR piece_to < least(moment + unit, ${known_through});

CREATE MACRO observed(known_us, window_us, known_spans, piece_from, piece_to) AS
CASE WHEN coalesce(known_us, 0) = 0 THEN 0 WHEN known_us = window_us THEN piece_to - piece_from
ELSE list_sum([greatest(0, least(x.ended, piece_to) - greatest(x.started, piece_from)) FOR x IN known_spans]) END;

CREATE TABLE sender_days AS
WITH whole_down AS (
    SELECT region, site, block, sender_id, state,
        unnest(range((started + 86399999999) // 86400000000 * 86400000000, ended - 86399999999, 86400000000)) AS moment
    FROM spans WHERE state <> 'up'
),
parts AS (
    SELECT * FROM pieces_of(86400000000)
    UNION ALL SELECT region, site, block, sender_id, state, moment, moment, moment + 86400000000 FROM whole_down
),
seen AS (
    SELECT parts.*, window_us, observed(known_us, window_us, known_spans, piece_from, piece_to) AS observed_us
    FROM parts LEFT JOIN known_days USING (region, site, block, moment)
)
SELECT moment, region, site, block, sender_id, least(moment + 86400000000, ${known_through}) - moment AS window_us,
    sum(observed_us) FILTER (state = 'up')::BIGINT AS up_us, sum(observed_us) FILTER (state = 'down')::BIGINT AS down_us,
    sum(piece_to - piece_from - observed_us)::BIGINT AS unknown_us,
    (least(moment + 86400000000, ${known_through}) - moment - sum(piece_to - piece_from))::BIGINT AS absent_us,
    count(*) FILTER (state = 'down') AS outage_count, ${bound} * count(*) FILTER (state = 'down') AS error_bound_us
FROM seen GROUP BY moment, region, site, block, sender_id;

CREATE TABLE site_hours AS
WITH steps AS (
    SELECT region, site, block, state, unnest([(started + 3599999999) // 3600000000 * 3600000000,
        if(ended = ${known_through}, (ended + 3599999999) // 3600000000, ended // 3600000000) * 3600000000]) AS moment,
        unnest([1, -1]) AS step
    FROM spans
    WHERE (started + 3599999999) // 3600000000 * 3600000000
        < if(ended = ${known_through}, (ended + 3599999999) // 3600000000, ended // 3600000000) * 3600000000
),
runs AS (
    SELECT region, site, block, state, moment, sum(step) OVER life AS whole_count, lead(moment) OVER life AS until
    FROM (SELECT region, site, block, state, moment, sum(step) AS step FROM steps GROUP BY ALL)
    WINDOW life AS (PARTITION BY region, site, block, state ORDER BY moment ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
whole AS (
    SELECT region, site, block, state, unnest(range(moment, until, 3600000000)) AS moment, whole_count FROM runs
    WHERE whole_count > 0
),
filled AS (
    SELECT region, site, moment, whole_count AS senders, state,
        (whole_count * coalesce(known_us, 0))::HUGEINT AS observed_us, (whole_count * window_us)::HUGEINT AS lived_us,
        whole_count AS outages
    FROM whole JOIN known_hours USING (region, site, block, moment)
),
parts AS (
    SELECT region, site, moment, sender_id, state,
        observed(known_us, window_us, known_spans, piece_from, piece_to) AS observed_us, piece_to - piece_from AS lived_us
    FROM pieces_of(3600000000) LEFT JOIN known_hours USING (region, site, block, moment)
),
cut AS (
    SELECT region, site, moment, 1 AS senders, sum(observed_us) FILTER (state = 'up') AS up_us,
        sum(observed_us) FILTER (state = 'down') AS down_us, sum(lived_us) AS lived_us,
        count(*) FILTER (state = 'down') AS outages
    FROM parts GROUP BY region, site, moment, sender_id
),
together AS (
    SELECT region, site, moment, senders, if(state = 'up', observed_us, 0) AS up_us, if(state = 'down', observed_us, 0) AS down_us,
        lived_us, if(state = 'down', outages, 0) AS outages
    FROM filled
    UNION ALL SELECT region, site, moment, senders, up_us, down_us, lived_us, outages FROM cut
)
SELECT region, site, moment, sum(senders)::BIGINT AS sender_count, sum(up_us)::BIGINT AS up_us,
    sum(down_us)::BIGINT AS down_us,
    (sum(lived_us) - coalesce(sum(up_us), 0) - coalesce(sum(down_us), 0))::BIGINT AS unknown_us,
    sum(outages)::BIGINT AS outage_count
FROM together GROUP BY region, site, moment;

COPY intervals TO '${directory}/intervals.parquet';
COPY coverage TO '${directory}/coverage.parquet';
COPY sender_days TO '${directory}/sender_days.parquet';
COPY site_hours TO '${directory}/site_hours.parquet';
