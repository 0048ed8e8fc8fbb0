"""Ask tables every query of the manual, about the senders and days that they hold; tell how long each one takes."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from textwrap import shorten, wrap
from typing import NamedTuple

from aggregator.lakehouse.query.engine import Tables, open_tables
from tests.bench.report import RecordsLost, Row
from tests.support.documents.documents import ANALYSTS, EXACTNESS, examples, questions, recipes
from tests.support.documents.example_queries import EXAMPLES

SLOWEST = 10
_WIDTH = 52
_DOWN = """
SELECT site, sender_id, make_timestamptz((epoch_us(started_at) + epoch_us(ended_at)) // 2) AS instant
FROM sender_intervals
WHERE state = 'down' AND ended_at IS NOT NULL AND day(last_day(started_at)) = 31
ORDER BY count(*) OVER (PARTITION BY site, sender_id) DESC, site, sender_id, started_at LIMIT 1
"""
"""The sender that failed most often, and an instant of its first outage in a month as long as the manual's March."""


class _Answer(NamedTuple):
    seconds: float
    row_count: int
    name: str
    sql: str


def rows_of_answers(lake: Path, must: float) -> tuple[list[Row], list[str]]:
    """Ask each query once and then three times; give the medians of these, which are warm, and notes.

    ``must`` bounds each of them in seconds. What a query takes as a command has no bound.
    """
    with open_tables(lake) as tables:
        answers = sorted((_asked(tables, *each) for each in _queries(tables)), reverse=True)
    config = lake.with_name("aggregator.toml")
    config.write_text(f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "{lake}"\n')
    in_time = sum(answer.seconds < must for answer in answers)
    slowest, fastest = answers[0], answers[-1]
    rows = [
        Row(f"queries of the manual in {must:g} s, warm", "queries", in_time, len(answers), must=len(answers)),
        *(Row(f"  {answer.name}", "s", answer.seconds, must=must, better="less") for answer in answers[:SLOWEST]),
        Row("the first of these as a command of its own", "s", _as_command(config, slowest.sql)),
        Row("the fastest of all as a command of its own", "s", _as_command(config, fastest.sql)),
    ]
    empty = sorted(answer.name for answer in answers if not answer.row_count)
    return rows, wrap(f"no row, since these tables have none: {'; '.join(empty)}", 110) if empty else []


def _queries(tables: Tables) -> Iterator[tuple[str, str]]:
    """Give every query by a name, about a sender that was down, its site, that month and the month behind it."""
    found = tables.rows(_DOWN)
    if not found:
        raise RecordsLost("nobody was down in any month of 31 days")
    ((site, sender, instant),) = found
    month, following = f"{instant:%Y-%m}", f"{instant.year + instant.month // 12}-{instant.month % 12 + 1:02}"
    words = {
        "2026-03-03T10:45:00Z": f"{instant:%Y-%m-%dT%H:%M:%S.%fZ}",
        "2026-03-02": f"{instant:%Y-%m-%d}",
        **dict.fromkeys(("2026-03", "2026-10"), month),
        **dict.fromkeys(("2026-04", "2026-11"), following),
        **dict.fromkeys(("dub1-n1", "web1"), sender),
        **dict.fromkeys(("dub1", "nyc1"), site),
    }
    pattern = re.compile("|".join(map(re.escape, words)))
    for name, sql in _as_written():
        yield shorten(name, _WIDTH, placeholder=" ..."), pattern.sub(lambda match: words[match[0]], sql)


def _as_written() -> Iterator[tuple[str, str]]:
    yield from EXAMPLES.items()
    for title, queries in recipes().items():
        yield from ((title, query) for query in queries)
    for question in questions(ANALYSTS):
        yield f"{' '.join(question.columns)}", question.sql
    for query in examples(EXACTNESS, "sql"):
        yield f"exactness: {' '.join(query.split())}", query


def _asked(tables: Tables, name: str, sql: str) -> _Answer:
    taken, row_count = [], 0
    for _ in range(1 + 3):
        began = time.perf_counter()
        row_count = len(tables.rows(sql))
        taken.append(time.perf_counter() - began)
    return _Answer(median(taken[1:]), row_count, name, sql)


def _as_command(config: Path, sql: str) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "aggregator.cli", "sql", "--config", str(config), "--format", "csv", sql]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began
