"""Leave out the watermarks that those before and after them say everything of: of a run, first and last stay.

Rules. Of what is said of one block on one day, in its order, a watermark goes that lies between two of its own life
which say the same: observed since the same instant, or for long, as many advisories issued, the same store. The next
one, which vouches for the same time too, must be alone at its instant. First and last of a life, in its time and in the
archive's, always stay. So what is made of those that are left is exactly what is made of all, and their number follows
advisories, blind spans and days.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from aggregator.archive.hub_clock import ClockStep
from aggregator.lakehouse.derive.coverage import clock_steps
from aggregator.lakehouse.derive.coverage.believed_times import believed_watermarks
from aggregator.lakehouse.derive.intervals.episodes import BLOCK
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import WATERMARKS
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.windows import DAY_US, within

_LONG = 30 * DAY_US
"""Since when a watermark has observed does not matter where it is as long ago: a run is of one day."""
_SAID = ("incarnation", "advisory_ordinal", "rebuilt_at")
_SPOKEN_BY = (
    "agent", "boot_id", "stream", "stale_after_us", "retire_after_us", "blind_after_us", "policy_revision", "version",
)  # fmt: skip
"""What else of a watermark is asked for, though nothing is derived from it."""
_FOLDED = "muster.folded-through"
_DAYS_AT_ONCE = 30
_EPOCH = date(1970, 1, 1)


def folded(watermarks: DataFrame, known_through: int) -> DataFrame:
    """Give of ``believed_watermarks`` those that what they vouch for rests on, also where known time ends before."""
    is_known = (f.unix_micros("observed_through") <= known_through).alias("is_known")
    return watermarks.withColumn("is_between", _is_between(_SAID, is_known)).where("NOT is_between").drop("is_between")


def days_folded(spark: SparkSession, days: Collection[date]) -> list[date]:
    """Give those of ``days`` that the table ``watermarks`` has folded."""
    folded_through = int(Iceberg(spark).load(WATERMARKS).properties().get(_FOLDED) or 0)
    return [day for day in days if (day - _EPOCH).days < folded_through]


def folded_arrivals(
    rows: DataFrame, present: DataFrame, days: Collection[date], steps: Sequence[ClockStep]
) -> DataFrame:
    """Give as ``arrival`` the ``hub_sequence`` of each of ``rows`` that lies where the table has folded others.

    ``present`` has the table's rows, ``days`` are folded: what lies there between two that say the same was there once,
    or says nothing more.
    """
    sides = [
        believed_watermarks(side, steps).select(
            *BLOCK,
            "observed_through",
            f.to_date("observed_through").alias("day"),
            arrival.alias("arrival"),
            _told((*_SAID, *_SPOKEN_BY)).alias("told"),
        )
        for side, arrival in ((_said_on(present, days), f.lit(None).cast("bigint")), (rows, f.col("hub_sequence")))
    ]
    in_time = Window.partitionBy(*BLOCK, "day").orderBy("observed_through")
    kept = f.when(f.col("arrival").isNull(), f.col("told"))
    # One of the same instant lies on both sides.
    before = f.last(kept, ignorenulls=True).over(in_time.rangeBetween(Window.unboundedPreceding, Window.currentRow))
    after = f.first(kept, ignorenulls=True).over(in_time.rangeBetween(Window.currentRow, Window.unboundedFollowing))
    return (
        sides[0]
        .unionAll(sides[1])
        .withColumn("is_between", (before == f.col("told")) & (after == f.col("told")))
        .where("arrival IS NOT NULL AND is_between")
        .select("arrival")
    )


def fold(spark: SparkSession, midnight: int, position: HubPosition) -> int:
    """Fold what the table ``watermarks`` has of days before ``midnight`` (microseconds); give how many rows went.

    Whole days, about a month of them in a commit, and none again but for what came late: killed at any point, the next
    call does the rest. Where a file has days before ``midnight`` and behind it, neither is folded yet. ``position`` is
    the table's.
    """
    iceberg = Iceberg(spark)
    loaded, end = iceberg.load(WATERMARKS), midnight // DAY_US
    folded_through, held = int(loaded.properties().get(_FOLDED) or 0), iceberg.row_count(WATERMARKS)
    spans = _days_of_files(spark)
    end = min([end, *(span.first for span in spans if span.first < end <= span.last)])
    late = [span for span in spans if span.last < end and (span.file_count > 1 or span.last >= folded_through)]
    for days in _in_parts(late):
        seen = commits.snapshots(spark, (WATERMARKS,))[WATERMARKS.name]
        kept = _kept(commits.read_at(spark, WATERMARKS, seen), days, clock_steps.read(spark, position))
        commits.replace(kept, WATERMARKS, within(days, "observed_through"), position, seen=seen)
        folded_through = max(folded_through, (days[-1] - _EPOCH).days + 1)
        iceberg.load(WATERMARKS).updateProperties().set(_FOLDED, str(folded_through)).commit()
    if folded_through < end:
        iceberg.load(WATERMARKS).updateProperties().set(_FOLDED, str(end)).commit()
    return held - iceberg.row_count(WATERMARKS)


class _Span(NamedTuple):
    """Days, counted from 1970, of which files have rows, each of them one of its own or one that another has too."""

    first: int
    last: int
    file_count: int


def _days_of_files(spark: SparkSession) -> list[_Span]:
    bounds = "readable_metrics.observed_through"
    first, last = (f.unix_date(f.to_date(f"{bounds}.{bound}_bound")) for bound in ("lower", "upper"))
    found: list[_Span] = []
    for span in sorted(spark.table(f"{WATERMARKS.identifier}.files").select(first, last).collect()):
        if found and span[0] <= found[-1].last:
            before = found[-1]
            found[-1] = _Span(before.first, max(before.last, span[1]), before.file_count + 1)
        else:
            found.append(_Span(span[0], span[1], 1))
    return found


def _in_parts(spans: Sequence[_Span]) -> Iterator[list[date]]:
    """Give the days of ``spans`` about a month at once: as many as begin within one."""
    days: list[date] = []
    for span in spans:
        days += (_EPOCH + timedelta(days=day) for day in range(span.first, span.last + 1))
        if len(days) >= _DAYS_AT_ONCE or span is spans[-1]:
            yield days
            days = []


def _kept(rows: DataFrame, days: Sequence[date], steps: Sequence[ClockStep]) -> DataFrame:
    """Give the rows of ``days`` that stay."""
    said = _said_on(rows, days).select(
        "*", f.struct(*WATERMARKS.column_names).alias("said"), _is_ahead().alias("is_ahead")
    )
    between = _is_between((*_SAID, *_SPOKEN_BY)) & ~f.col("is_ahead")
    return (
        believed_watermarks(said, steps)
        .withColumn("is_between", between)
        .where("NOT is_between")
        .select("said.*")
        .where(within(days, "observed_through"))
    )


def _said_on(rows: DataFrame, days: Collection[date]) -> DataFrame:
    """Select the rows of ``days``: what claims a time to come has its place on the day on which it was stored."""
    return rows.where(within(days, "observed_through") | (_is_ahead() & within(days, "archived_at")))


def _is_ahead() -> Column:
    return f.col("observed_through") > f.col("archived_at")


def _is_between(said: Sequence[str], *others: Column) -> Column:
    through, since, archived_at = f.col("observed_through"), f.col("observed_since"), f.col("archived_at")
    in_time = Window.partitionBy(*BLOCK, f.to_date(through)).orderBy(
        "observed_through", "advisory_ordinal", "observed_since", "archived_at", "hub_sequence"
    )
    told = _told(said, *others)
    whole = f.struct(told.alias("told"), since, through, archived_at)
    before, after = (of(whole).over(in_time) for of in (f.lag, f.lead))
    # What another life says at one instant decides about all watermarks of that instant.
    is_next_alone = f.coalesce(f.lead(through, 2).over(in_time) > after["observed_through"], f.lit(True))
    same = before["told"].eqNullSafe(told) & after["told"].eqNullSafe(told)
    in_order = (before["archived_at"] <= archived_at) & (archived_at <= after["archived_at"])
    return f.coalesce(same & in_order & is_next_alone & (before["observed_since"] <= since), f.lit(False))


def _told(said: Sequence[str], *others: Column) -> Column:
    """Put together what two watermarks must both say so that those between them say nothing more.

    Where the hub's time is believed in place of the claim, a count may fall that did not fall by the one before.
    """
    since, through = f.col("observed_since"), f.col("observed_through")
    is_recent = f.unix_micros(through) - f.unix_micros(since) < _LONG
    is_claimed = (f.col("claimed_through") == through).alias("is_claimed")
    return f.struct(*said, *others, is_claimed, f.when(is_recent, since).alias("since"))
