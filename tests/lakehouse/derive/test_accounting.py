"""The times of every sender, window, site and fleet are those that an account kept another way comes to."""

import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.availability import window_accounts
from aggregator.lakehouse.derive.availability.accounting import AccountingError, check
from aggregator.lakehouse.derive.coverage import contests, known_time, watermark_coverage
from aggregator.lakehouse.derive.coverage.believed_times import believed_advisories, believed_watermarks
from aggregator.lakehouse.derive.coverage.maintenance import Declared, DeclaredMaintenance
from aggregator.lakehouse.derive.coverage.stores import stores
from aggregator.lakehouse.derive.incremental import said_beside
from aggregator.lakehouse.derive.intervals.episodes import reports, sender_intervals
from aggregator.lakehouse.spark import effort
from aggregator.lakehouse.tables.causes import Cause
from aggregator.lakehouse.tables.schemas import ADVISORIES, CONTINUATIONS, SITE_BUCKETS, WATERMARKS, Table
from aggregator.lakehouse.tables.view_sql import spark_queries
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.support.lakehouse.drawn_histories import drawn
from tests.support.lakehouse.random_fleet import Times, Window, account, draw_block
from tests.support.lakehouse.random_rows import advisory_rows, draw_windows, watermark_rows

START = int(datetime(2026, 2, 27, tzinfo=UTC).timestamp()) * SECOND
BOUND = 2 * 5 * MINUTE
CONTINUATION_TYPES = ", ".join(f"{column.name} {column.type}" for column in CONTINUATIONS.columns)


@pytest.fixture(autouse=True)
def lean(spark: SparkSession) -> None:
    """Compute as a rollup of little does."""
    effort.fit(spark, (), 0, {})


def frame(spark: SparkSession, table: Table, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Make a DataFrame of some columns of a table; instants are given in microseconds."""
    rows = list(rows)
    names = list(rows[0])
    types = {column.name: column.type for column in table.columns}
    plain = {name: types[name].replace("TIMESTAMP", "BIGINT") for name in names}
    schema = ", ".join(f"{name} {type_}" for name, type_ in plain.items())
    made = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)
    return made.select(
        *(f.timestamp_micros(name).alias(name) if types[name] == "TIMESTAMP" else f.col(name) for name in names)
    )


class Derived:
    """Everything that is derived, of one history."""

    def __init__(
        self,
        advisories: DataFrame,
        watermarks: DataFrame,
        losses: list[tuple[int, int]],
        through: int,
        windows: Iterable[Window] = (),
    ) -> None:
        interval = BOUND // 2
        begins = dict.fromkeys(range(SITE_BUCKETS), 0)
        nothing = advisories.sparkSession.createDataFrame([], CONTINUATION_TYPES)
        advisories, watermarks = believed_advisories(advisories), believed_watermarks(watermarks)
        pages = watermark_coverage.ledger(advisories)
        doubts = watermark_coverage.doubts(watermarks, advisories, pages, nothing)
        after = watermark_coverage.continuations(watermarks, pages, nothing, doubts, through).localCheckpoint()
        found = contests.found_in(after)
        heard = contests.heard(advisories, found)
        self.intervals = sender_intervals(reports(heard), stores(after, found), through).localCheckpoint()
        said = watermark_coverage.vouched(watermarks, pages, nothing, doubts).unionByName(said_beside(after, found))
        planned = DeclaredMaintenance(advisories.sparkSession, (Declared(*each) for each in windows), 0, through)
        lost = [known_time.Unknown(*loss, Cause.LOST) for loss in losses]
        covered = planned.cut_coverage(known_time.site_coverage(said, lost, through)).localCheckpoint()
        by_day = known_time.coverage_windows(covered, DAY, begins, through).localCheckpoint()
        known = known_time.KnownDays.of(by_day)
        lives = window_accounts.spans_since(self.intervals, begins, through)
        self.spans = planned.cut_spans(lives)
        self.maintenance_days = planned.sender_days(lives)
        self.coverage_daily = known_time.site_coverage_daily(by_day)
        self.exceptions = window_accounts.sender_day_exceptions(self.spans, known, through, interval).localCheckpoint()
        self.hours = window_accounts.site_availability_hourly(
            self.spans, self.exceptions, known, through, interval
        ).localCheckpoint()
        self.days = window_accounts.site_availability_daily(
            self.spans, self.exceptions, known, through, interval
        ).localCheckpoint()
        self.fleet = window_accounts.over_sites(self.days)

    def sender_days(self) -> DataFrame:
        self.intervals.createOrReplaceTempView("sender_intervals")
        self.coverage_daily.createOrReplaceTempView("site_coverage_daily")
        self.exceptions.createOrReplaceTempView("sender_day_exceptions")
        self.maintenance_days.createOrReplaceTempView("sender_maintenance_days")
        query = next(query for view, query in spark_queries() if view.name == "sender_availability_daily")
        return self.intervals.sparkSession.sql(query.replace("muster.", ""))


def test_random_histories_are_accounted_for_to_the_microsecond(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    draw = random.Random(random.getrandbits(32))
    # Small pages: the histories are short.
    monkeypatch.setattr(watermark_coverage, "PAGE_BITS", draw.randrange(7))
    monkeypatch.setattr(window_accounts, "_FEW_SPANS", draw.choice((0, 1_000)))
    end = START + draw.randrange(3 * DAY, 5 * DAY)
    known_through = end - draw.choice((0, draw.randrange(1, DAY), (end - START) % DAY, (end - START) % HOUR))
    loss = START + draw.randrange(0, 3 * DAY)
    losses = [(loss, loss + draw.randrange(1, DAY))] if draw.random() < 0.5 else []
    # Chance makes what is usual, Hypothesis what is at the edges.
    blocks = [draw_block(draw, f"site{number // 2}", f"b{number}", START, end) for number in range(10)]
    blocks += drawn(6, lambda edgy, number: draw_block(edgy, f"site{5 + number // 2}", f"b{10 + number}", START, end))
    windows = list(draw_windows(draw, blocks, START, end))
    derived = Derived(
        frame(spark, ADVISORIES, (row for block in blocks for row in advisory_rows(block))),
        frame(spark, WATERMARKS, (row for block in blocks for row in watermark_rows(block))),
        losses,
        known_through,
        windows,
    )
    by_sender: dict[tuple[object, ...], Times] = {}
    by_hour: dict[tuple[str, int], list[Times]] = defaultdict(list)
    by_day: dict[tuple[str, int], list[Times]] = defaultdict(list)
    for block in blocks:
        for (sender_id, at), times in account(block, losses, known_through, DAY, windows).items():
            by_sender[block.site, block.block, sender_id, at] = times
            by_day[block.site, at].append(times)
        for (_, at), times in account(block, losses, known_through, HOUR, windows).items():
            by_hour[block.site, at].append(times)

    days = derived.sender_days().select(
        "site", "block", "sender_id", f.unix_micros(f.col("day").cast("timestamp")), "window_us", "up_us", "down_us",
        "unknown_us", "maintenance_us", "absent_us", "outage_count", "complete", "error_bound_us",
    ).collect()  # fmt: skip
    assert len(days) == len(by_sender)
    for *key, window, up, down, unknown, maintenance, absent, outages, complete, bound in days:
        assert Times(up, down, unknown, maintenance, absent, outages) == by_sender[tuple(key)], key
        assert window == up + down + unknown + maintenance + absent == min(DAY, known_through - key[3])
        assert complete == (window == DAY)
        assert bound == BOUND * outages
    assert published(derived.hours, f.unix_micros("hour")) == totals(by_hour)
    assert published(derived.days, f.unix_micros(f.col("day").cast("timestamp"))) == totals(by_day)
    check(derived.spans, derived.exceptions, derived.days, derived.hours, known_through)
    fleet = derived.fleet.agg(*(f.sum(f"{name}_us") for name in Times._fields[:5])).collect()[0]
    assert tuple(map(int, fleet)) == tuple(map(sum, list(zip(*by_sender.values(), strict=True))[:5]))


def test_the_check_refuses_days_that_are_not_their_hours(spark: SparkSession) -> None:
    draw = random.Random(1)
    block = next(
        block for block in iter(lambda: draw_block(draw, "site", "b", START, START + 3 * DAY), None) if block.marks
    )
    derived = Derived(
        frame(spark, ADVISORIES, advisory_rows(block)),
        frame(spark, WATERMARKS, watermark_rows(block)),
        [],
        START + 3 * DAY,
    )
    moved = derived.hours.withColumn("up_us", f.col("up_us") + 1).withColumn("absent_us", f.col("absent_us") - 1)
    with pytest.raises(AccountingError, match=r"eu-west\.site, a day is not the sum of its hours: "):
        check(derived.spans, derived.exceptions, derived.days, moved, START + 3 * DAY)
    unbalanced = derived.days.withColumn("absent_us", f.col("absent_us") + 1)
    with pytest.raises(AccountingError, match=r"eu-west\.site, the times of a day do not add up to it: "):
        check(derived.spans, derived.exceptions, unbalanced, derived.hours, START + 3 * DAY)
    # One microsecond too many; then a sum that is right, of which one part is negative.
    for up_us, absent_us in ((1, 0), (DAY + 1, -DAY - 1)):
        uneven = derived.exceptions.withColumns(
            {"up_us": f.col("up_us") + up_us, "absent_us": f.col("absent_us") + absent_us}
        )
        with pytest.raises(AccountingError, match=r"eu-west\.site, the times of a sender's day do not add up to it: "):
            check(derived.spans, uneven, derived.days, derived.hours, START + 3 * DAY)
    crowded = derived.hours.withColumns(
        {"sender_count": f.col("sender_count") + 9, "absent_us": f.col("absent_us") + 9 * f.col("window_us")}
    )
    with pytest.raises(AccountingError, match=r"eu-west\.site, an hour has more senders than its day: "):
        check(derived.spans, derived.exceptions, derived.days, crowded, START + 3 * DAY)
    longer = derived.spans.withColumn("started_at", f.col("started_at") - 1)
    with pytest.raises(AccountingError, match=r"eu-west\.site, senders lived for another time than is published: "):
        check(longer, derived.exceptions, derived.days, derived.hours, START + 3 * DAY)


def published(windows: DataFrame, at: Any) -> dict[tuple[str, int], tuple[int, ...]]:
    rows = windows.select(
        "site", at, "sender_count", "up_us", "down_us", "unknown_us", "maintenance_us", "absent_us", "outage_count"
    ).collect()
    return {(site, at): tuple(map(int, sums)) for site, at, *sums in rows}


def totals(windows: dict[tuple[str, int], list[Times]]) -> dict[tuple[str, int], tuple[int, ...]]:
    return {key: (len(times), *map(sum, zip(*times, strict=True))) for key, times in windows.items()}
