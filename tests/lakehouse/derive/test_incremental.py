"""Whatever comes, in whatever order, and whatever ends a run half-way: the tables are those of a full computation."""

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse import rollup
from aggregator.lakehouse.archive.reading_plan import Span
from aggregator.lakehouse.derive.availability import window_accounts
from aggregator.lakehouse.derive.availability.accounting import AccountingError
from aggregator.lakehouse.derive.coverage import known_time, losses, watermark_coverage
from aggregator.lakehouse.derive.derivation import take_back
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.spark import effort
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import (
    ADVISORIES,
    BRONZE,
    DERIVED,
    POLICY,
    REGION_AVAILABILITY_DAILY,
    SENDER_DAY_EXCEPTIONS,
    SENDER_INTERVALS,
    SENDER_MAINTENANCE_DAYS,
    SITE_AVAILABILITY_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_COVERAGE,
    SITE_COVERAGE_DAILY,
    WATERMARKS,
    Table,
)
from aggregator.lakehouse.warehouse import commits, upkeep
from aggregator.lakehouse.warehouse.commits import Interfered
from aggregator.records import judge
from shared.instants import DAY, HOUR, MINUTE, format_instant
from tests.lakehouse.conftest import MANY_PIECES, PIECES, say
from tests.lakehouse.query.test_analysis_views import check_views_against_days
from tests.lakehouse.scripted_archive import FIRST_DAY, START, Archive, Interrupted, Row, Rows
from tests.lakehouse.scripted_weeks import across_a_months_end, maintenance, week_of
from tests.support.lakehouse.quick_spark import SPARK
from tests.support.lakehouse.random_fleet import BlockHistory, Mark, account, draw_block
from tests.support.lakehouse.random_rows import advisory_rows, policy_rows, standing_windows, watermark_rows
from tests.support.lakehouse.small_rollup import bucket_of

BY_DAY = (
    SENDER_INTERVALS,
    SENDER_DAY_EXCEPTIONS,
    SITE_COVERAGE_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_AVAILABILITY_DAILY,
)
ARRIVED = {"archived_at": START + 365 * DAY, "agent": "a", "boot_id": "b"}
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
    return [(table, ARRIVED | row | {"hub_sequence": number}) for number, (_, _, table, row) in enumerate(due, start=1)]


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
    monkeypatch.setattr(watermark_coverage, "PAGE_BITS", draw.randrange(7))
    # Drawn clocks are ahead by hours, where steps are hours too.
    monkeypatch.setattr(judge, "SKEW", 4 * HOUR)
    end = START + draw.randrange(3 * DAY, 5 * DAY)
    monkeypatch.setattr(upkeep, "_MANY_FILES", 2)
    blocks = [draw_block(draw, f"site{number // 2}", f"b{number}", START, end) for number in range(6)]
    policy = list(policy_rows(draw, blocks, START, end))
    archive = Archive(tmp_path / "lake", records_of(draw, blocks, policy, draw.choice((0, 0.02, 0.2))))
    # Few rows in all, or in an update alone.
    monkeypatch.setattr(effort, "FEW_ROWS", draw.choice((effort.FEW_ROWS, len(archive.records) // 3)))
    given_up = play(draw, archive, end, draw.choice((3, 4)), tmp_path / "imported")
    windows = list(standing_windows(policy))
    assert archive.sender_days() == {
        (block.site, block.block, *key): times
        for block in blocks
        for key, times in account(block, given_up, archive.position.known_through, DAY, windows).items()
    }
    check_views_against_days(tmp_path / "lake")
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


def test_late_data_of_one_site_rewrites_its_share_also_in_a_fleet_that_has_grown(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, *others = ([*week_of(f"site{number}", senders=3)] for number in range(64))
    told = [record for of_site in others for record in of_site]
    late = [record for record in told if record[1].get("sender_id") == "site3-late" and record[1]["kind"] != "new"]
    rest = [record for record in told if record not in late]
    records = enumerate(first + rest + late, 1)
    archive = Archive(tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in records])
    archive.take(len(first), START + 7 * DAY - HOUR)
    archive.derive()
    archive.take(len(rest), START + 7 * DAY - HOUR)
    archive.derive()
    assert max(len(buckets) for _, buckets, _ in archive.files(SENDER_DAY_EXCEPTIONS).values()) > 32
    archive.maintain()
    before = {table: archive.files(table) for table in BY_DAY}
    untouched = rows_beside(archive, "site3", 2)
    archive.take(len(late), START + 7 * DAY - HOUR // 2)
    archive.derive()
    # What was written anew says the same of all others. Without the late words, their site was unknown from there on.
    assert untouched == rows_beside(archive, "site3", 2)
    for table, files in before.items():
        written = [each for path, each in archive.files(table).items() if path not in files and each[0] < 6]
        # As many partitions as the square root of the number of sites.
        share = bucket_of("site3") // 8
        assert {bucket // 8 for _, buckets, _ in written for bucket in buckets} == {share}, table.name
        held = sum(size for *_, size in files.values())
        assert sum(size for *_, size in written) < held / 4


def rows_beside(archive: Archive, site: str, day: int) -> dict[str, Rows]:
    """Give the rows of finished days, but for those of a site from ``day`` on, and its late sender's intervals."""
    first, unfinished = (FIRST_DAY + timedelta(days=number) for number in (day, 6))
    of_days = f"day < DATE '{unfinished}' AND NOT (site = '{site}' AND day >= DATE '{first}')"
    found = {}
    for table in BY_DAY:
        where = f"sender_id != '{site}-late'" if table is SENDER_INTERVALS else of_days
        found[table.name] = sorted(map(tuple, archive.spark.table(table.identifier).where(where).collect()), key=repr)
        assert found[table.name], table.name
    return found


def test_coverage_of_days_before_what_is_new_stays_in_its_files(spark: SparkSession, tmp_path: Path) -> None:
    marks = [Mark(1, START + day * DAY + HOUR, START + (day + 1) * DAY - HOUR, 0, 0) for day in range(6)]
    rows = watermark_rows(BlockHistory("site1", "b", [], marks))
    archive = Archive(
        tmp_path, [(WATERMARKS, ARRIVED | row | {"hub_sequence": number}) for number, row in enumerate(rows, start=1)]
    )
    archive.take(5, START + 5 * DAY - HOUR // 2)
    archive.derive()
    finished = {path for path, (first, *_) in archive.files(SITE_COVERAGE).items() if first < 4}
    archive.take(1, START + 6 * DAY)
    archive.derive()
    assert finished
    assert finished <= archive.files(SITE_COVERAGE).keys()
    assert archive.spark.table(SITE_COVERAGE.identifier).count() == 2 * len(marks)


def test_who_is_named_for_one_day_is_not_for_others_and_wrong_sums_change_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [record for record in week_of("site3") if record[1].get("occurred_at", 0) <= START + 6 * DAY]
    named = maintenance(1, ("site3-4", "site3-5"), (10, 12)), maintenance(2, ("site3-7",), (4 * 24 + 1, 4 * 24 + 2))
    of_block = maintenance(3, None, (20, 30)), maintenance(4, None, (3 * 24 + 5, 3 * 24 + 30))
    taken_back = {**maintenance(5, None, (0, 1)), "kind": "cancel", "cancelled_revision": 2}
    records = [*told, *across_a_months_end(), *((POLICY, row) for row in (*named, *of_block, taken_back))]
    archive = Archive(
        tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in enumerate(records, 1)]
    )
    archive.take(len(records) - 1, START + 3 * DAY)
    check_that_a_first_run_leaves_nothing(archive, monkeypatch)
    archive.derive()
    archive.take(0, START + 5 * DAY)
    check_that_wrong_sums_leave_nothing(archive, monkeypatch)
    check_that_what_another_job_took_back_is_not_recorded(archive)
    archive.derive()
    assert named_days(archive) == [(0, "site3-4"), (0, "site3-5"), (4, "site3-7")]
    archive.take(1, START + 5 * DAY + HOUR)
    archive.derive()
    assert named_days(archive) == [(0, "site3-4"), (0, "site3-5")]
    check_that_an_outage_and_a_flap_count_in_their_own_months(tmp_path)
    found = archive.tables()
    archive.derive(full=True)
    assert found == archive.tables()


def check_that_an_outage_and_a_flap_count_in_their_own_months(warehouse: Path) -> None:
    """Ask of the two outages of ``across_a_months_end``: the second is a flap only for who knows of the first."""
    with open_tables(warehouse) as tables:
        found = tables.rows(
            "SELECT month, up_us, down_us, unknown_us, outage_count, flap_count, mttr_us, longest_outage_us"
            " FROM sender_reliability WHERE block = 'edge' ORDER BY month"
        )
    first, second = 70 * MINUTE, 30 * MINUTE
    assert found == [
        (date(2026, 2, 1), 2 * DAY - first, first, 0, 1, 0, first, first),
        (date(2026, 3, 1), 3 * DAY + HOUR - second, second, 0, 1, 1, second, second),
    ]


def check_that_wrong_sums_leave_nothing(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every hour be one microsecond longer than it was: a run fails, and the tables say what they said before."""
    right = window_accounts.site_availability_hourly

    def wrong(*given: Any) -> DataFrame:
        return right(*given).withColumn("up_us", f.col("up_us") + 1)

    before = archive.stands()
    with monkeypatch.context() as broken:
        broken.setattr(window_accounts, "site_availability_hourly", wrong)
        with pytest.raises(AccountingError, match=r"eu\.site3, a day is not the sum of its hours: .*; nothing of it "):
            archive.derive()
    assert archive.stands() == before
    gone = commits.last_whole_run(archive.spark)
    gone = msgspec.structs.replace(gone, snapshots={**gone.snapshots, SENDER_INTERVALS.name: 1})
    assert "could not be taken back, for snapshots of the last whole run are gone" in take_back(archive.spark, gone)


def check_that_what_another_job_took_back_is_not_recorded(archive: Archive) -> None:
    """Have another job begin, as a run does, at the last whole run's tables, when this one has written all but one."""
    other, whole_run = rollup.start_session(archive.settings, say), commits.last_whole_run(archive.spark)

    def begin(line: str) -> None:
        if line == f"  {REGION_AVAILABILITY_DAILY.name}":
            assert commits.go_back(other, DERIVED, whole_run.snapshots)

    with pytest.raises(Interfered):
        rollup.bring_up_to_date(archive.spark, archive.settings, archive.position, full=False, progress=begin)
    assert commits.last_whole_run(archive.spark) == whole_run


def check_that_a_first_run_leaves_nothing(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it fail as soon as some tables are written: what the check looks at takes as long as all the rest.

    So it does in one that another job gets in the way of, which leaves what there is to the next one.
    """
    other = rollup.start_session(archive.settings, say)

    def fail(*_given: Any) -> DataFrame:
        if not began:
            commits.advance(other, SITE_COVERAGE_DAILY, archive.position)
        began.append(archive.stands())
        raise AccountingError

    began = list[dict[str, int]]()
    with monkeypatch.context() as broken:
        broken.setattr(known_time, "coverage_windows", fail)
        with pytest.raises(Interfered, match=r"another job has written muster\.site_coverage_daily meanwhile"):
            archive.derive()
        assert archive.stands() == began[0] != {}
        with pytest.raises(AccountingError, match="nothing of it stays in the derived tables"):
            archive.derive()
        assert began[1]
    assert not archive.stands()


def named_days(archive: Archive) -> list[tuple[int, str]]:
    rows = archive.spark.table(SENDER_MAINTENANCE_DAYS.identifier).select("day", "sender_id").collect()
    return sorted(((day - FIRST_DAY).days, sender_id) for day, sender_id in rows)


def test_rows_are_shuffled_in_as_many_pieces_as_there_is_to_compute(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list(week_of("site1"))
    archive = Archive(
        tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in enumerate(told, 1)]
    )
    archive.take(len(told) // 2, START + DAY)
    before = commits.snapshots(archive.spark, BRONZE)
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


def test_a_few_new_rows_on_top_of_many_are_computed_one_by_one_unless_history_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list(week_of("site1"))
    archive = Archive(
        tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in enumerate(told, 1)]
    )
    archive.take(len(told) - 3, START + 6 * DAY)
    archive.derive()
    before = commits.snapshots(archive.spark, BRONZE)
    archive.take(3, START + 7 * DAY)
    going_on = archive.spark.table(SENDER_INTERVALS.identifier).where("ended_at IS NULL").count()
    compiled, adaptive = "spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled"

    def set_up(before: Mapping[str, int] | None, few: int, chosen: Mapping[str, str] = {}) -> tuple[str | None, ...]:
        monkeypatch.setattr(effort, "FEW_ROWS", few)
        effort.fit(archive.spark, BRONZE, 0, chosen)
        effort.cut(archive.spark, BRONZE, before, chosen)
        return tuple(archive.spark.conf.get(name) for name in (compiled, adaptive))

    few = going_on + 3
    assert going_on
    assert few < len(told)
    assert set_up(before, few) == ("false", "false")
    # What is written anew counts with what is new.
    assert set_up(before, few - 1) == set_up(None, few) == ("true", "true")
    assert set_up(before, few, {adaptive: "true"}) == ("false", "true")
    for read_history in (effort.fit_history, lambda session: effort.fit_sender_days(session, few)):
        set_up(before, few)
        effort.fit_sender_days(archive.spark, 1)
        assert archive.spark.conf.get(compiled) == "false"
        read_history(archive.spark)
        assert archive.spark.conf.get(compiled) == "true"


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


@pytest.mark.parametrize(("new_count", "in_memory"), [(0, True), (effort.FEW_ROWS + 1, False)])
def test_many_rows_that_are_computed_once_leave_the_memory_to_what_sums_them_up(
    spark: SparkSession, new_count: int, in_memory: bool
) -> None:
    session = spark.newSession()
    effort.fit(session, (), new_count, {})
    plan = effort.computed_once(session.range(2))._jdf.queryExecution().logical()
    assert plan.rdd().getStorageLevel().useMemory() is in_memory
