"""Upkeep makes tables small, loses no position, disturbs no reader, and bounds what runs leave behind."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import Row, SparkSession

from aggregator.config import LakehouseSettings
from aggregator.lakehouse.commands import rollup
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import start_session
from aggregator.lakehouse.tables.imports import IMPORTS
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, POSITIONS, QUARANTINE, Table
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.provision import prepare
from aggregator.lakehouse.warehouse.upkeep import TableUpkeep, is_due, maintain
from shared.instants import DAY, HOUR, SECOND
from shared.nats.connection import ConnectionSettings
from shared.settings import Duration, FilePath
from tests.lakehouse.conftest import Lakehouse, say, settings_for
from tests.support.lakehouse.hub import Block
from tests.support.lakehouse.lake_readers import readers_at_work
from tests.support.lakehouse.quick_runs import APPENDED, REPLACED, FileCounts, QuickRuns
from tests.support.lakehouse.quick_spark import spark_block
from tests.support.waiting import until

DAYS, RUNS_A_DAY = 15, 6
MERGED_FROM = 5
"""Manifests that Iceberg makes one: it waits for a hundred else."""
QUESTION = (
    "SELECT count(*), count(DISTINCT sender_id), (SELECT sum(window_us) FROM site_coverage_daily) FROM registrations"
)


def now() -> int:
    return time.time_ns() // 1_000


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> QuickRuns:
    session = start_session(settings_for(ConnectionSettings(servers=("nats://127.0.0.1:1",)), tmp_path), say)
    prepare(session)
    return QuickRuns(session, tmp_path)


def settings(warehouse: Path, **given: int) -> LakehouseSettings:
    durations = {name: Duration(value) for name, value in given.items()}
    return msgspec.structs.replace(LakehouseSettings(path=FilePath(warehouse), maintain_every=1), **durations)


def test_what_runs_leave_behind_does_not_grow_with_their_number(
    runs: QuickRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days become a file of their month, and nothing else stays, however many runs and upkeeps there were before."""
    monkeypatch.setattr("aggregator.lakehouse.warehouse.upkeep.TABLES", (APPENDED, REPLACED, POSITIONS))
    for table in (APPENDED, REPLACED, POSITIONS):
        change = Iceberg(runs.spark).load(table).updateProperties()
        change.set("commit.manifest.min-count-to-merge", str(MERGED_FROM)).commit()
    at_once = settings(tmp_path, keep_snapshots=0)
    counts: list[tuple[FileCounts, FileCounts, FileCounts]] = []
    for day in range(DAYS):
        for _ in range(RUNS_A_DAY):
            runs.run(day)
        runs.record()
        assert is_due(runs.spark, at_once)
        maintain(runs.spark, at_once, now(), say)
        assert not is_due(runs.spark, at_once)
        assert runs.stand_there()
        counts.append((runs.files(APPENDED), runs.files(REPLACED), runs.files(POSITIONS)))
    # Today's, and what was replaced since the upkeep began: that goes with the next one. Five files of days that are
    # over become one, and so do five of those.
    assert max(appended.data for appended, *_ in counts) <= 1 + RUNS_A_DAY + 5 + 4
    # Of derived tables as many, beside today's and the one before.
    assert max(replaced.data for _, replaced, _ in counts) <= 5 + 3
    # Snapshots are gone but for the last ones: what is left is what they read, and their lists of it.
    assert max(table.manifests for each in counts for table in each) <= 2 * (MERGED_FROM + RUNS_A_DAY) + 2
    assert max(positions.data for *_, positions in counts) <= 3
    assert max(table.metadata for each in counts for table in each) <= 21
    run_count = DAYS * RUNS_A_DAY
    with open_tables(tmp_path) as reader:
        assert reader.rows(QUESTION) == [(run_count, run_count, sum(range(RUNS_A_DAY, run_count + 1, RUNS_A_DAY)))]


@pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin")
def test_a_reader_keeps_what_it_reads_and_what_is_too_old_goes(
    runs: QuickRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.lakehouse.warehouse.upkeep.TABLES", (APPENDED, QUARANTINE, REPLACED, POSITIONS))
    for _ in range(RUNS_A_DAY):
        runs.run(0)
    runs.record()
    orphan = left_by_a_killed_run(tmp_path, APPENDED)
    recorded_at = now()
    asyncio.run(until(lambda: now() > recorded_at + SECOND, "snapshots that were replaced a second ago"))
    begun_at = now()
    with open_tables(tmp_path) as reader, readers_at_work(tmp_path) as readers:
        answer, in_spark = reader.rows(QUESTION), file_by_file(runs.spark)
        first = next(in_spark)
        runs.run(0)
        upkeep = maintain(runs.spark, settings(tmp_path, keep_snapshots=SECOND), begun_at, say)
        assert (upkeep.compacted, upkeep.compacted_to) == (RUNS_A_DAY + 1, 1)
        # All but the newest when they began to read, which a run and the upkeep have replaced since.
        assert upkeep.expired_snapshots == 2 * (RUNS_A_DAY - 1)
        assert reader.rows(QUESTION) == answer
        assert sorted(row.sender_id for row in (first, *in_spark)) == [f"n{n}" for n in range(1, RUNS_A_DAY + 1)]
    for way, answers in readers.answers.items():
        # Each is of one state: no row is missing or doubled, none of one table without the other's.
        assert all(len(set(answer)) == 1 for answer in answers), way
        assert (answers[0][0], answers[-1][0]) == (RUNS_A_DAY, RUNS_A_DAY + 1), way
    # It was replaced a moment ago, however old it is itself.
    table = TableUpkeep(runs.spark, APPENDED, {})
    assert table.expire(now() // 1_000 - 3_600_000) == 0
    assert table.remove_orphans(now() // 1_000 - 3_600_000) == 0
    assert table.expire(now() // 1_000) == 2
    # The orphan, and the files that the newest snapshot replaced: no snapshot that is left knows them.
    assert table.remove_orphans(now() // 1_000 + 1_000) == 1 + RUNS_A_DAY + 1
    assert not orphan.exists()
    # Upkeep looks for them when it is asked to, and by itself a day later; what may be being written stays for a day.
    old, fresh = (left_by_a_killed_run(tmp_path, APPENDED, days_ago) for days_ago in (2, 0))
    kept = settings(tmp_path, keep_snapshots=7 * DAY)
    assert maintain(runs.spark, kept, now(), say, sweep=True).orphans == 1
    assert (old.exists(), fresh.exists()) == (False, True)
    # And the file that the oldest snapshot of REPLACED replaced: those that knew it have gone.
    assert [maintain(runs.spark, kept, now() + later, say).orphans for later in (HOUR, DAY)] == [0, 2]
    assert not fresh.exists()
    # What is too old by the hub's time goes by whole days, and only where it may.
    runs.run(40)
    runs.record()
    upkeep = maintain(runs.spark, settings(tmp_path, expire_after=40 * DAY), now(), say)
    assert upkeep.expired_rows == 0
    upkeep = maintain(runs.spark, settings(tmp_path, expire_after=39 * DAY), now(), say)
    assert upkeep.expired_rows == RUNS_A_DAY + 1
    assert runs.stand_there()
    with open_tables(tmp_path) as reader:
        assert reader.rows(QUESTION) == [(1, 1, 2 * RUNS_A_DAY + 3)]


def test_imports_from_after_the_hubs_time_make_nothing_too_old(
    runs: QuickRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a year after the hub's last word somebody imports what another system has told until then."""
    monkeypatch.setattr(
        "aggregator.lakehouse.warehouse.upkeep.TABLES", (APPENDED, QUARANTINE, REPLACED, IMPORTS, POSITIONS)
    )
    for day in (0, 40):
        runs.run(day)
    imported = HubPosition("", 0, 1, runs.position.known_through + 180 * DAY)
    commits.advance(runs.spark, IMPORTS, imported)
    runs.record({IMPORTS.name: imported})
    for days, gone in ((90, 0), (39, 1)):
        assert maintain(runs.spark, settings(tmp_path, expire_after=days * DAY), now(), say).expired_rows == gone
    with open_tables(tmp_path) as reader:
        assert reader.rows("SELECT sender_id FROM registrations") == [("n2",)]


@pytest.mark.parametrize("goes_back", [True, False])
def test_a_reader_keeps_what_it_reads_where_a_run_was_killed_long_ago(
    runs: QuickRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_back: bool
) -> None:
    monkeypatch.setattr("aggregator.lakehouse.warehouse.upkeep.TABLES", (APPENDED, REPLACED, POSITIONS))
    runs.run(0)
    runs.record()
    recorded = commits.snapshots(runs.spark, (REPLACED,))
    # Nobody reads what the next run wrote before it was killed, and the one after it takes it back, or writes all anew.
    runs.run(0)
    killed_at = now()
    asyncio.run(until(lambda: now() > killed_at + 2_000, "another millisecond"))
    with open_tables(tmp_path) as reader, open_tables(tmp_path) as late_reader:
        assert reader.rows("SELECT count(*) FROM registrations") == [(1,)]
        if goes_back:
            assert commits.go_back(runs.spark, (REPLACED,), recorded)
        runs.run(0)
        runs.record()
        kept = settings(tmp_path, keep_snapshots=HOUR)
        assert maintain(runs.spark, kept, killed_at + HOUR, say).expired_snapshots == 0
        assert reader.rows(QUESTION) == [(1, 1, 1)]
        # An hour after another state took its place it goes, and whoever looks for it then gets no other in its place.
        assert maintain(runs.spark, kept, now() + HOUR, say).expired_snapshots > 0
        with pytest.raises(TablesUnreadable, match="as it was when the tables were opened .* open them anew"):
            late_reader.rows(QUESTION)
    with open_tables(tmp_path) as reader:
        assert reader.rows(QUESTION) == [(3, 3, 3)]


def test_upkeep_follows_each_nth_run_and_a_command_asks_for_it(lakehouse: Lakehouse, tmp_path: Path) -> None:
    given = msgspec.structs.replace(lakehouse.settings.lakehouse, maintain_every=2)
    lakehouse.settings = msgspec.structs.replace(lakehouse.settings, lakehouse=given)
    began, dub1 = now() - DAY, Block("eu", "dub1")
    lakehouse.hub.publish([dub1.new("n1", began), dub1.watermark(began, began + HOUR)])
    assert lakehouse.roll_up().upkeep is None
    lakehouse.hub.publish([dub1.new("n2", began + HOUR), dub1.watermark(began, began + 2 * HOUR)])
    assert lakehouse.roll_up().upkeep is not None
    old, fresh = (left_by_a_killed_run(lakehouse.warehouse, ADVISORIES, days_ago) for days_ago in (2, 0))
    config = tmp_path / "aggregator.toml"
    config.write_text(
        f'[hub]\nservers = ["{lakehouse.hub.server.url}"]\n[lakehouse]\npath = "{lakehouse.warehouse}"\n'
        f'spark_master = "local[2]"\n{spark_block()}'
    )
    asked = CliRunner().invoke(rollup.maintain, ["--config", str(config)])
    said = "0 data files became 0; 0 watermarks, 0 other rows, 0 snapshots and 1 orphaned files went\n"
    assert (asked.exit_code, asked.stdout) == (0, said)
    assert (old.exists(), fresh.exists()) == (False, True)
    assert lakehouse.rows("SELECT sender_id FROM advisories ORDER BY 1") == [("n1",), ("n2",)]


def left_by_a_killed_run(warehouse: Path, table: Table, days_ago: int = 0) -> Path:
    path = warehouse / "muster" / table.name / "data" / f"{uuid4()}.parquet"
    path.write_bytes(b"no snapshot knows it")
    written_at = time.time() - days_ago * 86_400
    os.utime(path, (written_at, written_at))
    return path


def file_by_file(spark: SparkSession) -> Iterator[Row]:
    """Read a table in Spark as it is now, each of its files when its rows are asked for."""
    reading = spark.read.option("split-size", 4096).option("file-open-cost", 4096).table(APPENDED.identifier)
    return reading.select("sender_id").toLocalIterator()
