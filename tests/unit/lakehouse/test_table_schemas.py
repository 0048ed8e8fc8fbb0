"""Every table and view says what it holds: units in the comments, and what availability cannot be read without."""

import pytest

from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS
from aggregator.lakehouse.tables.schemas import TABLES, VIEWS, Table

every_table = pytest.mark.parametrize("table", [*TABLES, *VIEWS], ids=lambda table: table.name)


@every_table
def test_every_column_says_what_it_is_and_a_duration_its_unit(table: Table) -> None:
    assert table.comment
    assert [column.name for column in table.columns if not column.comment.strip()] == []
    durations = [column for column in table.columns if column.name.endswith("_us")]
    assert [column.name for column in durations if "microseconds" not in column.comment] == []


@every_table
def test_beside_availability_stand_that_of_total_time_and_coverage_and_the_bound_of_the_error(table: Table) -> None:
    shown = {name for name in table.column_names if name.startswith("availability_")}
    if not shown:
        return
    assert {"availability_total", "coverage"} <= set(table.column_names)
    if table in DERIVED_FROM_IMPORTS:
        # Another system's, by further definitions: the catalog says why there is no bound.
        assert "availability_observed" in shown
        assert "There is no error bound: the source" in table.comment
    else:
        assert shown == {"availability_known", "availability_total"}
        assert "error_bound_us" in table.column_names
