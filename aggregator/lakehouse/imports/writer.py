"""Write staged rows into the table ``imports``, each once, whatever was imported before; refuse what contradicts.

Order of commits: what is quarantined, then the intervals. A run killed between the two is made whole by the next one,
which finds the rows of the first by their identity.
"""

from collections.abc import Collection, Sequence
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.bronze.writer import MiscountError
from aggregator.lakehouse.derive.intervals.episodes import SENDER
from aggregator.lakehouse.derive.intervals.imported_intervals import reached_by_row
from aggregator.lakehouse.imports import staging
from aggregator.lakehouse.imports.listing import Imported
from aggregator.lakehouse.imports.mapping import Mapping
from aggregator.lakehouse.imports.overlaps import refuse_lost_watch, refuse_other_gaps, refuse_overlaps
from aggregator.lakehouse.imports.staging import Staged
from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.imports import IMPORT_QUARANTINE, IMPORTS
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.warehouse import commits


def until_next(rows: DataFrame, until: int | None) -> DataFrame:
    """Give rows of ``imports`` that end; of those that repeat a state the first only.

    A sender's last state lasts until its last row, or until ``until`` (microseconds), where that is later.
    """
    in_time = Window.partitionBy(*SENDER).orderBy("started_at", "import_id", "line")
    changes = (
        rows.withColumn("before", f.lag("state").over(in_time))
        .withColumn("last_row_at", f.max("started_at").over(Window.partitionBy(*SENDER)))
        .where(~f.col("state").eqNullSafe(f.col("before")))
    )
    end = f.greatest("last_row_at", f.timestamp_micros(f.lit(until))) if until is not None else f.col("last_row_at")
    return (
        changes.withColumn("ended_at", f.coalesce(f.lead("started_at").over(in_time), end))
        .withColumn("zero_length", f.col("started_at") == f.col("ended_at"))
        .select(*rows.columns)
    )


STREAM = "imports"
"""Stands in the place of the hub's stream in the position of ``imports``: its sequence counts commits that added."""


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

    Raise ImportRefused where intervals of one sender overlap, or where rows that are there would lose what is said of
    gaps and of watching now; MiscountError where it does not add up.
    ``stands`` is the position of ``imports``, None before the first import.
    """
    of_block = f.col("block") == mapping.block
    seen = commits.snapshots(spark, (IMPORTS, IMPORT_QUARANTINE))
    present = spark.table(IMPORTS.identifier).where(of_block)
    known = spark.table(IMPORT_QUARANTINE.identifier).where(of_block)
    rows = reduce(DataFrame.unionByName, (staged_intervals(spark, file, mapping) for file in files))
    rows = _not_of(rows, known, files)
    if mapping.tells_changes:
        # When a change ends, the files beside its own may say.
        rows = until_next(rows, mapping.until)
        fresh = _fresh(rows, present, IMPORTS).persist()
    else:
        fresh = _fresh(_not_of(rows, present, files), present, IMPORTS).persist()
    try:
        if stands is not None:
            refuse_other_gaps(rows, present, mapping)
            refuse_lost_watch(rows, fresh, present, mapping)
        refuse_overlaps(fresh, present, mapping)
        quarantine_rows = reduce(DataFrame.unionByName, (_quarantined(spark, file, mapping) for file in files))
        position = stands or HubPosition(STREAM, 0, 0, 0)
        quarantined = 0
        if any(file.quarantined_count for file in files):
            new = _fresh(quarantine_rows, known, IMPORT_QUARANTINE)
            quarantined = commits.append(new, IMPORT_QUARANTINE, position, seen.get(IMPORT_QUARANTINE.name))
        found = fresh.agg(
            f.count(f.lit(1)).alias("count"),
            f.count_if("zero_length").alias("zero_length"),
            f.max(f.unix_micros(reached_by_row())).alias("reached"),
        ).first()
        assert found is not None
        if found["count"]:
            reached = max(position.known_through, found["reached"])
            position = HubPosition(STREAM, 0, position.sequence + 1, reached)
            ordered = fresh.sort("site", "sender_id", "started_at")
            written = commits.append(ordered, IMPORTS, position, seen.get(IMPORTS.name))
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
        _instant(mapping.since).alias("watched_from"),
        _instant(mapping.until).alias("watched_to"),
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


def _not_of(rows: DataFrame, there: DataFrame, files: Sequence[Staged]) -> DataFrame:
    """Give the rows that were not ``there`` when one of ``files`` was imported before, by import and line.

    Which ends are still to come, the clock says: what a line was then, it stays.
    """
    lines = there.where(f.col("import_id").isin([file.import_id for file in files])).select("import_id", "line")
    return rows.join(lines, ["import_id", "line"], "left_anti")


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


def _instant(at: int | None) -> Column:
    return f.timestamp_micros(f.lit(at)) if at is not None else f.lit(None).cast("timestamp")


def remove(spark: SparkSession, imports: Collection[Imported], stands: HubPosition) -> HubPosition:
    """Take the rows of ``imports`` out of both tables, and advance ``imports``, which stands at ``stands``."""
    _without(spark, IMPORT_QUARANTINE, imports, stands)
    left = spark.table(IMPORTS.identifier).where(~f.col("import_id").isin(*(each.import_id for each in imports)))
    reached = left.agg(f.max(f.unix_micros(reached_by_row()))).first()
    position = msgspec.structs.replace(
        stands, sequence=stands.sequence + 1, known_through=(reached[0] if reached else None) or 0
    )
    _without(spark, IMPORTS, imports, position)
    return position


def _without(spark: SparkSession, table: Table, imports: Collection[Imported], position: HubPosition) -> None:
    """Write the blocks again that any of ``imports`` is in, without them: a block is a partition."""
    of_blocks = f.col("block").isin(*{each.block for each in imports})
    kept = ~f.col("import_id").isin(*(each.import_id for each in imports))
    commits.replace(spark.table(table.identifier).where(of_blocks & kept), table, of_blocks, position)
