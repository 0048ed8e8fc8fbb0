"""Whatever comes, in whatever order, and whatever ends a run half-way: the tables are those of a full computation."""

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse import catalog, effort, job, losses, provision, vouching
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
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.nats_connection import ConnectionSettings
from tests.lakehouse.conftest import MANY_PIECES, PIECES, say, settings_for
from tests.support.quick_spark import SPARK
from tests.support.random_fleet import advisory_rows, draw_block, policy_rows, watermark_rows
from tests.support.small_rollup import bucket_of

FIRST_DAY = date(2026, 2, 27)
START = int(datetime(FIRST_DAY.year, FIRST_DAY.month, FIRST_DAY.day, tzinfo=UTC).timestamp()) * SECOND
BY_DAY = (
    SENDER_INTERVALS,
    SENDER_DAY_EXCEPTIONS,
    SITE_COVERAGE_DAILY,
    SITE_AVAILABILITY_HOURLY,
    SITE_AVAILABILITY_DAILY,
)
ARRIVED = {"archived_at": START, "agent": "a", "boot_id": "b"}
NOBODY = ConnectionSettings(servers=("nats://127.0.0.1:1",))
Row = dict[str, Any]
Rows = list[tuple[object, ...]]


class Interrupted(Exception):
    """Ends a run between two commits."""


class Archive:
    """Records in the order in which the hub archived them, of which a run takes what a position covers."""

    def __init__(self, warehouse: Path, records: Sequence[tuple[Table, Row]]) -> None:
        self.settings = settings_for(NOBODY, warehouse)
        self.spark = job.start_session(self.settings, say)
        provision.prepare(self.spark)
        effort.fit(self.spark, (), 0, {})
        self.records = records
        self.taken = 0
        self.position = HubPosition("ARCHIVE", 1, 0, 0)

    def take(self, count: int, known_through: int) -> None:
        """Write the next records into the bronze tables."""
        rows = self.records[self.taken : self.taken + count]
        self.taken += len(rows)
        self.position = HubPosition("ARCHIVE", 1, self.taken, known_through)
        for table in BRONZE:
            mine = [row for target, row in rows if target is table]
            if mine:
                catalog.append(self._frame(table, mine), table, self.position)
            else:
                catalog.advance(self.spark, table, self.position)

    def derive(self, *, full: bool = False, commits: int = 99) -> None:
        """Derive; be interrupted after some commits, where there are as many."""
        left = commits

        def count(line: str) -> None:
            nonlocal left
            left -= line.startswith("  ")
            if not left:
                raise Interrupted

        job.bring_up_to_date(self.spark, self.settings, self.position, full=full, progress=count)

    def tables(self) -> dict[str, Rows]:
        return {
            table.name: sorted(map(tuple, self.spark.table(table.identifier).collect()), key=repr) for table in DERIVED
        }

    def files(self, table: Table) -> dict[str, tuple[int, int, int]]:
        """Give day (counted from START; the last one for what goes on), bucket and bytes of each file of a table."""
        day = "coalesce(partition.ended_at_day, DATE '9999-12-31')" if table is SENDER_INTERVALS else "partition.day"
        rows = self.spark.table(f"{table.identifier}.files").selectExpr(
            "file_path", f"{day} AS day", "partition.site_bucket", "file_size_in_bytes"
        )
        return {path: ((day - FIRST_DAY).days, bucket, size) for path, day, bucket, size in rows.collect()}

    def _frame(self, table: Table, rows: Sequence[Row]) -> DataFrame:
        types = {column.name: column.type.replace("TIMESTAMP", "BIGINT") for column in table.columns}
        schema = ", ".join(f"{name} {type_}" for name, type_ in types.items())
        made = self.spark.createDataFrame([tuple(row.get(name) for name in types) for row in rows], schema)
        instants = {column.name for column in table.columns if column.type == "TIMESTAMP"}
        return made.select(
            *(f.timestamp_micros(name).alias(name) if name in instants else f.col(name) for name in types)
        )


def archived(draw: random.Random, rows: Iterator[tuple[Table, int, Row]], lateness: float) -> list[tuple[Table, Row]]:
    """Put records in the order of their instants, but for some that come late."""
    due = [
        (at + (draw.randrange(1, 40 * HOUR) if draw.random() < lateness else 0), draw.random(), table, row)
        for table, at, row in rows
    ]
    due.sort(key=lambda each: each[:2])
    return [(table, row | ARRIVED | {"hub_sequence": number}) for number, (_, _, table, row) in enumerate(due, start=1)]


def draw_records(draw: random.Random, end: int, lateness: float) -> list[tuple[Table, Row]]:
    blocks = [draw_block(draw, f"site{number // 2}", f"b{number}", START, end) for number in range(6)]

    def rows() -> Iterator[tuple[Table, int, Row]]:
        yield from ((POLICY, row["given_at"], row) for row in policy_rows(draw, blocks, START, end))
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
    archive = Archive(tmp_path, draw_records(draw, end, draw.choice((0, 0.02, 0.2))))
    play(draw, archive, end, runs=draw.choice((3, 4)))
    found = archive.tables()
    archive.derive(full=True)
    assert found == archive.tables()


def play(draw: random.Random, archive: Archive, end: int, runs: int) -> None:
    """Roll up in ``runs`` steps, of which one is interrupted, and another may give messages up."""
    known_through = START + draw.randrange(DAY, 2 * DAY)
    archive.take(len(archive.records) // 2, known_through)
    archive.derive()
    for run in range(1, runs):
        known_through = max(
            known_through, min(end + DAY, known_through + draw.choice((0, HOUR, 7 * HOUR, DAY, 3 * DAY)))
        )
        left = len(archive.records) - archive.taken
        archive.take(draw.randrange(left // 2 + 1) if run < runs - 1 else left, known_through + run)
        if run == 1:
            try:
                archive.derive(commits=draw.randrange(1, len(DERIVED)))
            except Interrupted:
                continue
        elif run == 2 and draw.random() < 0.2:
            lost = HubPosition("ARCHIVE", 1, 0, START + draw.randrange(DAY))
            losses.record(archive.spark, Span(1, 2), lost, lost.known_through + HOUR)
        archive.derive()


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


def test_who_is_named_for_one_day_is_not_for_others(spark: SparkSession, tmp_path: Path) -> None:
    told = [record for record in week_of("site3") if record[1].get("occurred_at", 0) <= START + 6 * DAY]
    named = maintenance(1, ("site3-4", "site3-5"), (10, 12)), maintenance(2, ("site3-7",), (4 * 24 + 1, 4 * 24 + 2))
    of_block = maintenance(3, None, (20, 30)), maintenance(4, None, (3 * 24 + 5, 3 * 24 + 30))
    taken_back = {**maintenance(5, None, (0, 1)), "kind": "cancel", "cancelled_revision": 2}
    records = [*told, *((POLICY, row) for row in (*named, *of_block, taken_back))]
    archive = Archive(
        tmp_path, [(table, row | ARRIVED | {"hub_sequence": n}) for n, (table, row) in enumerate(records, 1)]
    )
    archive.take(len(records) - 1, START + 3 * DAY)
    archive.derive()
    archive.take(0, START + 5 * DAY)
    archive.derive()
    assert named_days(archive) == [(0, "site3-4"), (0, "site3-5"), (4, "site3-7")]
    archive.take(1, START + 5 * DAY + HOUR)
    archive.derive()
    assert named_days(archive) == [(0, "site3-4"), (0, "site3-5")]
    found = archive.tables()
    archive.derive(full=True)
    assert found == archive.tables()


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
