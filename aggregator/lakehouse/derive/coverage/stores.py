"""Order of the stores that have spoken for a block, in the tables: ``archive/stores.py``."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from aggregator.archive.contests import BlockKey, Contest
from aggregator.archive.stores import StoreSpan, succession
from aggregator.lakehouse.derive.coverage.watermark_coverage import store
from aggregator.lakehouse.derive.intervals.episodes import BLOCK, NO_INCARNATION

_TYPES = "region STRING, site STRING, block STRING, incarnation STRING, store_end BIGINT"


def stores(continuations: DataFrame, found: Collection[Contest] = ()) -> DataFrame | None:
    """Return (region, site, block, ``incarnation``, ``store_end``: microseconds) of the stores that others follow.

    The rows are those of blocks for which several stores have spoken; None if there is no such block, as nearly always.
    The store of an incarnation without a row is the last one. ``found`` are the contests.
    """
    of_block = Window.partitionBy(*BLOCK)
    named = f.coalesce(f.unix_micros(store()), f.lit(0))
    contested = {contest.block for contest in found}
    lives = continuations.where("incarnation IS NOT NULL").select(
        *BLOCK,
        "incarnation",
        named.alias("store"),
        f.unix_micros("first_told_at").alias("begun_at"),
        *(f.coalesce(f.unix_micros(name), f.lit(0)).alias(name) for name in ("last_observed_through", "put_back_from")),
    )
    several = f.min("store").over(of_block) != f.max("store").over(of_block)
    for region, site, block in contested:
        several |= (f.col("region") == region) & (f.col("site") == site) & (f.col("block") == block)
    of: dict[BlockKey, list[StoreSpan]] = defaultdict(list)
    for row in lives.withColumn("several", several).where("several").drop("several").collect():
        of[row[0], row[1], row[2]].append(StoreSpan(*row[3:]))
    rows = [row for block, its in sorted(of.items()) for row in _rows(block, its, found)]
    return continuations.sparkSession.createDataFrame(rows, _TYPES) if rows else None


def _rows(block: BlockKey, lives: list[StoreSpan], found: Collection[Contest]) -> Iterator[tuple[Any, ...]]:
    order = succession(lives, [contest for contest in found if contest.block == block])
    if order.ends:
        # Plain Choria advisories are of no store, and known to none.
        for incarnation, rank in sorted({**order.ranks, NO_INCARNATION: 0}.items()):
            if rank < len(order.ends):
                yield *block, incarnation, order.ends[rank]
