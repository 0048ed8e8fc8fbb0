"""Reading a lane's rows from the file while transactions are under way: nothing waits for it, nothing stays behind."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from edge_agent.core.records import Lane
from edge_agent.delivery import uploader
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.delivery.asked_lane import next_of, parallel_lane
from tests.support.delivery.fleet_region import Region, uploading
from tests.support.store.store_batches import advisory, batch, registration
from tests.support.waiting import until


def waiting_for(store: SqliteStore) -> int:
    """Count who waits for the transaction under way."""
    return len(store._lock._waiters or ())


async def has_stored(region: Region, count: int) -> bool:
    return len(await region.stored()) == count


async def test_what_is_committed_while_another_lane_is_read_leaves_at_once(
    region: Region, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "IDLE_PATIENCE", 60.0)
    await region.make_stream()
    store._flusher.cancel()
    await store.commit(batch(1, [registration("node", "early")]))
    async with AsyncExitStack() as transaction:
        await transaction.enter_async_context(store._lock)
        async with uploading(region, store):
            await until(lambda: waiting_for(store) == 2, "the uploader waits to read its lane, and what is set apart")
            committing = asyncio.create_task(store.commit(batch(2, [advisory("late")])))
            await until(lambda: waiting_for(store) == 3, "an advisory waits to be committed")
            await transaction.aclose()
            await committing
            await until(partial(has_stored, region, 2), "both have arrived", deadline=30)


async def test_what_was_committed_while_a_reading_ended_empty_needs_no_other_commit(store: SqliteStore) -> None:
    await store.commit(batch(1, [registration("node1", "gone")]))
    store.delete_through(Lane.REGISTRATIONS, store.last_row_ids()[Lane.REGISTRATIONS])
    await store.commit(batch(2))
    lane = parallel_lane(Lane.REGISTRATIONS, store)
    async with store._lock:
        assert lane.next_shipment() is None
        await until(lambda: waiting_for(store) == 1, "the lane waits to read")
        committing = asyncio.create_task(store.commit(batch(3, [registration("node2", "late")])))
        await until(lambda: waiting_for(store) == 2, "a registration waits to be committed")
    await committing
    await until(lambda: not lane.flight.reader.is_reading, "the lane has read, and found nothing")
    assert await next_of(lane) is not None


async def test_what_was_being_read_for_an_uploader_that_ended_is_not_in_flight(
    region: Region, store: SqliteStore
) -> None:
    await region.make_stream()
    await store.commit(batch(1, [registration("node", "early")]))
    async with store._lock, uploading(region, store):
        await until(lambda: waiting_for(store) == 2, "the uploader waits to read its lane, and what is set apart")
    assert (await store.drop_registrations("*")).rows == 1
