"""Files of records hold a whole month where days have little, and days where a run writes few of them.

Whatever they hold, a run reads those of the days that it touches, and what is too old goes by the day.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from aggregator.lakehouse.bronze import writer
from aggregator.lakehouse.bronze.writer import Arrivals, ReadCounts
from aggregator.lakehouse.derive.coverage.folded_watermarks import fold
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, POLICY, QUARANTINE, REGISTRATIONS, WATERMARKS, Table
from aggregator.lakehouse.warehouse import commits, provision
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.local_paths import local_path
from aggregator.lakehouse.warehouse.upkeep import TableUpkeep
from shared.instants import DAY, HOUR, SECOND
from tests.lakehouse.scripted_archive import Archive, Interrupted

BEGIN = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp()) * SECOND
DAYS = 365
MONTHS = 12


def instant(day: float) -> int:
    return BEGIN + int(day * DAY) + HOUR


class Records:
    """A table to which records of a block come, one for each day or part of it that a test names."""

    def __init__(self, archive: Archive, table: Table) -> None:
        self.archive, self.table = archive, table
        self._sequence = 0

    def arrive(self, days: Iterable[float]) -> ReadCounts:
        """Take the records of ``days``, counted from ``BEGIN``, in one run."""
        at = [*map(instant, days)]
        rows = self.archive.frame(self.table, [self._row(each) for each in at]).coalesce(1)
        position = HubPosition("ARCHIVE", 1, self._sequence, max(at))
        new = Arrivals(rows, len(at), {datetime.fromtimestamp(each // SECOND, tz=UTC).date() for each in at})
        return writer._take_table(self.archive.spark, new, self.table, position)

    def files(self) -> dict[Path, tuple[date, date]]:
        """Give first and last day of each data file."""
        column = f"readable_metrics.{self.table.dated_by}"
        rows = self.archive.spark.table(f"{self.table.identifier}.files").selectExpr(
            "file_path", f"to_date({column}.lower_bound)", f"to_date({column}.upper_bound)"
        )
        return {Path(local_path(path) or ""): (first, last) for path, first, last in rows.collect()}

    def days(self) -> list[int]:
        """Give the days that the table has records of."""
        rows = self.archive.spark.table(self.table.identifier).selectExpr(f"unix_micros({self.table.dated_by})")
        return sorted((at - BEGIN) // DAY for (at,) in rows.collect())

    @contextmanager
    def others_away(self, day: int) -> Iterator[int]:
        """Have every file be away that has no record of a day: who reads one fails. Give how many are left."""
        wanted = datetime.fromtimestamp(instant(day) // SECOND, tz=UTC).date()
        files = self.files()
        away = [path for path, (first, last) in files.items() if not first <= wanted <= last]
        for path in away:
            path.rename(path.with_suffix(".away"))
        try:
            yield len(files) - len(away)
        finally:
            for path in away:
                path.with_suffix(".away").rename(path)

    def _row(self, at: int) -> dict[str, object]:
        self._sequence += 1
        return {
            "region": "eu", "site": "dub1", "block": "nodes", "agent": "a", "boot_id": "b", "incarnation": "1-1",
            "event_id": f"e{at}", "ordinal": at, "sequence": at, "advisory_ordinal": 0, "observed_since": BEGIN,
            "revision": at, "stream_created_at": BEGIN,
            self.table.dated_by: at, "hub_sequence": self._sequence, "archived_at": at,
        }  # fmt: skip


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Give a warehouse for all tests, each of which has tables of its own."""
    return Archive(tmp_path_factory.mktemp("lake"), [])


def upkeep(records: Records) -> TableUpkeep:
    return TableUpkeep(records.archive.spark, records.table, {})


def made(archive: Archive, table: Table) -> Records:
    """Make a table for one test, as ``table``."""
    own = table._replace(name=f"{table.name}_{uuid4().hex}")
    Iceberg(archive.spark).create(own, {"format-version": "2", "write.delete.mode": "copy-on-write"})
    return Records(archive, own)


@pytest.mark.parametrize("count", [1, 90])
def test_a_table_is_whole_with_its_first_commit(archive: Archive, count: int) -> None:
    """A first run may be killed behind each commit, and the next one finds a table that it takes for complete."""
    records = made(archive, POLICY)
    metadata = Path(local_path(str(Iceberg(archive.spark).load(records.table).location())) or "", "metadata")
    assert len([*metadata.glob("*.metadata.json")]) == 1
    assert records.arrive(range(count)).written == count
    assert upkeep(records).compact(instant(count)) == (0, 0)


def test_files_hold_months_and_a_run_reads_those_of_its_days(archive: Archive) -> None:
    records = Records(archive, ADVISORIES)
    assert records.arrive(range(DAYS)).written == DAYS
    assert len(records.files()) == MONTHS
    # What comes late is compared with its month, and goes into files of days, since it is of few.
    with records.others_away(100) as left:
        assert records.arrive([100, 100]) == ReadCounts(read=2, duplicates=2)
    assert left == 1
    # Runs of one day after the other: each day is a file of its own, with which alone the next run compares.
    for day in range(DAYS, DAYS + 7):
        assert records.arrive([day]).written == 1
    with records.others_away(DAYS + 6) as left:
        assert records.arrive([DAYS + 6]) == ReadCounts(read=1, duplicates=1)
    assert left == 1
    # Days that are over become their month; the last one, which more may come to, does not.
    assert upkeep(records).compact(instant(DAYS + 6)) == (6, 1)
    january = date(2026, 1, 1), date(2026, 1, 6)
    today = date(2026, 1, 7), date(2026, 1, 7)
    assert sorted(records.files().values())[MONTHS:] == [january, today]
    assert records.days() == [*range(DAYS + 7)]
    assert upkeep(records).compact(instant(DAYS + 6)) == (0, 0)


def test_days_that_wait_for_their_month_are_joined_where_they_have_many_files(archive: Archive) -> None:
    """As watermarks do that are not folded yet: else each upkeep would write all of them again."""
    records = made(archive, POLICY)
    for few in (range(3), range(3, 6), range(6, 9), [9]):
        records.arrive(few)
    assert upkeep(records).compact(instant(0)) == (0, 0)
    for part in range(1, 5):
        records.arrive([4 + part / 10])
    others = {path for path, (first, _) in records.files().items() if first != date(2025, 1, 5)}
    assert upkeep(records).compact(instant(0)) == (5, 1)
    assert others < records.files().keys()
    assert sorted(records.files().values()) == [(date(2025, 1, day), date(2025, 1, day)) for day in range(1, 11)]
    assert upkeep(records).compact(instant(0)) == (0, 0)


def test_days_become_months_in_commits_of_bounded_size_and_go_on_after_a_kill(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = made(archive, POLICY)
    monkeypatch.setattr("aggregator.lakehouse.bronze.writer.FEW_DAYS", 99)
    records.arrive([*range(4), *range(31, 37), 60])
    sizes = Iceberg(archive.spark).file_sizes(records.table)
    # As many as four days of February have.
    monkeypatch.setattr("aggregator.lakehouse.warehouse.upkeep._COMMIT_BYTES", 4 * max(map(sum, sizes.values())))
    rewritten, left = TableUpkeep._rewritten, 2

    def killed(upkeep: TableUpkeep, rewrite: object, many: int) -> tuple[int, int]:
        nonlocal left
        if not left:
            raise Interrupted
        left -= 1
        return rewritten(upkeep, rewrite, many)

    with monkeypatch.context() as changed:
        changed.setattr(TableUpkeep, "_rewritten", killed)
        with pytest.raises(Interrupted):
            upkeep(records).compact(instant(60))
    january, february = (date(2025, 1, 1), date(2025, 1, 4)), (date(2025, 2, 1), date(2025, 2, 4))
    left_over = [(date(2025, *day), date(2025, *day)) for day in ((2, 5), (2, 6), (3, 2))]
    assert sorted(records.files().values()) == [january, february, *left_over]
    assert upkeep(records).compact(instant(60)) == (2, 1)
    rest = date(2025, 2, 5), date(2025, 2, 6)
    assert sorted(records.files().values()) == [january, february, rest, left_over[-1]]
    assert records.days() == [*range(4), *range(31, 37), 60]


def test_what_is_too_old_goes_by_the_day_out_of_a_file_of_a_month(archive: Archive) -> None:
    records = Records(archive, REGISTRATIONS)
    records.arrive(range(90))
    assert len(records.files()) == 3
    with records.others_away(40):
        # What goes as a whole is not read, nor what stays.
        kept_up = TableUpkeep(archive.spark, REGISTRATIONS, {"muster.kept": "up"})
        assert kept_up.forget("stored_at", BEGIN + 40 * DAY) == 40
    snapshots = Iceberg(archive.spark).load(REGISTRATIONS).snapshots()
    assert [snapshot.summary().get("muster.kept") for snapshot in snapshots] == [None, "up", "up"]
    assert records.days() == [*range(40, 90)]
    # The month that lost a part, and the one that lost none.
    assert sorted(records.files().values()) == [
        (date(2025, 2, 10), date(2025, 2, 28)),
        (date(2025, 3, 1), date(2025, 3, 31)),
    ]
    assert upkeep(records).forget("stored_at", BEGIN + 40 * DAY) == 0


def test_a_month_is_folded_when_all_of_it_may_be(archive: Archive) -> None:
    records = Records(archive, WATERMARKS)
    spark, position = archive.spark, archive.position
    records.arrive(day + part / 10 for day in range(90) for part in range(3))
    stood = commits.snapshots(spark, (WATERMARKS,))
    assert fold(spark, BEGIN + 20 * DAY, position) == 0
    assert commits.snapshots(spark, (WATERMARKS,)) == stood
    assert fold(spark, BEGIN + 40 * DAY, position) == 31
    stood = commits.snapshots(spark, (WATERMARKS,))
    assert fold(spark, BEGIN + 40 * DAY, position) == 0
    assert commits.snapshots(spark, (WATERMARKS,)) == stood
    # What was folded comes again; what was not, and what says more, is folded with its month.
    assert records.arrive([5.1, 5.2, 40.1]) == ReadCounts(read=3, duplicates=3)
    assert records.arrive([5.3]) == ReadCounts(read=1, written=1)
    assert fold(spark, BEGIN + 60 * DAY, position) == 1 + 28
    assert sorted(records.files().values()) == [
        (date(2025, 1, 1), date(2025, 1, 31)),
        (date(2025, 2, 1), date(2025, 2, 28)),
        (date(2025, 3, 1), date(2025, 3, 31)),
    ]
    # A few late ones beside those of today keep no day back until the month is over.
    assert records.arrive([91, 91.1, 91.2, 93, 95, 100]).written == 6
    assert fold(spark, BEGIN + 94 * DAY, position) == 31 + 1


def test_tables_of_days_come_to_months_though_upkeep_is_killed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, tables = archive.spark, [Records(archive, POLICY), Records(archive, QUARANTINE)]
    lay_out_by_day(tables)
    for records in tables:
        records.arrive(range(90))
        assert len(records.files()) == 90
    provision.prepare(spark)
    # As after an update: what was there is compared with what comes, whatever its files are.
    assert tables[0].arrive([0, 50, 51, 52, 53, 89]) == ReadCounts(read=6, duplicates=6)
    stand = commits.positions(spark, [records.table for records in tables])
    commits.record(spark, stand, "recipe", commits.last_whole_run(spark))
    compact, left = TableUpkeep.compact, 1

    def killed(upkeep: TableUpkeep, known_through: int) -> tuple[int, int]:
        nonlocal left
        if not left:
            raise Interrupted
        left -= 1
        return compact(upkeep, known_through)

    monkeypatch.setattr("aggregator.lakehouse.warehouse.upkeep.TABLES", [POLICY, QUARANTINE])
    for interrupted in (killed, compact):
        with monkeypatch.context() as changed:
            changed.setattr(TableUpkeep, "compact", interrupted)
            try:
                archive.maintain()
            except Interrupted:
                assert [len(records.files()) for records in tables] == [3 + 1, 90]
    # The last day stays by itself: more may come to it.
    assert [len(records.files()) for records in tables] == [3 + 1, 3 + 1]
    assert [records.days() for records in tables] == [[*range(90)]] * 2
    assert commits.positions(spark, [records.table for records in tables]) == stand


def lay_out_by_day(tables: Iterable[Records]) -> None:
    """Have tables as older versions made them: partitioned by days alone."""
    for records in tables:
        column, spark = records.table.dated_by, records.archive.spark
        spark.sql(f"ALTER TABLE {records.table.identifier} REPLACE PARTITION FIELD {column}_month WITH days({column})")
        assert [str(field.transform()) for field in Iceberg(spark).load(records.table).spec().fields()] == ["day"]
    records.archive.spark.sql("ALTER TABLE muster.positions UNSET TBLPROPERTIES ('muster.tables')")
