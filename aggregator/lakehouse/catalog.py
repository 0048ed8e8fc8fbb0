"""Make the tables, commit rows together with the position they stand for, and read positions back.

A commit is one Iceberg snapshot: rows and position become visible together or not at all, also when there are no rows.
A snapshot's property goes with its snapshot when old ones are expired, so every whole run writes the positions as rows
too. What a table stands for is the further of the two: a row is only ever written after its snapshot.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.schemas import NAMESPACE, POSITIONS, TABLES, Table
from aggregator.lakehouse.session import CATALOG
from aggregator.lakehouse.views import spark_queries

_PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
_PREFIX = "muster."
_VIEW_TEXT = "muster.query"


class HubPosition(msgspec.Struct, frozen=True):
    """Say through which message of the hub's archive a table is complete.

    ``created_at`` is the stream's creation: which past its sequences count in. ``known_through`` is the hub's time of
    the last message read, where known time ends. Instants in microseconds; 0 where nothing was read yet.
    """

    stream: str
    created_at: int
    sequence: int
    known_through: int


def prepare(spark: SparkSession) -> None:
    """Make the namespace, the tables and the views that are not there yet."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {NAMESPACE}")
    present = {row.tableName for row in spark.sql(f"SHOW TABLES IN {NAMESPACE}").collect()}
    for table in TABLES:
        if table.name not in present:
            for statement in create_statements(table):
                spark.sql(statement)
    _prepare_views(spark)


def create_statements(table: Table) -> Iterator[str]:
    """Give the SQL that makes one table, with its comments, its properties and the order of its files."""
    columns = ",\n  ".join(f"{name} {type_} COMMENT {_quoted(comment)}" for name, type_, comment in table.columns)
    partitioning = f"\nPARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    yield (
        f"CREATE TABLE IF NOT EXISTS {table.identifier} (\n  {columns}\n) USING iceberg{partitioning}\n"
        f"COMMENT {_quoted(table.comment)}\nTBLPROPERTIES ({properties})"
    )
    if table.sorted_by:
        # One sender out of millions is found by the bounds of the row groups only where rows are sorted.
        yield (
            f"ALTER TABLE {table.identifier} WRITE DISTRIBUTED BY PARTITION"
            f" LOCALLY ORDERED BY {', '.join(table.sorted_by)}"
        )


def append(rows: DataFrame, table: Table, position: HubPosition) -> int:
    """Add ``rows`` and advance the table to ``position`` in one commit; return how many rows were added.

    Each task writes the days that it meets: to bring a day's rows together first would mean to shuffle every payload.
    """
    writer = _with_position(rows.select(*table.column_names), table, position)
    writer.option("distribution-mode", "none").option("fanout-enabled", "true").append()
    return int(_summary(_loaded(rows.sparkSession, table).currentSnapshot()).get("added-records", 0))


def replace(rows: DataFrame, table: Table, where: str, position: HubPosition) -> None:
    """Put ``rows`` in the place of those that match ``where`` and advance the table to ``position``, in one commit.

    ``where`` must select whole partitions.
    """
    _with_position(rows.select(*table.column_names), table, position).overwrite(f.expr(where))


def positions(spark: SparkSession, tables: Iterable[Table]) -> dict[str, HubPosition]:
    """Tell by table name how far each has come; what was never written is left out."""
    kept = recorded_positions(spark)
    found = {}
    for table in tables:
        both = [each for each in (_snapshot_position(spark, table), kept.get(table.name)) if each is not None]
        if both:
            found[table.name] = max(both, key=lambda each: (each.created_at, each.sequence))
    return found


def recorded_positions(spark: SparkSession) -> dict[str, HubPosition]:
    """Tell by table name what the last whole run recorded."""
    rows = spark.table(POSITIONS.identifier).select(
        "table_name",
        "stream",
        f.unix_micros("stream_created_at"),
        "sequence",
        f.unix_micros("known_through"),
    )
    return {name: HubPosition(*position) for name, *position in rows.collect()}


def record_positions(spark: SparkSession, reached: dict[str, HubPosition]) -> None:
    """Write the positions as rows: the tables of a whole run, with the snapshots that belong together."""
    by_name = {table.name: table for table in TABLES}
    rows = ", ".join(
        f"('{name}', {_quoted(each.stream)}, timestamp_micros({each.created_at}), {each.sequence}L,"
        f" timestamp_micros({each.known_through}), {_snapshot_id(spark, by_name[name])}L)"
        for name, each in sorted(reached.items())
    )
    values = spark.sql(f"SELECT * FROM VALUES {rows} AS ({', '.join(POSITIONS.column_names)})")  # noqa: S608 - our own
    values.coalesce(1).writeTo(POSITIONS.identifier).overwrite(f.lit(True))


def _with_position(rows: DataFrame, table: Table, position: HubPosition) -> Any:
    writer = rows.writeTo(table.identifier)
    for key, value in msgspec.structs.asdict(position).items():
        writer = writer.option(f"snapshot-property.{_PREFIX}{key}", str(value))
    return writer


def _snapshot_position(spark: SparkSession, table: Table) -> HubPosition | None:
    """Find the newest snapshot that carries a position: maintenance commits snapshots without one."""
    loaded = _loaded(spark, table)
    snapshot = loaded.currentSnapshot()
    while snapshot is not None:
        summary = _summary(snapshot)
        if _PREFIX + "sequence" in summary:
            return msgspec.convert(
                {name: summary[_PREFIX + name] for name in HubPosition.__struct_fields__}, HubPosition, strict=False
            )
        parent = snapshot.parentId()
        snapshot = None if parent is None else loaded.snapshot(parent)
    return None


def _snapshot_id(spark: SparkSession, table: Table) -> int:
    return int(_loaded(spark, table).currentSnapshot().snapshotId())


def _loaded(spark: SparkSession, table: Table) -> Any:
    """Give Iceberg's own Table: its metadata tables cost a Spark job each."""
    jvm = spark._jvm  # noqa: SLF001 - the only way to Iceberg's Java interface
    assert jvm is not None
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        spark._jsparkSession,  # noqa: SLF001 - as above
        f"{CATALOG}.{table.identifier}",
    )


def _summary(snapshot: Any) -> dict[str, str]:
    return dict(snapshot.summary())


def _prepare_views(spark: SparkSession) -> None:
    present = {row.viewName for row in spark.sql(f"SHOW VIEWS IN {NAMESPACE}").collect()}
    for view, query in spark_queries():
        digest = hashlib.blake2b(query.encode(), digest_size=16).hexdigest()
        if view.name in present:
            properties = spark.sql(f"SHOW TBLPROPERTIES {view.identifier}").collect()
            if any(row.key == _VIEW_TEXT and row.value == digest for row in properties):
                continue
        comments = ", ".join(f"{column.name} COMMENT {_quoted(column.comment)}" for column in view.columns)
        spark.sql(
            f"CREATE OR REPLACE VIEW {view.identifier} ({comments}) COMMENT {_quoted(view.comment)}"
            f" TBLPROPERTIES ('{_VIEW_TEXT}' = '{digest}') AS {query}"
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
