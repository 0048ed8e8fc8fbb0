"""Show for every table and view what it is asked for: one query each, in the SQL of ``muster-aggregator sql``.

They stand in docs/reference/tables.md beside the columns (``make docs``), and a test runs them all.
"""

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, str]] = {
    "site_availability_hourly": """
SELECT hour, availability_known, coverage FROM site_availability_hourly
WHERE site = 'dub1' AND day = DATE '2026-03-02' ORDER BY hour""",
    "site_availability_daily": """
SELECT site, sum(up_us) / nullif(sum(up_us + down_us), 0) AS availability_known,
  sum(up_us + down_us) / nullif(sum(up_us + down_us + unknown_us), 0) AS coverage
FROM site_availability_daily WHERE day >= DATE '2026-03-01' GROUP BY site ORDER BY availability_known""",
    "region_availability_daily": """
SELECT day, region, availability_known, coverage FROM region_availability_daily
WHERE complete ORDER BY day DESC, region LIMIT 14""",
    "fleet_availability_daily": """
SELECT day, sender_count, availability_known, coverage, error_bound_us / (up_us + down_us) AS error_bound
FROM fleet_availability_daily WHERE up_us + down_us > 0 ORDER BY day""",
    "sender_availability_daily": """
SELECT day, availability_known, coverage, outage_count FROM sender_availability_daily
WHERE site = 'dub1' AND sender_id = 'dub1-n1' ORDER BY day""",
    "maintenance": """
SELECT site, sender_ids, started_at, ended_at, reason, author FROM maintenance
WHERE cancelled_at IS NULL ORDER BY started_at DESC""",
    "region_availability_hourly": """
SELECT hour, region, availability_known, coverage FROM region_availability_hourly
WHERE day = DATE '2026-03-02' ORDER BY hour, region""",
    "fleet_availability_monthly": """
SELECT month, availability_known, availability_total, coverage FROM fleet_availability_monthly ORDER BY month""",
    "outages": """
SELECT site, sender_id, started_at, ended_at, duration_us / 1e6 AS seconds, down_us / 1e6 AS counted_seconds
FROM outages WHERE NOT planned ORDER BY down_us DESC LIMIT 20""",
    "incidents": """
SELECT site, started_at, ended_at, sender_count, share, duration_us / 60e6 AS minutes FROM incidents
ORDER BY started_at DESC LIMIT 10""",
    "sender_reliability": """
SELECT site, sender_id, availability_known, outage_count, flap_count, mttr_us / 60e6 AS mttr_minutes
FROM sender_reliability WHERE month = DATE '2026-03-01' AND coverage > 0.9 AND lived_share > 0.9
ORDER BY availability_known, sender_id LIMIT 100""",
    "inventory_history": """
SELECT stored_at, replaced_at, json_extract_string(facts, '$.os') AS os FROM inventory_history
WHERE sender_id = 'dub1-n1' ORDER BY stored_at""",
    "inventory": """
SELECT json_extract_string(facts, '$.os') AS os, count(*) AS senders FROM inventory GROUP BY 1 ORDER BY 2 DESC""",
    "sender_intervals": """
SELECT state, started_at, ended_at, ended_by FROM sender_intervals
WHERE site = 'dub1' AND sender_id = 'dub1-n1' ORDER BY started_at""",
    "site_coverage": """
SELECT site, block, started_at, ended_at, cause FROM site_coverage WHERE NOT known ORDER BY started_at DESC""",
    "site_coverage_daily": """
SELECT day, site, sum(known_us) / nullif(sum(window_us - maintenance_us), 0) AS known FROM site_coverage_daily
GROUP BY day, site HAVING sum(known_us + maintenance_us) < sum(window_us) ORDER BY day""",
    "sender_day_exceptions": """
SELECT day, count(*) AS senders FROM sender_day_exceptions WHERE down_us > 0 GROUP BY day ORDER BY day""",
    "sender_maintenance_days": """
SELECT site, sender_id, count(*) AS days FROM sender_maintenance_days GROUP BY site, sender_id ORDER BY days DESC""",
    "advisories": """
SELECT occurred_at, kind, last_seen_at FROM advisories
WHERE site = 'dub1' AND sender_id = 'dub1-n1' ORDER BY occurred_at""",
    "watermarks": """
SELECT site, block, max(observed_through) AS observed_through, max_by(version, observed_through) AS version
FROM watermarks GROUP BY site, block ORDER BY observed_through""",
    "registrations": """
SELECT stored_at, reason, payload FROM registrations
WHERE site = 'dub1' AND sender_id = 'dub1-n1' ORDER BY stored_at DESC LIMIT 5""",
    "policy": """
SELECT revision, given_at, author, kind, region, site FROM policy ORDER BY given_at DESC LIMIT 20""",
    "quarantine": """
SELECT reason, count(*) AS messages, max(archived_at) AS last FROM quarantine GROUP BY reason ORDER BY messages DESC""",
    "imports": """
SELECT file, state, count(*) AS intervals, min(started_at) AS first, max(ended_at) AS last FROM imports
GROUP BY file, state ORDER BY file, state""",
    "import_sender_availability": """
SELECT site, sender_id, availability_observed, availability_total, coverage
FROM import_sender_availability ORDER BY availability_observed LIMIT 20""",
    "import_availability": """
SELECT site, availability_observed, availability_whole_period FROM import_availability
WHERE grouping = 'site' ORDER BY site""",
    "import_quarantine": """
SELECT file, line, reason, detail FROM import_quarantine ORDER BY file, line LIMIT 20""",
    "losses": """
SELECT stream, first_sequence, last_sequence, lost_from, lost_to FROM losses ORDER BY lost_from""",
    "clock_steps": """
SELECT stepped_at, fell_to, resumed_at FROM clock_steps ORDER BY stepped_at""",
    "positions": """
SELECT table_name, stream, sequence, known_through FROM positions ORDER BY table_name""",
    "continuations": """
SELECT site, block, observed_through, last_observed_through, len(held_ordinals) AS held FROM continuations
ORDER BY last_observed_through""",
}
"""A query by the name of the table or view that it shows."""
