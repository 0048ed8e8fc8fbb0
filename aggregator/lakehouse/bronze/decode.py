"""Decide what each archived message is: a record of one of the bronze tables, or quarantined for a named reason.

The rules are those of ``shared/wire.py``, in Spark's own expressions: no Python runs for a row.
"""

from collections.abc import Mapping
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.bronze import policy_rows
from aggregator.lakehouse.bronze.quarantine import (
    CHORIA_FIELDS,
    OWN_FIELDS,
    POLICY_RECORD,
    WATERMARK_FIELDS,
    origin,
    reason,
    source,
)
from aggregator.lakehouse.tables.schemas import ADVISORIES, POLICY, QUARANTINE, REGISTRATIONS, WATERMARKS
from shared.identifiers import AdvisoryKind
from shared.instants import LATEST, SECOND
from shared.subjects import ROOT, RecordType
from shared.wire import CHORIA_EVENTS, ForwardReason

CHORIA_BLOCK = "choria"
"""The block of plain Choria advisories that came on subjects of their own."""

_SENDER_PATH = "$.sender"


def decode(raw: DataFrame, choria_region: str = "") -> DataFrame:
    """Add to the data source's columns ``table_name`` and ``reason``, one of them null, and what was decoded.

    ``choria_region`` is the region of plain Choria advisories on subjects outside ``fleet.>``; with "" they are
    quarantined as unknown subjects.
    """
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
        f.col("payload").cast("string").alias("text"),
        f.split("subject", r"\.").alias("token"),
    ).withColumn("record", _record_type(choria_region))
    own = {**CHORIA_FIELDS, **OWN_FIELDS, "rebuilt": "BOOLEAN", "by_operator": "BOOLEAN", "unheard_until_us": "BIGINT"}
    read = (
        named.withColumn("advisory", _parsed(RecordType.ADVISORY, own))
        .withColumn("watermark", _parsed(RecordType.WATERMARK, {**WATERMARK_FIELDS, "rebuilt_at_us": "BIGINT"}))
        .withColumn("policy", _parsed(POLICY_RECORD, policy_rows.FIELDS))
    )
    return (
        _with_identity(read, choria_region)
        .withColumn("reason", reason(policy_rows.reason()))
        .withColumn("table_name", f.when(f.col("reason").isNull(), _table_name()))
        .withColumn("sender", _sender())
        # What is decoded is kept by the caller until every table is written: no byte of it twice.
        .withColumn("payload", f.when(f.col("reason").isNotNull() | ~f.is_valid_utf8("text"), f.col("payload")))
        .withColumn("text", f.when(f.col("table_name") == REGISTRATIONS.name, f.make_valid_utf8("text")))
        .drop("token", "record", "foreign")
    )


def advisories(decoded: DataFrame) -> DataFrame:
    """Give the rows of the table ``advisories``."""
    body = "advisory."
    return decoded.where(f.col("table_name") == ADVISORIES.name).select(
        "region",
        "site",
        "block",
        f.col(body + "value").alias("sender_id"),
        "kind",
        f.timestamp_micros("at_us").alias("occurred_at"),
        f.timestamp_micros("last_seen_us").alias("last_seen_at"),
        body + "event_id",
        body + "inspect_field",
        body + "stream",
        body + "incarnation",
        body + "sequence",
        body + "opening_sequence",
        body + "ordinal",
        f.coalesce(f.col(body + "rebuilt"), f.lit(False)).alias("rebuilt"),
        f.coalesce(f.col(body + "by_operator"), f.lit(False)).alias("by_operator"),
        f.timestamp_micros(body + "unheard_until_us").alias("unheard_until"),
        f.col("plain").alias("assumed"),
        "hub_sequence",
        "archived_at",
    )


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


def _record_type(choria_region: str) -> Column:
    """Read the subject as ``shared.subjects.parse_subject`` does; null where it is not one of ours."""
    token = f.col("token")
    count = f.size(token)
    ours = (token[0] == ROOT) & (count >= 5) & ~f.array_contains(token, "")
    record = f.get(token, f.lit(4))
    kind = f.get(token, f.lit(5))
    known = (
        f.when((record == RecordType.ADVISORY) & (count == 6) & kind.isin(*AdvisoryKind), record)
        .when(record.isin(RecordType.REGISTRATION, RecordType.WATERMARK) & (count == 5), record)
        .when((record == RecordType.COPY) & (count > 5), record)
    )
    foreign = f.lit(RecordType.ADVISORY if choria_region else None).cast("string")
    is_policy = policy_rows.is_policy(token) & ~f.array_contains(token, "")
    return f.when(is_policy, POLICY_RECORD).when(ours, known).when(token[0] != ROOT, foreign)


def _parsed(record: str, fields: Mapping[str, str]) -> Column:
    schema = ", ".join(f"{name} {type_}" for name, type_ in fields.items())
    return f.when(f.col("record") == record, f.from_json("text", schema))


def _with_identity(read: DataFrame, choria_region: str) -> DataFrame:
    """Say whose the record is, of which kind and of when: out of the subject wherever that is one of ours."""
    body = "advisory."
    own_fields = [f.col(body + name) for name in ("kind", "region", "site", "block", "at_us")]
    plain = (f.col("record") == RecordType.ADVISORY) & reduce(and_, (field.isNull() for field in own_fields))
    foreign = f.col("token")[0] != ROOT
    events = f.create_map(*(f.lit(word) for kind, event in CHORIA_EVENTS.items() for word in (event, kind)))

    def from_subject(index: int, otherwise: Column) -> Column:
        return f.when(foreign, otherwise).otherwise(f.get("token", f.lit(index)))

    def in_microseconds(seconds: str) -> Column:
        value = f.col(body + seconds)
        return f.when(value.between(0, LATEST // SECOND), value * SECOND)

    block_of = {
        "region": from_subject(1, f.lit(choria_region)),
        "site": from_subject(2, f.col(body + "replicator")),
        "block": from_subject(3, f.lit(CHORIA_BLOCK)),
    }
    scope = policy_rows.scope(f.col("token"), f.coalesce(f.col("record") == POLICY_RECORD, f.lit(False)), block_of)
    return read.select(
        "*",
        plain.alias("plain"),
        foreign.alias("foreign"),
        *(column.alias(name) for name, column in scope.items()),
        from_subject(5, f.try_element_at(events, body + "event")).alias("kind"),
        f.when(plain, in_microseconds("timestamp")).otherwise(f.col(body + "at_us")).alias("at_us"),
        f.when(plain, in_microseconds("seen")).otherwise(f.col(body + "last_seen_us")).alias("last_seen_us"),
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
    return f.when(f.col("reason").isNotNull(), f.col("sender")).otherwise(f.coalesce(named, told))


def _table_name() -> Column:
    record = f.col("record")
    return (
        f.when(record == RecordType.ADVISORY, ADVISORIES.name)
        .when(record == RecordType.WATERMARK, WATERMARKS.name)
        .when(record == POLICY_RECORD, POLICY.name)
        .otherwise(REGISTRATIONS.name)
    )
