"""Write a range of archived messages into the bronze tables, each record once, whatever was written before.

A table takes what lies beyond its own position, so a job killed between two commits goes on where each table was. A
record that is there already is recognized by its identity. A duplicate shares its instant, however late it comes: only
what may be of the days touched is compared, which the bounds of each data file tell. A watermark that was folded is
recognized by those between which it lay.

Most messages are advisories, which are in data files already when their chunk has been read (``staging``). Files in
which every record is new are added to their table as they are, and Spark sees none of their rows. Otherwise Spark reads
them, and writes what is new.
"""

from collections.abc import Collection, Mapping
from datetime import date
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.bronze.chunks import ReadChunk
from aggregator.lakehouse.bronze.decode import quarantined, registrations, rows_of
from aggregator.lakehouse.bronze.staged_files import StagedFiles, removed_on_failure
from aggregator.lakehouse.bronze.staging import FEW_DAYS
from aggregator.lakehouse.derive.coverage import clock_steps
from aggregator.lakehouse.derive.coverage.folded_watermarks import days_folded, folded_arrivals
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, BRONZE, POLICY, QUARANTINE, REGISTRATIONS, WATERMARKS, Table
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.windows import within
from aggregator.records.judge import LOOK_BACK

_FEW_DAYS_OF_WATERMARKS = 60
"""Those are folded by the file, and a file of a month waits for its last day, also where all but today's are a few late
ones. Of as many days most wait to be folded anyway; of more, most can be folded at once."""


class ReadCounts(msgspec.Struct, frozen=True):
    """What became of the messages read: ``read`` = ``written`` + ``duplicates`` + ``quarantined``, always.

    ``ahead`` counts the advisories and watermarks among them that claim a time after the hub stored them: a clock ahead
    of the hub's. ``backdated`` counts those that look back behind their stream's creation, or for years.
    """

    read: int = 0
    written: int = 0
    duplicates: int = 0
    quarantined: int = 0
    ahead: int = 0
    backdated: int = 0

    def __add__(self, other: "ReadCounts") -> "ReadCounts":
        """Add up field by field."""
        return ReadCounts(
            *(mine + theirs for mine, theirs in zip(*map(msgspec.structs.astuple, (self, other)), strict=True))
        )


class MiscountError(RuntimeError):
    """What was read is not what was written, left out and quarantined together. Nothing more is committed."""


class Arrivals(NamedTuple):
    """What is new to one table: ``row_count`` rows that happened on ``days``, as ``rows`` or in files (``staged``)."""

    rows: DataFrame | None = None
    row_count: int = 0
    days: Collection[date] = ()
    staged: StagedFiles | None = None


def take(
    spark: SparkSession,
    chunk: ReadChunk,
    range_end: HubPosition,
    positions: Mapping[str, HubPosition],
) -> tuple[ReadCounts, HubPosition]:
    """Write the messages of ``chunk``, and advance every bronze table to ``range_end.sequence``, where it ends.

    ``positions`` tells where the tables stand; ``range_end.known_through`` is the time known before. Give what became
    of the messages, and the position committed. Raise MiscountError.
    """
    decoded = chunk.decoded
    done = {table.name: positions[table.name].sequence for table in BRONZE}
    found = {} if decoded is None else _read(decoded, done, chunk.staged)
    archived = [row.last_archived for row in found.values()]
    known_through = max([*archived, chunk.staged.last_archived if chunk.staged else 0, range_end.known_through])
    position = msgspec.structs.replace(range_end, known_through=known_through, hub_time=chunk.clock.time)
    astray = [(row.ahead_count, row.backdated_count) for row in found.values()]
    astray += [(each.ahead_count, each.backdated_count) for each in (chunk.staged.slices if chunk.staged else ())]
    total = ReadCounts(ahead=sum(ahead for ahead, _ in astray), backdated=sum(backdated for _, backdated in astray))
    for table in BRONZE:
        if done[table.name] < position.sequence:
            new = Arrivals()
            if table is ADVISORIES and chunk.staged:
                new = Arrivals(None, chunk.staged.row_count, chunk.staged.days, chunk.staged)
            elif decoded is not None and table.name in found:
                rows = _rows(decoded, table, position.created_at).where(f.col("hub_sequence") > done[table.name])
                new = Arrivals(rows, found[table.name].new_count, found[table.name].days)
            total += _take_table(spark, new, table, position)
    return total, position


def _read(decoded: DataFrame, done: Mapping[str, int], staged: StagedFiles | None) -> dict[str, Row]:
    """Sum up what messages are by the table that they belong to."""
    with removed_on_failure(staged):
        return {row.target: row for row in _summary(decoded, done).collect()}


def begin(spark: SparkSession, start: HubPosition, positions: Mapping[str, HubPosition]) -> dict[str, HubPosition]:
    """Have every bronze table stand at ``start`` if it stood nowhere: before the first message is taken."""
    for table in BRONZE:
        if table.name not in positions:
            commits.advance(spark, table, start)
    return {table.name: positions.get(table.name, start) for table in BRONZE}


def duplicate_arrivals(rows: DataFrame, present: DataFrame, table: Table) -> DataFrame:
    """Give as ``arrival`` the ``hub_sequence`` of every row whose record is ``present`` or came earlier in ``rows``."""
    identity = list(table.identity)
    arrivals = rows.select(*identity, f.col("hub_sequence").alias("arrival"))
    together = present.select(*identity, f.lit(0).cast("bigint").alias("arrival")).unionByName(arrivals)
    place = f.row_number().over(Window.partitionBy(*identity).orderBy("arrival"))
    return together.select("arrival", place.alias("place")).where("place > 1 AND arrival > 0").select("arrival")


def _summary(decoded: DataFrame, done: Mapping[str, int]) -> DataFrame:
    """Count, for each table, what is new to it, and name the days on which that happened."""
    target = f.coalesce("table_name", f.lit(QUARANTINE.name))
    done_there = f.element_at(f.create_map(*(f.lit(part) for pair in done.items() for part in pair)), f.col("target"))
    happened_at = (
        f.when(f.col("target") == ADVISORIES.name, f.col("advisory.occurred_at"))
        .when(f.col("target") == WATERMARKS.name, f.col("watermark.observed_through"))
        .when(f.col("target") == REGISTRATIONS.name, f.col("registration.stored_at"))
        .when(f.col("target") == POLICY.name, f.col("revision.given_at"))
        .otherwise(f.col("archived_at"))
    )
    is_new = f.col("hub_sequence") > done_there
    of_watermark, stored_at = f.col("target") == WATERMARKS.name, f.unix_micros("archived_at")
    of_advisory = f.col("target") == ADVISORIES.name
    claimed_at = f.when(of_watermark, f.unix_micros("watermark.observed_through")).when(
        of_advisory, f.unix_micros("advisory.occurred_at")
    )
    since = f.when(of_watermark, f.unix_micros("watermark.observed_since")).when(
        of_advisory, f.unix_micros("advisory.last_seen_at")
    )
    life = f.coalesce("watermark.incarnation", "advisory.incarnation")
    created_at = f.split_part(life, f.lit("-"), f.lit(1)).try_cast("bigint")
    is_backdated = (since < claimed_at - LOOK_BACK) | ((since < created_at) & (created_at <= claimed_at))
    return (
        decoded.withColumn("target", target)
        .groupBy("target")
        .agg(
            f.count_if(is_new).alias("new_count"),
            f.collect_set(f.when(is_new, f.to_date(happened_at))).alias("days"),
            f.max(f.unix_micros("archived_at")).alias("last_archived"),
            f.count_if(is_new & (claimed_at > stored_at)).alias("ahead_count"),
            f.count_if(is_new & is_backdated).alias("backdated_count"),
        )
    )


def _take_table(spark: SparkSession, new: Arrivals, table: Table, position: HubPosition) -> ReadCounts:
    """Write what of ``new`` is not there yet."""
    staged, count = new.staged, new.row_count
    if not count:
        commits.advance(spark, table, position)
        return ReadCounts()
    seen = commits.snapshots(spark, (table,)).get(table.name)
    duplicate_count = 0
    with removed_on_failure(staged):
        are_all_new = staged and staged.are_all_new(spark, table, seen)
    if staged and are_all_new:
        added = staged.add(spark, table, position, seen)
    else:
        with removed_on_failure(staged):
            added, duplicate_count = _write(spark, new, table, position, seen)
    if added + duplicate_count != count:
        raise MiscountError(
            f"{table.name}: of {count} messages {added} were written and {duplicate_count} left out as"
            " duplicates, which does not add up; the tables are to be checked before the next run"
        )
    quarantined_count = added if table is QUARANTINE else 0
    return ReadCounts(count, added - quarantined_count, duplicate_count, quarantined_count)


def _write(
    spark: SparkSession, new: Arrivals, table: Table, position: HubPosition, seen: int | None
) -> tuple[int, int]:
    """Have Spark compare and write ``new``; give how many rows were added, and how many were there already."""
    rows = new.staged.rows(spark, table) if new.staged else new.rows
    assert rows is not None
    present = spark.table(table.identifier).where(within(sorted(new.days), table.dated_by))
    duplicate_count, by_day = 0, len(new.days) <= (_FEW_DAYS_OF_WATERMARKS if table is WATERMARKS else FEW_DAYS)
    folded_days = days_folded(spark, new.days) if table is WATERMARKS else []
    if not folded_days and _are_all_different(rows, present, table):
        added = commits.append(rows, table, position, seen, by_day=by_day)
    else:
        duplicates = duplicate_arrivals(rows, present, table)
        if folded_days:
            again = folded_arrivals(rows, spark.table(table.identifier), folded_days, clock_steps.read(spark, position))
            duplicates = duplicates.unionAll(again).distinct()
        duplicates = duplicates.persist()
        duplicate_count = duplicates.count()
        fresh = rows.join(duplicates, rows["hub_sequence"] == duplicates["arrival"], "left_anti")
        added = commits.append(fresh, table, position, seen, by_day=by_day)
        duplicates.unpersist()
    if new.staged:
        new.staged.remove()
    return added, duplicate_count


def _are_all_different(rows: DataFrame, present: DataFrame, table: Table) -> bool:
    """Tell, at a fraction of the cost of finding duplicates, that there is none: equal records have equal hashes.

    Two that differ may have equal ones too (for a million records once in ten million runs): then the answer is False.
    """
    hashes = f.xxhash64(*table.identity).alias("hash")
    groups = present.select(hashes).unionAll(rows.select(hashes)).groupBy("hash").count()
    return groups.where("count > 1").limit(1).count() == 0


def _rows(decoded: DataFrame, table: Table, stream_created_at: int) -> DataFrame:
    if table is QUARANTINE:
        return quarantined(decoded, stream_created_at)
    return registrations(decoded) if table is REGISTRATIONS else rows_of(decoded, table)
