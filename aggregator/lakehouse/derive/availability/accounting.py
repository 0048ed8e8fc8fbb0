"""Check of the accounts: raise an error before sums of times that do not add up are published.

Days, hours and the plain lengths of intervals are computed independently of each other in every run.
"""

from functools import reduce
from operator import add, and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from shared.instants import SECOND

_STATES = ("up_us", "down_us", "unknown_us", "maintenance_us")
_SUM = "decimal(38,0)"


class AccountingError(RuntimeError):
    """Raised if times do not add up; its text names the place."""


def check(
    spans: DataFrame, sender_days: DataFrame, site_days: DataFrame, site_hours: DataFrame, known_through: int
) -> None:
    """Raise AccountingError if days, hours and the total length of the intervals disagree; name one place.

    ``spans`` are the rows of ``window_accounts.spans_since``; the others are published rows: ``sender_days`` are the
    rows of ``sender_day_exceptions``, each of which adds up to its day. Days and hours are cut and summed
    independently.
    """
    # One sum by site and day (null: all days) needs one plan and one shuffle.
    checked = _windows(site_days, "day")
    others = _windows(site_hours, "hour"), _unbalanced(sender_days), _published(site_days), _lived(spans, known_through)
    for other in others:
        checked = checked.unionByName(other, allowMissingColumns=True)
    summed = (f.sum(name).alias(name) for name in checked.columns if name.endswith(("_us", "_count", "_seconds")))
    most = (f.max(name).alias(name) for name in checked.columns if name.endswith("_senders"))
    places = checked.groupBy("region", "site", "day").agg(*summed, *most)
    lived_us = f.col("lived_seconds").cast(_SUM) * SECOND + f.col("lived_rest_us")
    same = reduce(and_, (f.col(f"day_{name}").eqNullSafe(f.col(f"hour_{name}")) for name in _STATES))
    wrong = f.coalesce(
        f.when(~same, "a day is not the sum of its hours"),
        f.when(f.col("hour_senders") > f.col("day_senders"), "an hour has more senders than its day"),
        f.when(f.col("unbalanced_sender_count") > 0, "the times of a sender's day do not add up to it"),
        f.when(f.col("unbalanced_day_count") > 0, "the times of a day do not add up to it"),
        f.when(f.col("unbalanced_hour_count") > 0, "the times of an hour do not add up to it"),
        f.when(~lived_us.eqNullSafe(f.col("published_us")), "senders lived for another time than is published"),
    )
    figures = f.to_json(f.struct("*"))
    errors = places.select("region", "site", wrong.alias("error"), figures.alias("figures")).where("error IS NOT NULL")
    for row in errors.limit(1).collect():
        raise AccountingError(f"{row.region}.{row.site}, {row.error}: {row.figures}")


def _windows(windows: DataFrame, name: str) -> DataFrame:
    # The sums of one site fit into a BIGINT, which takes a fraction of the time that decimals take.
    states = [f.col(state).cast("bigint").alias(state) for state in (*_STATES, "absent_us")]
    balanced = reduce(add, map(f.col, (*_STATES, "absent_us"))) == f.col("sender_count") * f.col("window_us")
    return windows.select("region", "site", "day", "sender_count", "window_us", *states).select(
        "region",
        "site",
        "day",
        *(f.col(state).alias(f"{name}_{state}") for state in _STATES),
        f.col("sender_count").alias(f"{name}_senders"),
        f.when(_is_right(balanced), 0).otherwise(1).alias(f"unbalanced_{name}_count"),
    )


def _unbalanced(sender_days: DataFrame) -> DataFrame:
    balanced = reduce(add, map(f.col, (*_STATES, "absent_us"))) == f.col("window_us")
    # Only wrong rows are summed: as a rule there are none.
    wrong = sender_days.where(~_is_right(balanced))
    return wrong.select("region", "site", "day", f.lit(1).alias("unbalanced_sender_count"))


def _is_right(balanced: Column) -> Column:
    negative = f.least(*_STATES, "absent_us") < 0
    return f.coalesce(balanced & ~negative, f.lit(False))


def _published(site_days: DataFrame) -> DataFrame:
    total = _total(*_STATES)
    return site_days.select("region", "site", f.lit(None).cast("date").alias("day"), total.alias("published_us"))


def _lived(spans: DataFrame, known_through: int) -> DataFrame:
    ended_at = f.least(f.coalesce("ended_at", f.lit(known_through)), f.lit(known_through))
    # A site's years overflow a BIGINT of microseconds; summing decimals row by row takes many times as long.
    length = spans.select("region", "site", (ended_at - f.col("started_at")).alias("length"))
    lived = length.groupBy("region", "site").agg(
        f.sum(f.expr("length div 1000000")).alias("lived_seconds"),
        f.sum(f.pmod("length", f.lit(SECOND))).alias("lived_rest_us"),
    )
    return lived.withColumn("day", f.lit(None).cast("date"))


def _total(*names: str) -> Column:
    return reduce(add, map(f.col, names)).cast(_SUM)
