"""Say which tables there are, and of each column its type, its unit and its meaning. Nothing here needs Spark.

Instants are ``TIMESTAMP`` (microseconds, UTC); durations end in ``_us`` and are whole microseconds, BIGINT for one
sender, DECIMAL(38,0) for sums over senders (a fleet-year overflows a BIGINT); a ``day`` is a UTC date. Intervals are
``[started_at, ended_at)``. The same comments stand in the catalog.
"""

from aggregator.lakehouse.tables.definition import BLOCK_COLUMNS, NAMESPACE, RATIO_COLUMNS, SITE_COLUMNS, Column, Table
from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS, IMPORT_QUARANTINE, IMPORTS
from aggregator.lakehouse.tables.policy import MAINTENANCE, POLICY, SENDER_MAINTENANCE_DAYS
from aggregator.lakehouse.tables.views import ANALYSIS_VIEWS

__all__ = [
    "BRONZE",
    "CLOCK_STEPS",
    "CONTINUATIONS",
    "DERIVED",
    "LOSSES",
    "MAINTENANCE",
    "NAMESPACE",
    "POLICY",
    "POSITIONS",
    "SENDER_MAINTENANCE_DAYS",
    "SITE_BUCKETS",
    "TABLES",
    "VIEWS",
    "Column",
    "Table",
]

SITE_BUCKETS = 64
"""Sites are spread over so many buckets. Derived tables are partitioned by ranges of them, more where there are more
sites (``layout.py``), so that late history of a site rewrites its own range only."""

_BLOCK = (
    Column("region", "STRING", "region, out of the subject"),
    Column("site", "STRING", "site, out of the subject"),
    Column("block", "STRING", "stream block of the site's agent, out of the subject"),
)
_ARCHIVED = (
    Column("hub_sequence", "BIGINT", "sequence in the hub's archive: a position, never an identity"),
    Column("archived_at", "TIMESTAMP", "when the hub's archive stored the record: never before those before it"),
)
_BUCKET = Column("site_bucket", "INT", f"site_bucket(site), 0 to {SITE_BUCKETS - 1}: partitions are ranges of it")

ADVISORIES = Table(
    "advisories",
    "Every advisory once: a sender became new, stale, recovered or retired. One that an agent has said under another"
    " number too, after an older copy of its store was put back, is there under both.",
    (
        *_BLOCK,
        Column("sender_id", "STRING", "who it is about; the identity of a sender is (site, sender_id)"),
        Column("kind", "STRING", "new | stale | recovered | retired"),
        Column("occurred_at", "TIMESTAMP", "when it became true, in the time of the site's stream, as said"),
        Column("last_seen_at", "TIMESTAMP", "the last sighting; of new and recovered the one before, as Choria has it"),
        Column(
            "event_id", "STRING", "what it says: the same, whichever of a pair, and under whichever number, says it"
        ),
        Column("inspect_field", "STRING", "what identifies senders at this site"),
        Column("stream", "STRING", "the site's stream; null for a plain Choria advisory, as are the next five"),
        Column("incarnation", "STRING", "which past of the site's stream: <created us>-<epoch ms>"),
        Column("sequence", "BIGINT", "sequence of the last sighting in the site's stream"),
        Column("opening_sequence", "BIGINT", "sequence of the sighting that opened the sender's episode"),
        Column("ordinal", "BIGINT", "counts the block's advisories within the incarnation from 1, without holes"),
        Column("rebuilt", "BOOLEAN", "true: a store that was lost met a known sender again; the episode goes on"),
        Column("by_operator", "BOOLEAN", "true: retired because an operator said that the sender is gone"),
        Column("unheard_until", "TIMESTAMP", "of a retired sender that its stream no longer heard: unknown until then"),
        Column("assumed", "BOOLEAN", "true: a plain Choria advisory, in whole seconds, that no watermark vouches for"),
        *_ARCHIVED,
    ),
    # The number too: in a new incarnation, what was said before is said again, and counted.
    identity=("region", "site", "block", "event_id", "incarnation", "ordinal"),
    partitioned_by=("months(occurred_at)",),
)

WATERMARKS = Table(
    "watermarks",
    "Every watermark once: what an agent vouches to have observed; of those long over, what no other says too.",
    (
        *_BLOCK,
        Column("agent", "STRING", "name of the agent"),
        Column("boot_id", "STRING", "one life of the agent's process"),
        Column("observed_since", "TIMESTAMP", "the end of the last blind span"),
        Column("observed_through", "TIMESTAMP", "everything the site's stream stored up to it was read and decided"),
        Column("advisory_ordinal", "BIGINT", "ordinal of the last advisory issued when it was made"),
        Column("rebuilt_at", "TIMESTAMP", "since when a store that was lost learns its senders anew; null: not lost"),
        Column("stream", "STRING", "the site's stream"),
        Column("incarnation", "STRING", "which past of the site's stream: <created us>-<epoch ms>"),
        Column("sequence", "BIGINT", "position in the site's stream"),
        Column("senders", "MAP<STRING, BIGINT>", "how many senders were in each state"),
        Column("outbox", "MAP<STRING, BIGINT>", "how many records waited in each lane"),
        Column("counters", "MAP<STRING, MAP<STRING, BIGINT>>", "what happened (rejected, dropped, ...) by cause"),
        Column("stale_after_us", "BIGINT", "microseconds without a word after which a sender is stale"),
        Column("retire_after_us", "BIGINT", "microseconds without a word after which a sender is retired"),
        Column("blind_after_us", "BIGINT", "microseconds between proofs beyond which the agent was blind"),
        Column("policy_revision", "BIGINT", "revision of the hub's policy that the agent had applied"),
        Column("version", "STRING", "version of the agent"),
        *_ARCHIVED,
        Column(
            "store_began_at",
            "TIMESTAMP",
            "since when, by the site's server, the agent's store has been in use for the block; null: not reported",
        ),
    ),
    identity=("region", "site", "block", "agent", "boot_id", "observed_through"),
    partitioned_by=("months(observed_through)",),
)

REGISTRATIONS = Table(
    "registrations",
    "Every forwarded registration once, byte for byte: a sample of what the senders published.",
    (
        *_BLOCK,
        Column(
            "sender_id", "STRING", "as its agent knows it; of an older one, and a copy: $.sender; null: there is none"
        ),
        Column("incarnation", "STRING", "which past of the site's stream: <created us>-<epoch ms>"),
        Column("sequence", "BIGINT", "sequence in the site's stream"),
        Column("stored_at", "TIMESTAMP", "when the site's stream stored it (to the millisecond)"),
        Column("stream", "STRING", "the site's stream"),
        Column("reason", "STRING", "why: new | interval | size | changed | forced | recovered | policy | copy"),
        Column("payload_bytes", "INT", "size of the payload"),
        Column("payload", "STRING", "the payload as the sender wrote it; bytes that are not UTF-8 are U+FFFD"),
        Column(
            "repaired",
            "STRING",
            "the payload as JSON, where it is not quite: NaN, a byte of Latin-1, a comma too many; null: it is, or is"
            " nothing like it. get_json_object(coalesce(repaired, payload), '$.a.b')",
        ),
        Column("original", "BINARY", "the payload's own bytes where they are not UTF-8; null: payload has them"),
        *_ARCHIVED,
    ),
    identity=("region", "site", "block", "incarnation", "sequence"),
    partitioned_by=("months(stored_at)",),
)

QUARANTINE = Table(
    "quarantine",
    "What was not taken, and why. A message that came twice is here twice, for only its position tells it from others."
    " valid + duplicates + quarantined = read.",
    (
        Column("subject", "STRING", "the subject it came on"),
        Column("reason", "STRING", "see aggregator/lakehouse/bronze/quarantine.py: QuarantineReason"),
        Column("headers", "MAP<STRING, STRING>", "the headers that Muster reads"),
        Column("payload", "BINARY", "the record as it came"),
        Column("stream_created_at", "TIMESTAMP", "which past of the hub's archive hub_sequence counts in"),
        *_ARCHIVED,
    ),
    identity=("stream_created_at", "hub_sequence"),
    partitioned_by=("months(archived_at)",),
)

SENDER_INTERVALS = Table(
    "sender_intervals",
    "The life of every sender as intervals without gaps inside an episode; outside every episode it is absent.",
    (
        *_BLOCK,
        Column("sender_id", "STRING", "the sender"),
        Column(
            "episode", "STRING", "event_id of the advisory that opened this life of the sender; of an import, a digest"
        ),
        Column("episode_started_at", "TIMESTAMP", "when this life began"),
        Column(
            "state",
            "STRING",
            "up | down | unknown (not heard since a store was lost, or another took its place; unheard: advisory_kind"
            " retired)",
        ),
        Column("started_at", "TIMESTAMP", "down starts at the last word of the sender"),
        Column("ended_at", "TIMESTAMP", "end, exclusive, of unknown also one to come; null: goes on"),
        Column(
            "ended_by",
            "STRING",
            "stale | recovered | retired | unheard | new | rebuilt | lost_store | import_gap | import_end; null: goes"
            " on",
        ),
        Column(
            "advisory_at",
            "TIMESTAMP",
            "when the advisory that this state rests on became true; of an import, started_at",
        ),
        Column("advisory_kind", "STRING", "its kind; null: imported"),
        Column("advisory_id", "STRING", "its event_id; null: imported"),
        Column("first_whole_day", "DATE", "first UTC day wholly inside; null: none"),
        Column("last_whole_day", "DATE", "last such day; of an interval that goes on the day in which known time ends"),
        Column(
            "basis",
            "STRING",
            "inferred: down by what recovered or retired says of the time before, for no stale came; ahead: its"
            " advisory claims a time later than the hub stored it, and counts from when it was stored or before; null:"
            " told so",
        ),
        _BUCKET,
    ),
    identity=("region", "site", "block", "sender_id", "started_at"),
    partitioned_by=("years(ended_at)", "truncate(site_bucket)"),
    sorted_by=("site", "sender_id", "started_at"),
    follows="ended_at",
)

SITE_COVERAGE = Table(
    "site_coverage",
    "What was observed at each block of each site, from its first word to the end of known time, without gaps; of an"
    " import, to its last stop, or to when its source ceased to watch.",
    (
        *_BLOCK,
        Column("started_at", "TIMESTAMP", "start"),
        Column("ended_at", "TIMESTAMP", "end, exclusive"),
        Column("known", "BOOLEAN", "true: senders are up or down; false: unknown; of what is unwatched, absent"),
        Column(
            "cause",
            "STRING",
            "observed: a watermark vouches; assumed: plain Choria advisories on both sides; unobserved: nobody vouches;"
            " imported: another system vouches, or has an interval of some sender; unwatched: no import of the source"
            " says that it watched, and none has an interval;"
            " advisories_missing: the agent had issued advisories that have not reached the hub; contested: two agents"
            " that are no pair spoke for the block at once; put_back: an older copy of the agent's store was put back;"
            " hub_clock: the hub's clock was set back (clock_steps); lost: given up",
        ),
        _BUCKET,
    ),
    identity=("region", "site", "block", "started_at"),
    partitioned_by=("truncate(site_bucket)",),
    sorted_by=("site", "block", "started_at"),
    follows="ended_at",
)

SITE_COVERAGE_DAILY = Table(
    "site_coverage_daily",
    "How much of each day was observed at each block.",
    (
        Column("day", "DATE", "UTC day"),
        *_BLOCK,
        Column("window_us", "BIGINT", "microseconds of the day that lie in known time: 86400000000 when complete"),
        Column("known_us", "BIGINT", "microseconds of them that were observed, or assumed so, outside maintenance"),
        Column("maintenance_us", "BIGINT", "microseconds of them in which the whole block was in declared maintenance"),
        Column("assumed_us", "BIGINT", "microseconds of known_us that are assumed, not vouched for"),
        Column("complete", "BOOLEAN", "false: known time ends within this day"),
        _BUCKET,
    ),
    identity=("day", "region", "site", "block"),
    partitioned_by=("truncate(site_bucket)",),
    sorted_by=("site", "block"),
    follows="day",
)

_BOUND = (
    "microseconds by which up_us and down_us may be off: 2 x registration interval x outages. Outages shorter than"
    " stale_after are not seen at all and come on top. Imported outages add nothing to it"
)

_SENDER_TIMES = (
    Column("window_us", "BIGINT", "microseconds of the day that lie in known time: the next five add up to it"),
    Column("up_us", "BIGINT", "microseconds up"),
    Column("down_us", "BIGINT", "microseconds down: from the last word before to the first word after"),
    Column("unknown_us", "BIGINT", "microseconds that nobody observed"),
    Column("maintenance_us", "BIGINT", "microseconds of declared maintenance"),
    Column("absent_us", "BIGINT", "microseconds outside every life of the sender"),
    Column("outage_count", "BIGINT", "outages that touch the day"),
    Column("complete", "BOOLEAN", "false: known time ends within this day"),
)

SENDER_DAY_EXCEPTIONS = Table(
    "sender_day_exceptions",
    "The days on which a sender itself was not in one up interval throughout, and those of sender_maintenance_days. On"
    " every other day of its life it was up whenever its block was observed: sender_availability_daily has them all.",
    (
        Column("day", "DATE", "UTC day"),
        *_BLOCK,
        Column("sender_id", "STRING", "the sender"),
        *_SENDER_TIMES,
        Column("error_bound_us", "BIGINT", _BOUND),
        Column("cut_hours", "INT", "bit n is set where an interval of the sender fills part of hour n only"),
        _BUCKET,
    ),
    identity=("day", "region", "site", "block", "sender_id"),
    partitioned_by=("truncate(site_bucket)",),
    sorted_by=("site", "sender_id"),
    follows="day",
)

_FLEET_TIMES = (
    Column("sender_count", "BIGINT", "senders that lived in the window, however short, one for each block"),
    Column("window_us", "BIGINT", "microseconds of the window that lie in known time"),
    Column("up_us", "DECIMAL(38,0)", "sender-microseconds up; the five add up to sender_count x window_us"),
    Column("down_us", "DECIMAL(38,0)", "sender-microseconds down"),
    Column("unknown_us", "DECIMAL(38,0)", "sender-microseconds that nobody observed"),
    Column("maintenance_us", "DECIMAL(38,0)", "sender-microseconds of declared maintenance"),
    Column("absent_us", "DECIMAL(38,0)", "sender-microseconds outside every life of the senders counted"),
    Column("outage_count", "BIGINT", "outages that touch the window, one per sender and outage"),
    Column("complete", "BOOLEAN", "false: known time ends within this window"),
    *RATIO_COLUMNS,
    Column("error_bound_us", "DECIMAL(38,0)", _BOUND),
)

SITE_AVAILABILITY_HOURLY = Table(
    "site_availability_hourly",
    "Availability of each site by hour, over all its blocks.",
    (
        Column("hour", "TIMESTAMP", "start of the UTC hour"),
        Column("day", "DATE", "its UTC day"),
        *SITE_COLUMNS,
        *_FLEET_TIMES,
        _BUCKET,
    ),
    identity=("hour", "region", "site"),
    partitioned_by=("truncate(site_bucket)",),
    sorted_by=("site", "hour"),
    follows="day",
)

SITE_AVAILABILITY_DAILY = Table(
    "site_availability_daily",
    "Availability of each site by day, over all its blocks.",
    (
        Column("day", "DATE", "UTC day"),
        *SITE_COLUMNS,
        *_FLEET_TIMES,
        _BUCKET,
    ),
    identity=("day", "region", "site"),
    partitioned_by=("truncate(site_bucket)",),
    sorted_by=("site",),
    follows="day",
)

REGION_AVAILABILITY_DAILY = Table(
    "region_availability_daily",
    "Availability of each region by day.",
    (Column("day", "DATE", "UTC day"), Column("region", "STRING", "region"), *_FLEET_TIMES),
    identity=("day", "region"),
)

FLEET_AVAILABILITY_DAILY = Table(
    "fleet_availability_daily",
    "Availability of the whole fleet by day.",
    (Column("day", "DATE", "UTC day"), *_FLEET_TIMES),
    identity=("day",),
)

LOSSES = Table(
    "losses",
    "Messages that no stream held any more when they were to be read, and that an operator gave up.",
    (
        Column("stream", "STRING", "the hub's stream"),
        Column("stream_created_at", "TIMESTAMP", "its creation: which past its sequences count in"),
        Column("first_sequence", "BIGINT", "first sequence given up"),
        Column("last_sequence", "BIGINT", "last sequence given up"),
        Column("lost_from", "TIMESTAMP", "the hub's time of the last message before: the time from here is unknown"),
        Column("lost_to", "TIMESTAMP", "the hub's time of the first message after: to here"),
    ),
    identity=("stream", "stream_created_at", "first_sequence"),
)

CLOCK_STEPS = Table(
    "clock_steps",
    "Steps back of the hub's clock by a second or more: the hub's time stood still until the clock had made up for it.",
    (
        Column("stream", "STRING", "the hub's stream"),
        Column("stream_created_at", "TIMESTAMP", "its creation: which past its sequences count in"),
        Column("first_sequence", "BIGINT", "the first message that was stamped earlier than one before it"),
        Column("stepped_at", "TIMESTAMP", "the largest stamp before it: the time from here is unknown"),
        Column("fell_to", "TIMESTAMP", "the smallest stamp after it, as far as it was read"),
        Column("resumed_sequence", "BIGINT", "the first message that was stamped no earlier again; null: none yet"),
        Column("resumed_at", "TIMESTAMP", "its stamp: the time is unknown to here; null: none yet"),
    ),
    identity=("stream", "stream_created_at", "first_sequence"),
)

POSITIONS = Table(
    "positions",
    "Through which message of the hub's archive each table is complete, as of the last whole run.",
    (
        Column("table_name", "STRING", "the table"),
        Column("stream", "STRING", "the hub's stream"),
        Column("stream_created_at", "TIMESTAMP", "its creation: which past its sequences count in"),
        Column("sequence", "BIGINT", "last sequence that the table stands for"),
        Column("known_through", "TIMESTAMP", "the hub's time of the last message read: known time ends here"),
        Column(
            "hub_time",
            "TIMESTAMP",
            "the hub's time of the last message about the fleet: the largest stamp of those read; null: an older"
            " release stands there",
        ),
        Column("snapshot_id", "BIGINT", "the table's Iceberg snapshot: those of one run belong together"),
    ),
    identity=("table_name",),
)

CONTINUATIONS = Table(
    "continuations",
    "Where each block's records end, so that a rollup goes on from there with new ones alone.",
    (
        *BLOCK_COLUMNS,
        Column("incarnation", "STRING", "which past of the site's stream; null: plain Choria advisories"),
        Column("observed_through", "TIMESTAMP", "the last watermark within known time; null: none"),
        Column("advisory_ordinal", "BIGINT", "the last ordinal that it counts"),
        Column(
            "counted_from",
            "BIGINT",
            "the first ordinal that counts: of a store's first incarnation the first that the hub holds, else 1",
        ),
        Column(
            "missing_count",
            "BIGINT",
            "how many ordinals from counted_from up to advisory_ordinal the hub lacks, all where it holds none of them:"
            " while there are any, no later watermark vouches",
        ),
        Column("last_observed_through", "TIMESTAMP", "the last watermark, also where known time ends before it"),
        Column("last_advisory_ordinal", "BIGINT", "the last ordinal that it counts"),
        Column("most_advisory_ordinal", "BIGINT", "the highest ordinal that any of its watermarks counts"),
        Column("first_observed_since", "TIMESTAMP", "the first observed_since that its watermarks have"),
        Column("first_observed_through", "TIMESTAMP", "the first watermark"),
        Column("first_archived_at", "TIMESTAMP", "when the hub's archive stored the first of its watermarks to come"),
        Column("last_archived_at", "TIMESTAMP", "when it stored the last of them"),
        Column("first_told_at", "TIMESTAMP", "when it stored the first of its advisories and watermarks"),
        Column("doubled_ordinal", "BIGINT", "the first ordinal that two advisories have; null: none"),
        Column(
            "put_back_from",
            "TIMESTAMP",
            "the first watermark that counts advisories otherwise than others do (an older copy of the agent's store"
            " was put back): from it on none vouches, until a store begins anew; null: none",
        ),
        Column("held_ordinals", "ARRAY<BIGINT>", "ordinals beyond advisory_ordinal of advisories that the hub holds"),
        Column(
            "lost_at",
            "ARRAY<TIMESTAMP>",
            "the stores of its watermarks: store_began_at, or rebuilt_at where there is none",
        ),
        Column("assumed_from", "TIMESTAMP", "the first plain Choria advisory"),
        Column("assumed_to", "TIMESTAMP", "the last plain Choria advisory"),
        Column("first_word_at", "TIMESTAMP", "the first sighting that any advisory speaks of"),
    ),
    identity=("region", "site", "block", "incarnation"),
)

BRONZE = (ADVISORIES, WATERMARKS, REGISTRATIONS, POLICY, QUARANTINE)
DERIVED = (
    SENDER_INTERVALS,
    SITE_COVERAGE,
    SITE_COVERAGE_DAILY,
    SENDER_DAY_EXCEPTIONS,
    SITE_AVAILABILITY_HOURLY,
    SITE_AVAILABILITY_DAILY,
    REGION_AVAILABILITY_DAILY,
    FLEET_AVAILABILITY_DAILY,
    SENDER_MAINTENANCE_DAYS,
    CONTINUATIONS,
)
TABLES = (*BRONZE, IMPORTS, IMPORT_QUARANTINE, *DERIVED, *DERIVED_FROM_IMPORTS, LOSSES, CLOCK_STEPS, POSITIONS)

SENDER_AVAILABILITY_DAILY = Table(
    "sender_availability_daily",
    "A view, complete: every sender on every day of its life (views.py has its SQL, for Spark and for DuckDB).",
    (
        Column("day", "DATE", "UTC day"),
        *_BLOCK,
        Column("sender_id", "STRING", "the sender"),
        *_SENDER_TIMES,
        *RATIO_COLUMNS,
        Column(
            "lived_share",
            "DOUBLE",
            "for how much of the day, as far as time is known, the sender existed; coverage is of that time alone",
        ),
        Column("error_bound_us", "BIGINT", _BOUND),
    ),
    identity=("day", "region", "site", "block", "sender_id"),
)

VIEWS = (SENDER_AVAILABILITY_DAILY, MAINTENANCE, *(view for view, _ in ANALYSIS_VIEWS))
