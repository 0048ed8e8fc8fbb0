"""What analysts are shown works as it stands: every query, every command, and every program that needs no server."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.cli import cli
from aggregator.lakehouse.query.engine import open_tables
from tests.support.documents.documents import ANALYSTS, Question, answer_to, commands, examples, questions
from tests.support.lakehouse.histories import month
from tests.support.lakehouse.small_lakehouse import SmallLakehouse

TABLES, SETTINGS = "/var/lib/muster-aggregator/tables", "/etc/muster-aggregator/aggregator.toml"
PROGRAMS = [program for program in examples(ANALYSTS, "python") if TABLES in program or SETTINGS in program]
COMMANDS = [command for command in commands(ANALYSTS) if command[0] != "spark-sql"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with settings, and the tables that they name."""
    place = tmp_path_factory.mktemp("documented")
    (place / "aggregator.toml").write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "tables"\n')
    history = month(senders_per_site=5)
    SmallLakehouse(place / "tables").roll_up(history.intervals, history.coverage, history.known_through)
    return place


@pytest.mark.parametrize("question", questions(ANALYSTS), ids=lambda question: "-".join(question.columns))
def test_every_query_answers_with_the_columns_that_are_shown(place: Path, question: Question) -> None:
    with open_tables(place / "tables") as tables:
        names, rows = tables.answer(question.sql)
        assert names == question.columns
        list(rows)


def test_every_other_query_is_answered(place: Path) -> None:
    queries = examples(ANALYSTS, "sql")
    assert len(queries) >= 2
    with open_tables(place / "tables") as tables:
        for query in queries:
            list(tables.answer(query).rows)


def test_every_command_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert {command[0] for command in COMMANDS} == {"sql", "tables"}
    for command in COMMANDS:
        ran = CliRunner().invoke(cli, command, input="SHOW TABLES;\n")
        assert ran.exit_code == 0, (command, ran.output)
        assert "started_at" in ran.output or "outages" in ran.output, command


def test_what_is_there_is_shown_as_it_looks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    shown = answer_to(ANALYSTS, "muster-aggregator tables")
    told = CliRunner().invoke(cli, ["tables"]).stdout.splitlines()
    assert shown[0].split() == told[0].split()
    left_out = shown.index("...")
    assert [line.split()[:1] for line in shown[:left_out]] == [line.split()[:1] for line in told[:left_out]]
    after = shown[left_out + 1 :]
    assert [line.split()[:1] for line in after] == [line.split()[:1] for line in told[-len(after) :]]
    assert shown[-1] == told[-1]


def test_every_program_runs_and_says_something(place: Path) -> None:
    ways = ("open_tables", "row_filter", "duckdb.sql", "pl.scan_iceberg", "config.load")
    assert all(way in program for way, program in zip(ways, PROGRAMS, strict=True))
    program = "print('-----')\n".join(PROGRAMS)
    program = program.replace(TABLES, str(place / "tables")).replace(SETTINGS, str(place / "aggregator.toml"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.split("-----\n")
    assert len(said) == len(PROGRAMS)
    assert all("dub1" in each for each in said)
