"""Every table and view is documented with a query that works as it stands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.tables.schemas import TABLES, VIEWS
from tests.support.documents.example_queries import EXAMPLES
from tests.support.lakehouse.histories import demo
from tests.support.lakehouse.small_lakehouse import SmallLakehouse


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    lakehouse = SmallLakehouse(Path(tmp_path_factory.mktemp("lake")))
    history = demo()
    lakehouse.roll_up(history.intervals, history.coverage, history.known_through)
    with open_tables(lakehouse.warehouse) as tables:
        yield tables


def test_every_table_and_view_has_an_example_and_nothing_else_has() -> None:
    assert set(EXAMPLES) == {table.name for table in (*TABLES, *VIEWS)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_asks_its_table(tables: Tables, name: str) -> None:
    names, rows = tables.answer(tables.read_only_statement(EXAMPLES[name]))
    list(rows)
    assert len(names) == len(set(names))
    assert f"FROM {name}" in " ".join(EXAMPLES[name].split())
