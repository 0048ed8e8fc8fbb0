"""Say what the views of outages are: one by one, and many at once.

Each is one query in a dialect that Spark and DuckDB share; what they call differently stands in braces (``views.py``).
"""

from aggregator.lakehouse.tables.definition import SENDER_COLUMNS, SITE_COLUMNS, Column, Table

FEWEST_TOGETHER = 4
"""So few outages of a site may make an incident."""

COVERED = """
downs AS (
  SELECT *, {micros}(started_at) AS started_us,
    {micros}(CASE WHEN basis = 'inferred' THEN started_at ELSE advisory_at END) AS noticed_us
  FROM {prefix}sender_intervals
  WHERE state = 'down'
),
known AS (
  SELECT coalesce(
      max(CASE WHEN table_name = 'sender_intervals' AND {micros}(known_through) > 0 THEN known_through END),
      max(CASE WHEN table_name = 'imports' THEN known_through END)) AS known_through
  FROM {prefix}positions
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

# Said twice is that coverage begins before an outage ends: DuckDB compares with known time only behind the join, of
# which all blind spans of the site would come that end after the outage began.
_UNCOUNTED = """
hidden AS (
  SELECT d.region, d.site, d.block, d.sender_id, d.started_at,
    {micros}(greatest(d.started_at, c.started_at)) AS from_us,
    {micros}(least(d.ended_at, k.known_through, c.ended_at)) AS to_us,
    CASE WHEN c.cause NOT IN ('advisories_missing', 'contested', 'hub_clock', 'put_back') THEN d.noticed_us END
      AS blind_before_us
  FROM downs d
  CROSS JOIN known k
  JOIN {prefix}site_coverage c
    ON c.region = d.region AND c.site = d.site AND c.block = d.block
    AND (c.started_at < d.ended_at OR d.ended_at IS NULL) AND c.ended_at > d.started_at
  WHERE NOT c.known AND c.started_at < coalesce(d.ended_at, k.known_through)
  UNION ALL
  SELECT t.region, t.site, t.block, t.sender_id, t.started_at, {micros}(greatest(t.started_at, t.planned_from)),
    {micros}(least(t.ended_at, t.planned_to, k.known_through)), NULL
  FROM touched t
  CROSS JOIN known k
),
hidden_in_turn AS (
  SELECT *, max(to_us) OVER (PARTITION BY region, site, block, sender_id, started_at
      ORDER BY from_us, to_us ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached_us
  FROM hidden
),
uncounted AS (
  SELECT region, site, block, sender_id, started_at,
    sum(greatest(0, to_us - greatest(from_us, coalesce(reached_us, from_us)))) AS uncounted_us,
    max(CASE WHEN from_us < blind_before_us THEN least(to_us, blind_before_us) END) AS blind_until_us
  FROM hidden_in_turn
  GROUP BY region, site, block, sender_id, started_at
)
"""
"""What of each outage does not count as down (``uncounted``): nobody watched, or it was planned.

``blind_until_us`` is the end of the last time, from its start until it was noticed, that nobody is known to have
watched; null: there was none. An agent whose advisories are missing did watch.
"""


OUTAGES = Table(
    "outages",
    "A view: every outage of every sender, from its last word before to its first word after.",
    (
        *SENDER_COLUMNS,
        Column("started_at", "TIMESTAMP", "its last word"),
        Column("ended_at", "TIMESTAMP", "its first word again, or its end otherwise (ended_by); null: still down"),
        Column(
            "ended_by",
            "STRING",
            "recovered | retired | unheard | new | rebuilt | lost_store | stale, or import_gap | import_end; null:"
            " still down",
        ),
        Column("noticed_at", "TIMESTAMP", "when it became stale; of an inferred one when it was over"),
        Column("duration_us", "BIGINT", "microseconds from started_at to ended_at, seen or not; null: still down"),
        Column(
            "down_us",
            "BIGINT",
            "microseconds of it that count as down, until known time ends: watched, and not in declared maintenance",
        ),
        Column("episode", "STRING", "which life of the sender"),
        Column("planned", "BOOLEAN", "true: it lies wholly in declared maintenance, and counts nowhere as an outage"),
        Column("basis", "STRING", "inferred | ahead: what it rests on, see sender_intervals; null: told as it is"),
        Column(
            "incident_started_at",
            "TIMESTAMP",
            "the incident at (region, site) that it is part of, by its start: see incidents; null: of none",
        ),
    ),
    identity=("region", "site", "block", "sender_id", "started_at"),
)
# No table has an outage's stale_after. It is the silence until it was noticed, where all of that was watched: after a
# blind span the agent waits anew, and where the hub did not get the end of one, nobody knows since when. Only where a
# site has no outage that was watched so, the others tell, by what was watched of their silence at last: that is not
# longer than stale_after, but may be nothing, so they stand for no less than imported ones, noticed when they begin.
_PLACED = """
watched AS (
  SELECT region, site, {micros}(max(ended_at)) - {micros}(min(started_at)) AS watched_us
  FROM {prefix}site_coverage
  GROUP BY region, site
),
judged AS (
  SELECT d.*, c.sender_id IS NOT NULL AS planned, w.watched_us,
    greatest(0, {micros}(least(d.ended_at, k.known_through)) - d.started_us) - coalesce(u.uncounted_us, 0) AS down_us,
    CASE WHEN d.noticed_us > d.started_us THEN (d.noticed_us - greatest(d.started_us, u.blind_until_us)) / 2
      ELSE 300000000 END AS near_us,
    u.blind_until_us
  FROM downs d
  CROSS JOIN known k
  LEFT JOIN covered c
    ON c.region = d.region AND c.site = d.site AND c.block = d.block AND c.sender_id = d.sender_id
    AND c.started_at = d.started_at
  LEFT JOIN uncounted u
    ON u.region = d.region AND u.site = d.site AND u.block = d.block AND u.sender_id = d.sender_id
    AND u.started_at = d.started_at
  LEFT JOIN watched w ON w.region = d.region AND w.site = d.site
),
sited AS (
  SELECT *, coalesce(max(CASE WHEN blind_until_us IS NULL THEN near_us END) OVER (PARTITION BY region, site, planned),
      greatest(300000000, max(near_us) OVER (PARTITION BY region, site, planned))) AS span_us,
    count(*) OVER (PARTITION BY region, site, planned) AS site_outage_count
  FROM judged
),
placed AS (
  SELECT *, CAST(floor(CAST(started_us AS DOUBLE) / span_us * 1000000) AS BIGINT) AS place,
    CASE WHEN watched_us > span_us THEN CAST(site_outage_count AS DOUBLE) * span_us / watched_us ELSE 0.0 END AS usual
  FROM sited
),
judged_places AS (
  SELECT *, greatest({fewest}, 3 + usual + 6 * sqrt(usual)) AS enough,
    CAST(floor(place / 1000000.0) AS BIGINT) AS whole
  FROM placed
)
"""
"""Every outage with its place among those of its site (``judged_places``), in millionths of the span of an incident."""

_TOGETHER = """
counted AS (
  SELECT *, count(*) OVER (PARTITION BY region, site, planned ORDER BY place
      RANGE BETWEEN CURRENT ROW AND 1000000 FOLLOWING) AS ahead
  FROM {chosen}
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
"""
"""Which of the ``chosen`` outages make an incident (``together``): those that are crowded, and enough of them."""


def _written_out(query: str, chosen: str) -> str:
    together = _TOGETHER.replace("{chosen}", chosen)
    parts = {"covered": COVERED, "uncounted": _UNCOUNTED, "placed": _PLACED, "together": together}
    for name, text in parts.items():
        query = query.replace(f"{{{name}}}", text.strip())
    return query


# Engines leave out the windows where nobody asks for the incident: then a sender's outages cost what they are.
OUTAGES_QUERY = _written_out(
    """
WITH {covered},
{uncounted},
{placed},
{together}
SELECT region, site, block, sender_id, started_at, ended_at, ended_by, advisory_at AS noticed_at,
  {micros}(ended_at) - started_us AS duration_us, CAST(down_us AS BIGINT) AS down_us, episode, planned,
  basis, CASE WHEN is_crowded AND size >= enough THEN began_at END AS incident_started_at
FROM together
""",
    chosen="judged_places",
)

INCIDENTS = Table(
    "incidents",
    "A view: many senders of a site that fell silent one soon after the other: within half of the site's longest"
    f" stale_after, at least {FEWEST_TOGETHER}, and more than chance explains: where a site has e outages in such a"
    " span on the average of its known time, at least 3 + e + 6 * sqrt(e). What goes on for longer than the span is"
    " several incidents; planned outages are part of none. How long stale_after is, those outages tell that were"
    " watched from the last word until they were noticed; imported ones stand for ten minutes.",
    (
        *SITE_COLUMNS,
        Column("started_at", "TIMESTAMP", "the first last word of a member"),
        Column("ended_at", "TIMESTAMP", "when the last member was heard again, or retired; null: somebody is down"),
        Column("duration_us", "BIGINT", "microseconds from started_at to ended_at; null: not over"),
        Column("noticed_at", "TIMESTAMP", "when the first member became stale"),
        Column("down_us", "BIGINT", "sender-microseconds of its outages that count as down"),
        Column("sender_count", "BIGINT", "how many senders fell silent, in however many blocks"),
        Column("outage_count", "BIGINT", "how many outages: more where a sender flaps"),
        Column("still_down_count", "BIGINT", "outages that go on"),
        Column("site_sender_count", "BIGINT", "senders that the site had on that day, one for each block"),
        Column("share", "DOUBLE", "of site_sender_count, those that fell silent, one for each block"),
    ),
    identity=("region", "site", "started_at"),
)
# Windows over all outages would take most of the time. So first those are chosen that may be crowded: where as many as
# are enough lie within a span, half of them lie in one of two spans next to each other. The rest lies alone.
INCIDENTS_QUERY = _written_out(
    """
WITH {covered},
{uncounted},
{placed},
dense AS (
  SELECT region, site, whole
  FROM judged_places
  WHERE NOT planned
  GROUP BY region, site, whole, enough
  HAVING 2 * count(*) >= enough
),
around AS (
  SELECT DISTINCT region, site, whole + step AS whole FROM dense CROSS JOIN (VALUES (-1), (0), (1)) AS steps (step)
),
chosen AS (
  SELECT p.*
  FROM judged_places p
  JOIN around a ON a.region = p.region AND a.site = p.site AND a.whole = p.whole
  WHERE NOT p.planned
),
{together},
found AS (
  SELECT region, site, began_at AS started_at, max(ended_at) AS last_ended_at, min(advisory_at) AS noticed_at,
    count(DISTINCT sender_id) AS sender_count, count(DISTINCT (block, sender_id)) AS block_sender_count,
    count(*) AS outage_count, count(*) - count(ended_at) AS still_down_count, CAST(sum(down_us) AS BIGINT) AS down_us
  FROM together
  WHERE is_crowded AND size >= enough
  GROUP BY region, site, began_at
)
SELECT f.region, f.site, f.started_at,
  CASE WHEN f.still_down_count = 0 THEN f.last_ended_at END AS ended_at,
  CASE WHEN f.still_down_count = 0 THEN {micros}(f.last_ended_at) - {micros}(f.started_at) END AS duration_us,
  f.noticed_at, f.down_us, f.sender_count, f.outage_count, f.still_down_count, d.sender_count AS site_sender_count,
  CAST(f.block_sender_count AS DOUBLE) / d.sender_count AS share
FROM found f
LEFT JOIN {prefix}site_availability_daily d
  ON d.region = f.region AND d.site = f.site AND d.day = CAST(f.started_at AS DATE)
""",
    chosen="chosen",
)

OUTAGE_VIEWS = (
    (OUTAGES, OUTAGES_QUERY),
    (INCIDENTS, INCIDENTS_QUERY),
)
"""Each view with its query, behind those that it rests on."""
