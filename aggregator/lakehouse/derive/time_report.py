"""Say, in one line for each block, that it claims times which nothing supports, how they count, and what to do."""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.archive.hub_clock import ClockStep
from aggregator.lakehouse.derive.coverage.believed_times import believed_advisories, believed_watermarks
from aggregator.lakehouse.derive.coverage.clock_steps import is_under
from aggregator.lakehouse.derive.intervals.episodes import BLOCK
from aggregator.lakehouse.tables.schemas import ADVISORIES, WATERMARKS

MOST_LINES = 20


def lines(spark: SparkSession, after: int, steps: Sequence[ClockStep]) -> list[str]:
    """Give the lines of what the hub stored behind the sequence ``after``, but not while its clock was behind."""

    def astray(claimed: DataFrame, believed: Callable[[DataFrame], DataFrame], at: str, since: str) -> DataFrame:
        said = claimed.select("*", f.struct(at, since).alias("said"))
        counts = believed(said).select(
            *BLOCK,
            (f.col(f"said.{at}") > f.col(at)).alias("ahead"),
            ((f.col(f"said.{since}") < f.col(since)) & (f.col(f"said.{since}") < f.col(at))).alias("backdated"),
        )
        return counts.where("ahead OR backdated")

    advisories, watermarks = (
        spark.table(table.identifier).where((f.col("hub_sequence") > after) & ~is_under(steps))
        for table in (ADVISORIES, WATERMARKS)
    )
    rows = (
        astray(advisories, believed_advisories, "occurred_at", "last_seen_at")
        .unionAll(astray(watermarks, believed_watermarks, "observed_through", "observed_since"))
        .groupBy(*BLOCK)
        .agg(f.count_if("ahead"), f.count_if("backdated"))
        .orderBy(*BLOCK)
        .collect()
    )
    said = [_line(*row) for row in rows]
    return [*said[:MOST_LINES], *([f"so it is of {len(said) - MOST_LINES} more"] if len(said) > MOST_LINES else [])]


def _line(region: str, site: str, block: str, ahead: int, backdated: int) -> str:
    told = []
    if ahead:
        told.append(f"{ahead:,} of its records claim a time later than the hub stored them, and count from then")
    if backdated:
        told.append(f"{backdated:,} look back behind the creation of their stream, or for years, and count from there")
    return f"{region}.{site}, block {block}: {'; '.join(told)}; keep the site's servers on NTP, and look at its agent"
