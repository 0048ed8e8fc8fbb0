"""An answer written as Parquet is what other programs read back. No Spark here."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyarrow import parquet

from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.query.output import json_lines
from aggregator.lakehouse.tables.schemas import SENDER_INTERVALS
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.instants import HOUR
from tests.support.lakehouse.small_lakehouse import SmallLakehouse

STARTED = datetime(2026, 3, 2, 10, tzinfo=UTC)
OUTAGE = {
    "site": "dub1",
    "sender_id": "a",
    "state": "down",
    "started_at": STARTED,
    "ended_at": STARTED + timedelta(hours=2),
}


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    SmallLakehouse(tmp_path / "lake").append(SENDER_INTERVALS, [OUTAGE])
    with open_tables(tmp_path / "lake", output=tmp_path / "answer.parquet") as tables:
        yield tables


def test_sums_are_there_to_the_last_digit_and_lengths_of_time_in_microseconds(tables: Tables, tmp_path: Path) -> None:
    file = tmp_path / "answer.parquet"
    summed = f"SELECT site, sum(each::BIGINT) AS total FROM outages, (VALUES ({2**60}), ({2**60}), (1)) AS v(each)"
    query = (
        'SELECT *, total, ended_at - started_at AS "it\'s"" lasted", [total] AS listed, [total]::HUGEINT[1] AS fixed,'
        " MAP {'k': ended_at - started_at} AS map, {'a b': total, 'interval': site} AS struct"
        f" FROM ({summed} GROUP BY 1), (SELECT started_at, ended_at FROM outages)"
    )
    assert tables.write_parquet(query, file) == 1
    total = Decimal(2**61 + 1)
    assert parquet.read_table(file).to_pylist() == [
        {
            "site": "dub1",
            "total": total,
            "started_at": STARTED,
            "ended_at": STARTED + timedelta(hours=2),
            "total_1": total,
            "it's\" lasted": 2 * HOUR,
            "listed": [total],
            "fixed": [total],
            "map": [("k", "02:00:00")],
            "struct": {"a b": total, "interval": "dub1"},
        }
    ]


def test_a_sum_that_parquet_has_no_type_for_is_refused(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(TablesUnreadable, match=r"^Could not cast value 1701\d+ to DECIMAL"):
        tables.write_parquet(f"SELECT {2**127 - 1}::HUGEINT AS total", tmp_path / "answer.parquet")


@pytest.mark.parametrize("query", ["SHOW TABLES", "EXPLAIN SELECT 1", "DESCRIBE outages"])
def test_what_has_no_such_column_is_written_as_it_is(tables: Tables, tmp_path: Path, query: str) -> None:
    assert tables.write_parquet(query, tmp_path / "answer.parquet") > 0


def test_columns_of_one_name_are_called_as_they_are_in_json(tables: Tables, tmp_path: Path) -> None:
    query, file = "SELECT 1 AS n, 2 AS n, 3 AS n_1, 4 AS n", tmp_path / "answer.parquet"
    tables.write_parquet(query, file)
    (row,) = json.loads("".join(json_lines(*tables.answer(query))))
    assert parquet.read_table(file).to_pylist() == [row]
    assert len(row) == 4
