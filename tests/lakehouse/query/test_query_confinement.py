"""A query reads the tables' files and no other: whoever may put SQL together may not read the machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.tables.schemas import TABLES, VIEWS
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.instants import DAY
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import START, Coverage, Interval

SECRET = "mine alone"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a warehouse whose path DuckDB takes for a pattern; a secret lies beside the tables, a link to it within."""
    place = tmp_path_factory.mktemp("it's [a] place")
    lakehouse = SmallLakehouse(place / "lake")
    up = Interval("dub1", "a", "up", START, None, None)
    lakehouse.roll_up([up], [Coverage("dub1", START, START + DAY, "observed")], START + DAY)
    (place / "secret").write_text(SECRET)
    (lakehouse.warehouse / "secret").write_text(SECRET)
    (lakehouse.warehouse / "muster" / "link").symlink_to(place)
    return lakehouse.warehouse


@pytest.fixture(scope="module")
def tables(warehouse: Path) -> Iterator[Tables]:
    with open_tables(warehouse) as tables:
        yield tables


WAYS_OUT = [
    "FROM read_text('/etc/passwd')",
    "FROM read_blob('/proc/self/environ')",
    "FROM read_csv('/etc/passwd')",
    "FROM read_json('/etc/passwd')",
    "FROM read_parquet('/etc/passwd')",
    "FROM read_duckdb('/etc/passwd')",
    "FROM '/etc/passwd'",
    "FROM 'secret.csv'",
    "FROM read_text('{lake}/secret')",
    "FROM read_text('{lake}/catalog.db')",
    "FROM read_text('{lake}/muster/../secret')",
    "FROM read_text('{lake}/muster/positions/../../secret')",
    "FROM read_text('{lake}/muster/link/secret')",
    "FROM read_text('file://{lake}/secret')",
    "FROM read_text('{lake}/m*/../secret')",
    "FROM glob('/etc/*')",
    "FROM glob('{lake}/*')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM parquet_metadata('/etc/passwd')",
    "FROM read_text('https://example.org/')",
    "FROM read_parquet('s3://bucket/key')",
    "FROM query('FROM read_text(''/etc/passwd'')')",
    "FROM query_table('/etc/passwd')",
    "FROM duckdb_secrets()",
    "SELECT getenv('HOME')",
    "FROM enable_logging(storage = 'file', storage_path = '{lake}/muster/log')",
    "FROM warehouse",
]


@pytest.mark.parametrize("query", WAYS_OUT)
def test_no_other_file_is_read(tables: Tables, warehouse: Path, query: str) -> None:
    asked = query.replace("{lake}", str(warehouse).replace("'", "''"))
    with pytest.raises(TablesUnreadable) as refused:
        tables.rows(tables.read_only_statement(asked))
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{lake}/muster/written'",
        "ATTACH '{lake}/muster/written' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '{lake}/muster/written'",
        "SET enable_external_access = true",
        "RESET allowed_directories",
        "SET temp_directory = '{lake}'",
        "EXPORT DATABASE '{lake}/muster/written'",
        "CREATE SECRET (TYPE s3)",
    ],
)
def test_nothing_is_written_attached_or_set_whoever_asks(tables: Tables, warehouse: Path, statement: str) -> None:
    """DuckDB itself refuses what does not go out to the tables' directory; the statement is refused in any case."""
    asked = statement.replace("{lake}", str(warehouse).replace("'", "''"))
    with pytest.raises(TablesUnreadable, match="the tables are written by rollup alone"):
        tables.read_only_statement(asked)
    assert not (warehouse / "muster" / "written").exists()


def test_the_engine_itself_refuses_what_leads_out(tables: Tables, tmp_path: Path) -> None:
    for statement in (
        f"COPY (SELECT 1) TO '{tmp_path}/written'",
        f"ATTACH '{tmp_path}/written' AS other",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
    ):
        with pytest.raises(TablesUnreadable, match="disabled|locked"):
            tables.rows(statement)
    assert list(tmp_path.iterdir()) == []


def test_every_table_and_view_is_read_all_the_same(tables: Tables) -> None:
    for table in (*TABLES, *VIEWS):
        tables.rows(f"SELECT * FROM {table.name}")


def test_a_warehouse_behind_a_link_is_read(warehouse: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(warehouse)
    with open_tables(tmp_path / "link") as tables:
        assert tables.rows("SELECT count(*) FROM sender_intervals") == [(1,)]


def test_only_the_file_that_was_named_is_written(warehouse: Path, tmp_path: Path) -> None:
    with open_tables(warehouse, output=tmp_path / "it's [a] file") as tables:
        assert tables.write_parquet("SELECT sender_id FROM sender_intervals", tmp_path / "it's [a] file") == 1
        with pytest.raises(TablesUnreadable, match="disabled"):
            tables.write_parquet("SELECT sender_id FROM sender_intervals", tmp_path / "other")
    assert [file.name for file in tmp_path.iterdir()] == ["it's [a] file"]


def test_where_the_reader_stands_is_no_place_to_read_from(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "secret").write_text(SECRET)
    with open_tables(warehouse) as tables, pytest.raises(TablesUnreadable, match="disabled"):
        tables.rows("FROM read_text('.tmp/secret')")


def test_a_length_of_time_that_python_has_not_is_one_line(tables: Tables) -> None:
    with pytest.raises(TablesUnreadable, match="CAST it AS VARCHAR"):
        tables.rows("SELECT INTERVAL 2000000000 DAY")
