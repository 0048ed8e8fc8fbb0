"""A table knows how far it has come, also when its snapshots are gone, and one job at a time writes it."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES
from aggregator.lakehouse.commands.failures import explained, in_one_line
from aggregator.lakehouse.commands.tables import tables as tables_command
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.query.table_states import TableState, table_states
from aggregator.lakehouse.rollup import start_session
from aggregator.lakehouse.tables.outage_views import OUTAGES
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, LOSSES, SITE_COVERAGE_DAILY, TABLES, VIEWS, Table
from aggregator.lakehouse.tables.view_sql import spark_queries
from aggregator.lakehouse.warehouse import commits, provision
from aggregator.lakehouse.warehouse.commits import Interfered, WholeRun
from aggregator.lakehouse.warehouse.errors import AlreadyRunning
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.lock import GAVE_UP, alone
from aggregator.lakehouse.warehouse.provision import TableDiffers
from shared.instants import SECOND, format_instant
from shared.nats.connection import ConnectionSettings
from tests.lakehouse.conftest import say, settings_for


@pytest.fixture
def prepared(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = start_session(settings_for(ConnectionSettings(servers=("nats://127.0.0.1:1",)), tmp_path), say)
    provision.prepare(session)
    return session


def test_tables_are_found_from_a_thread_in_which_spark_has_no_session(spark: SparkSession, tmp_path: Path) -> None:
    """As py4j's own thread is when it had to connect anew."""
    session = start_session(settings_for(ConnectionSettings(servers=("nats://127.0.0.1:1",)), tmp_path), say)

    def names() -> set[str]:
        Iceberg(session).make_namespace()
        return Iceberg(session).names()

    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(names).result() == set()


def test_a_position_outlives_the_snapshot_that_carried_it(prepared: SparkSession) -> None:
    table, position = SITE_COVERAGE_DAILY, HubPosition("ARCHIVE", 17, 4711, 1_700_000_000_000_007)
    rows = prepared.table(table.identifier).limit(0)
    assert commits.positions(prepared, [table]) == {}
    commits.advance(prepared, table, position)
    assert commits.positions(prepared, [table]) == {table.name: position}

    # Maintenance commits a snapshot without a position, then expires the one that carried it.
    values = "DATE '2026-02-03', 'r', 's', 'b', 1, 1, 0, 0, false, 0"
    prepared.sql(f"INSERT INTO {table.identifier} VALUES ({values})")
    assert commits.positions(prepared, [table]) == {table.name: position}
    here = WholeRun(snapshots=commits.snapshots(prepared, [table]))
    commits.record(prepared, {table.name: position}, "recipe", here)
    prepared.sql(
        f"CALL lake.system.expire_snapshots(table => '{table.identifier}',"
        " older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    assert commits.positions(prepared, [table, LOSSES]) == {table.name: position}

    # A replacement takes what matches, and the table is further on, also where nothing did.
    further = HubPosition("ARCHIVE", 17, 4800, 1_700_000_000_000_008)
    commits.replace(rows, table, f.expr("day = DATE '2026-02-03' AND site_bucket = 1"), further)
    assert prepared.table(table.identifier).count() == 1
    commits.replace(rows, table, f.expr("day = DATE '2026-02-03' AND site_bucket = 0"), further)
    assert commits.positions(prepared, [table]) == {table.name: further}
    assert prepared.table(table.identifier).count() == 0


def described(spark: SparkSession, table: Table) -> tuple[str, list[tuple[str, str]]]:
    """Give the comment of a table or view in the catalog, and its columns with theirs."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table.identifier}").collect()
    (comment,) = (row.data_type for row in rows if row.col_name == "Comment")
    return comment, [(row.col_name, row.comment) for row in rows[: len(table.columns)]]


def test_tables_explain_themselves_and_are_made_once(prepared: SparkSession, tmp_path: Path) -> None:
    def metadata() -> set[Path]:
        return set(tmp_path.rglob("*.metadata.json"))

    made = metadata()
    provision.prepare(prepared)
    assert metadata() == made
    for table in (*TABLES, *VIEWS):
        columns = [(column.name, column.comment) for column in table.columns]
        assert described(prepared, table) == (table.comment, columns), table.name
    for view, query in spark_queries():
        of_query = [(column.name, column.dataType) for column in prepared.sql(query).schema]
        assert of_query == [(column.name, column.dataType) for column in prepared.table(view.identifier).schema]
    copied = dict.fromkeys((f"write.{what}.mode" for what in ("delete", "update", "merge")), "copy-on-write")
    with open_tables(tmp_path) as tables:
        for table in TABLES:
            loaded, _ = tables.load(table.name)
            assert (loaded.metadata.format_version, copied.items() - loaded.properties.items()) == (2, set()), (
                table.name
            )


def test_a_view_whose_comments_changed_is_made_anew_and_no_other(
    prepared: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions() -> dict[str, int]:
        found = Counter(path.parts[-3] for path in tmp_path.rglob("*.metadata.json"))
        return {view.name: found[view.name] for view in VIEWS}

    before = versions()
    other = OUTAGES._replace(
        comment="Another's view.", columns=(OUTAGES.columns[0]._replace(comment="where"), *OUTAGES.columns[1:])
    )
    queries = [(other if view is OUTAGES else view, query) for view, query in spark_queries()]
    monkeypatch.setattr(provision, "spark_queries", lambda: queries)
    for _ in range(2):
        provision.prepare(prepared)
        comment, columns = described(prepared, OUTAGES)
        assert (comment, columns[0]) == ("Another's view.", ("region", "where"))
        assert versions() == before | {"outages": before["outages"] + 1}


def test_a_table_is_as_fresh_as_its_rows_whatever_is_committed_since(prepared: SparkSession, tmp_path: Path) -> None:
    table, position = SITE_COVERAGE_DAILY, HubPosition("ARCHIVE", 17, 4711, 1_700_000_000_000_007)

    def state() -> TableState:
        with open_tables(tmp_path) as tables:
            return next(each for each in table_states(tables) if each.name == table.name)

    def committed_at() -> int:
        return int(Iceberg(prepared).load(table).currentSnapshot().timestampMillis()) * 1_000

    commits.advance(prepared, table, position)
    assert (state().rows, state().written_at, state().written_before) == (0, 0, 0)
    prepared.sql(f"INSERT INTO {table.identifier} VALUES (DATE '2026-02-03', 'r', 's', 'b', 1, 1, 0, 0, false, 0)")
    written_at = committed_at()
    # A run without rows for it, and compaction.
    commits.advance(prepared, table, position)
    prepared.sql(
        f"CALL lake.system.rewrite_data_files(table => '{table.identifier}', options => map('rewrite-all', 'true'))"
    )
    compacted_at = committed_at()
    assert (state().rows, state().written_at, state().written_before) == (1, written_at, 0)
    assert written_at < compacted_at
    prepared.sql(
        f"CALL lake.system.expire_snapshots(table => '{table.identifier}',"
        " older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    assert (state().rows, state().written_at, state().written_before) == (1, 0, compacted_at)
    settings = tmp_path / "aggregator.toml"
    settings.write_text(f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "{tmp_path}"\n')
    shown = CliRunner().invoke(tables_command, ["--config", str(settings)]).stdout
    said = f"before {format_instant(compacted_at // SECOND * SECOND)}"
    assert [line.split()[0] for line in shown.splitlines() if line.endswith(said)] == [table.name]


def test_tables_of_an_older_version_are_changed_in_place_or_refused(prepared: SparkSession) -> None:
    def describe(table: Table) -> list[tuple[str, str, str]]:
        rows = prepared.sql(f"DESCRIBE {table.identifier}").collect()
        return [(row.col_name, row.data_type, row.comment) for row in rows[: len(table.columns)]]

    def change(table: Table, change: str) -> None:
        prepared.sql(f"ALTER TABLE {table.identifier} {change}")
        prepared.sql("ALTER TABLE muster.positions UNSET TBLPROPERTIES ('muster.tables')")

    wanted = {table: describe(table) for table in (ADVISORIES, SITE_COVERAGE_DAILY)}
    change(ADVISORIES, "DROP COLUMN by_operator")
    change(ADVISORIES, "DROP COLUMN region")
    change(ADVISORIES, "ALTER COLUMN site COMMENT 'where'")
    change(SITE_COVERAGE_DAILY, "SET TBLPROPERTIES ('comment' = 'what once was said')")
    for _ in range(2):
        provision.prepare(prepared)
        assert {table: describe(table) for table in wanted} == wanted
    assert Iceberg(prepared).load(SITE_COVERAGE_DAILY).properties()["comment"] == SITE_COVERAGE_DAILY.comment
    for wrong, right, said in (
        ("ADD COLUMN mood STRING", "DROP COLUMN mood", "has a column mood that this version of Muster does not know"),
        ("RENAME COLUMN kind TO ordinal_", "RENAME COLUMN ordinal_ TO kind", "has a column ordinal_ that"),
        ("ADD PARTITION FIELD site", "DROP PARTITION FIELD site", "is partitioned by .*, site:identity. and cannot be"),
    ):
        change(ADVISORIES, wrong)
        with pytest.raises(TableDiffers, match=rf"^muster.advisories .*{said}"):
            provision.prepare(prepared)
        change(ADVISORIES, right)
    change(ADVISORIES, "DROP COLUMN kind")
    change(ADVISORIES, "ADD COLUMN kind BIGINT")
    with pytest.raises(TableDiffers, match="its column kind is long, not string"):
        provision.prepare(prepared)


def test_one_job_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    said: list[str] = []
    with (
        alone(spark, tmp_path, FILE_BESIDE_THE_TABLES, 0, said.append),
        pytest.raises(AlreadyRunning, match=r"another job holds .*rollup\.lock"),
        alone(spark, tmp_path, FILE_BESIDE_THE_TABLES, 0.3, said.append),
    ):
        pass
    assert said == ["another job is at work on these tables: waiting for it"]
    with alone(spark, tmp_path, FILE_BESIDE_THE_TABLES, 0, said.append):
        pass


def test_a_lock_that_this_user_may_not_write_is_named(
    spark: SparkSession, tmp_path: Path, nobodys_directory: Path
) -> None:
    lock = tmp_path / "rollup.lock"
    lock.symlink_to(nobodys_directory / "uevent_seqnum")
    with (
        pytest.raises(click.ClickException) as refused,
        in_one_line(),
        alone(spark, tmp_path, FILE_BESIDE_THE_TABLES, 0, say),
    ):
        pytest.fail("it is not ours")
    assert str(refused.value).startswith(f"{lock} may not be read or written: run as the user whose tables these are")


def test_of_two_jobs_that_no_lock_keeps_apart_one_gives_up(prepared: SparkSession, tmp_path: Path) -> None:
    other = start_session(settings_for(ConnectionSettings(servers=("nats://127.0.0.1:1",)), tmp_path), say)
    table, position = SITE_COVERAGE_DAILY, HubPosition("ARCHIVE", 1, 2, 3)
    row = "SELECT DATE '2026-02-03', 'r', 's', 'b', 1L, 1L, 0L, 0L, false, 0"

    def rows(spark: SparkSession) -> DataFrame:
        return spark.sql(row).toDF(*table.column_names)

    # Rows that the other has added since are not seen by who compares with what was there before.
    for spark in (prepared, other):
        seen = commits.snapshots(spark, [table]).get(table.name)
        assert commits.append(rows(spark), table, position, seen) == 1
        with pytest.raises(Py4JJavaError) as refused:
            commits.append(rows(spark), table, position, seen)
        assert explained(refused.value) == f"another job has written these tables meanwhile: {GAVE_UP}"
    # What the other has written is recorded by nobody else, and on the run that one went on from only once.
    began = WholeRun(snapshots=commits.snapshots(prepared, [table]))
    commits.replace(rows(prepared), table, f.lit(True), position)
    commits.replace(rows(other), table, f.lit(True), position)
    for spark in (prepared, other):
        with pytest.raises(
            Interfered, match=r"^another job has written muster\.site_coverage_daily meanwhile: this one"
        ):
            commits.record(spark, {table.name: position}, "recipe", began)
    # What this one wrote and the other took back, to go on from the run before, is not recorded as if it were there.
    began = WholeRun(snapshots=commits.snapshots(prepared, [table]))
    commits.replace(rows(prepared), table, f.lit(True), position)
    assert commits.go_back(other, [table], began.snapshots)
    with pytest.raises(Interfered):
        commits.record(prepared, {table.name: position}, "recipe", began, written=[table])
    commits.record(other, {table.name: position}, "recipe", began)
    with pytest.raises(Py4JJavaError, match="ValidationException"):
        commits.record(prepared, {table.name: position}, "recipe", began)
    assert commits.last_whole_run(prepared).snapshots == commits.snapshots(prepared, [table])
