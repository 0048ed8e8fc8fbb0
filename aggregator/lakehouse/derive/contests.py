"""Find where two agents spoke for one block and did not know of each other, and say whose words hold afterwards.

Rules. An incarnation of a block is what one store, or a pair's, knows of one past of its stream: where another follows,
it has ended. Two that overlap, in the time that their watermarks vouch for and in the archive's, are of two agents
without a pair, or of two sites of one name. While both speak, and until one has been silent for ``QUIET``,
nothing is known: what one calls down, the other may not have.

Afterwards whoever goes on is believed: of the other, nothing counts that it said while both spoke. While neither has
ended, it is the one that began earlier. Where it is the one that began later, it does not know what the other did:
whoever it has not told of since it began is unknown until it does.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals import BLOCK
from aggregator.lakehouse.tables.causes import Cause
from shared.instants import MINUTE

QUIET = 10 * MINUTE
"""An agent that is silent for as long, of the time that the other vouches for meanwhile, is taken to have ended."""

BlockKey = tuple[str, str, str]
_BLOCK_TYPES = "region STRING, site STRING, block STRING"


class Life(NamedTuple):
    """One incarnation of a block; instants in microseconds: the first ``since`` of its watermarks, and so on."""

    block: BlockKey
    incarnation: str
    since: int
    first_through: int
    last_through: int
    first_archived_at: int
    last_archived_at: int

    def overlaps(self, other: "Life") -> bool:
        """Tell whether neither follows the other."""
        in_time = self.first_through < other.last_through and other.first_through < self.last_through
        is_archived_before = self.last_archived_at <= other.first_archived_at
        is_archived_after = other.last_archived_at <= self.first_archived_at
        return in_time and not is_archived_before and not is_archived_after


class Silence(NamedTuple):
    """Nothing that an incarnation says of ``since`` or later counts; 0: nothing at all. Instants in microseconds."""

    block: BlockKey
    incarnation: str
    since: int


class Contest(NamedTuple):
    """Two incarnations of one block, and when both spoke; instants in microseconds."""

    block: BlockKey
    earlier: str
    later: str
    started_at: int
    ended_at: int
    silence: Silence


def contests(lives: Iterable[Life]) -> list[Contest]:
    """Find the contests among incarnations of any blocks, in a fixed order.

    Each is compared with two of those that began earlier: that which had gone on for longest, and that which is
    believed. So a site that makes up thousands costs no more than it has sent.
    """
    of_block: dict[BlockKey, list[Life]] = defaultdict(list)
    for life in lives:
        of_block[life.block].append(life)
    return [contest for block in sorted(of_block) for contest in _of_block(of_block[block])]


def _of_block(lives: Iterable[Life]) -> Iterator[Contest]:
    furthest: Life | None = None
    believed: Life | None = None
    for life in sorted(lives, key=lambda life: (life.first_through, life.incarnation)):
        others = [other for other in dict.fromkeys((furthest, believed)) if other is not None]
        found = [_contest(other, life) for other in others if other.overlaps(life)]
        yield from found
        if not any(contest.silence.incarnation == life.incarnation for contest in found):
            believed = life
        if furthest is None or life.last_through > furthest.last_through:
            furthest = life


def _contest(earlier: Life, later: Life) -> Contest:
    ended_at = min(earlier.last_through, later.last_through) + QUIET
    silence = Silence(earlier.block, later.incarnation, 0)
    if later.last_through > ended_at:
        silence = Silence(earlier.block, earlier.incarnation, later.since)
    return Contest(earlier.block, earlier.incarnation, later.incarnation, later.first_through, ended_at, silence)


def silences(found: Iterable[Contest]) -> set[Silence]:
    """Give what does not count, each once."""
    return {contest.silence for contest in found}


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
            *(
                f.unix_micros(name).alias(name)
                for name in (
                    "first_observed_since",
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
    return contests(Life((row[0], row[1], row[2]), *row[3:]) for row in rows)


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


def silent_throughout(found: Iterable[Contest]) -> set[tuple[BlockKey, str]]:
    """Name the incarnations of which nothing counts."""
    return {(silence.block, silence.incarnation) for silence in silences(found) if not silence.since}


def beginnings(found: Iterable[Contest]) -> set[tuple[BlockKey, int]]:
    """Say from when on (microseconds) another store speaks for a block, which does not know what was said before."""
    silent = silent_throughout(found)
    return {
        (silence.block, silence.since)
        for silence in silences(found)
        if silence.since and (silence.block, silence.incarnation) not in silent
    }


def store_changes(continuations: DataFrame, found: Iterable[Contest]) -> DataFrame:
    """Give (region, site, block, ``rebuilt_at``): since when a store does not know what was said of its block before.

    Of stores of which nothing counts, none: nobody rests on them.
    """
    session, (silent, begun) = continuations.sparkSession, (silent_throughout(found), beginnings(found))
    left_out = session.createDataFrame(
        [(*block, life) for block, life in silent], f"{_BLOCK_TYPES}, incarnation STRING"
    )
    beginning = session.createDataFrame([(*block, since) for block, since in begun], f"{_BLOCK_TYPES}, since BIGINT")
    return (
        continuations.join(f.broadcast(left_out), [*BLOCK, "incarnation"], "left_anti")
        .select(*BLOCK, f.explode("lost_at").alias("rebuilt_at"))
        .unionAll(beginning.select(*BLOCK, f.timestamp_micros("since")))
        .distinct()
    )


def of_changed_blocks(advisories: DataFrame, before: Iterable[Contest], found: Iterable[Contest]) -> DataFrame | None:
    """Give the advisories of blocks of which something else counts than before; None where of none."""
    changed = {silence.block for silence in silences(before) ^ silences(found)}
    if not changed:
        return None
    blocks = advisories.sparkSession.createDataFrame(sorted(changed), _BLOCK_TYPES)
    return advisories.join(f.broadcast(blocks), [*BLOCK], "left_semi")
