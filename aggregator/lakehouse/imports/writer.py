"""Writer of staged rows into the table ``imports``, each once; it refuses intervals that contradict each other.

Order of commits: quarantined rows, then intervals. The run after one that was killed between the two completes it: it
finds the rows of the first by their identity.
"""

from collections.abc import Collection, Sequence
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.bronze.writer import MiscountError
from aggregator.lakehouse.derive.intervals.episodes import DOWN, SENDER, UNKNOWN, UP
from aggregator.lakehouse.derive.intervals.imported_intervals import reached_by_row
from aggregator.lakehouse.imports import staging
from aggregator.lakehouse.imports.listing import Imported
from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.staging import Staged
from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.imports import ABSENT, IMPORT_QUARANTINE, IMPORTS
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.warehouse import commits
from shared.instants import format_instant


def until_next(rows: DataFrame, until: int | None) -> DataFrame:
    """Return ``rows`` with their ends, without those that repeat a state.

    A sender's last state lasts until its last row, or until ``until`` (microseconds) if that is later.
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
"""The stream in the position of ``imports``, in place of the hub's: its sequence counts commits that added rows."""


class ImportCounts(msgspec.Struct, frozen=True):
    """The rows read, by their fate: ``read`` = ``written`` + ``duplicates`` + ``quarantined``, always.

    A row quarantined by an earlier run counts as a duplicate. ``zero_length`` counts rows of ``written``.
    """

    read: int
    written: int
    duplicates: int
    quarantined: int
    zero_length: int


def take(spark: SparkSession, files: Sequence[Staged], mapping: Mapping, stands: HubPosition | None) -> ImportCounts:
    """Write the new rows of the staged ``files``.

    Raise ImportRefused if intervals of one sender overlap, or if rows that are present would not get the gaps and the
    watch of this import; MiscountError if the counts do not add up.
    ``stands`` is the position of ``imports``, None before the first import.
    """
    of_block = f.col("block") == mapping.block
    seen = commits.snapshots(spark, (IMPORTS, IMPORT_QUARANTINE))
    present = spark.table(IMPORTS.identifier).where(of_block)
    known = spark.table(IMPORT_QUARANTINE.identifier).where(of_block)
    rows = reduce(DataFrame.unionByName, (staged_intervals(spark, file, mapping) for file in files))
    rows = _not_of(rows, known, files)
    if mapping.tells_changes:
        # Another file may have the end of a change.
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
    """Return the rows that are not ``there`` from an earlier import of one of ``files``, by import and line.

    Which ends are still to come depends on the clock: a line keeps the verdict of its first import.
    """
    lines = there.where(f.col("import_id").isin([file.import_id for file in files])).select("import_id", "line")
    return rows.join(lines, ["import_id", "line"], "left_anti")


def _fresh(rows: DataFrame, present: DataFrame, table: Table) -> DataFrame:
    """Return the first row of each identity, by import and line, that is not ``present``."""
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
    """Remove the rows of ``imports`` from both tables, and advance the table ``imports`` from ``stands``."""
    _without(spark, IMPORT_QUARANTINE, imports, stands)
    left = spark.table(IMPORTS.identifier).where(~f.col("import_id").isin(*(each.import_id for each in imports)))
    reached = left.agg(f.max(f.unix_micros(reached_by_row()))).first()
    position = msgspec.structs.replace(
        stands, sequence=stands.sequence + 1, known_through=(reached[0] if reached else None) or 0
    )
    _without(spark, IMPORTS, imports, position)
    return position


def _without(spark: SparkSession, table: Table, imports: Collection[Imported], position: HubPosition) -> None:
    """Rewrite the blocks of ``imports`` without their rows: a block is a partition."""
    of_blocks = f.col("block").isin(*{each.block for each in imports})
    kept = ~f.col("import_id").isin(*(each.import_id for each in imports))
    commits.replace(spark.table(table.identifier).where(of_blocks & kept), table, of_blocks, position)


_SHOWN = 3


def refuse_other_gaps(rows: DataFrame, present: DataFrame, mapping: Mapping) -> None:
    """Raise ImportRefused if any of ``rows`` is ``present`` with other gaps."""
    identity = list(IMPORTS.identity)
    there = present.where(f.col("gaps") != mapping.gaps).select(*identity, "gaps", "import_id")
    found = there.join(rows.select(*identity).distinct(), identity, "left_semi")
    of_imports = found.groupBy("import_id", "gaps").count().sort("import_id").collect()
    if of_imports:
        count, said = sum(each["count"] for each in of_imports), of_imports[0]["gaps"]
        raise ImportRefused(
            f"nothing was imported: {count:,} rows are there already, and came with --gaps {said};"
            f" {remedy([each['import_id'] for each in of_imports])}"
        )


def refuse_lost_watch(rows: DataFrame, fresh: DataFrame, present: DataFrame, mapping: Mapping) -> None:
    """Raise ImportRefused if ``fresh`` has no row that would record the watch of the source."""
    if (mapping.since is None and mapping.until is None) or not fresh.isEmpty():
        return
    covers = f.lit(True)
    if mapping.since is not None:
        covers &= f.unix_micros("watched_from") <= mapping.since
    if mapping.until is not None:
        covers &= f.unix_micros("watched_to") >= mapping.until
    if not present.where(covers).isEmpty():
        return
    there = present.join(rows.select(*IMPORTS.identity).distinct(), list(IMPORTS.identity), "left_semi")
    identifiers = sorted(each["import_id"] for each in there.select("import_id").distinct().collect())
    raise ImportRefused(
        "nothing was imported: every row is there already, and came with another --since or --until;"
        f" {remedy(identifiers)}"
    )


def remedy(identifiers: Sequence[str]) -> str:
    """Return the command by which a list replaces these imports."""
    shown = " ".join(identifiers[:_SHOWN]) + (" ..." if len(identifiers) > _SHOWN else "")
    return f"`muster-aggregator import remove {shown}`, then import the whole list again"


def refuse_overlaps(fresh: DataFrame, present: DataFrame, mapping: Mapping) -> None:
    """Raise ImportRefused with the first pair, by file and line, of intervals of a sender that share some time.

    Both are of ``fresh``, or one is ``present``. If the mapping joins them, only pairs of different states count.
    """
    joined = mapping.overlaps == "join"
    touched = fresh.select(*SENDER).distinct()
    both = present.join(touched, list(SENDER), "left_semi").withColumn("is_fresh", f.lit(False))
    together = fresh.withColumn("is_fresh", f.lit(True)).unionByName(both).where("started_at < ended_at")
    in_time = Window.partitionBy(*SENDER).orderBy("started_at", "ended_at", "state")
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    own = f.struct("ended_at", "started_at", "state", "file", "line", "is_fresh", "import_id")

    def last(condition: Column) -> Column:
        """Return the row before the current one, among those with ``condition``, that ends last."""
        return f.max(f.when(condition, own)).over(before)

    others = []
    for state in (UP, DOWN, UNKNOWN, ABSENT) if joined else (None,):
        of_state = f.col("state") == state if state else f.lit(True)
        other = f.when(f.col("is_fresh"), last(of_state)).otherwise(last(of_state & f.col("is_fresh")))
        others.append(f.when(~of_state, other) if state else other)
    other = f.greatest(*others) if joined else others[0]
    pairs = together.withColumn("other", other).where("other.ended_at > started_at")
    found = pairs.agg(
        f.count(f.lit(1)).alias("count"),
        f.count_distinct(*SENDER).alias("sender_count"),
        f.min(
            f.struct(
                f.greatest(_place_of_fresh(""), _place_of_fresh("other.")).alias("place"),
                "file",
                "sender_id",
                "other",
                "line",
                "state",
                f.unix_micros("started_at").alias("from_us"),
                f.unix_micros("ended_at").alias("to_us"),
                f.unix_micros("other.started_at").alias("other_from_us"),
                f.unix_micros("other.ended_at").alias("other_to_us"),
                "is_fresh",
                "import_id",
            )
        ).alias("first"),
    ).first()
    if found is None or not found["count"]:
        return
    first = found["first"]
    among = "" if joined else ", join those of the same state (--overlaps join)"
    there = [each.import_id for each in (first, first.other) if not each.is_fresh]
    grown = f"; where this is the same list, grown: {remedy(there)}" if there else ""
    raise ImportRefused(
        f"nothing was imported: intervals of one sender overlap, {found['count']:,} times for"
        f" {found['sender_count']:,} senders; the first: {first.sender_id} is"
        f" {_span_text(first.other.state, first.other_from_us, first.other_to_us, first.other.file, first.other.line)},"
        f" and {_span_text(first.state, first.from_us, first.to_us, first.file, first.line)}; choose a key"
        f" (--sender, also of several columns) under which no two overlap{among}, or mend the file{grown}"
    )


def _place_of_fresh(row: str) -> Column:
    """Return file and line of a fresh row, None of a present one: its line is of an earlier import."""
    return f.when(f.col(f"{row}is_fresh"), f.struct(f.col(f"{row}file"), f.col(f"{row}line")))


def _span_text(state: str, started_at: int, ended_at: int, file: str, line: int) -> str:
    return f"{state} from {format_instant(started_at)} to {format_instant(ended_at)} ({file}, line {line})"
