"""The tables of imported history. Nothing here needs Spark."""

from aggregator.lakehouse.tables.definition import Column, Table

BLOCK_PREFIX = "import:"
"""Begins the block of everything imported. No agent's block can be called so: a colon is no part of a subject token."""


ABSENT = "absent"
"""The state of a row that says that its sender is no more: until its next row, nothing else is said of it."""


IMPORT_BLOCK = (
    Column("region", "STRING", "region, out of the sender's name or as it was told"),
    Column("site", "STRING", "site, out of the sender's name or as it was told"),
    Column("block", "STRING", "import:<source>; no agent's block is called so"),
)
_FILE = (
    Column("import_id", "STRING", "identifies a file and how it was read: the same again is the same import"),
    Column("file", "STRING", "the file's name"),
    Column("line", "BIGINT", "the line on which the row ended, from 1"),
)

IMPORTS = Table(
    "imports",
    "Every interval once that was imported from another monitoring system, as that one has it.",
    (
        *IMPORT_BLOCK,
        Column("sender_id", "STRING", "the sender"),
        Column("groups", "MAP<STRING, STRING>", "further groups out of parts of its name: groups['cluster']"),
        Column("state", "STRING", "up | down | unknown | absent (the source says that the sender is no more)"),
        Column("started_at", "TIMESTAMP", "start"),
        Column("ended_at", "TIMESTAMP", "end, exclusive"),
        Column("zero_length", "BOOLEAN", "true: it ends where it starts; it counts as an interval, and adds no time"),
        Column(
            "gaps",
            "STRING",
            "what it was from here to its next interval: unknown | up | down; not where it is absent",
        ),
        Column(
            "watched_from",
            "TIMESTAMP",
            "from when on its source watched: gaps holds before a first interval; null: not said",
        ),
        Column(
            "watched_to",
            "TIMESTAMP",
            "until when its source watched: gaps holds after a last interval; null: not said",
        ),
        *_FILE,
    ),
    identity=("region", "site", "block", "sender_id", "started_at", "ended_at", "state"),
    partitioned_by=("block",),
    sorted_by=("site", "sender_id", "started_at"),
)

IMPORT_QUARANTINE = Table(
    "import_quarantine",
    "The rows of imported files that were not taken, and why. valid + duplicates + quarantined = read.",
    (
        Column("block", "STRING", "import:<source>"),
        Column("reason", "STRING", "see aggregator/lakehouse/imports/rows.py: ImportReason"),
        Column("detail", "STRING", "what stood there"),
        Column("payload", "BINARY", "the row as it came"),
        *_FILE,
    ),
    identity=("import_id", "line"),
    partitioned_by=("block",),
)
