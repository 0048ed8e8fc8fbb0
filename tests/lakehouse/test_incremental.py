"""Whatever comes, in whatever order, and whatever ends a run half-way: the tables are those of a full computation."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse import availability, catalog, coverage, effort, losses, table_upkeep, vouching
from aggregator.lakehouse.accounting_check import AccountingError
from aggregator.lakehouse.catalog import HubPosition
from aggregator.lakehouse.reading_plan import Span
from aggregator.lakehouse.schemas import (
    ADVISORIES,
    BRONZE,
    DERIVED,
    POLICY,
    SENDER_DAY_EXCEPTIONS,
    SENDER_INTERVALS,
    SENDER_MAINTENANCE_DAYS,
    SITE_AVAILABILITY_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_COVERAGE_DAILY,
    WATERMARKS,
    Table,
)
from shared.instants import DAY, HOUR, MINUTE, format_instant
from tests.lakehouse.conftest import MANY_PIECES, PIECES
from tests.lakehouse.scripted_archive import FIRST_DAY, START, Archive, Interrupted, Row
from tests.support.quick_spark import SPARK
from tests.support.random_fleet import (
    BlockHistory,
    account,
    advisory_rows,
    draw_block,
    policy_rows,
    standing_windows,
    watermark_rows,
)
from tests.support.small_rollup import bucket_of

BY_DAY = (
    SENDER_INTERVALS,
    SENDER_DAY_EXCEPTIONS,
    SITE_COVERAGE_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_AVAILABILITY_DAILY,
)
ARRIVED = {"archived_at": START, "agent": "a", "boot_id": "b"}
IMPORTED = "\n".join(
    (
        "host,state,begin,end",
        *(
            f"eu-west/{sender},{state},{format_instant(START + begin * HOUR)},{format_instant(START + end * HOUR)}"
            for sender, state, begin, end in (
                ("site0/r1/a", "up", 1, 9),
                ("site0/r1/a", "down", 9, 11),
                ("elsewhere/r1/b", "down", 2, 20),
            )
        ),
        "",
    )
)


def archived(draw: random.Random, rows: Iterator[tuple[Table, int, Row]], lateness: float) -> list[tuple[Table, Row]]:
    """Put records in the order of their instants, but for some that come late."""
    due = [
        (at + (draw.randrange(1, 40 * HOUR) if draw.random() < lateness else 0), draw.random(), table, row)
        for table, at, row in rows
    ]
    due.sort(key=lambda each: each[:2])
    return [(table, row | ARRIVED | {"hub_sequence": number}) for number, (_, _, table, row) in enumerate(due, start=1)]


def records_of(
    draw: random.Random, blocks: Sequence[BlockHistory], policy: Sequence[Row], lateness: float
) -> list[tuple[Table, Row]]:
    def rows() -> Iterator[tuple[Table, int, Row]]:
        yield from ((POLICY, row["given_at"], row) for row in policy)
        for block in blocks:
            yield from ((ADVISORIES, row["occurred_at"], row) for row in advisory_rows(block))
            yield from ((WATERMARKS, row["observed_through"], row) for row in watermark_rows(block))

    return archived(draw, rows(), lateness)


def test_any_sequence_of_runs_gives_what_a_full_computation_gives(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    draw = random.Random(random.getrandbits(32))
    monkeypatch.setattr(vouching, "PAGE_BITS", draw.randrange(7))
    end = START + draw.randrange(3 * DAY, 5 * DAY)
    monkeypatch.setattr(table_upkeep, "_MANY_FILES", "2")
    blocks = [draw_block(draw, f"site{number // 2}", f"b{number}", START, end) for number in range(6)]
    policy = list(policy_rows(draw, blocks, START, end))
    archive = Archive(tmp_path / "lake", records_of(draw, blocks, policy, draw.choice((0, 0.02, 0.2))))
    given_up = play(draw, archive, end, draw.choice((3, 4)), tmp_path / "imported")
    windows = list(standing_windows(policy))
    assert archive.sender_days() == {
        (block.site, block.block, *key): times
        for block in blocks
        for key, times in account(block, given_up, archive.position.known_through, DAY, windows).items()
    }
    found = archive.tables()
    archive.derive(full=True)
    assert found == archive.tables()


def play(draw: random.Random, archive: Archive, end: int, runs: int, directory: Path) -> list[tuple[int, int]]:
    """Roll up in ``runs`` steps, of which one is interrupted, and another may give messages up: give their time.

    History may be imported before one of them, and the tables be kept up after one that is whole.
    """
    given_up: list[tuple[int, int]] = []
    import_before, maintain_after = draw.choice((None, *range(runs))), draw.choice((None, 0, *range(2, runs)))
    known_through = START + draw.randrange(DAY, 2 * DAY)
    archive.take(len(archive.records) // 2, known_through)
    if import_before == 0:
        archive.import_history(directory, IMPORTED)
    archive.derive()
    if maintain_after == 0:
        archive.maintain()
    for run in range(1, runs):
        known_through = max(
            known_through, min(end + DAY, known_through + draw.choice((0, HOUR, 7 * HOUR, DAY, 3 * DAY)))
        )
        left = len(archive.records) - archive.taken
        archive.take(draw.randrange(left // 2 + 1) if run < runs - 1 else left, known_through + run)
        if import_before == run:
            archive.import_history(directory, IMPORTED)
        if run == 1:
            try:
                archive.derive(commits=draw.randrange(1, len(DERIVED)))
            except Interrupted:
                continue
        elif run == 2 and draw.random() < 0.2:
            lost = HubPosition("ARCHIVE", 1, 0, START + draw.randrange(DAY))
            losses.record(archive.spark, Span(1, 2), lost, lost.known_through + HOUR)
            given_up.append((lost.known_through, lost.known_through + HOUR))
        archive.derive()
        if maintain_after == run:
            archive.maintain()
    return given_up


def test_late_data_of_one_site_rewrites_its_days_in_its_bucket(spark: SparkSession, tmp_path: Path) -> None:
    told = [record for number in range(8) for record in week_of(f"site{number}")]
    late = [record for record in told if record[1].get("sender_id") == "site3-late" and record[1]["kind"] != "new"]
    rest = [record for record in told if record not in late]
    archive = Archive(
        tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in enumerate(rest + late, 1)]
    )
    archive.take(len(rest), START + 7 * DAY - HOUR)
    archive.derive()
    before = {table: archive.files(table) for table in BY_DAY}
    archive.take(len(late), START + 7 * DAY - HOUR // 2)
    archive.derive()
    for table, files in before.items():
        written = [each for path, each in archive.files(table).items() if path not in files and each[0] < 6]
        # From the day that the late word is about on; of intervals that had ended, that day alone.
        days = {2} if table is SENDER_INTERVALS else {2, 3, 4, 5}
        assert {each[:2] for each in written} == {(day, bucket_of("site3")) for day in days}
        held = sum(size for *_, size in files.values())
        assert sum(size for *_, size in written) < held / 4


def test_who_is_named_for_one_day_is_not_for_others_and_wrong_sums_change_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [record for record in week_of("site3") if record[1].get("occurred_at", 0) <= START + 6 * DAY]
    named = maintenance(1, ("site3-4", "site3-5"), (10, 12)), maintenance(2, ("site3-7",), (4 * 24 + 1, 4 * 24 + 2))
    of_block = maintenance(3, None, (20, 30)), maintenance(4, None, (3 * 24 + 5, 3 * 24 + 30))
    taken_back = {**maintenance(5, None, (0, 1)), "kind": "cancel", "cancelled_revision": 2}
    records = [*told, *((POLICY, row) for row in (*named, *of_block, taken_back))]
    archive = Archive(
        tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in enumerate(records, 1)]
    )
    archive.take(len(records) - 1, START + 3 * DAY)
    check_that_a_first_run_leaves_nothing(archive, monkeypatch)
    archive.derive()
    archive.take(0, START + 5 * DAY)
    check_that_wrong_sums_leave_nothing(archive, monkeypatch)
    archive.derive()
    assert named_days(archive) == [(0, "site3-4"), (0, "site3-5"), (4, "site3-7")]
    archive.take(1, START + 5 * DAY + HOUR)
    archive.derive()
    assert named_days(archive) == [(0, "site3-4"), (0, "site3-5")]
    found = archive.tables()
    archive.derive(full=True)
    assert found == archive.tables()


def check_that_wrong_sums_leave_nothing(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every hour be one microsecond longer than it was: a run fails, and the tables say what they said before."""
    right = availability.site_availability_hourly

    def wrong(*given: Any) -> DataFrame:
        return right(*given).withColumn("up_us", f.col("up_us") + 1)

    before = archive.stands()
    with monkeypatch.context() as broken:
        broken.setattr(availability, "site_availability_hourly", wrong)
        with pytest.raises(AccountingError, match=r"eu\.site3, a day is not the sum of its hours: .*; nothing of it "):
            archive.derive()
    assert archive.stands() == before


def check_that_a_first_run_leaves_nothing(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it fail as soon as some tables are written: what the check looks at takes as long as all the rest."""

    def fail(*_given: Any) -> DataFrame:
        assert archive.stands()
        raise AccountingError

    with monkeypatch.context() as broken:
        broken.setattr(coverage, "coverage_windows", fail)
        with pytest.raises(AccountingError):
            archive.derive()
    assert not archive.stands()


def named_days(archive: Archive) -> list[tuple[int, str]]:
    rows = archive.spark.table(SENDER_MAINTENANCE_DAYS.identifier).select("day", "sender_id").collect()
    return sorted(((day - FIRST_DAY).days, sender_id) for day, sender_id in rows)


def maintenance(revision: int, sender_ids: tuple[str, ...] | None, hours: tuple[int, int]) -> Row:
    began, ended = (START + hour * HOUR for hour in hours)
    scope = {"stream_created_at": 1, "region": "eu", "site": "site3", "block": "nodes"}
    what = {"revision": revision, "kind": "maintenance", "given_at": START, "sender_ids": sender_ids}
    return {**scope, **what, "started_at": began, "ended_at": ended}


def week_of(site: str) -> Iterator[tuple[Table, Row]]:
    """Give a week of a site: senders that fail once a day, and one that failed on one day."""
    block = {"region": "eu", "site": site, "block": "nodes", "incarnation": "1-1", "rebuilt": False, "assumed": False}
    said = [(START, "new", f"{site}-{number}", START) for number in range(20)] + [(START, "new", f"{site}-late", START)]
    for day in range(7):
        for number in range(20):
            down = START + day * DAY + (number + 1) * HOUR
            sender = f"{site}-{number}"
            said += [(down + 12 * MINUTE, "stale", sender, down), (down + 20 * MINUTE, "recovered", sender, down)]
    down = START + 2 * DAY + 10 * HOUR
    said += [(down + 12 * MINUTE, "stale", f"{site}-late", down), (down + HOUR, "recovered", f"{site}-late", down)]
    for ordinal, (at, kind, sender_id, seen_at) in enumerate(sorted(said), start=1):
        event = {"sender_id": sender_id, "kind": kind, "occurred_at": at, "last_seen_at": seen_at, "ordinal": ordinal}
        yield ADVISORIES, block | event | {"event_id": f"{site}-{ordinal}"}
    for hour in range(1, 7 * 24):
        at = START + hour * HOUR
        mark = {
            "observed_since": START,
            "observed_through": at,
            "advisory_ordinal": sum(each[0] <= at for each in said),
        }
        yield WATERMARKS, block | mark


def test_rows_are_shuffled_in_as_many_pieces_as_there_is_to_compute(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list(week_of("site1"))
    archive = Archive(
        tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in enumerate(told, 1)]
    )
    archive.take(len(told) // 2, START + DAY)
    before = catalog.snapshots(archive.spark, BRONZE)
    archive.take(len(told), START + 7 * DAY)

    def pieces(setting: str, before: Mapping[str, int] | None) -> str | None:
        effort.fit(archive.spark, BRONZE, 0, {})
        effort.cut(archive.spark, BRONZE, before, {})
        return archive.spark.conf.get(setting)

    shuffled = "spark.sql.shuffle.partitions"
    assert pieces(shuffled, None) == str(spark.sparkContext.defaultParallelism)
    assert pieces(shuffled, before) == "1"
    monkeypatch.setattr(effort, "FEW_ROWS", 0)
    assert (pieces(PIECES, None), pieces(PIECES, before)) == (MANY_PIECES, SPARK[shuffled])
    monkeypatch.setattr(effort, "NEW_ROWS", len(told) // 2)
    assert pieces(PIECES, before) == SPARK[shuffled]
    # The next run begins as the session did, and an operator's choice of one setting is no sign of few rows.
    effort.fit(archive.spark, BRONZE, 0, {})
    assert archive.spark.conf.get(PIECES) == MANY_PIECES
    archive.spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    effort.cut(archive.spark, BRONZE, before, {})
    assert archive.spark.conf.get(shuffled) == SPARK[shuffled]
    # Where the snapshot is gone that they came after, all are new.
    assert pieces(PIECES, {}) == MANY_PIECES


@pytest.mark.parametrize(("count", "join"), [(1, "BroadcastHashJoin"), (effort.MOST_HANDED_OUT + 1, "SortMergeJoin")])
def test_many_windows_are_not_handed_out_whole_however_small_the_files_they_are_cut_out_of(
    spark: SparkSession, count: int, join: str
) -> None:
    session = spark.newSession()
    if join == "BroadcastHashJoin":
        # Without a hint, Spark would hand out two rows by itself.
        session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    windows = effort.joined_as(session.range(2).withColumn("known_us", f.lit(1)), count)
    pieces = session.range(2).join(windows.select("id", "known_us"), ["id"], "left")
    plan = pieces._jdf.queryExecution().executedPlan().toString()
    assert join in plan
