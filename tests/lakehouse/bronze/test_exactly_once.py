"""Each record counts once, whenever it comes, however often, and whatever kills the job between two commits."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse import rollup as job
from aggregator.lakehouse.archive.reading_plan import Refused
from aggregator.lakehouse.bronze import writer
from aggregator.lakehouse.bronze.writer import MiscountError
from aggregator.lakehouse.commands.rollup import rollup
from aggregator.lakehouse.tables.schemas import ADVISORIES, BRONZE, DERIVED, QUARANTINE, TABLES, WATERMARKS
from aggregator.lakehouse.warehouse import commits as catalog
from aggregator.lakehouse.warehouse.local_paths import local_path
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.lakehouse.conftest import Lakehouse, say
from tests.lakehouse.dying_rollup import UPKEEP
from tests.support.lakehouse.hub import Block, Hub, Message
from tests.support.lakehouse.quick_spark import spark_block

FIRST = int(time.time()) * SECOND // DAY * DAY - 3 * DAY
ARRIVAL = ("hub_sequence", "archived_at")
Tables = dict[str, list[tuple[object, ...]]]


def story() -> list[Message]:
    """Write some days of two sites: nine records of the first day, three of the next ones, and what is no record."""
    dub1, ams1 = Block("eu-west", "dub1"), Block("eu-west", "ams1")
    return [
        *(dub1.new(f"n{number}", FIRST + number * MINUTE) for number in range(4)),
        dub1.watermark(FIRST, FIRST + HOUR),
        dub1.stale("n1", FIRST + 2 * HOUR),
        dub1.registration(b'{"sender": "n1"}', 1, FIRST + HOUR),
        dub1.recovered("n1", FIRST + 5 * HOUR),
        ams1.new("m1", FIRST + 7 * HOUR),
        dub1.watermark(FIRST, FIRST + 2 * DAY),
        ams1.stale("m1", FIRST + DAY + HOUR),
        ams1.watermark(FIRST, FIRST + 2 * DAY),
        Message("fleet.eu-west.dub1.nodes.watermark", b"?"),
    ]


@pytest.fixture(scope="module")
def published(hub: Hub) -> list[Message]:
    """Publish a story in two parts: the second repeats a day of the first and adds history of it that comes late."""
    late = Block("us-east", "nyc1")
    first = story()
    second = [
        *first[:9],
        late.new("l1", FIRST + HOUR),
        late.stale("l1", FIRST + 3 * HOUR),
        late.stale("l1", FIRST + 3 * HOUR)._replace(subject="fleet.us-east.nyc1.nodes.advisory.new"),
        late.watermark(FIRST, FIRST + 20 * HOUR),
        # A watermark: no advisory comes twice here, so that only the table tells that some came before.
        first[4],
    ]
    hub.publish(first)
    return second


def tables_of(lakehouse: Lakehouse) -> Tables:
    """Give every table's rows in some order, without what tells when they came."""
    found = {}
    for table in TABLES:
        if table.name != "positions":
            names = [name for name in table.column_names if name not in ARRIVAL or table is QUARANTINE]
            found[table.name] = sorted(lakehouse.rows(f"SELECT {', '.join(names)} FROM {table.name}"), key=repr)
    return found


def test_repeated_and_late_records_change_what_they_touch_and_nothing_else(
    spark: SparkSession, hub: Hub, published: list[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_two_runs = Lakehouse(hub, tmp_path / "two")
    first = in_two_runs.roll_up().counts
    assert (first.read, first.written, first.duplicates, first.quarantined) == (13, 12, 0, 1)
    assert writers_of_advisories(in_two_runs) == {"reader"}
    killed = Lakehouse(hub, tmp_path / "killed")
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    moment = Moment.draw()
    if moment.is_of_a_second_run:
        killed.roll_up()
    hub.publish(published)
    with monkeypatch.context() as lost:
        lost.setattr(writer, "take", with_other_days_away(writer.take))
        second = in_two_runs.roll_up().counts
    # Nine again, one of them twice; three new records; one advisory on the subject of another kind.
    assert (second.read, second.written, second.duplicates, second.quarantined) == (14, 3, 10, 1)
    assert writers_of_advisories(in_two_runs) == {"reader", "Spark"}
    check_that_nothing_new_is_found_without_spark(in_two_runs)

    straight = Lakehouse(hub, tmp_path / "straight")
    told = command(straight)
    assert "read 27 = written 15 + duplicates 10 + quarantined 2\ntables stand at ARCHIVE 27, " in told
    wanted = tables_of(straight)
    assert tables_of(in_two_runs) == wanted
    assert len(wanted["sender_intervals"]) == 4 + 2 + 2 + 2

    die_at(moment, killed)
    killed.roll_up()
    assert tables_of(killed) == wanted, moment
    stands = killed.rows("SELECT table_name, sequence FROM positions")
    assert {sequence for _, sequence in stands} == {27}
    assert {name for name, _ in stands} >= {table.name for table in DERIVED}
    check_that_a_lost_row_ends_a_run(in_two_runs, monkeypatch)


def with_other_days_away(take: Callable[..., object]) -> Callable[..., object]:
    """Have the data files of other days than the first be away while records are taken: who reads them fails."""

    def taking(spark: SparkSession, *given: object) -> object:
        paths = []
        for table, day in ((ADVISORIES, "occurred_at_day"), (WATERMARKS, "observed_through_day")):
            files = spark.table(f"{table.identifier}.files")
            others = files.where(f.unix_micros(f.col(f"partition.{day}").cast("timestamp")) != FIRST)
            found = [local_path(path) for (path,) in others.select("file_path").collect()]
            assert found, table.name
            paths += [Path(path) for path in found if path]
        for path in paths:
            path.rename(path.with_suffix(".away"))
        try:
            return take(spark, *given)
        finally:
            for path in paths:
                path.with_suffix(".away").rename(path)

    return taking


def command(lakehouse: Lakehouse) -> str:
    """Roll up by the command; give what it prints."""
    config = lakehouse.warehouse.with_suffix(".toml")
    config.write_text(
        f'[hub]\nservers = ["{lakehouse.hub.server.url}"]\n'
        f'[lakehouse]\npath = "{lakehouse.warehouse}"\nspark_master = "local[2]"\n{spark_block()}'
    )
    answer = CliRunner().invoke(rollup, ["--config", str(config)])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def check_that_a_lost_row_ends_a_run(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    lakehouse.hub.publish([Block("eu-west", "dub1").watermark(FIRST, FIRST + 3 * HOUR)])
    before = lakehouse.rows("SELECT * FROM positions ORDER BY table_name")
    append = catalog.append
    with monkeypatch.context() as broken:
        broken.setattr(catalog, "append", lambda *given, **named: append(*given, **named) - 1)
        with pytest.raises(MiscountError, match="watermarks: of 1 messages 0 were written and 0 left out as"):
            lakehouse.roll_up()
    assert lakehouse.rows("SELECT * FROM positions ORDER BY table_name") == before


def writers_of_advisories(lakehouse: Lakehouse) -> set[str]:
    """Say who wrote the data files that lie there: Spark begins their names with the number of its task."""
    files = (lakehouse.warehouse / "muster" / "advisories" / "data").rglob("*.parquet")
    return {"Spark" if file.name.startswith("00000-") else "reader" for file in files}


def check_that_nothing_new_is_found_without_spark(lakehouse: Lakehouse) -> None:
    """Where the tables are as the last run left them, and the hub has nothing else, and only there."""
    settings = lakehouse.settings
    again = job.find_nothing_new(settings)
    assert again is not None
    assert (again.counts.read, again.position.sequence) == (0, 27)
    assert lakehouse.rows("SELECT DISTINCT sequence, epoch_us(known_through) FROM positions") == [
        (again.position.sequence, again.position.known_through)
    ]
    for other in ({"registration_interval": DAY}, {"maintain_every": 1}, {"path": f"{lakehouse.warehouse}/elsewhere"}):
        changed = msgspec.structs.replace(settings.lakehouse, **other)
        assert job.find_nothing_new(msgspec.structs.replace(settings, lakehouse=changed)) is None
    changed = msgspec.structs.replace(settings.lakehouse, archive_stream="REPORT")
    of_another_stream = msgspec.structs.replace(settings, lakehouse=changed)
    with pytest.raises(Refused, match="the settings say REPORT"):
        job.find_nothing_new(of_another_stream)
    catalog.advance(job.start_session(settings, say), DERIVED[0], again.position)
    assert job.find_nothing_new(settings) is None
    # A run takes back what a killed one wrote.
    assert lakehouse.roll_up().counts.read == 0
    assert job.find_nothing_new(settings) is not None


class Moment(NamedTuple):
    """When a job is killed: right after a number of commits, or somewhere in the second that follows."""

    is_of_a_second_run: bool
    commits: int
    seconds: float

    @classmethod
    def draw(cls) -> Self:
        """Draw as often from a first run as from one that goes on, and from the run as from its upkeep."""
        is_second = random.random() < 0.5
        # A run begins where the tables stand, which a first one has to say; then come its chunks.
        derived_at = len(BRONZE) * (2 if is_second else 1 + 3)
        whole_at = derived_at + len(DERIVED) + 1
        kept_up_at = whole_at + len(UPKEEP) * len(TABLES) + 1
        commits = random.choice((random.randrange(whole_at), random.randrange(whole_at, kept_up_at)))
        return cls(is_second, commits, random.choice((0.0, random.uniform(0.01, 0.99))))


def die_at(moment: Moment, lakehouse: Lakehouse) -> None:
    say(f"to be killed: {moment}")
    program = [sys.executable, "-m", "tests.lakehouse.dying_rollup", lakehouse.hub.server.url]
    given = [str(lakehouse.warehouse), str(moment.commits + moment.seconds)]
    ended = subprocess.run([*program, *given], capture_output=True, text=True, timeout=1200, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
