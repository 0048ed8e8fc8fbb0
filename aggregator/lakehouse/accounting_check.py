"""Refuse to publish times that do not add up: every run computes times in ways that do not know of each other."""

from functools import reduce
from operator import add, and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from shared.instants import SECOND

_STATES = ("up_us", "down_us", "unknown_us", "maintenance_us")
_SUM = "decimal(38,0)"


class AccountingError(RuntimeError):
    """The times do not add up: nothing was published. The text says where."""


def check(spans: DataFrame, site_days: DataFrame, site_hours: DataFrame, known_through: int) -> None:
    """Compare days with hours, whose times are cut and summed apart, and both with the plain length of what was lived.

    ``spans`` as of ``availability.spans_since``; the others as published. Raise AccountingError, naming one place.
    """
    wrong = (
        _unlike_their_hours(site_days, site_hours)
        .unionByName(_unbalanced(site_days, "day"))
        .unionByName(_unbalanced(site_hours, "hour"))
        .unionByName(_not_lived(spans, site_days, known_through))
    )
    for row in wrong.limit(1).collect():
        raise AccountingError(f"{row.region}.{row.site}, {row.what}: {row.figures}; nothing wrong was published")


def _unlike_their_hours(site_days: DataFrame, site_hours: DataFrame) -> DataFrame:
    days = site_days.groupBy("region", "site", "day").agg(*_summed("day"))
    hours = site_hours.groupBy("region", "site", "day").agg(*_summed("hour"))
    same = reduce(and_, (f.col(f"day_{name}").eqNullSafe(f.col(f"hour_{name}")) for name in _STATES))
    apart = days.join(hours, ["region", "site", "day"], "full_outer").where(~same)
    return _places(apart, "a day is not the sum of its hours")


def _unbalanced(windows: DataFrame, name: str) -> DataFrame:
    balanced = _total(*_STATES, "absent_us") == f.col("sender_count").cast(_SUM) * f.col("window_us")
    negative = f.least(*_STATES, "absent_us") < 0
    return _places(
        windows.where(~f.coalesce(balanced & ~negative, f.lit(False))), f"the times of a {name} do not add up to it"
    )


def _not_lived(spans: DataFrame, site_days: DataFrame, known_through: int) -> DataFrame:
    ended_at = f.least(f.coalesce("ended_at", f.lit(known_through)), f.lit(known_through))
    # A site's years overflow a BIGINT of microseconds; to sum up decimals, row by row, takes many times as long.
    length = ended_at - f.col("started_at")
    seconds, rest = f.sum(f.expr("length div 1000000")), f.sum(f.pmod("length", f.lit(SECOND)))
    lived = (
        spans.select("region", "site", length.alias("length"))
        .groupBy("region", "site")
        .agg((seconds.cast(_SUM) * SECOND + rest).alias("lived_us"))
    )
    published = site_days.groupBy("region", "site").agg(f.sum(_total(*_STATES)).alias("published_us"))
    same = f.col("lived_us").cast(_SUM).eqNullSafe(f.col("published_us").cast(_SUM))
    apart = lived.join(published, ["region", "site"], "full_outer").where(~same)
    return _places(apart, "senders lived for another time than is published")


def _places(wrong: DataFrame, what: str) -> DataFrame:
    figures = f.to_json(f.struct("*"))
    return wrong.select("region", "site", f.lit(what).alias("what"), figures.alias("figures"))


def _summed(prefix: str) -> list[Column]:
    return [f.sum(name).cast(_SUM).alias(f"{prefix}_{name}") for name in _STATES]


def _total(*names: str) -> Column:
    return reduce(add, map(f.col, names)).cast(_SUM)
