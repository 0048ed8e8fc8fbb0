"""Decide what each archived message is: a record of one of the bronze tables, or quarantined for a named reason.

The rules are those of ``shared/wire.py``, in Spark's own expressions: no Python runs for a row. Advisories come decoded
(``advisories.py``).
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.bronze import policy_rows
from aggregator.lakehouse.bronze.quarantine import (
    POLICY_RECORD,
    WATERMARK_FIELDS,
    origin,
    reason,
    source,
)
from aggregator.lakehouse.tables.schemas import ADVISORIES, POLICY, QUARANTINE, REGISTRATIONS, WATERMARKS
from shared.subjects import ROOT, RecordType
from shared.wire import ForwardReason

_SENDER_PATH = "$.sender"


def decode(raw: DataFrame) -> DataFrame:
    """Add to the data source's columns ``table_name`` and ``reason``, one of them null, and what was decoded."""
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
        "quarantine_reason",
        "advisory",
        f.col("payload").cast("string").alias("text"),
        f.split("subject", r"\.").alias("token"),
    ).withColumn("record", _record_type())
    read = named.withColumn(
        "watermark", _parsed(RecordType.WATERMARK, {**WATERMARK_FIELDS, "rebuilt_at_us": "BIGINT"})
    ).withColumn("policy", _parsed(POLICY_RECORD, policy_rows.FIELDS))
    return (
        _with_block(read)
        .withColumn("reason", reason(policy_rows.reason()))
        .withColumn("table_name", f.when(f.col("reason").isNull(), _table_name()))
        .withColumn("sender", _sender())
        # What is decoded is kept by the caller until every table is written: no byte of it twice.
        .withColumn("payload", f.when(f.col("reason").isNotNull() | ~f.is_valid_utf8("text"), f.col("payload")))
        .withColumn("text", f.when(f.col("table_name") == REGISTRATIONS.name, f.make_valid_utf8("text")))
        .drop("token", "record")
    )


def advisories(decoded: DataFrame) -> DataFrame:
    """Give the rows of the table ``advisories``."""
    rows = decoded.where(f.col("table_name") == ADVISORIES.name)
    return rows.select(*(f"advisory.{name}" for name in ADVISORIES.column_names))


def watermarks(decoded: DataFrame) -> DataFrame:
    """Give the rows of the table ``watermarks``."""
    body = "watermark."
    rebuilt_at = f.when(f.col(body + "rebuilt_at_us") > 0, f.timestamp_micros(body + "rebuilt_at_us"))
    return decoded.where(f.col("table_name") == WATERMARKS.name).select(
        "region",
        "site",
        "block",
        body + "agent",
        body + "boot_id",
        f.timestamp_micros(body + "observed_since_us").alias("observed_since"),
        f.timestamp_micros(body + "observed_through_us").alias("observed_through"),
        body + "advisory_ordinal",
        rebuilt_at.alias("rebuilt_at"),
        body + "stream",
        body + "incarnation",
        body + "sequence",
        body + "senders",
        body + "outbox",
        body + "counters",
        f.col(body + "stale_after").alias("stale_after_us"),
        f.col(body + "retire_after").alias("retire_after_us"),
        f.col(body + "blind_after").alias("blind_after_us"),
        body + "policy_revision",
        body + "version",
        "hub_sequence",
        "archived_at",
    )


def registrations(decoded: DataFrame) -> DataFrame:
    """Give the rows of the table ``registrations``."""
    return decoded.where(f.col("table_name") == REGISTRATIONS.name).select(
        "region",
        "site",
        "block",
        f.col("sender").alias("sender_id"),
        origin(3).alias("incarnation"),
        origin(4).cast("bigint").alias("sequence"),
        registered_at().alias("stored_at"),
        source(1).alias("stream"),
        f.col("forward_reason").alias("reason"),
        f.octet_length(f.coalesce("payload", f.col("text").cast("binary"))).alias("payload_bytes"),
        f.col("text").alias("payload"),
        "repaired",
        f.col("payload").alias("original"),
        "hub_sequence",
        "archived_at",
    )


def quarantined(decoded: DataFrame, stream_created_at: int) -> DataFrame:
    """Give the rows of the table ``quarantine``; ``stream_created_at`` (microseconds) is the hub's stream's."""
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


def registered_at() -> Column:
    """Say when a registration was stored at its site, which its headers tell to the millisecond."""
    return f.timestamp_millis(source(-1).cast("bigint"))


TABLES = {
    ADVISORIES.name: advisories,
    WATERMARKS.name: watermarks,
    REGISTRATIONS.name: registrations,
    POLICY.name: policy_rows.policy,
}
assert QUARANTINE.name not in TABLES


def _record_type() -> Column:
    """Read the subject as ``shared.subjects.parse_subject`` does; null where it is not one of ours."""
    token = f.col("token")
    count = f.size(token)
    has_no_gap = ~f.array_contains(token, "")
    ours = (token[0] == ROOT) & (count >= 5) & has_no_gap
    record = f.get(token, f.lit(4))
    known = f.when(
        record.isin(RecordType.REGISTRATION, RecordType.WATERMARK) & (count == 5)
        | (record == RecordType.COPY) & (count > 5),
        record,
    )
    return (
        f.when(f.col("advisory").isNotNull() | f.col("quarantine_reason").isNotNull(), RecordType.ADVISORY)
        .when(policy_rows.is_policy(token) & has_no_gap, POLICY_RECORD)
        .when(ours, known)
    )


def _parsed(record: str, fields: Mapping[str, str]) -> Column:
    schema = ", ".join(f"{name} {type_}" for name, type_ in fields.items())
    return f.when(f.col("record") == record, f.from_json("text", schema))


def _with_block(read: DataFrame) -> DataFrame:
    """Say whose the record is, out of its subject."""
    token = f.col("token")
    block_of = {name: f.get(token, f.lit(place)) for place, name in enumerate(("region", "site", "block"), start=1)}
    scope = policy_rows.scope(token, f.coalesce(f.col("record") == POLICY_RECORD, f.lit(False)), block_of)
    return read.select("*", *(column.alias(name) for name, column in scope.items()))


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
    return f.when(f.col("reason").isNotNull(), f.col("sender")).otherwise(f.coalesce(named, told))


def _table_name() -> Column:
    record = f.col("record")
    return (
        f.when(record == RecordType.ADVISORY, ADVISORIES.name)
        .when(record == RecordType.WATERMARK, WATERMARKS.name)
        .when(record == POLICY_RECORD, POLICY.name)
        .otherwise(REGISTRATIONS.name)
    )
