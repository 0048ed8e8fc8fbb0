"""What may be asked only reads: words that do are let through, those that write files never. No Spark here."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aggregator.lakehouse.commands.sql import sql
from aggregator.lakehouse.tables.schemas import SENDER_INTERVALS
from tests.support.lakehouse.small_lakehouse import SmallLakehouse

Ask = Callable[[str], Result]

PIVOTED = "(SELECT site, state FROM sender_intervals) ON state USING count(*)"
ROLLUP_ALONE = "the tables are written by rollup alone"
SERIALIZED = "json_execute_serialized_sql(json_serialize_sql($$WITH a AS (COPY (SELECT 1) TO '{0}') FROM a$$)::VARCHAR)"


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> SmallLakehouse:
    lakehouse = SmallLakehouse(tmp_path_factory.mktemp("it's a lake"))
    lakehouse.append(SENDER_INTERVALS, [{"site": "dub1", "sender_id": "a", "state": "down"}])
    return lakehouse


@pytest.fixture
def ask(lakehouse: SmallLakehouse, tmp_path: Path) -> Ask:
    config = tmp_path / "aggregator.toml"
    path = json.dumps(str(lakehouse.warehouse))
    config.write_text(f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = {path}\n')
    return lambda query: CliRunner().invoke(sql, ["--config", str(config), "--", query])


@pytest.mark.parametrize(
    "query",
    [
        '/* a */ -- b\n SELECT \'copy\' AS "copy", $$ COPY $$ AS "é" -- to copy\n;',
        "(SELECT 1)",
        "FROM outages",
        "VALUES (1)",
        "DESC outages",
        "SUMMARIZE outages",
        f"PIVOT {PIVOTED}",
        f"/* a */ SELECT * FROM (PIVOT {PIVOTED})",
        f"WITH pivoted AS (PIVOT {PIVOTED}) FROM pivoted",
        "EXPLAIN SELECT 1",
        "-- a\nEXPLAIN /* b */ ANALYZE SELECT 1",
        "EXPLAIN (SELECT 1)",
        "EXPLAIN ANALYZE ((SELECT 1))",
        "EXPLAIN (FORMAT json) SELECT 1",
        "EXPLAIN ANALYZE (FORMAT 'json') (SELECT 1)",
        "EXPLAIN (ANALYZE, FORMAT json) SELECT 1",
        f"EXPLAIN ANALYZE PIVOT {PIVOTED}",
        "EXPLAIN DESCRIBE outages",
        "SELECT 'insert, update' AS \"delete\" -- merge",
    ],
)
def test_what_only_reads_is_answered(ask: Ask, query: str) -> None:
    answered = ask(query)
    assert (answered.exit_code, answered.stderr.startswith("(")) == (0, True), answered.stderr


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("COPY (SELECT 1) TO '{0}'", ROLLUP_ALONE),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO '{0}'", ROLLUP_ALONE),
        ("/* a */ EXPLAIN -- b\n ANALYZE (FORMAT 'json') COPY (SELECT 1) TO '{0}'", ROLLUP_ALONE),
        ("EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{0}'", ROLLUP_ALONE),
        (f"COPY (PIVOT {PIVOTED}) TO '{{0}}'", ROLLUP_ALONE),
        (f"EXPLAIN ANALYZE COPY (PIVOT {PIVOTED}) TO '{{0}}'", ROLLUP_ALONE),
        (f"CREATE TABLE made AS PIVOT {PIVOTED}", ROLLUP_ALONE),
        ("EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1", ROLLUP_ALONE),
        ("WITH written AS (COPY (SELECT 1) TO '{0}') FROM written", "COPY writes files"),
        ("(WITH written AS MATERIALIZED(/* a */\u200bcopy(SELECT 1) TO '{0}') FROM written)", "COPY writes files"),
        (f"WITH written AS (COPY (SELECT 1) TO '{{0}}') PIVOT {PIVOTED}", "COPY writes files"),
        ("EXPLAIN ANALYZE WITH written AS (COPY (SELECT 1) TO '{0}') FROM written", "COPY writes files"),
        (f"FROM {SERIALIZED}", "json_execute_serialized_sql() may do more than read"),
        (f"SELECT * FROM query('FROM ' || $a$ {SERIALIZED} $a$)", "query() may do more than read"),
        ("FROM main.\"QUERY\"/* a */\n('FROM json_execute_' || 'serialized_sql()')", "query() may do more than read"),
        (
            "FROM enable_logging('QueryLog', storage = 'file', storage_path = '{0}')",
            "enable_logging() may do more than read",
        ),
        ("WITH a AS (INSERT INTO sender_intervals (site) VALUES ('x') RETURNING site) FROM a", "INSERT writes"),
        ("EXPLAIN ANALYZE WITH a AS (SELECT 1) INSERT INTO sender_intervals (site) FROM a", "INSERT writes"),
        (
            "EXPLAIN (FORMAT json, ANALYZE) WITH a AS (FROM outages) /* a */ DELETE FROM sender_intervals",
            "DELETE writes",
        ),
        ("WITH a AS (UPDATE sender_intervals SET site = 'x' RETURNING 1) SELECT 1", "UPDATE writes"),
        (
            "EXPLAIN WITH a AS (SELECT 1 AS b) MERGE INTO sender_intervals USING a ON b = 1 WHEN MATCHED THEN DELETE",
            "MERGE writes",
        ),
        ("EXPLAIN ANALYZE WITH a AS (SELECT 1) TRUNCATE sender_intervals", 'syntax error at or near "TRUNCATE"'),
        (f"WITH a AS (DELETE FROM sender_intervals RETURNING 1) PIVOT {PIVOTED}", "DELETE writes"),
        ("WITH a AS (SELECT 1) INSERT INTO sender_intervals (site) FROM a", "INSERT writes"),
        ("/* a */ WITH a AS (SELECT 1) -- b\n DELETE FROM sender_intervals", "DELETE writes"),
        ("FROM sender_intervals; DELETE FROM sender_intervals", "one statement at a time"),
        ("EXPLAIN ANALYZE SET profiling_output = '{0}'", ROLLUP_ALONE),
    ],
)
def test_no_statement_writes_a_file(ask: Ask, lakehouse: SmallLakehouse, tmp_path: Path, query: str, line: str) -> None:
    data = next((lakehouse.warehouse / "muster" / SENDER_INTERVALS.name / "data").rglob("*.parquet"))
    before = data.read_bytes()
    for file in (data, tmp_path / "new"):
        refused = ask(query.format(str(file).replace("'", "''")))
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
        assert refused.stderr.startswith(f"Error: {line}")
    assert [path.name for path in tmp_path.iterdir()] == ["aggregator.toml"]
    assert data.read_bytes() == before
