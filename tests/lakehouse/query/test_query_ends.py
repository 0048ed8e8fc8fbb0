"""Every question ends: with its answer, however little of it is wanted, or with a line."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.tables.schemas import LOSSES, SENDER_INTERVALS, SITE_COVERAGE, TABLES, VIEWS
from shared.instants import DAY, HOUR, MINUTE
from tests.support.lakehouse.histories import lives, observed
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import STALE_AFTER, START, coverage_row, interval_row
from tests.support.waiting import until

SENDERS, ROWS_OF_A_FILE = 1500, 20
NAMES = [table.name for table in (*TABLES, *VIEWS)]
_SETTINGS = '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n'
_COMMAND = "from aggregator.cli import cli; cli()"
_MAIN = "from aggregator.cli import main; main()"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give 1,500 outages in 225 small files, out of which DuckDB 2.0.0 never answered, and the settings for them."""
    place = tmp_path_factory.mktemp("many files")
    known_through = START + 30 * DAY
    coverage = observed("dub1", known_through)
    intervals = [
        each
        for number in range(SENDERS)
        for down_from in [START + number * 7 * MINUTE + HOUR]
        for each in lives("dub1", f"n{number}", START, [(down_from, down_from + 2 * HOUR)])
    ]
    rows = [interval_row(each, coverage, known_through, STALE_AFTER) for each in intervals]
    lakehouse = SmallLakehouse(place / "lake")
    # The bucket of a row is the file it comes into.
    lakehouse.append(SENDER_INTERVALS, [row | {"site_bucket": n // ROWS_OF_A_FILE} for n, row in enumerate(rows)])
    lakehouse.append(SITE_COVERAGE, map(coverage_row, coverage))
    lakehouse.record_positions(known_through)
    (place / "aggregator.toml").write_text(_SETTINGS)
    return place


@pytest.fixture
def tables(place: Path) -> Iterator[Tables]:
    with open_tables(place / "lake") as tables:
        yield tables


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    """Give tables of which one has a file that is never there to be read: a pipe that nobody writes into."""
    lakehouse = SmallLakehouse(tmp_path / "lake")
    lakehouse.append(LOSSES, [{"stream": "FLEET"}])
    lakehouse.record_positions(START)
    (file,) = (tmp_path / "lake" / "muster" / "losses" / "data").rglob("*.parquet")
    file.unlink()
    os.mkfifo(file)
    (tmp_path / "aggregator.toml").write_text(_SETTINGS)
    return tmp_path


def ask(place: Path, *arguments: str, command: str = _COMMAND) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", command, "sql", *arguments],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_few_rows_of_every_table_and_view_are_answered_and_the_rest_may_be_left(tables: Tables, name: str) -> None:
    for columns in ("*", next(table for table in (*TABLES, *VIEWS) if table.name == name).column_names[0]):
        assert len(tables.rows(f'SELECT {columns} FROM "{name}" LIMIT 3')) <= 3
    rows = tables.answer(f'SELECT * FROM "{name}"').rows
    next(rows, None)


def test_a_limit_over_outages_is_answered(tables: Tables) -> None:
    query = "SELECT sender_id FROM outages WHERE started_at <= $1 AND ended_at > $1 LIMIT 3"
    assert len(tables.rows(query.replace("$1", "TIMESTAMPTZ '2026-03-05T00:00:00Z'"))) == 3


def test_whoever_closes_early_ends_the_query(place: Path) -> None:
    with ask(place, "--format", "csv", "SELECT * FROM outages CROSS JOIN range(100000)") as asked:
        assert asked.stdout is not None
        assert asked.stdout.readline().startswith("region,site")
        asked.stdout.close()
        assert asked.wait(120) == 0


@pytest.mark.parametrize("query", ["SELECT * FROM outages LIMIT 3", "SELECT * FROM outages CROSS JOIN range(100000)"])
def test_ctrl_c_ends_the_process_at_once(place: Path, query: str) -> None:
    with ask(place, "--format", "csv", query) as asked:
        assert asked.stdout is not None
        asked.stdout.readline()
        asked.send_signal(signal.SIGINT)
        # It may have said all before it heard of it.
        assert asked.wait(60) in (0, 1, -signal.SIGINT)


ENDLESS = "SELECT count(*) FROM range(10000000000000) a WHERE hash(a) = 1"


def test_a_query_that_takes_too_long_is_ended_with_a_line(place: Path) -> None:
    with ask(place, "--timeout", "1", ENDLESS) as asked:
        _, told = asked.communicate(timeout=120)
        assert (asked.returncode, told) == (1, "Error: no answer within 1 s (--timeout)\n")


def test_a_file_is_there_whole_or_not_at_all_also_when_time_is_up(place: Path, tmp_path: Path) -> None:
    with ask(place, "--timeout", "1", "--parquet", str(tmp_path / "answer"), ENDLESS) as asked:
        _, told = asked.communicate(timeout=120)
        assert (asked.returncode, told) == (1, "Error: no answer within 1 s (--timeout)\n")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_file_is_not_there_either_where_somebody_ends_the_query(
    place: Path, tmp_path: Path, number: signal.Signals
) -> None:
    written = tmp_path / "answer"
    written.write_text("of yesterday")
    with ask(place, "--parquet", str(written), "FROM range(10000000000000)", command=_MAIN) as asked:
        asyncio.run(until(lambda: len(list(tmp_path.iterdir())) > 1, "the answer is being written", deadline=120))
        asked.send_signal(number)
        assert "".join(asked.communicate(timeout=120)).strip() == ""
        assert asked.returncode == 130
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"answer": "of yesterday"}


def test_a_file_is_not_there_either_where_the_query_does_not_hear_of_its_end(place: Path, tmp_path: Path) -> None:
    # No time to hear of it.
    at_once = f"import aggregator.lakehouse.query.watch as w; w._GRACE_SECONDS, w._POLL_SECONDS = -1, 0; {_COMMAND}"
    written = ("--timeout", "3", "--parquet", str(tmp_path / "answer"))
    with ask(place, *written, ENDLESS, command=at_once) as asked:
        _, told = asked.communicate(timeout=120)
        assert (asked.returncode, told) == (1, "Error: no answer within 3 s (--timeout)\n")
        assert list(tmp_path.iterdir()) == []


def test_at_the_prompt_the_next_question_is_answered_after_one_that_took_too_long(place: Path) -> None:
    with ask(place, "--timeout", "8") as asked:
        answer, told = asked.communicate(f"{ENDLESS};\nSELECT count(*) AS n FROM losses;\n", timeout=120)
        assert "Error: no answer within 8 s (--timeout)\n" in told
        assert "0" in answer.split()


def test_a_long_answer_comes_whole_and_with_nothing_else(place: Path) -> None:
    with ask(place, "--timeout", "100", "--format", "csv", "SELECT * FROM outages CROSS JOIN range(100)") as asked:
        assert asked.stdout is not None
        assert len(list(asked.stdout)) == SENDERS * 100 + 1
        assert asked.wait(60) == 0


def test_a_query_that_does_not_hear_is_ended_all_the_same(stuck: Path) -> None:
    with ask(stuck, "--timeout", "1", "SELECT * FROM losses") as asked:
        _, told = asked.communicate(timeout=120)
        assert (asked.returncode, told) == (1, "Error: no answer within 1 s (--timeout)\n")


def test_a_query_that_gets_nowhere_is_ended_with_a_line(stuck: Path) -> None:
    sooner = f"import aggregator.lakehouse.query.watch as watch; watch.STALLED_SECONDS = 2; {_COMMAND}"
    with ask(stuck, "SELECT * FROM losses", command=sooner) as asked:
        _, told = asked.communicate(timeout=120)
        line = "Error: the query gets nowhere: no work was done for 2 s; ask it otherwise\n"
        assert (asked.returncode, told) == (1, line)
