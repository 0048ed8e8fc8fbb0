"""The tables of imported history. Nothing here needs Spark."""

from aggregator.lakehouse.tables.definition import Column, Table

BLOCK_PREFIX = "import:"
"""Begins the block of everything imported. No agent's block can be called so: a colon is no part of a subject token."""


ABSENT = "absent"
"""The state of a row that says that its sender is no more: until its next row, nothing else is said of it."""


_BLOCK = (
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
        *_BLOCK,
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
    f"Each imported sender, for as long as its source watched it. {_NO_ERROR_BOUND}",
    (
        *_BLOCK,
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
    partitioned_by=("block",),
    sorted_by=("site", "sender_id"),
)

IMPORT_AVAILABILITY = Table(
    "import_availability",
    "What was imported, by five definitions of availability, with the lengths of its intervals: for all senders of a"
    f" source, by region, by site, and by every group that their names tell. {_NO_ERROR_BOUND}",
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
    sorted_by=("block", "grouping", "region", "site", "group_name"),
)

DERIVED_FROM_IMPORTS = (IMPORT_SENDER_AVAILABILITY, IMPORT_AVAILABILITY)
