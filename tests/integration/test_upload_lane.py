"""The lane of registrations, asked by hand: what leaves while reading is behind the stream."""

import asyncio
from pathlib import Path

from edge_agent import upload_lane
from edge_agent.core.flight_limit import MOST, FlightLimit
from edge_agent.core.outgoing import Lane
from edge_agent.core.shipment import Answer, Outcome
from edge_agent.store.sqlite_store import SqliteStore
from edge_agent.tallies import Tally
from edge_agent.upload_lane import BATCH_ROWS, Terms, UploadLane
from tests.support.store_batches import advisory, batch, opened, registration
from tests.support.waiting import until

BEHIND = 3_000
"""So many at a time come from a reader that is behind."""


def lane_of(store: SqliteStore, lane: Lane) -> UploadLane:
    limit = FlightLimit()
    limit.limit = MOST
    return UploadLane(lane, store, Terms(), limit, Tally())


async def leaves(lane: UploadLane, appends: int = 1) -> int:
    """Let leave what may leave now, all of it stored at once; give how many rows, one that leaves twice once."""
    row_ids: set[int] = set()
    while (shipment := await lane.next_shipment(appends)) is not None:
        row_ids.update(row.row_id for row in shipment.rows)
        await lane.settle(Answer(shipment.number, Outcome.STORED))
    return len(row_ids)


async def test_registrations_let_reading_go_first_and_advisories_wait_for_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        rows = [registration(f"node{number}", "text") for number in range(BEHIND)]
        await store.commit(batch(1, [*rows, *(advisory(str(number)) for number in range(BEHIND))], is_behind=True))
        registrations = lane_of(store, Lane.REGISTRATIONS)
        left = await leaves(registrations)
        assert BATCH_ROWS - 1 <= left < 2 * BATCH_ROWS
        assert await leaves(lane_of(store, Lane.ADVISORIES)) == BEHIND
        await until(lambda: not store.is_filling(), "reading has come to the stream's end")
        await until(lambda: asyncio.get_running_loop().time() >= registrations.rests_until, "the lane looks again")
        assert left + await leaves(registrations) == BEHIND


async def test_registrations_leave_each_second_while_reading_stays_behind(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        lane, left = lane_of(store, Lane.REGISTRATIONS), 0
        began_at = asyncio.get_running_loop().time()
        for number in range(1, 100):
            rows = [registration(f"node{number}.{place}", "text") for place in range(500)]
            await store.commit(batch(number, rows, is_behind=True))
            left += await leaves(lane, number)
            if left >= 2 * BATCH_ROWS:
                break
            await asyncio.sleep(0.01)
        assert left >= 2 * BATCH_ROWS
        assert asyncio.get_running_loop().time() - began_at >= upload_lane.BATCH_EVERY


async def test_registrations_that_come_by_the_hundred_at_the_streams_end_leave_as_they_come(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        lane, left = lane_of(store, Lane.REGISTRATIONS), 0
        for number in range(1, 7):
            await store.commit(batch(number, [registration(f"node{number}.{place}", "text") for place in range(500)]))
            left += await leaves(lane, number)
        assert left == 3_000


async def test_a_small_outbox_drops_nothing_because_registrations_would_have_waited(tmp_path: Path) -> None:
    """What is read while they wait must fit in beside them."""
    for max_outbox, waits in ((16 << 20, False), (40 << 20, True)):
        async with opened(tmp_path / f"{max_outbox}.db", max_outbox) as store:
            rows = [registration(f"node{number}", "text") for number in range(200)]
            await store.commit(batch(1, rows, is_behind=True))
            assert store.is_filling() is waits
