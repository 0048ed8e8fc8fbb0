"""Say which tables keep the books: what was given up, and how far each table goes. Nothing here needs Spark."""

from aggregator.lakehouse.tables.definition import Column, Table

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

POSITIONS = Table(
    "positions",
    "Through which message of the hub's archive each table is complete, as of the last whole run.",
    (
        Column("table_name", "STRING", "the table"),
        Column("stream", "STRING", "the hub's stream"),
        Column("stream_created_at", "TIMESTAMP", "its creation: which past its sequences count in"),
        Column("sequence", "BIGINT", "last sequence that the table stands for"),
        Column("known_through", "TIMESTAMP", "the hub's time of the last message read: known time ends here"),
        Column("snapshot_id", "BIGINT", "the table's Iceberg snapshot: those of one run belong together"),
    ),
    identity=("table_name",),
)

CONTINUATIONS = Table(
    "continuations",
    "Where each block's records end, so that a rollup goes on from there with new ones alone.",
    (
        Column("region", "STRING", "region"),
        Column("site", "STRING", "site"),
        Column("block", "STRING", "stream block of the site's agent"),
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
        Column("first_observed_since", "TIMESTAMP", "the first observed_since that its watermarks have"),
        Column("first_observed_through", "TIMESTAMP", "the first watermark"),
        Column("first_archived_at", "TIMESTAMP", "when the hub's archive stored the first of its watermarks to come"),
        Column("last_archived_at", "TIMESTAMP", "when it stored the last of them"),
        Column("doubled_ordinal", "BIGINT", "the first ordinal that two advisories have; null: none"),
        Column(
            "put_back_from",
            "TIMESTAMP",
            "the first watermark that counts advisories otherwise than others do (an older copy of the agent's store"
            " was put back): from it on none vouches, until a store begins anew; null: none",
        ),
        Column("held_ordinals", "ARRAY<BIGINT>", "ordinals beyond advisory_ordinal of advisories that the hub holds"),
        Column("lost_at", "ARRAY<TIMESTAMP>", "since when a store, after one was lost, learnt its senders anew"),
        Column("assumed_from", "TIMESTAMP", "the first plain Choria advisory"),
        Column("assumed_to", "TIMESTAMP", "the last plain Choria advisory"),
        Column("first_word_at", "TIMESTAMP", "the first sighting that any advisory speaks of"),
    ),
    identity=("region", "site", "block", "incarnation"),
)
