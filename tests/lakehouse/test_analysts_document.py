"""What analysts are shown works as it stands: every query, and every program that needs no server."""

import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.lakehouse.query import open_tables
from tests.support.documents import ANALYSTS, Question, python_examples, questions
from tests.support.histories import month
from tests.support.small_lakehouse import SmallLakehouse

PLACE = "/srv/muster/tables"
PROGRAMS = [example for example in python_examples(ANALYSTS) if PLACE in example]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lakehouse = SmallLakehouse(tmp_path_factory.mktemp("documented"))
    history = month(senders_per_site=5)
    lakehouse.roll_up(history.intervals, history.coverage, history.known_through)
    return lakehouse.warehouse


@pytest.mark.parametrize("question", questions(ANALYSTS), ids=lambda question: "-".join(question.columns))
def test_every_query_answers_with_the_columns_that_are_shown(warehouse: Path, question: Question) -> None:
    with open_tables(warehouse) as tables:
        names, rows = tables.answer(question.sql)
        assert names == question.columns
        list(rows)


def test_every_program_runs_and_says_something(warehouse: Path) -> None:
    ways = ("open_tables", "row_filter", "duckdb.sql", "pl.scan_iceberg")
    assert all(way in program for way, program in zip(ways, PROGRAMS, strict=True))
    program = "print('-----')\n".join(PROGRAMS).replace(PLACE, str(warehouse))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.split("-----\n")
    assert len(said) == len(PROGRAMS)
    assert all("dub1" in each for each in said)
