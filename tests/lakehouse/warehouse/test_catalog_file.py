"""A catalog that was destroyed is no first run: every command says so in a line, and the tables name themselves."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES
from aggregator.cli import cli
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.warehouse.catalog import check_reachable
from aggregator.lakehouse.warehouse.catalog_file import rebuild
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.instants import DAY, HOUR
from tests.lakehouse.conftest import Lakehouse
from tests.support.lakehouse.hub import Block
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import START, Coverage, Interval

KNOWN_THROUGH = START + DAY
ASKED = "SELECT * FROM sender_availability_daily ORDER BY ALL"
COMMANDS = (
    ("sql", "SELECT 1"), ("tables",), ("report", "html"), ("import", "list"), ("import", "remove", "00"),
    ("maintain",), ("spark-sql", "-e", "SELECT 1"),
)  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> SmallLakehouse:
    lakehouse = SmallLakehouse(tmp_path / "lake")
    lakehouse.roll_up(
        [Interval("dub1", "n1", "up", START, None, None)],
        [Coverage("dub1", START, KNOWN_THROUGH, "observed")],
        KNOWN_THROUGH,
    )
    lakehouse.catalog.close()
    return lakehouse


def cut_to_nothing(file: Path) -> None:
    file.write_bytes(b"")


def cut_in_two(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def overwrite(file: Path) -> None:
    file.write_bytes(b"no database " * 999)


def scribble(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


def forget_all(file: Path) -> None:
    with closing(sqlite3.connect(file)) as catalog, catalog:
        catalog.execute("DELETE FROM iceberg_tables")


DESTROYED: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "cut to nothing": cut_to_nothing,
    "cut in two": cut_in_two,
    "scribbled on": scribble,
    "no database": overwrite,
    "emptied": forget_all,
}


def run(directory: Path, warehouse: Path, *command: str) -> Result:
    config = directory / "aggregator.toml"
    config.write_text(f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = {json.dumps(str(warehouse))}\n')
    return CliRunner().invoke(cli, [*command, "--config", str(config)])


@pytest.mark.parametrize("how", DESTROYED)
def test_a_destroyed_catalog_is_said_in_a_line_and_made_anew(small: SmallLakehouse, tmp_path: Path, how: str) -> None:
    with open_tables(small.warehouse) as tables:
        before = tables.rows(ASKED)
    DESTROYED[how](small.warehouse / "catalog.db")
    with pytest.raises(TablesUnreadable, match="rebuild-catalog makes it anew"):
        check_reachable(small.warehouse, FILE_BESIDE_THE_TABLES)
    for command in (("sql", "SELECT 1"), ("tables",)):
        result = run(tmp_path, small.warehouse, *command)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1), command
        assert "muster-aggregator rebuild-catalog" in result.stderr
    result = run(tmp_path, small.warehouse, "rebuild-catalog")
    assert result.exit_code == 0, result.output
    with open_tables(small.warehouse) as tables:
        assert tables.rows(ASKED) == before
    kept = small.warehouse / "catalog.db.old-1"
    assert kept.exists() == (how != "gone")
    check_reachable(small.warehouse, FILE_BESIDE_THE_TABLES)


def test_every_command_says_it_in_one_line(small: SmallLakehouse, tmp_path: Path) -> None:
    cut_to_nothing(small.warehouse / "catalog.db")
    for command in COMMANDS:
        result = run(tmp_path, small.warehouse, *command)
        said = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert result.exit_code == 1, (command, result.output)
        assert len(said) == 1, command
        assert "rebuild-catalog" in said[0], command
        assert "Traceback" not in result.output, command


def test_the_newest_metadata_that_can_be_read_is_taken(small: SmallLakehouse) -> None:
    metadata = small.warehouse / "muster" / "sender_intervals" / "metadata"
    newest = max(metadata.glob("*.metadata.json"))
    half_written = metadata / "00099-killed.metadata.json"
    half_written.write_bytes(newest.read_bytes()[:100])
    made = rebuild(small.warehouse)
    assert made.unreadable == [str(half_written)]
    with open_tables(small.warehouse) as tables:
        assert tables.rows("SELECT count(*) FROM sender_intervals") == [(1,)]


def test_there_is_nothing_to_make_a_catalog_of_where_there_are_no_tables(tmp_path: Path) -> None:
    check_reachable(tmp_path, FILE_BESIDE_THE_TABLES)
    result = run(tmp_path, tmp_path / "elsewhere", "rebuild-catalog")
    assert result.exit_code == 1
    assert "nothing to make a catalog of" in result.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_a_rollup_refuses_a_destroyed_catalog_and_goes_on_with_one_made_anew(lakehouse: Lakehouse) -> None:
    dub1 = Block("eu-west", "dub1")
    lakehouse.hub.publish([dub1.new("n1", START), dub1.watermark(START, START + HOUR)])
    lakehouse.roll_up()
    before = lakehouse.rows("SELECT * FROM sender_intervals")
    cut_to_nothing(lakehouse.warehouse / "catalog.db")
    lakehouse.hub.publish([dub1.watermark(START, START + 2 * HOUR)])
    with pytest.raises(TablesUnreadable, match="rebuild-catalog"):
        lakehouse.roll_up()
    rebuild(lakehouse.warehouse)
    assert lakehouse.roll_up().counts.read == 1
    assert lakehouse.rows("SELECT * FROM sender_intervals") == before
    assert lakehouse.rows_in_spark("SELECT count(*) > 0 FROM muster.sender_availability_daily") == [(True,)]


def test_tables_that_are_put_back_from_a_copy_are_read_on_from_there(lakehouse: Lakehouse, tmp_path: Path) -> None:
    dub1 = Block("eu-west", "dub1")
    lakehouse.hub.publish([dub1.new("n1", START), dub1.watermark(START, START + HOUR)])
    lakehouse.roll_up()
    shutil.copytree(lakehouse.warehouse, tmp_path / "backup")
    lakehouse.hub.publish([dub1.new("n2", START + HOUR), dub1.watermark(START, START + 2 * HOUR)])
    lakehouse.roll_up()
    tables = ("advisories", "watermarks", "sender_intervals", "site_availability_hourly")
    before = [lakehouse.rows(f"SELECT * FROM {name} ORDER BY ALL") for name in tables]
    shutil.rmtree(lakehouse.warehouse)
    shutil.copytree(tmp_path / "backup", lakehouse.warehouse)
    assert lakehouse.roll_up().counts.read == 2
    assert [lakehouse.rows(f"SELECT * FROM {name} ORDER BY ALL") for name in tables] == before
