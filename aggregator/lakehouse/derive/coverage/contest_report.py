"""Say, in one line for each block, who spoke against whom since the last run, and what to do about it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.archive.contests import BlockKey, Contest
from aggregator.lakehouse.derive.coverage import contests
from aggregator.lakehouse.derive.intervals.episodes import BLOCK
from aggregator.lakehouse.tables.schemas import CONTINUATIONS, WATERMARKS
from shared.command_line.tables import shown_name
from shared.instants import format_instant

MOST_LINES = 20

LifeKey = tuple[BlockKey, str]


class Voice(NamedTuple):
    """One run of an agent that spoke for an incarnation; the hub's times of its first and last watermark."""

    agent: str
    boot_id: str
    first_archived_at: int
    last_archived_at: int

    def __str__(self) -> str:
        return f"{shown_name(self.agent)} (boot {shown_name(self.boot_id)})"


class PutBack(NamedTuple):
    """An older copy of a store that was put back: from when on (microseconds) an incarnation is counted otherwise."""

    life: LifeKey
    put_back_from: int
    last_through: int


def lines(spark: SparkSession, since: int) -> list[str]:
    """Give the lines of what is contested later than ``since`` (microseconds): nearly always none."""
    continuations = spark.table(CONTINUATIONS.identifier)
    found = [each for each in contests.found_in(continuations) if each.ended_at > since]
    put_back = [each for each in _put_back(continuations) if each.last_through > since]
    if not found and not put_back:
        return []
    lives = {(each.block, life) for each in found for life in (each.earlier, each.later)}
    voices = _voices(spark, lives | {each.life for each in put_back})
    said = [*(_of_contest(each, voices) for each in _latest(found)), *(_of_put_back(each, voices) for each in put_back)]
    return [*said[:MOST_LINES], *([f"so it is of {len(said) - MOST_LINES} more"] if len(said) > MOST_LINES else [])]


def _latest(found: Iterable[Contest]) -> Sequence[Contest]:
    """Give one contest of each block: that which lasts longest."""
    latest: dict[BlockKey, Contest] = {}
    for each in found:
        if each.block not in latest or latest[each.block].ended_at < each.ended_at:
            latest[each.block] = each
    return list(latest.values())


def _put_back(continuations: DataFrame) -> Iterator[PutBack]:
    rows = (
        continuations.where("put_back_from IS NOT NULL")
        .select(*BLOCK, "incarnation", f.unix_micros("put_back_from"), f.unix_micros("last_observed_through"))
        .orderBy(*BLOCK, "incarnation")
        .collect()
    )
    for region, site, block, incarnation, put_back_from, last_through in rows:
        yield PutBack(((region, site, block), incarnation), put_back_from, last_through)


def _voices(spark: SparkSession, lives: Iterable[LifeKey]) -> dict[LifeKey, list[Voice]]:
    """Give who spoke for each of ``lives``, in the order in which the hub first heard of them."""
    rows = [(*block, incarnation) for block, incarnation in sorted(lives)]
    wanted = spark.createDataFrame(rows, "region STRING, site STRING, block STRING, incarnation STRING")
    spoken = (
        spark.table(WATERMARKS.identifier)
        .join(f.broadcast(wanted), [*BLOCK, "incarnation"], "left_semi")
        .groupBy(*BLOCK, "incarnation", "agent", "boot_id")
        .agg(f.min(f.unix_micros("archived_at")).alias("first"), f.max(f.unix_micros("archived_at")).alias("last"))
        .orderBy("first", "agent", "boot_id")
        .collect()
    )
    voices: dict[LifeKey, list[Voice]] = {life: [] for life in lives}
    for region, site, block, incarnation, *voice in spoken:
        voices[(region, site, block), incarnation].append(Voice(*voice))
    return voices


def _of_contest(contest: Contest, voices: dict[LifeKey, list[Voice]]) -> str:
    speakers = [f"{voices[contest.block, life][-1]} of incarnation {life}" for life in (contest.earlier, contest.later)]
    span = f"from {format_instant(contest.started_at)} to {format_instant(contest.ended_at)}"
    return (
        f"{_name(contest.block)}: agents {' and '.join(speakers)} speak at once and are no pair: {span} is unknown"
        " (contested); end one of them, make them a pair, or give each site a name of its own"
    )


def _of_put_back(each: PutBack, voices: dict[LifeKey, list[Voice]]) -> str:
    (block, incarnation), spoken = each.life, voices[each.life]
    speakers = " and ".join(map(str, spoken[-2:]))
    return (
        f"{_name(block)}: {speakers} count the advisories of incarnation {incarnation} in two ways: an older copy of"
        f" the store was put back: from {format_instant(each.put_back_from)} on all is unknown (put_back), until the"
        " store is begun anew: the manual's page on trouble at the hub, Advisories never come"
    )


def _name(block: BlockKey) -> str:
    return f"{block[0]}.{block[1]}, block {block[2]}"
