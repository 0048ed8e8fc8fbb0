"""Refuse intervals that contradict each other: of one sender, at one time, and not to be joined."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.episodes import DOWN, SENDER, UNKNOWN, UP
from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.tables.imports import ABSENT, IMPORTS
from shared.instants import format_instant

_SHOWN = 3


def refuse_other_gaps(rows: DataFrame, present: DataFrame, mapping: Mapping) -> None:
    """Raise ImportRefused where any of ``rows`` is ``present``, and came with other gaps."""
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
    """Raise ImportRefused where no row is left, of ``fresh``, to say for how long the source watched."""
    if (mapping.since is None and mapping.until is None) or not fresh.isEmpty():
        return
    begins, ends = f.unix_micros("watched_from"), f.unix_micros("watched_to")
    covers = f.lit(True)
    if mapping.since is not None:
        covers &= begins <= mapping.since
    if mapping.until is not None:
        covers &= ends >= mapping.until
    if not present.where(covers).isEmpty():
        return
    there = present.join(rows.select(*IMPORTS.identity).distinct(), list(IMPORTS.identity), "left_semi")
    identifiers = sorted(each["import_id"] for each in there.select("import_id").distinct().collect())
    raise ImportRefused(
        "nothing was imported: every row is there already, and came with another --since or --until;"
        f" {remedy(identifiers)}"
    )


def remedy(identifiers: Sequence[str]) -> str:
    """Say how a list takes the place of what these imports brought."""
    shown = " ".join(identifiers[:_SHOWN]) + (" ..." if len(identifiers) > _SHOWN else "")
    return f"`muster-aggregator import remove {shown}`, then import the whole list again"


def refuse_overlaps(fresh: DataFrame, present: DataFrame, mapping: Mapping) -> None:
    """Raise ImportRefused with the first pair, by file and line, of intervals of a sender that share some time.

    Both are of ``fresh``, or one is ``present``. Where the mapping joins them, only those of different states count.
    """
    joined = mapping.overlaps == "join"
    touched = fresh.select(*SENDER).distinct()
    both = present.join(touched, list(SENDER), "left_semi").withColumn("is_fresh", f.lit(False))
    together = fresh.withColumn("is_fresh", f.lit(True)).unionByName(both).where("started_at < ended_at")
    in_time = Window.partitionBy(*SENDER).orderBy("started_at", "ended_at", "state")
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    own = f.struct("ended_at", "started_at", "state", "file", "line", "is_fresh", "import_id")

    def last(condition: Column) -> Column:
        """Give the one before a row, of those of which ``condition`` holds, that ends last."""
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
    """Give file and line of what is taken: lines count within a file, and those of what is there are long read."""
    return f.when(f.col(f"{row}is_fresh"), f.struct(f.col(f"{row}file"), f.col(f"{row}line")))


def _span_text(state: str, started_at: int, ended_at: int, file: str, line: int) -> str:
    return f"{state} from {format_instant(started_at)} to {format_instant(ended_at)} ({file}, line {line})"
