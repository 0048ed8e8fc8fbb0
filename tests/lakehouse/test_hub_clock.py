"""A real hub whose clock is set back: the live service and the tables say the same, and both are right again."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aggregator.fleet.agreement import Agreement, compare
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupRequest
from aggregator.lakehouse.tables.schemas import ADVISORIES, DERIVED, WATERMARKS
from aggregator.live.fold import fleet as fold
from aggregator.live.fold.changes import Archived
from aggregator.records import judge
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.nats.connection import connect
from shared.nats.jetstream_api import ApiError, RequestFailed
from tests.lakehouse.conftest import Lakehouse, say
from tests.support.lakehouse.hub import ARCHIVE, DEADLINE, STALE_AFTER, Block, Hub
from tests.support.lakehouse.random_fleet import draw_block
from tests.support.live.archived_history import archived
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member
from tests.support.nats.insisting import insist
from tests.support.nats.stepped_clock import CANNOT_STEP, SteppedClock

pytestmark = pytest.mark.skipif(bool(CANNOT_STEP), reason=CANNOT_STEP)


@pytest.fixture
def clock(lakehouse: Lakehouse) -> Iterator[SteppedClock]:
    with SteppedClock(lakehouse.hub.server) as clock:
        yield clock


def drawn(draw: random.Random, blocks: int) -> list[Archived]:
    """Draw a fleet of the last days, and when the hub, whose clock is set back at least once, stored its messages."""
    end = time.time_ns() // 1_000 - HOUR
    while True:
        histories = [draw_block(draw, f"site{number}", "nodes", end - 4 * DAY, end) for number in range(blocks)]
        messages = archived(draw, histories, steps=True)
        stamps = [each.archived_at for each in messages]
        # A short step between two messages that are far apart shows in no stamp.
        if any(later < earlier - MINUTE for earlier, later in pairwise(stamps)):
            return messages


def stored(lakehouse: Lakehouse, clock: SteppedClock, messages: Sequence[Archived]) -> int:
    """Have the hub store each message at its own instant; return the last sequence."""

    async def storing() -> None:
        async with await connect(lakehouse.hub.connection, name="test", deadline=DEADLINE) as client:
            for each in messages:
                clock.set((each.archived_at - time.time_ns() // 1_000) // SECOND * SECOND)
                await client.request(each.subject.decode(), each.payload, timeout=DEADLINE)

    asyncio.run(storing())
    return lakehouse.hub.mirrored()


def now() -> int:
    return time.time_ns() // 1_000


def compared(lakehouse: Lakehouse) -> Agreement:
    with open_tables(lakehouse.warehouse, lakehouse.settings.lakehouse.catalog) as tables:
        return asyncio.run(compare(lakehouse.settings, tables, say))


def derived(lakehouse: Lakehouse) -> dict[str, list[tuple[object, ...]]]:
    return {
        table.name: sorted(lakehouse.rows_in_spark(f"SELECT * FROM {table.identifier}"), key=repr) for table in DERIVED
    }


@pytest.mark.parametrize("seed", [random.randrange(1 << 30)], ids=["drawn"])
def test_live_and_tables_agree_whenever_the_hubs_clock_is_set_and_a_full_run_changes_nothing(
    lakehouse: Lakehouse, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    for module in (fold, judge):
        # Drawn clocks are off by hours, as steps are.
        monkeypatch.setattr(module, "SKEW", 8 * HOUR)
    draw = random.Random(seed)
    messages = drawn(draw, 8)
    parts = [draw.randrange(1, len(messages))]
    for begin, end in pairwise([0, *parts, len(messages)]):
        stored(lakehouse, clock, messages[begin:end])
        lakehouse.roll_up()
        found = compared(lakehouse)
        assert found.differences == []
        assert (found.contradict, found.only_live, found.only_tables) == (0, 0, 0), str(found)
    before = derived(lakehouse)
    lakehouse.roll_up(RollupRequest(full=True))
    assert derived(lakehouse) == before
    records = " UNION ALL ".join(
        f"FROM {table.name} SELECT hub_sequence, archived_at" for table in (ADVISORIES, WATERMARKS)
    )
    archived_at = lakehouse.rows(f"SELECT archived_at FROM ({records}) ORDER BY hub_sequence")
    assert archived_at == sorted(archived_at)
    assert lakehouse.rows("FROM clock_steps SELECT 1 WHERE stepped_at > fell_to")


class ClusteredHub(Hub):
    """A hub of three servers, each of which holds ARCHIVE and REPORT."""

    replicas = 3

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.cluster = EmbeddedCluster("hub", directory, [Member(name) for name in ("h1", "h2", "h3")])
        self.server = self.cluster.servers["h1"]

    def start(self) -> None:
        asyncio.run(self.cluster.start(*self.cluster.servers))
        self.create_archive()
        self.create_report()

    def stop(self) -> None:
        asyncio.run(self.cluster.close())

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        async def asking() -> dict[str, Any]:
            async with await self._client() as client:
                return await insist(client, f"$JS.API.{subject}", body or {})

        return asyncio.run(asking())

    def move_archive(self, server: str) -> None:
        """Make a server the leader of ARCHIVE."""
        ends_at = time.monotonic() + DEADLINE
        while self.request(f"STREAM.INFO.{ARCHIVE}")["cluster"].get("leader") != server:
            assert time.monotonic() < ends_at, f"{server} does not lead {ARCHIVE}"
            with suppress(ApiError, RequestFailed):
                super().request(f"STREAM.LEADER.STEPDOWN.{ARCHIVE}", {"placement": {"preferred": server}})


def test_a_leader_whose_clock_is_behind_is_one_step_and_no_older_store(spark: SparkSession, tmp_path: Path) -> None:
    behind = random.randrange(1, 8) * MINUTE
    print(f"{behind // SECOND} s behind")
    block, began_at = Block("eu-west", "dub1"), time.time_ns() // 1_000 - HOUR
    with ClusteredHub(tmp_path / "hub") as hub, SteppedClock(hub.cluster.servers["h2"]) as clock:
        clock.set(-behind)
        lakehouse = Lakehouse(hub, tmp_path / "lake")
        hub.move_archive("h1")
        hub.publish([block.new("n1", began_at), block.new("n2", began_at), block.watermark(began_at, now())])
        hub.move_archive("h2")
        hub.publish([block.stale("n1", now() - STALE_AFTER), block.watermark(began_at, now())])
        (reported,) = lakehouse.roll_up().hub_clock
        assert "is behind since" in reported
        assert compared(lakehouse).is_whole
        hub.move_archive("h3")
        for _ in range(2):
            hub.publish([block.recovered("n1", now()), block.watermark(began_at, now())])
        (reported,) = lakehouse.roll_up().hub_clock
        assert "is behind since" not in reported
        found = compared(lakehouse)
        assert (found.agree, found.is_whole) == (2, True), str(found)
    ((length,),) = lakehouse.rows("FROM clock_steps SELECT epoch_us(stepped_at) - epoch_us(fell_to)")
    assert isinstance(length, int)
    assert behind - MINUTE < length <= behind
    causes = [cause for (cause,) in lakehouse.rows("FROM site_coverage SELECT cause ORDER BY started_at")]
    assert causes[:3] == ["observed", "hub_clock", "observed"]
