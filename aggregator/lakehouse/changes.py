"""Find from when on the windows of each bucket of sites are to be computed: where anything in them has changed."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.intervals import BLOCK, SENDER, site_bucket
from aggregator.lakehouse.schemas import SITE_BUCKETS
from aggregator.lakehouse.windows import DAY_US


def windows_begin(
    lives: tuple[DataFrame, DataFrame], coverage: tuple[DataFrame, DataFrame], known_before: int
) -> Mapping[int, int]:
    """Give for each bucket of sites the midnight (microseconds) from which on its windows may differ.

    ``lives`` and ``coverage`` are (old, new) rows of ``sender_intervals`` and ``site_coverage``; what is in neither did
    not change. Windows that known time cut ``known_before`` (microseconds) are not finished.
    """
    changed = _changed(*lives, SENDER, "state").unionAll(_changed(*coverage, BLOCK, "cause"))
    first = changed.groupBy(site_bucket().alias("bucket")).agg(f.min("changed_at").alias("changed_at"))
    found = dict.fromkeys(range(SITE_BUCKETS), known_before)
    for bucket, changed_at in first.collect():
        found[bucket] = min(known_before, changed_at)
    return {bucket: at - at % DAY_US for bucket, at in found.items()}


def _changed(old: DataFrame, new: DataFrame, of: tuple[str, ...], state: str) -> DataFrame:
    """Give (site, ``changed_at``) for each interval that starts, ends or is called otherwise."""
    keys = [*of, state, "started_at"]
    before = old.select(*keys, f.col("ended_at").alias("old_ended_at"), f.lit(True).alias("was"))
    after = new.select(*keys, f.col("ended_at").alias("new_ended_at"), f.lit(True).alias("is"))
    apart = before.join(after, keys, "full_outer").where(
        "was IS NULL OR is IS NULL OR NOT old_ended_at <=> new_ended_at"
    )
    both = f.col("was") & f.col("is")
    at = f.when(both, f.least("old_ended_at", "new_ended_at")).otherwise(f.col("started_at"))
    return apart.select("site", f.unix_micros(at).alias("changed_at"))
