"""Write staged rows into the table ``imports``, each once, whatever was imported before; refuse what contradicts.

Order of commits: what is quarantined, then the intervals. A run killed between the two is made whole by the next one,
which finds the rows of the first by their identity.
"""

from collections.abc import Sequence
from functools import reduce

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from aggregator.lakehouse import catalog
from aggregator.lakehouse.bronze import MiscountError
from aggregator.lakehouse.catalog import HubPosition
from aggregator.lakehouse.import_schemas import IMPORT_QUARANTINE, IMPORTS
from aggregator.lakehouse.imports import staging
from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.staging import Staged
from aggregator.lakehouse.table import Table
from shared.instants import format_instant

STREAM = "imports"
"""Stands in the place of the hub's stream in the position of ``imports``: its sequence counts commits that added."""

_KEY = ("region", "site", "block", "sender_id")


class ImportCounts(msgspec.Struct, frozen=True):
    """What became of the rows read: ``read`` = ``written`` + ``duplicates`` + ``quarantined``, always.

    A row quarantined by an earlier run counts as a duplicate. ``zero_length`` counts rows of ``written``.
    """

    read: int
    written: int
    duplicates: int
    quarantined: int
    zero_length: int


def take(spark: SparkSession, files: Sequence[Staged], mapping: Mapping, stands: HubPosition | None) -> ImportCounts:
    """Write what is new of the staged ``files``.

    Raise ImportRefused where intervals of one sender overlap, MiscountError where it does not add up.
    ``stands`` is the position of ``imports``, None before the first import.
    """
    of_block = f.col("block") == mapping.block
    seen = catalog.snapshots(spark, (IMPORTS, IMPORT_QUARANTINE))
    present = spark.table(IMPORTS.identifier).where(of_block)
    rows = reduce(DataFrame.unionByName, (staged_intervals(spark, file, mapping) for file in files))
    fresh = _fresh(rows, present, IMPORTS).persist()
    try:
        _refuse_overlaps(fresh, present)
        quarantine_rows = reduce(DataFrame.unionByName, (_quarantined(spark, file, mapping) for file in files))
        known = spark.table(IMPORT_QUARANTINE.identifier).where(of_block)
        position = stands or HubPosition(STREAM, 0, 0, 0)
        quarantined = 0
        if any(file.quarantined_count for file in files):
            new = _fresh(quarantine_rows, known, IMPORT_QUARANTINE)
            quarantined = catalog.append(new, IMPORT_QUARANTINE, position, seen.get(IMPORT_QUARANTINE.name))
        found = fresh.agg(
            f.count(f.lit(1)).alias("count"),
            f.count_if("zero_length").alias("zero_length"),
            f.max(f.unix_micros("ended_at")).alias("ended_at"),
        ).first()
        assert found is not None
        if found["count"]:
            reached = max(position.known_through, found["ended_at"])
            position = HubPosition(STREAM, 0, position.sequence + 1, reached)
            ordered = fresh.sort("site", "sender_id", "started_at")
            written = catalog.append(ordered, IMPORTS, position, seen.get(IMPORTS.name))
            if written != found["count"]:
                raise MiscountError(
                    f"imports: {written} intervals were written instead of {found['count']}; the tables are to be"
                    " checked before the next run"
                )
    finally:
        fresh.unpersist()
    read = sum(file.row_count for file in files)
    written = found["count"]
    return ImportCounts(read, written, read - written - quarantined, quarantined, found["zero_length"])


def staged_intervals(spark: SparkSession, file: Staged, mapping: Mapping) -> DataFrame:
    """Give the rows that a staged file has for the table ``imports``."""
    rows = spark.read.parquet(f"file://{file.directory}/{staging.INTERVALS}")
    return rows.select(
        "region",
        "site",
        f.lit(mapping.block).alias("block"),
        "sender_id",
        "groups",
        "state",
        f.timestamp_micros("started_us").alias("started_at"),
        f.timestamp_micros("ended_us").alias("ended_at"),
        (f.col("started_us") == f.col("ended_us")).alias("zero_length"),
        f.lit(mapping.gaps).alias("gaps"),
        f.lit(file.import_id).alias("import_id"),
        f.lit(file.file).alias("file"),
        "line",
    )


def _quarantined(spark: SparkSession, file: Staged, mapping: Mapping) -> DataFrame:
    rows = spark.read.parquet(f"file://{file.directory}/{staging.QUARANTINE}")
    return rows.select(
        f.lit(mapping.block).alias("block"),
        "reason",
        "detail",
        "payload",
        f.lit(file.import_id).alias("import_id"),
        f.lit(file.file).alias("file"),
        "line",
    )


def _fresh(rows: DataFrame, present: DataFrame, table: Table) -> DataFrame:
    """Give the first row of each identity, by import and line, that is not ``present``."""
    identity = list(table.identity)
    place = f.row_number().over(Window.partitionBy(*identity).orderBy("import_id", "line"))
    return (
        rows.join(present.select(*identity), identity, "left_anti")
        .withColumn("place", place)
        .where("place = 1")
        .select(*table.column_names)
    )


def _refuse_overlaps(fresh: DataFrame, present: DataFrame) -> None:
    """Raise ImportRefused with the first pair, by file and line, of intervals of a sender that share some time."""
    touched = fresh.select(*_KEY).distinct()
    together = fresh.unionByName(present.join(touched, list(_KEY), "left_semi")).where("started_at < ended_at")
    in_time = Window.partitionBy(*_KEY).orderBy("started_at", "ended_at", "state")
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    own = f.struct("ended_at", "started_at", "state", "file", "line")
    pairs = together.withColumn("other", f.max(own).over(before)).where("other.ended_at > started_at")
    found = pairs.agg(
        f.count(f.lit(1)).alias("count"),
        f.count_distinct(*_KEY).alias("sender_count"),
        f.min(
            f.struct(
                f.greatest("line", "other.line").alias("place"),
                "file",
                "sender_id",
                "other",
                "line",
                "state",
                f.unix_micros("started_at").alias("from_us"),
                f.unix_micros("ended_at").alias("to_us"),
                f.unix_micros("other.started_at").alias("other_from_us"),
                f.unix_micros("other.ended_at").alias("other_to_us"),
            )
        ).alias("first"),
    ).first()
    if found is None or not found["count"]:
        return
    first = found["first"]
    raise ImportRefused(
        f"nothing was imported: intervals of one sender overlap, {found['count']:,} times for"
        f" {found['sender_count']:,} senders; the first: {first.sender_id} is"
        f" {_said(first.other.state, first.other_from_us, first.other_to_us, first.other.file, first.other.line)}, and"
        f" {_said(first.state, first.from_us, first.to_us, first.file, first.line)}; choose a key"
        " (--sender, also of several columns) under which no two overlap, or mend the file"
    )


def _said(state: str, started_at: int, ended_at: int, file: str, line: int) -> str:
    return f"{state} from {format_instant(started_at)} to {format_instant(ended_at)} ({file}, line {line})"
