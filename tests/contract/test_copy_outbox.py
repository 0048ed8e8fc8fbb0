"""Copies wait in a lane of their own, all of them: where they reach the limit, reading pauses."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.store import outbox_index
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.store.store_batches import ALL_ROWS, BLOCK, advisory, batch, copy, opened, registration, waiting

SMALL = 100_000
"""A limit for outboxes of a few rows, in bytes."""

ROW = 10_000
"""About the size of a row of which ten reach that limit."""

A_MOMENT = 0.1


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "agent.db", max_outbox=SMALL) as store:
        yield store


async def commit(store: SqliteStore, *rows: OutboxRow) -> None:
    await store.commit(batch(1, rows))


async def test_copies_are_never_replaced_nor_dropped_and_make_registrations_go(small: SqliteStore) -> None:
    await commit(small, *(registration("", f"r{number}", size=ROW - 256) for number in range(9)))
    copies = [copy(f"c{number}", size=ROW - 256) for number in range(15)]
    await commit(small, *copies[:7])
    assert await waiting(small, Lane.REGISTRATIONS) == ["r6", "r7", "r8"]
    await commit(small, *copies[7:], copies[0])
    assert await waiting(small, Lane.REGISTRATIONS) == []
    assert await waiting(small, Lane.COPIES) == [*(f"c{number}" for number in range(15)), "c0"]
    assert small.outbox_counters(BLOCK) == {"dropped": {"outbox_full": 9}}


async def test_the_store_pauses_while_advisories_and_copies_reach_the_limit_and_goes_on_when_there_is_room(
    small: SqliteStore,
) -> None:
    await commit(small, *(advisory(f"{number}", size=ROW - 256) for number in range(4)))
    await commit(small, *(copy(f"{number}", size=ROW // 2 - 256) for number in range(11)))
    assert not small.is_paused()
    await commit(small, copy("the last straw", size=ROW // 2 - 256))
    assert small.is_paused()
    waiter = asyncio.create_task(small.wait_for_room())
    await small.write_status({})
    assert not waiter.done()

    rows = await small.pending(Lane.COPIES, 0, ALL_ROWS)
    small.delete_through(Lane.COPIES, rows[1].row_id)
    await asyncio.wait_for(waiter, 30)
    assert not small.is_paused()
    assert small.depths()[Lane.COPIES].rows == 10


async def test_room_for_less_than_a_twentieth_of_the_limit_is_not_enough_to_go_on(small: SqliteStore) -> None:
    await commit(small, *(copy(f"{number}", size=1_000 - 256) for number in range(100)))
    rows = await small.pending(Lane.COPIES, 0, ALL_ROWS)
    small.delete_through(Lane.COPIES, rows[3].row_id)
    await small.write_status({})
    assert (small.depths()[Lane.COPIES].rows, small.is_paused()) == (96, True)
    small.delete_through(Lane.COPIES, rows[5].row_id)
    await small.write_status({})
    assert (small.depths()[Lane.COPIES].rows, small.is_paused()) == (94, False)


async def test_who_reads_waits_until_the_copies_have_left_but_not_for_an_uploader_that_takes_nothing(
    small: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_index, "LONGEST_WAIT_FOR_UPLOADS", 60.0)
    await commit(small, *(copy(f"{number}") for number in range(20)))
    await asyncio.wait_for(small.wait_for_uploads(), 30)

    rows = await small.pending(Lane.COPIES, 0, 20)
    waiting_for_uploads = asyncio.create_task(small.wait_for_uploads())
    small.delete_through(Lane.COPIES, rows[9].row_id)
    await small.write_status({})
    assert small.copies_wait()
    assert not waiting_for_uploads.done()
    small.delete_through(Lane.COPIES, rows[19].row_id)
    await asyncio.wait_for(waiting_for_uploads, 30)
    assert not small.copies_wait()
    await small.write_status({})
    assert not small.copies_wait()


async def test_an_uploader_that_is_slow_is_waited_for_no_longer_than_a_moment(
    small: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_index, "LONGEST_WAIT_FOR_UPLOADS", A_MOMENT)
    await commit(small, *(copy(f"{number}") for number in range(20)))
    await small.pending(Lane.COPIES, 0, 1)
    began_at = asyncio.get_running_loop().time()
    await asyncio.wait_for(small.wait_for_uploads(), 60)
    assert asyncio.get_running_loop().time() - began_at >= A_MOMENT
    assert small.copies_wait()


async def test_reading_out_of_the_file_stops_behind_the_row_that_reaches_the_limit_of_bytes(tmp_path: Path) -> None:
    sizes = [100, 100, 500_000, 700_000, 100, 100, 900_000]
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, [copy(f"c{number}", size=size) for number, size in enumerate(sizes)]))
    async with opened(tmp_path / "agent.db") as store:
        counts, after = [], 0
        while rows := await store.pending(Lane.COPIES, after, 1_000, 1_000_000):
            counts.append(len(rows))
            after = rows[-1].row_id
    assert counts == [4, 3]
