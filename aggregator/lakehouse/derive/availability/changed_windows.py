"""Search for the first window of each bucket of sites in which intervals or coverage have changed."""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.episodes import BLOCK, SENDER, site_bucket
from aggregator.lakehouse.tables.schemas import SITE_BUCKETS
from aggregator.lakehouse.warehouse.windows import DAY_US

_SIDES = ("old", "new")


def changed_since(
    intervals: tuple[DataFrame, DataFrame], coverage: tuple[DataFrame, DataFrame], known_before: int
) -> Mapping[int, int]:
    """Return, by bucket of sites, the midnight (microseconds) from which on its windows may differ.

    ``intervals`` and ``coverage`` are (old, new) rows of ``sender_intervals`` and ``site_coverage``, without rows that
    did not change. Windows that the end of known time cut, ``known_before`` (microseconds), are not finished.
    """
    sides = [
        _side(rows, of, state, side)
        for both, of, state in ((intervals, SENDER, "state"), (coverage, BLOCK, "cause"))
        for rows, side in zip(both, _SIDES, strict=True)
    ]
    # One aggregation needs one shuffle, where joins would need four.
    together = reduce(lambda some, others: some.unionByName(others, allowMissingColumns=True), sides)
    compared = together.groupBy(*SENDER, "state", "started_at").agg(
        *(f.max(name).alias(name) for side in _SIDES for name in (side, f"{side}_ended_at"))
    )
    both = f.col("old").isNotNull() & f.col("new").isNotNull()
    at = f.when(both, f.least("old_ended_at", "new_ended_at")).otherwise(f.col("started_at"))
    changed = compared.where(~both | ~f.col("old_ended_at").eqNullSafe(f.col("new_ended_at")))
    first = changed.groupBy(site_bucket().alias("bucket")).agg(f.min(f.unix_micros(at)).alias("changed_at"))
    begins = dict.fromkeys(range(SITE_BUCKETS), known_before)
    for bucket, changed_at in first.collect():
        begins[bucket] = min(known_before, changed_at)
    return {bucket: at - at % DAY_US for bucket, at in begins.items()}


def _side(intervals: DataFrame, of: tuple[str, ...], state: str, side: str) -> DataFrame:
    ended_at = f.col("ended_at").alias(f"{side}_ended_at")
    return intervals.select(*of, f.col(state).alias("state"), "started_at", ended_at, f.lit(1).alias(side))
