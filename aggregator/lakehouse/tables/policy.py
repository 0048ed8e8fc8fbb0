"""Say which tables come of the hub's policy: what was said, and which maintenance it declares. Nothing needs Spark."""

from aggregator.lakehouse.tables.definition import SENDER_COLUMNS, Column, Table

MAINTENANCE_KIND, CANCEL_KIND = "maintenance", "cancel"

_SCOPE = (
    Column("region", "STRING", "for whom it was said: the region"),
    Column("site", "STRING", "its site; null: the whole region"),
    Column("block", "STRING", "its stream block; null: all of them"),
)

POLICY = Table(
    "policy",
    "Every revision of the policy once: what operators said to regions, sites and blocks.",
    (
        Column("revision", "BIGINT", "its number: its sequence in the hub's stream MUSTER_POLICY"),
        Column("stream_created_at", "TIMESTAMP", "which past of that stream the number counts in"),
        Column("given_at", "TIMESTAMP", "when it was said, by the hub's clock"),
        Column("author", "STRING", "who says to have said it"),
        *_SCOPE,
        Column("kind", "STRING", "thresholds | forward | retire | maintenance | cancel"),
        Column("sample_interval_us", "BIGINT", "of thresholds: microseconds; null: not said for this scope"),
        Column("stale_after_us", "BIGINT", "of thresholds: microseconds; null: not said for this scope"),
        Column("retire_after_us", "BIGINT", "of thresholds: microseconds; null: not said for this scope"),
        Column("blind_after_us", "BIGINT", "of thresholds: microseconds; null: not said for this scope"),
        Column("sender_ids", "ARRAY<STRING>", "the senders that it names; null: none, maintenance then is of all"),
        Column("started_at", "TIMESTAMP", "of maintenance: start"),
        Column("ended_at", "TIMESTAMP", "of maintenance: end, exclusive"),
        Column("reason", "STRING", "of maintenance: why"),
        Column("cancelled_revision", "BIGINT", "of cancel: the revision that declared the maintenance"),
        Column("hub_sequence", "BIGINT", "sequence in the hub's archive: a position, never an identity"),
        Column("archived_at", "TIMESTAMP", "when the hub's archive stored the record, by the hub's clock"),
    ),
    identity=("stream_created_at", "revision"),
    partitioned_by=("months(given_at)",),
)

SENDER_MAINTENANCE_DAYS = Table(
    "sender_maintenance_days",
    "The days on which a sender was in maintenance that names it: what it did then is in sender_day_exceptions.",
    (
        Column("day", "DATE", "UTC day"),
        *SENDER_COLUMNS,
        Column("site_bucket", "INT", "site_bucket(site): partitions are ranges of it"),
    ),
    identity=("day", "region", "site", "block", "sender_id"),
    partitioned_by=("truncate(site_bucket)",),
    sorted_by=("site", "sender_id"),
    follows="day",
)

MAINTENANCE = Table(
    "maintenance",
    "A view: every maintenance that was declared. What was cancelled counts nowhere, as if it had never been.",
    (
        Column("revision", "BIGINT", "the revision of the policy that declared it"),
        *_SCOPE,
        Column("sender_ids", "ARRAY<STRING>", "the senders meant; null: all"),
        Column("started_at", "TIMESTAMP", "start"),
        Column("ended_at", "TIMESTAMP", "end, exclusive"),
        Column("reason", "STRING", "why"),
        Column("author", "STRING", "who declared it"),
        Column("declared_at", "TIMESTAMP", "when, by the hub's clock"),
        Column("cancelled_at", "TIMESTAMP", "when it was taken back; null: it holds"),
    ),
    identity=("revision",),
)
MAINTENANCE_QUERY = """
WITH cancelled AS (
  SELECT stream_created_at, cancelled_revision, min(given_at) AS cancelled_at
  FROM {prefix}policy
  WHERE kind = 'cancel'
  GROUP BY stream_created_at, cancelled_revision
)
SELECT p.revision, p.region, p.site, p.block, p.sender_ids, p.started_at, p.ended_at, p.reason, p.author,
  p.given_at AS declared_at, c.cancelled_at
FROM {prefix}policy p
LEFT JOIN cancelled c ON c.stream_created_at = p.stream_created_at AND c.cancelled_revision = p.revision
WHERE p.kind = 'maintenance'
"""
