"""Every table and view says what it holds: units in the comments, and what availability cannot be read without."""

import pytest

from aggregator.lakehouse.import_schemas import DERIVED_FROM_IMPORTS
from aggregator.lakehouse.schemas import TABLES, VIEWS, Table

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
    beside = {"availability_total", "coverage", "error_bound_us"}
    if table in DERIVED_FROM_IMPORTS:
        # Another system's, by other definitions: the catalog says how to come to ours, and why there is no bound.
        assert shown >= {"availability_observed"}
        for said in (
            "Coverage is (up_us",
            "availability of total time is avail",
            "There is no error bound: the source",
        ):
            assert said in table.comment
    else:
        assert shown == {"availability_known", "availability_total"}
        assert beside - set(table.column_names) == set()
