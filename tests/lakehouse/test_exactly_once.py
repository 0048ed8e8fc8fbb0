"""Each record counts once, whenever it comes, however often, and whatever kills the job between two commits."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from aggregator.lakehouse import catalog, job
from aggregator.lakehouse.reading_plan import Refused
from aggregator.lakehouse.schemas import BRONZE, DERIVED, QUARANTINE, TABLES
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.lakehouse.conftest import Lakehouse, say
from tests.lakehouse.dying_rollup import UPKEEP
from tests.support.hub import Block, Hub, Message

FIRST = int(time.time()) * SECOND // DAY * DAY - 3 * DAY
BRONZE_COMMITS = len(BRONZE) * (1 + 3)
"""What a straight run commits before it derives: where it begins, then three chunks, each to every table."""
ROLLUP_COMMITS = BRONZE_COMMITS + len(DERIVED) + 1
"""... and through its end, whose commit says that the run is whole."""
ALL_COMMITS = ROLLUP_COMMITS + len(UPKEEP) * len(TABLES) + 1
"""... and through the upkeep, which says so once more between what it does."""
ARRIVAL = ("hub_sequence", "archived_at")
Tables = dict[str, list[tuple[object, ...]]]


def story() -> list[Message]:
    dub1, ams1 = Block("eu-west", "dub1"), Block("eu-west", "ams1")
    return [
        *(dub1.new(f"n{number}", FIRST + number * MINUTE) for number in range(4)),
        dub1.watermark(FIRST, FIRST + HOUR),
        dub1.stale("n1", FIRST + 2 * HOUR),
        dub1.registration(b'{"sender": "n1"}', 1, FIRST + HOUR),
        dub1.recovered("n1", FIRST + 5 * HOUR),
        dub1.watermark(FIRST, FIRST + 2 * DAY),
        ams1.new("m1", FIRST + 7 * HOUR),
        ams1.watermark(FIRST, FIRST + 2 * DAY),
        Message("fleet.eu-west.dub1.nodes.watermark", b"?"),
    ]


@pytest.fixture(scope="module")
def published(hub: Hub) -> list[Message]:
    """Publish a story in two parts: the second repeats the first and adds history that comes late."""
    late = Block("us-east", "nyc1")
    first = story()
    second = [
        *first[:-1],
        late.new("l1", FIRST + HOUR),
        late.stale("l1", FIRST + 3 * HOUR),
        late.stale("l1", FIRST + 3 * HOUR)._replace(subject="fleet.us-east.nyc1.nodes.advisory.new"),
        late.watermark(FIRST, FIRST + DAY),
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
    spark: SparkSession, hub: Hub, published: list[Message], tmp_path: Path
) -> None:
    in_two_runs = Lakehouse(hub, tmp_path / "two")
    first = in_two_runs.roll_up().counts
    assert (first.read, first.written, first.duplicates, first.quarantined) == (12, 11, 0, 1)
    assert writers_of_advisories(in_two_runs) == {"reader"}
    hub.publish(published)
    second = in_two_runs.roll_up().counts
    # Eleven again, one of them twice; three new records; one advisory on the subject of another kind.
    assert (second.read, second.written, second.duplicates, second.quarantined) == (16, 3, 12, 1)
    assert writers_of_advisories(in_two_runs) == {"reader", "Spark"}
    check_that_nothing_new_is_found_without_spark(in_two_runs)

    straight = Lakehouse(hub, tmp_path / "straight")
    counts = straight.roll_up().counts
    assert (counts.read, counts.written, counts.duplicates, counts.quarantined) == (28, 14, 12, 2)
    wanted = tables_of(straight)
    assert tables_of(in_two_runs) == wanted
    assert len(wanted["sender_intervals"]) == 4 + 2 + 1 + 2

    killed = Lakehouse(hub, tmp_path / "killed")
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    commits = random.choice((random.randrange(1, ROLLUP_COMMITS), random.randrange(ROLLUP_COMMITS, ALL_COMMITS)))
    die_after(commits, hub, killed.warehouse)
    killed.roll_up()
    assert tables_of(killed) == wanted
    stands = killed.rows("SELECT table_name, sequence FROM positions")
    assert {sequence for _, sequence in stands} == {28}
    assert {name for name, _ in stands} >= {table.name for table in DERIVED}


def writers_of_advisories(lakehouse: Lakehouse) -> set[str]:
    """Say who wrote the data files that lie there: Spark begins their names with the number of its task."""
    files = (lakehouse.warehouse / "muster" / "advisories" / "data").rglob("*.parquet")
    return {"Spark" if file.name.startswith("00000-") else "reader" for file in files}


def check_that_nothing_new_is_found_without_spark(lakehouse: Lakehouse) -> None:
    """Where the tables are as the last run left them, and the hub has nothing else, and only there."""
    settings = lakehouse.settings
    again = job.find_nothing_new(settings)
    assert again is not None
    assert (again.counts.read, again.position.sequence) == (0, 28)
    assert lakehouse.rows("SELECT DISTINCT sequence, epoch_us(known_through) FROM positions") == [
        (again.position.sequence, again.position.known_through)
    ]
    for other in ({"registration_interval": DAY}, {"maintain_every": 1}, {"path": lakehouse.warehouse / "elsewhere"}):
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


def die_after(commits: int, hub: Hub, warehouse: Path) -> None:
    command = [sys.executable, "-m", "tests.lakehouse.dying_rollup", hub.server.url, str(warehouse), str(commits)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
