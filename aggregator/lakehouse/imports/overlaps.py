"""Refuse intervals that contradict each other: of one sender, at one time, and not to be joined."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals import DOWN, SENDER, UNKNOWN, UP
from aggregator.lakehouse.imports.mapping import ABSENT, ImportRefused, Mapping
from aggregator.lakehouse.imports.repeats import remedy
from shared.instants import format_instant


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
        f" {_said(first.other.state, first.other_from_us, first.other_to_us, first.other.file, first.other.line)}, and"
        f" {_said(first.state, first.from_us, first.to_us, first.file, first.line)}; choose a key"
        f" (--sender, also of several columns) under which no two overlap{among}, or mend the file{grown}"
    )


def _place_of_fresh(row: str) -> Column:
    """Give file and line of what is taken: lines count within a file, and those of what is there are long read."""
    return f.when(f.col(f"{row}is_fresh"), f.struct(f.col(f"{row}file"), f.col(f"{row}line")))


def _said(state: str, started_at: int, ended_at: int, file: str, line: int) -> str:
    return f"{state} from {format_instant(started_at)} to {format_instant(ended_at)} ({file}, line {line})"
