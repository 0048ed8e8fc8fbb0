"""What waits for the region: newer replaces older, what matters is never dropped, and what is dropped is counted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge_agent.core.records import Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.store.port import LaneDepth
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.store.store_batches import (
    ALL_ROWS,
    BLOCK,
    advisory,
    batch,
    copy,
    die,
    opened,
    registration,
    waiting,
    watermark,
)
from tests.support.waiting import until

SMALL = 100_000
"""A limit for outboxes of a few rows, in bytes."""

ROW = 10_000
"""About the size of a row of which ten reach that limit."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "agent.db") as store:
        yield store


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "agent.db", max_outbox=SMALL) as store:
        yield store


async def commit(store: SqliteStore, *rows: OutboxRow) -> None:
    await store.commit(batch(1, rows))


async def taken(store: SqliteStore, lane: Lane, count: int = ALL_ROWS) -> list[OutboxRow]:
    """Read rows as the uploader does: from then on they are in flight."""
    return await store.pending(lane, 0, count)


def sized(name: str, sender_id: str = "") -> OutboxRow:
    return registration(sender_id, name, size=ROW - 256)


# Reading


async def test_rows_come_back_as_they_were_given_and_in_order(store: SqliteStore) -> None:
    given = [
        advisory("a"),
        registration("node", "r"),
        copy("c1"),
        copy("c2"),
        watermark("w", since=7),
        registration("", "\0\xff" * 500),
    ]
    await commit(store, *given[:3])
    await commit(store, *given[3:])

    found = [row for lane in Lane for row in await taken(store, lane)]
    expected = sorted(given, key=lambda row: row.lane)
    assert [(row.subject, row.headers, row.payload) for row in found] == [
        (row.subject, row.headers, row.payload) for row in expected
    ]
    assert [(row.block, row.sender_id, row.watermark_since) for row in found] == [
        (row.block, row.sender_id, row.watermark_since) for row in expected
    ]
    assert [row.row_id for row in found] == [1, 5, 2, 6, 3, 4]


async def test_pending_begins_behind_a_row_and_ends_at_its_limit(store: SqliteStore) -> None:
    await commit(store, *(advisory(str(number)) for number in range(10)))
    rows = await store.pending(Lane.ADVISORIES, 0, 4)
    more = await store.pending(Lane.ADVISORIES, rows[-1].row_id, 4)
    assert [row.payload for row in (*rows, *more)] == [str(number).encode() for number in range(8)]


async def test_whoever_waits_for_rows_is_woken_by_the_commit_that_brings_some(store: SqliteStore) -> None:
    waiter = asyncio.create_task(store.wait_for_rows(0))
    await store.commit(batch(1))
    await store.write_status({"agent": 1})
    assert not waiter.done()
    await commit(store, advisory("a"))
    assert await asyncio.wait_for(waiter, 60) == 1


# Compaction


async def test_a_newer_registration_replaces_an_older_unsent_one(store: SqliteStore) -> None:
    await commit(store, registration("a", "a1"), registration("b", "b1"))
    await commit(store, registration("a", "a2"), registration("c", "c1"), registration("a", "a3"))

    assert await waiting(store, Lane.REGISTRATIONS) == ["b1", "c1", "a3"]
    assert store.outbox_counters(BLOCK) == {"compacted": {"newer_sample": 2}}
    sizes = sum(row.size for row in await taken(store, Lane.REGISTRATIONS))
    assert store.depths()[Lane.REGISTRATIONS] == LaneDepth(3, sizes)


async def test_a_registration_in_flight_is_not_replaced(store: SqliteStore) -> None:
    await commit(store, registration("a", "a1"), registration("b", "b1"))
    assert len(await taken(store, Lane.REGISTRATIONS, 1)) == 1
    await commit(store, registration("a", "a2"), registration("b", "b2"))

    assert await waiting(store, Lane.REGISTRATIONS) == ["a1", "a2", "b2"]
    assert store.outbox_counters(BLOCK) == {"compacted": {"newer_sample": 1}}


async def test_a_registration_that_is_no_longer_in_flight_is_replaced_again(store: SqliteStore) -> None:
    await commit(store, registration("a", "a1"))
    await taken(store, Lane.REGISTRATIONS)
    store.release(Lane.REGISTRATIONS)
    await commit(store, registration("a", "a2"))
    assert await waiting(store, Lane.REGISTRATIONS) == ["a2"]


async def test_an_acknowledged_registration_is_not_counted_as_replaced(store: SqliteStore) -> None:
    await commit(store, registration("a", "a1"))
    rows = await taken(store, Lane.REGISTRATIONS)
    store.delete_through(Lane.REGISTRATIONS, rows[-1].row_id)
    store.release(Lane.REGISTRATIONS)
    await commit(store, registration("a", "a2"))
    assert await waiting(store, Lane.REGISTRATIONS) == ["a2"]
    assert store.outbox_counters(BLOCK) == {}


async def test_registrations_without_a_sender_or_of_another_block_replace_nothing(store: SqliteStore) -> None:
    await commit(store, registration("", "x1"), registration("a", "a1"), registration("", "x2"))
    await commit(store, registration("", "x3"), registration("a", "other", block="others"))
    assert await waiting(store, Lane.REGISTRATIONS) == ["x1", "a1", "x2", "x3", "other"]
    assert store.outbox_counters(BLOCK) == {}


# The limit


async def test_over_the_limit_the_oldest_registrations_go_and_are_counted(small: SqliteStore) -> None:
    await commit(small, *(sized(f"{number}") for number in range(8)))
    await commit(small, *(sized(f"{number}") for number in range(8, 15)))

    assert await waiting(small, Lane.REGISTRATIONS) == [str(number) for number in range(5, 15)]
    assert small.outbox_counters(BLOCK) == {"dropped": {"outbox_full": 5}}
    assert small.depths()[Lane.REGISTRATIONS] == LaneDepth(10, SMALL)


async def test_what_was_dropped_is_still_counted_after_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        async with opened(tmp_path / "agent.db", max_outbox=SMALL) as store:
            await commit(store, *(sized(f"{number}.{part}", "node") for part in range(2)))
            await commit(store, *(sized(f"{number}.{part}") for part in range(2, 13)))
    async with opened(tmp_path / "agent.db", max_outbox=SMALL) as store:
        assert store.outbox_counters(BLOCK) == {"compacted": {"newer_sample": 2}, "dropped": {"outbox_full": 14}}
        assert store.depths()[Lane.REGISTRATIONS].rows == 10


async def test_advisories_make_registrations_go_and_never_go_themselves(small: SqliteStore) -> None:
    await commit(small, *(sized(f"r{number}") for number in range(9)))
    await commit(small, *(advisory(f"a{number}", size=ROW - 256) for number in range(7)))
    assert await waiting(small, Lane.REGISTRATIONS) == ["r6", "r7", "r8"]
    await commit(small, *(advisory(f"a{number}", size=ROW - 256) for number in range(7, 30)))
    assert await waiting(small, Lane.REGISTRATIONS) == []
    assert await waiting(small, Lane.ADVISORIES) == [f"a{number}" for number in range(30)]
    assert small.outbox_counters(BLOCK) == {"dropped": {"outbox_full": 9}}


async def test_registrations_in_flight_are_not_dropped(small: SqliteStore) -> None:
    await commit(small, *(sized(f"{number}") for number in range(10)))
    assert len(await taken(small, Lane.REGISTRATIONS, 3)) == 3
    await commit(small, *(sized(f"{number}") for number in range(10, 12)))
    assert await waiting(small, Lane.REGISTRATIONS) == [str(number) for number in (0, 1, 2, 5, 6, 7, 8, 9, 10, 11)]


async def test_the_store_pauses_while_advisories_alone_reach_the_limit(small: SqliteStore) -> None:
    await commit(small, *(advisory(f"{number}", size=ROW - 256) for number in range(9)))
    await commit(small, *(sized(f"r{number}") for number in range(20)))
    assert not small.is_paused()
    await asyncio.wait_for(small.wait_for_room(), 60)

    await commit(small, advisory("the last straw", size=ROW - 256))
    assert small.is_paused()
    waiter = asyncio.create_task(small.wait_for_room())
    await small.write_status({"agent": 1})
    assert not waiter.done()

    rows = await taken(small, Lane.ADVISORIES, 1)
    small.delete_through(Lane.ADVISORIES, rows[-1].row_id)
    await asyncio.wait_for(waiter, 60)
    assert not small.is_paused()
    assert small.depths()[Lane.ADVISORIES].rows == 9


async def test_a_registration_that_can_never_be_delivered_is_discarded_and_counted_once(store: SqliteStore) -> None:
    await commit(store, registration("a", "a1"), registration("b", "b1"))
    row, _ = await taken(store, Lane.REGISTRATIONS)
    await store.set_apart([(row, TooLarge(SizeLimit.MAX_PAYLOAD, 1_000))])
    await store.set_apart([(row, TooLarge(SizeLimit.MAX_PAYLOAD, 1_000))])
    assert await waiting(store, Lane.REGISTRATIONS) == ["b1"]
    assert store.outbox_counters(BLOCK) == {"dropped": {"too_large": 1}}
    assert store.depths()[Lane.REGISTRATIONS] == LaneDepth(1, registration("b", "b1").size)


# Deleting


async def test_only_the_acknowledged_prefix_of_one_lane_is_deleted_and_stays_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        await commit(store, *(advisory(f"a{number}") for number in range(5)), registration("n", "r"))
        rows = await taken(store, Lane.ADVISORIES)
        store.delete_through(Lane.ADVISORIES, rows[2].row_id)
        # A later word about an earlier row takes nothing back.
        store.delete_through(Lane.ADVISORIES, rows[0].row_id)
    async with opened(tmp_path / "agent.db") as store:
        assert await waiting(store, Lane.ADVISORIES) == ["a3", "a4"]
        assert await waiting(store, Lane.REGISTRATIONS) == ["r"]


async def test_deletions_become_durable_without_any_other_commit(store: SqliteStore) -> None:
    await commit(store, advisory("a"), advisory("b"))
    rows = await taken(store, Lane.ADVISORIES)
    store.delete_through(Lane.ADVISORIES, rows[0].row_id)
    await until(lambda: store.depths()[Lane.ADVISORIES].rows == 1, "the flusher has deleted the row")
    assert await waiting(store, Lane.ADVISORIES) == ["b"]


async def test_what_was_acknowledged_and_not_yet_deleted_is_sent_again_after_a_kill(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        await commit(store, advisory("a"), advisory("b"))
    killed = await SqliteStore.open(tmp_path / "agent.db", SMALL)
    rows = await taken(killed, Lane.ADVISORIES)
    killed.delete_through(Lane.ADVISORIES, rows[-1].row_id)
    await die(killed)
    async with opened(tmp_path / "agent.db") as store:
        assert [row.row_id for row in await taken(store, Lane.ADVISORIES)] == [row.row_id for row in rows]


async def test_row_ids_rise_across_lanes_and_are_never_used_again(tmp_path: Path) -> None:
    seen: list[int] = []
    for lane in (Lane.ADVISORIES, Lane.REGISTRATIONS, Lane.ADVISORIES):
        async with opened(tmp_path / "agent.db") as store:
            made = [advisory("a") if lane is Lane.ADVISORIES else registration("", "r") for _ in range(3)]
            await commit(store, *made)
            rows = await taken(store, lane)
            seen += [row.row_id for row in rows]
            store.delete_through(lane, rows[-1].row_id)
    assert seen == sorted(set(seen))
    assert len(seen) == 9


async def test_a_row_id_is_not_used_again_after_the_row_was_replaced_or_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db", max_outbox=1 << 20) as store:
        await commit(store, registration("a", "a1"), watermark("w1"))
        await commit(store, watermark("w2"), registration("a", "a2"))
        rows = [*await taken(store, Lane.ADVISORIES), *await taken(store, Lane.REGISTRATIONS)]
    # Nothing fits under this limit: the newest registration goes, too.
    async with opened(tmp_path / "agent.db", max_outbox=1) as store:
        await commit(store, registration("b", "b1"))
        assert await waiting(store, Lane.REGISTRATIONS) == []
    async with opened(tmp_path / "agent.db") as store:
        await commit(store, registration("c", "c1"))
        (row,) = await taken(store, Lane.REGISTRATIONS)
        assert row.row_id > max(row.row_id for row in rows) + 1
