"""A copy of the tables stands on its own or is refused, and one catalog alone owns the files of its tables."""

import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES, CatalogSettings
from aggregator.cli import cli
from aggregator.lakehouse import rollup
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupRequest
from aggregator.lakehouse.warehouse.catalog import check_ours, claim
from aggregator.lakehouse.warehouse.catalog_file import rebuild
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.instants import DAY, HOUR
from shared.settings import FilePath
from tests.lakehouse.conftest import Lakehouse, say
from tests.support.lakehouse.hub import Block
from tests.support.lakehouse.postgresql import USER, postgresql
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import START, Coverage, Interval

KNOWN_THROUGH = START + DAY
ASKED = "SELECT * FROM sender_availability_daily ORDER BY ALL"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """Return a directory with tables and their catalog."""
    return tables_in(tmp_path / "an original [1]" / "lake")


def tables_in(warehouse: Path) -> Path:
    small = SmallLakehouse(warehouse)
    small.roll_up(
        [
            Interval("dub1", "n1", "up", START, START + 9, "stale"),
            Interval("dub1", "n1", "down", START + 9, None, None),
        ],
        [Coverage("dub1", START, KNOWN_THROUGH, "observed")],
        KNOWN_THROUGH,
    )
    small.catalog.close()
    claim(warehouse, FILE_BESIDE_THE_TABLES)
    return warehouse


def run(path: Path, *command: str, warehouse: Path | None = None) -> Result:
    config = path.with_name(f"{path.name}.toml")
    elsewhere = "" if warehouse is None else f"[lakehouse.catalog]\nwarehouse = {json.dumps(str(warehouse))}\n"
    config.write_text(
        f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = {json.dumps(str(path))}\n{elsewhere}'
    )
    return CliRunner().invoke(cli, [*command, "--config", str(config)])


def content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def rows(warehouse: Path, catalog: CatalogSettings = FILE_BESIDE_THE_TABLES) -> list[object]:
    with open_tables(warehouse, catalog) as tables:
        return tables.rows(ASKED)


def copy_all(original: Path, copy: Path) -> None:
    shutil.copytree(original, copy)


def copy_and_rename_in_catalog(original: Path, copy: Path) -> None:
    """Copy the tables and change the paths in the catalog, but not those in the metadata of the tables."""
    shutil.copytree(original, copy)
    with closing(sqlite3.connect(copy / "catalog.db")) as catalog, catalog:
        change = "UPDATE iceberg_tables SET metadata_location = replace(metadata_location, ?, ?)"
        catalog.execute(change, (str(original), str(copy)))


def move(original: Path, copy: Path) -> None:
    shutil.move(original, copy)


@pytest.mark.parametrize("how", [copy_all, copy_and_rename_in_catalog, move])
def test_a_copy_is_refused_until_it_is_independent_of_the_original(original: Path, tmp_path: Path, how: object) -> None:
    before, copy = rows(original), tmp_path / "elsewhere" / "tables"
    assert callable(how)
    copy.parent.mkdir()
    how(original, copy)
    with pytest.raises(TablesUnreadable, match=r"to use a copy there, run muster-aggregator rebuild-catalog"):
        check_ours(copy, FILE_BESIDE_THE_TABLES)
    whole = content(tmp_path)
    refused = run(copy, "maintain")
    assert refused.exit_code == 1
    assert "rebuild-catalog" in refused.stderr
    assert content(tmp_path).items() >= whole.items()
    made = run(copy, "rebuild-catalog")
    assert made.exit_code == 0, made.output
    assert "tables are copies" in made.stdout
    shutil.rmtree(original, ignore_errors=True)
    assert rows(copy) == before
    check_ours(copy, FILE_BESIDE_THE_TABLES)


def test_the_original_reads_as_before_after_its_copy_was_made_independent_and_destroyed(
    original: Path, tmp_path: Path
) -> None:
    before, copy = content(original), tmp_path / "copy"
    shutil.copytree(original, copy)
    rebuild(copy)
    shutil.rmtree(copy)
    assert content(original) == before
    check_ours(original, FILE_BESIDE_THE_TABLES)


def test_a_copy_of_a_copy_is_relocated_too(original: Path, tmp_path: Path) -> None:
    before = rows(original)
    for source, copy in ((original, tmp_path / "second"), (tmp_path / "second", tmp_path / "third")):
        shutil.copytree(source, copy)
        assert len(rebuild(copy).relocated) > 10
        shutil.rmtree(source)
        assert rows(copy) == before


def test_another_way_to_the_same_directory_is_no_copy(original: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(original)
    check_ours(link, FILE_BESIDE_THE_TABLES)
    assert not rebuild(link).relocated
    assert rows(link) == rows(original)
    moved = tmp_path / "moved"
    shutil.move(original, moved)
    original.symlink_to(moved)
    check_ours(original, FILE_BESIDE_THE_TABLES)


def test_a_query_of_a_copy_does_not_read_the_original(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path / "copy")
    asked = run(tmp_path / "copy", "sql", ASKED)
    assert (asked.exit_code, asked.stdout) == (1, "")
    assert "rebuild-catalog" in asked.stderr


@pytest.mark.parametrize("lost", ["data/**/*.parquet", "metadata/snap-*.avro", "metadata/*-m0.avro"])
def test_a_copy_that_lacks_files_is_not_made_independent(original: Path, tmp_path: Path, lost: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    file = next((copy / "muster" / "sender_intervals").glob(lost))
    file.rename(tmp_path / file.name)
    named = (copy / "catalog.db").read_bytes()
    made = run(copy, "rebuild-catalog")
    assert made.exit_code == 1
    assert "is missing: the copy of" in made.stderr
    assert (copy / "catalog.db").read_bytes() == named
    (tmp_path / file.name).rename(file)
    assert run(copy, "rebuild-catalog").exit_code == 0
    check_ours(copy, FILE_BESIDE_THE_TABLES)


def age(warehouse: Path) -> None:
    """Make all files so old that a sweep takes those that no snapshot names."""
    for path in warehouse.rglob("*"):
        os.utime(path, (0, 0))


def test_a_copy_and_its_original_are_each_rolled_up_swept_and_destroyed(lakehouse: Lakehouse, tmp_path: Path) -> None:
    dub1 = Block("eu-west", "dub1")
    lakehouse.hub.publish([dub1.new("n1", START), dub1.stale("n1", START + HOUR), dub1.watermark(START, START + HOUR)])
    lakehouse.roll_up()
    copy = Lakehouse(lakehouse.hub, tmp_path / "copy")
    shutil.copytree(lakehouse.warehouse, copy.warehouse)
    present = set(content(lakehouse.warehouse))
    # Both where there is nothing new, which needs no Spark, and where there is.
    for _ in range(2):
        with pytest.raises(TablesUnreadable, match="rebuild-catalog"):
            copy.roll_up()
        lakehouse.hub.publish([dub1.new("n2", START + HOUR), dub1.watermark(START, START + 2 * HOUR)])
    with pytest.raises(TablesUnreadable, match="rebuild-catalog"):
        rollup.keep_up(copy.settings, say)
    assert set(content(lakehouse.warehouse)) == present
    rebuild(copy.warehouse)
    tables = ("advisories", "watermarks", "sender_intervals", "site_availability_hourly", "outages")
    found = []
    for each in (copy, lakehouse):
        assert each.roll_up().counts.read == 4
        found.append([each.rows(f"SELECT * FROM {name} ORDER BY ALL") for name in tables])
    for each in (copy, lakehouse):
        age(each.warehouse)
        rollup.keep_up(each.settings, say)
    assert [[each.rows(f"SELECT * FROM {name} ORDER BY ALL") for name in tables] for each in (copy, lakehouse)] == found
    assert found[0] == found[1]
    shutil.rmtree(lakehouse.warehouse)
    assert [copy.rows(f"SELECT * FROM {name} ORDER BY ALL") for name in tables] == found[0]
    copy.roll_up(RollupRequest(full=True))
    assert copy.rows_in_spark("SELECT count(*) FROM outages") == [(1,)]
    assert str(lakehouse.warehouse) not in (copy.warehouse / "catalog.db").read_bytes().decode("latin-1")


def elsewhere(warehouse: Path) -> CatalogSettings:
    return msgspec.structs.replace(FILE_BESIDE_THE_TABLES, warehouse=str(warehouse))


@pytest.fixture
def apart(original: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return the directory of a catalog, and another of the tables that it names."""
    path = tmp_path / "path"
    path.mkdir()
    shutil.move(original / "catalog.db", path)
    (original / "muster" / "owner").unlink()
    claim(path, elsewhere(original))
    return path, original


@pytest.mark.parametrize("lost", ["the file", "the directory"])
def test_a_lost_catalog_of_tables_elsewhere_is_no_first_run(apart: tuple[Path, Path], lost: str) -> None:
    path, warehouse = apart
    before = rows(path, elsewhere(warehouse))
    if lost == "the file":
        (path / "catalog.db").unlink()
    else:
        shutil.rmtree(path)
    with pytest.raises(
        TablesUnreadable, match="names no table, but file://.* holds tables with rows: .*rebuild-catalog"
    ):
        check_ours(path, elsewhere(warehouse))
    for command in (("maintain",), ("sql", "SELECT 1")):
        refused = run(path, *command, warehouse=warehouse)
        assert refused.exit_code == 1, command
        assert "rebuild-catalog" in refused.stderr, command
    made = run(path, "rebuild-catalog", warehouse=warehouse)
    assert made.exit_code == 0, made.output
    assert rows(path, elsewhere(warehouse)) == before
    check_ours(path, elsewhere(warehouse))


def test_a_lost_catalog_on_a_server_is_no_first_run(original: Path, tmp_path: Path) -> None:
    (original / "muster" / "owner").unlink()
    with postgresql() as server:
        catalog = CatalogSettings(
            type="postgresql",
            uri=server.uri,
            user=USER,
            password_file=FilePath(server.password_file),
            warehouse=str(original),
        )
        with pytest.raises(
            TablesUnreadable, match=r"names no table, but file://.* holds tables with rows: restore it from its own"
        ):
            check_ours(tmp_path, catalog)
        check_ours(tmp_path, msgspec.structs.replace(catalog, warehouse=str(tmp_path / "new")))


def test_two_catalogs_do_not_share_the_files_of_their_tables(apart: tuple[Path, Path], tmp_path: Path) -> None:
    path, warehouse = apart
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with pytest.raises(TablesUnreadable, match=rf"belong to the catalog {path}/catalog.db, not to {copy}/catalog.db"):
        check_ours(copy, elsewhere(warehouse))
    # Nothing is lost where a directory has no catalog yet: the refusal says at once what rebuild-catalog would.
    remedy = f"remove {warehouse}/muster/owner"
    with pytest.raises(TablesUnreadable, match=f"not to {tmp_path}/new/catalog.db: .*{re.escape(remedy)}"):
        check_ours(tmp_path / "new", elsewhere(warehouse))
    made = run(copy, "rebuild-catalog", warehouse=warehouse)
    assert made.exit_code == 1
    assert "belong to the catalog" in made.stderr
    # With a copy of the tables as well, each has its own.
    shutil.copytree(warehouse, tmp_path / "tables")
    made = run(copy, "rebuild-catalog", warehouse=tmp_path / "tables")
    assert made.exit_code == 0, made.output
    before = rows(path, elsewhere(warehouse))
    check_ours(path, elsewhere(warehouse))
    shutil.rmtree(warehouse)
    assert rows(copy, elsewhere(tmp_path / "tables")) == before


def test_tables_outside_of_the_place_of_the_settings_are_refused(original: Path, tmp_path: Path) -> None:
    with pytest.raises(TablesUnreadable, match=r"at file://.*lake/muster/\w+, but the settings have the tables in"):
        check_ours(original, elsewhere(tmp_path / "new"))
    shutil.copytree(original / "muster", tmp_path / "new" / "muster")
    before = rows(original)
    rebuild(original, elsewhere(tmp_path / "new"))
    shutil.rmtree(original / "muster")
    assert rows(original, elsewhere(tmp_path / "new")) == before
