"""Tell archived messages apart: the records of each bronze table, and those that are quarantined for a reason.

They come judged (``advisories.py``, ``records.py``): no rule is written here, and no Python runs for a row.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.bronze.records import POLICY_RECORD
from aggregator.lakehouse.tables.schemas import ADVISORIES, POLICY, REGISTRATIONS, WATERMARKS, Table
from shared.subjects import RecordType
from shared.wire import SENDER_LIMIT, ForwardReason

_SENDER_PATH = "$.sender"
_ROWS = {ADVISORIES.name: "advisory", WATERMARKS.name: "watermark", POLICY.name: "revision"}
"""The column of each table's rows, of those that come as such."""


def decode(raw: DataFrame) -> DataFrame:
    """Add to the data source's columns ``table_name`` and ``reason``, one of them null, and the text of a payload."""
    named = raw.select(
        "hub_sequence",
        "archived_at",
        "subject",
        "origin",
        "source",
        f.col("reason").alias("forward_reason"),
        "sender",
        "repaired",
        "payload",
        "advisory",
        "watermark",
        "revision",
        "registration",
        "record",
        "region",
        "site",
        "block",
        f.col("quarantine_reason").alias("reason"),
        "clock",
        f.col("payload").cast("string").alias("text"),
    )
    return (
        named.withColumn("table_name", f.when(f.col("reason").isNull(), _table_name()))
        .withColumn("sender", _sender())
        # What is decoded is kept by the caller until every table is written: no byte of it twice.
        .withColumn("payload", f.when(f.col("reason").isNotNull() | ~f.is_valid_utf8("text"), f.col("payload")))
        .withColumn("text", f.when(f.col("table_name") == REGISTRATIONS.name, f.make_valid_utf8("text")))
        .drop("record")
    )


def rows_of(decoded: DataFrame, table: Table) -> DataFrame:
    """Return the rows of a table whose records come as rows: advisories, watermarks, the policy."""
    found, row = decoded.where(f.col("table_name") == table.name), _ROWS[table.name]
    return found.select(*(f"{row}.{name}" for name in table.column_names))


def first_by_block(decoded: DataFrame) -> DataFrame:
    """Return the blocks of advisories and watermarks, each with the sequence of its first one before its names."""
    names = ("region", "site", "block")
    named = (f.coalesce(*(f.col(f"{row}.{name}") for row in ("advisory", "watermark"))).alias(name) for name in names)
    records = decoded.where(f.col("table_name").isin(ADVISORIES.name, WATERMARKS.name)).select("hub_sequence", *named)
    return records.groupBy(*names).agg(f.min("hub_sequence").alias("first")).select("first", *names)


def registrations(decoded: DataFrame) -> DataFrame:
    """Return the rows of the table ``registrations``."""
    return decoded.where(f.col("table_name") == REGISTRATIONS.name).select(
        "region",
        "site",
        "block",
        f.col("sender").alias("sender_id"),
        "registration.incarnation",
        "registration.sequence",
        "registration.stored_at",
        "registration.stream",
        f.col("forward_reason").alias("reason"),
        f.octet_length(f.coalesce("payload", f.col("text").cast("binary"))).alias("payload_bytes"),
        f.col("text").alias("payload"),
        "repaired",
        f.col("payload").alias("original"),
        "hub_sequence",
        "archived_at",
    )


def quarantined(decoded: DataFrame, stream_created_at: int) -> DataFrame:
    """Return the rows of the table ``quarantine``; ``stream_created_at`` (microseconds) is the hub's stream's."""
    read = {"origin": "origin", "source": "source", "reason": "forward_reason", "sender": "sender"}
    headers = f.create_map(*(part for name, column in read.items() for part in (f.lit(name), f.col(column))))
    return decoded.where(f.col("reason").isNotNull()).select(
        "subject",
        "reason",
        f.map_filter(headers, lambda _name, value: value.isNotNull()).alias("headers"),
        "payload",
        f.timestamp_micros(f.lit(stream_created_at)).alias("stream_created_at"),
        "hub_sequence",
        "archived_at",
    )


def _sender() -> Column:
    """Say whose a registration is: whom its site's agent names; of older agents' and of copies, what it says itself.

    Nobody's is what an agent could not identify, and passed on as it was (reason ``copy``).
    """
    is_by_agent = f.col("record") == RecordType.REGISTRATION
    named = f.when(is_by_agent, f.nullif("sender", f.lit("")))
    is_nobodys = is_by_agent & (f.col("forward_reason") == ForwardReason.COPY)
    told = f.when(
        (f.col("table_name") == REGISTRATIONS.name) & ~f.coalesce(is_nobodys, f.lit(False)),
        f.get_json_object("text", _SENDER_PATH),
    )
    told = f.when(f.length(told) <= SENDER_LIMIT, told)
    return f.when(f.col("reason").isNotNull(), f.col("sender")).otherwise(f.coalesce(named, told))


def _table_name() -> Column:
    record = f.col("record")
    return (
        f.when(record == RecordType.ADVISORY, ADVISORIES.name)
        .when(record == RecordType.WATERMARK, WATERMARKS.name)
        .when(record == POLICY_RECORD, POLICY.name)
        .otherwise(REGISTRATIONS.name)
    )
