"""Find in the tables where two agents spoke for one block, and what does not count of it: ``archive/contests.py``."""

from collections.abc import Collection, Iterable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from aggregator.archive.contests import BlockKey, Contest, IncarnationSpan, contests, silences
from aggregator.lakehouse.derive.intervals.episodes import BLOCK
from aggregator.lakehouse.tables.causes import Cause

_BLOCK_TYPES = "region STRING, site STRING, block STRING"


def found_in(continuations: DataFrame) -> list[Contest]:
    """Find the contests that rows of the table ``continuations`` tell of; nearly always there is none."""
    by_beginning = Window.partitionBy(*BLOCK).orderBy("first_observed_through")
    before = by_beginning.rowsBetween(Window.unboundedPreceding, -1)
    overlaps = f.col("first_observed_through") < f.max("last_observed_through").over(before)
    rows = (
        continuations.where("first_observed_through IS NOT NULL")
        .select(
            *BLOCK,
            "incarnation",
            f.unix_micros(f.least("first_observed_since", "first_told_at")),
            *(
                f.unix_micros(name).alias(name)
                for name in (
                    "first_observed_through",
                    "last_observed_through",
                    "first_archived_at",
                    "last_archived_at",
                )
            ),
        )
        .withColumn("overlaps", overlaps)
        .withColumn("is_contested", f.max("overlaps").over(Window.partitionBy(*BLOCK)))
        .where("is_contested")
        .drop("overlaps", "is_contested")
        .collect()
    )
    return contests(IncarnationSpan((row[0], row[1], row[2]), *row[3:]) for row in rows)


def contested_spans(like: DataFrame, found: Iterable[Contest]) -> DataFrame:
    """Give the spans of contests (region, site, block, ``started_at``, ``ended_at``, ``cause``), in any session."""
    rows = [(*contest.block, contest.started_at, contest.ended_at) for contest in found]
    spans = like.sparkSession.createDataFrame(rows, f"{_BLOCK_TYPES}, started_at BIGINT, ended_at BIGINT")
    return spans.withColumn("cause", f.lit(Cause.CONTESTED))


def heard(advisories: DataFrame, found: Collection[Contest]) -> DataFrame:
    """Leave out the advisories that do not count; they are not looked at where there was no contest."""
    return _by_silence(advisories, found, "left_anti") if found else advisories


def unheard(advisories: DataFrame, found: Iterable[Contest]) -> DataFrame:
    """Give the advisories that do not count."""
    return _by_silence(advisories, found, "left_semi")


def _by_silence(advisories: DataFrame, found: Iterable[Contest], how: str) -> DataFrame:
    rows = [(*silence.block, *silence[1:]) for silence in sorted(silences(found))]
    silent = advisories.sparkSession.createDataFrame(rows, f"{_BLOCK_TYPES}, incarnation STRING, since BIGINT")
    silent = silent.alias("silent")
    is_silent = f.unix_micros("occurred_at") >= f.col("silent.since")
    for name in (*BLOCK, "incarnation"):
        is_silent &= f.col(f"said.{name}") == f.col(f"silent.{name}")
    return advisories.alias("said").join(f.broadcast(silent), is_silent, how)


def withdrawn(like: DataFrame, before: Iterable[Contest], found: Iterable[Contest]) -> DataFrame | None:
    """Give (region, site, block) of the contests ``before`` that no longer reach as far; None: nearly always.

    A third agent that is heard late, and goes on for longer, is what others are compared with from then on.
    """
    ends: dict[tuple[BlockKey, int], int] = {}
    for contest in found:
        beginning = contest.block, contest.started_at
        ends[beginning] = max(contest.ended_at, ends.get(beginning, 0))
    blocks = {each.block for each in before if each.ended_at > ends.get((each.block, each.started_at), 0)}
    return like.sparkSession.createDataFrame(sorted(blocks), _BLOCK_TYPES) if blocks else None


def of_changed_blocks(advisories: DataFrame, before: Iterable[Contest], found: Iterable[Contest]) -> DataFrame | None:
    """Give the advisories of blocks of which something else counts than before; None where of none."""
    changed = {silence.block for silence in silences(before) ^ silences(found)}
    if not changed:
        return None
    blocks = advisories.sparkSession.createDataFrame(sorted(changed), _BLOCK_TYPES)
    return advisories.join(f.broadcast(blocks), [*BLOCK], "left_semi")
