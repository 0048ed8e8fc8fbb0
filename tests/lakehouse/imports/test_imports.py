"""History from another monitoring system stands in every table, once, beside what agents report."""

import random
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from aggregator.lakehouse.commands.imports import intervals
from aggregator.lakehouse.imports.job import import_intervals, remove_imports
from aggregator.lakehouse.imports.listing import imports_in
from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.writer import ImportCounts
from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.grouping import Choice
from aggregator.lakehouse.page.reader import read_figures
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupRequest
from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS
from aggregator.lakehouse.tables.schemas import DERIVED
from shared.instants import DAY, HOUR, SECOND, format_instant
from shared.nats.connection import ConnectionSettings
from tests.lakehouse.conftest import Lakehouse, say, settings_for
from tests.lakehouse.dying_rollup import MAPPING
from tests.lakehouse.query.test_analysis_views import check_views_against_days
from tests.support.lakehouse.hub import Block, Hub
from tests.support.lakehouse.quick_spark import spark_block

START = int(time.time()) * SECOND // DAY * DAY - 3 * DAY
"""A few days ago: the tables have rows for every hour since."""


def told(hours: int) -> str:
    return format_instant(START + hours * HOUR)


def file_of(*rows: tuple[str, str, int, int]) -> str:
    lines = (f"eu/dub1/{sender},{state},{told(begin)},{told(end)}" for sender, state, begin, end in rows)
    return "\n".join(["host,state,begin,end", *lines, ""])


HISTORY = file_of(
    ("r1/a", "down", 6, 12),
    ("r1/a", "up", 12, 36),
    ("r1/a", "down", 36, 36),
    ("r1/a", "up", 36, 48),
    ("r2/b", "up", 0, 10),
    ("r2/b", "down", 10, 11),
    ("r2/b", "up", 12, 14),
    ("r2/b", "up", 12, 14),
    ("r2/b", "gone", 14, 15),
)
MORE = file_of(("r2/b", "up", 12, 14), ("r2/b", "down", 14, 15))
OVERLAPPING = file_of(("r9/c", "up", 12, 14), ("r2/b", "down", 13, 15), ("r1/a", "down", 20, 22))
"""Line 3 contradicts line 8 of the history, line 4 line 3."""
OVERLAPPING_IT = file_of(("r9/c", "down", 13, 14))
"""Its only row, on line 2, contradicts line 2 of the file above."""
AVAILABILITY = (
    "SELECT grouping, region, site, group_name, sender_count, up_us, down_us, unknown_us, initial_down_us,"
    " availability_observed, availability_sender_mean, availability_after_first_up, availability_whole_period,"
    " up_interval_count, down_interval_count, zero_length_count, down_median_us, availability_total, coverage"
    " FROM import_availability ORDER BY ALL"
)


def instant(at: int) -> datetime:
    return datetime.fromtimestamp(at // 1_000_000, tz=UTC)


FIRST_DAY: date = instant(START).date()


def take(lakehouse: Lakehouse, path: Path, text: str, mapping: Mapping = MAPPING, *others: Path) -> ImportCounts:
    path.write_text(text)
    return import_intervals(lakehouse.settings, [path, *others], mapping, say).counts


def everything(lakehouse: Lakehouse) -> dict[str, list[tuple[object, ...]]]:
    with_imports = ("imports", "import_quarantine", "import_availability", "import_sender_availability", "positions")
    derived = ("sender_intervals", "site_coverage", "site_availability_daily", "sender_day_exceptions")
    return {name: sorted(lakehouse.rows(f"SELECT * FROM {name}"), key=repr) for name in (*with_imports, *derived)}


@pytest.fixture(scope="module")
def imported(spark: SparkSession, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, str]:
    """Import the history by the command, and nothing else; give what that prints, too."""
    directory = tmp_path_factory.mktemp("imported")
    lakehouse = Lakehouse(hub, directory / "lake")
    # Imports ask no hub.
    lakehouse.settings = settings_for(ConnectionSettings(servers=("nats://127.0.0.1:1",)), lakehouse.warehouse)
    config = directory / "aggregator.toml"
    config.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:1"]\n'
        f'[lakehouse]\npath = "{lakehouse.warehouse}"\nspark_master = "local[2]"\n{spark_block()}'
    )
    (directory / "history.csv").write_text(HISTORY)
    columns = "--source nagios --sender host --start begin --stop end --state state"
    given = [*columns.split(), "--groups", MAPPING.shape or "", "--config", str(config)]
    answer = CliRunner().invoke(intervals, [*given, str(directory / "history.csv")])
    assert answer.exit_code == 0, answer.output
    return lakehouse, answer.stdout


def test_imported_history_is_in_every_table_and_again_changes_nothing(
    imported: tuple[Lakehouse, str], tmp_path: Path
) -> None:
    lakehouse, told_of_it = imported
    assert "read 9 = written 7 + duplicates 1 + quarantined 1\n1 of those written end where they start: " in told_of_it
    assert f"\nhistory.csv: from {told(0)} to {told(48)}\n  history.csv: 1 unknown_state, the first in " in told_of_it

    assert lakehouse.rows(
        "SELECT block, sender_id, state, started_at, ended_at, ended_by, episode_started_at"
        " FROM sender_intervals ORDER BY sender_id, started_at"
    ) == [
        ("import:nagios", f"eu/dub1/{sender}", state, instant(START + begin * HOUR), instant(START + end * HOUR), word,
         instant(START + born * HOUR))
        for sender, state, begin, end, word, born in (
            ("r1/a", "down", 6, 12, "recovered", 6),
            ("r1/a", "up", 12, 48, "import_end", 6),
            ("r2/b", "up", 0, 10, "stale", 0),
            ("r2/b", "down", 10, 11, "import_gap", 0),
            ("r2/b", "unknown", 11, 12, "recovered", 0),
            ("r2/b", "up", 12, 14, "import_end", 0),
        )
    ]  # fmt: skip
    assert lakehouse.rows("SELECT region, site, started_at, ended_at, known, cause FROM site_coverage") == [
        ("eu", "dub1", instant(START), instant(START + 2 * DAY), True, "imported")
    ]
    assert lakehouse.rows(
        "SELECT day, sender_id, up_us, down_us, unknown_us, absent_us, outage_count, error_bound_us"
        " FROM sender_availability_daily ORDER BY ALL"
    ) == [
        (FIRST_DAY, "eu/dub1/r1/a", 12 * HOUR, 6 * HOUR, 0, 6 * HOUR, 1, 0),
        (FIRST_DAY, "eu/dub1/r2/b", 12 * HOUR, HOUR, HOUR, 10 * HOUR, 1, 0),
        (FIRST_DAY + timedelta(days=1), "eu/dub1/r1/a", DAY, 0, 0, 0, 0, 0),
    ]
    assert lakehouse.rows(
        "SELECT day, sender_count, up_us, down_us, unknown_us, absent_us, error_bound_us FROM site_availability_daily"
        " ORDER BY day"
    ) == [
        (FIRST_DAY, 2, 24 * HOUR, 7 * HOUR, HOUR, 16 * HOUR, 0),
        (FIRST_DAY + timedelta(days=1), 1, DAY, 0, 0, 0, 0),
    ]
    both = (2, 48 * HOUR, 7 * HOUR, HOUR, 6 * HOUR, 48 / 55, (36 / 42 + 12 / 13) / 2, 48 / 49, 48 / 96, 4, 3, 1, HOUR,
            48 / 56, 55 / 56)  # fmt: skip
    assert lakehouse.rows(AVAILABILITY) == [
        ("all", None, None, None, *both),
        ("rack", "eu", "dub1", "r1", 1, 36 * HOUR, 6 * HOUR, 0, 6 * HOUR, 36 / 42, 36 / 42, 1, 36 / 48, 2, 2, 1,
         3 * HOUR, 36 / 42, 1),
        ("rack", "eu", "dub1", "r2", 1, 12 * HOUR, HOUR, HOUR, 0, 12 / 13, 12 / 13, 12 / 13, 12 / 48, 2, 1, 0, HOUR,
         12 / 14, 13 / 14),
        ("region", "eu", None, None, *both),
        ("site", "eu", "dub1", None, *both),
    ]  # fmt: skip
    assert lakehouse.rows("SELECT reason, detail, payload, file, line FROM import_quarantine") == [
        ("unknown_state", "gone", HISTORY.splitlines()[-1].encode(), "history.csv", 10)
    ]
    assert lakehouse.rows("SELECT sender_id, line, groups['rack'] FROM imports WHERE zero_length") == [
        ("eu/dub1/r1/a", 4, "r1")
    ]
    check_views_against_days(lakehouse.warehouse)

    before = everything(lakehouse)
    assert take(lakehouse, tmp_path / "renamed.csv", HISTORY) == ImportCounts(9, 0, 9, 0, 0)
    second = tmp_path / "overlap_2.csv"
    second.write_text(OVERLAPPING_IT)
    with pytest.raises(
        ImportRefused,
        match=rf"overlap, 3 times for 3 senders; the first: eu/dub1/r2/b is up from {told(12)} to {told(14)}"
        rf" \(history.csv, line 8\), and down from {told(13)} to {told(15)} \(overlap.csv, line 3\)",
    ):
        take(lakehouse, tmp_path / "overlap.csv", OVERLAPPING, MAPPING, second)
    assert everything(lakehouse) == before
    assert sorted(path.name for path in lakehouse.warehouse.glob("import-*")) == []


def test_the_page_of_an_import_knows_of_no_hub_and_of_no_bound(imported: tuple[Lakehouse, str]) -> None:
    with open_tables(imported[0].warehouse) as tables:
        figures = read_figures(tables, Choice(), registration_interval=300 * SECOND)
    assert (figures.position, figures.all_imported, figures.noticed_count) == ("", True, 0)
    assert figures.imported == figures.times.known == 55 * HOUR
    assert figures.unknown_by_cause == {"import_gap": HOUR}
    assert "percentage points" not in render(figures)


def test_a_rollup_keeps_imports_and_known_time_is_the_hubs(lakehouse: Lakehouse, tmp_path: Path) -> None:
    dub1 = Block("eu", "dub1")
    lakehouse.hub.publish([dub1.new("n1", START + 40 * HOUR), dub1.watermark(START + 40 * HOUR, START + 41 * HOUR)])
    first = lakehouse.roll_up()
    live = lakehouse.rows("SELECT * FROM sender_intervals")
    # It watched before anything that it tells of.
    mapping = msgspec.structs.replace(MAPPING, since=START - 4 * HOUR, until=START - 2 * HOUR)
    assert take(lakehouse, tmp_path / "history.csv", HISTORY, mapping).written == 7
    before = without_positions(lakehouse)
    assert take(lakehouse, tmp_path / "more.csv", MORE, mapping) == ImportCounts(2, 1, 1, 0, 0)
    after = everything(lakehouse)
    assert set(live) < set(after["sender_intervals"])
    assert len(after["sender_intervals"]) == 1 + 8
    # Taken back, it was never there.
    with open_tables(lakehouse.warehouse) as tables:
        listed = {each.file: each for each in imports_in(tables)}
    assert [(each.interval_count, each.quarantined_count) for each in listed.values()] == [(7, 1), (1, 0)]
    with pytest.raises(ImportRefused, match="no import begins with 'gone'"):
        remove_imports(lakehouse.settings, ["gone"], say)
    remove_imports(lakehouse.settings, [listed["more.csv"].import_id[:12]], say)
    assert without_positions(lakehouse) == before
    assert lakehouse.rows(
        "SELECT sender_count, outage_count, error_bound_us FROM fleet_availability_daily ORDER BY day LIMIT 2"
    ) == [(2, 0, 0), (2, 2, 0)]
    lakehouse.hub.publish([dub1.watermark(START + 40 * HOUR, START + 42 * HOUR)])
    assert lakehouse.roll_up().position.sequence == first.position.sequence + 1
    assert lakehouse.rows(
        "SELECT started_at, ended_at, known, cause FROM site_coverage WHERE block = 'import:nagios' ORDER BY started_at"
    ) == [
        (instant(START + begin * HOUR), instant(START + end * HOUR), cause == "imported", cause)
        for begin, end, cause in ((-4, -2, "imported"), (-2, 0, "unwatched"), (0, 48, "imported"))
    ]
    before = without_positions(lakehouse)
    lakehouse.roll_up(RollupRequest(full=True))
    assert without_positions(lakehouse) == before
    check_views_against_days(lakehouse.warehouse)


def test_an_import_that_was_killed_is_made_whole_by_the_next(
    imported: tuple[Lakehouse, str], hub: Hub, tmp_path: Path
) -> None:
    (tmp_path / "history.csv").write_text(HISTORY)
    killed = Lakehouse(hub, tmp_path / "killed")
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    commits = random.randrange(1, 2 + len(DERIVED_FROM_IMPORTS) + len(DERIVED))
    command = [sys.executable, "-m", "tests.lakehouse.dying_rollup", hub.server.url, str(killed.warehouse)]
    command += [str(commits), str(tmp_path / "history.csv")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    take(killed, tmp_path / "history.csv", HISTORY)
    assert without_positions(killed) == without_positions(imported[0])


def without_positions(lakehouse: Lakehouse) -> dict[str, list[tuple[object, ...]]]:
    return {name: rows for name, rows in everything(lakehouse).items() if name != "positions"}
