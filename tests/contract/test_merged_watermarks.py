"""Unsent watermarks merge where nothing of their block lies between: what waits does not grow with time."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.store.port import LaneDepth
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.store.store_batches import ALL_ROWS, advisory, batch, opened, registration, waiting, watermark


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "agent.db") as store:
        yield store


async def commit(store: SqliteStore, *rows: OutboxRow) -> None:
    await store.commit(batch(1, rows))


async def taken(store: SqliteStore) -> list[OutboxRow]:
    """Read advisories and watermarks as the uploader does: from then on they are in flight."""
    return await store.pending(Lane.ADVISORIES, 0, ALL_ROWS)


async def test_adjacent_unsent_watermarks_of_one_coverage_merge_into_the_newest(store: SqliteStore) -> None:
    await commit(store, watermark("w1"))
    await commit(store, watermark("w2"), registration("a", "between lanes"))
    await commit(store, watermark("w3"), watermark("w4"), advisory("a"), watermark("w5"))

    assert await waiting(store, Lane.ADVISORIES) == ["w4", "a", "w5"]
    found = await taken(store)
    assert store.depths()[Lane.ADVISORIES] == LaneDepth(3, sum(row.size for row in found))


@pytest.mark.parametrize(
    "between",
    [
        pytest.param((watermark("w2", since=2),), id="another coverage"),
        pytest.param((watermark("w2", block="others"),), id="another block"),
        pytest.param((advisory("a"), watermark("x", block="others"), watermark("w2")), id="an advisory among others'"),
        pytest.param((advisory("a"), watermark("w2")), id="an advisory between"),
    ],
)
async def test_watermarks_do_not_merge_across(store: SqliteStore, between: tuple[OutboxRow, ...]) -> None:
    await commit(store, watermark("w1"))
    await commit(store, *between)
    assert await waiting(store, Lane.ADVISORIES) == ["w1", *(row.payload.decode() for row in between)]


async def test_watermarks_do_not_merge_across_what_one_batch_puts_between(store: SqliteStore) -> None:
    await commit(store, watermark("w1"), watermark("w2", since=2), watermark("w3", since=2), watermark("w4", since=1))
    assert await waiting(store, Lane.ADVISORIES) == ["w1", "w3", "w4"]


async def test_a_watermark_in_flight_is_not_merged(store: SqliteStore) -> None:
    await commit(store, watermark("w1"))
    await taken(store)
    await commit(store, watermark("w2"))
    await commit(store, watermark("w3"))
    assert await waiting(store, Lane.ADVISORIES) == ["w1", "w3"]


async def test_watermarks_of_two_blocks_are_as_few_after_twenty_intervals_as_after_two(store: SqliteStore) -> None:
    for number in range(20):
        await commit(store, watermark(f"w{number}"))
        await commit(store, watermark(f"x{number}", block="others"))
    assert await waiting(store, Lane.ADVISORIES) == ["w0", "x0", "w19", "x19"]
    found = await taken(store)
    assert store.depths()[Lane.ADVISORIES] == LaneDepth(4, sum(row.size for row in found))


async def test_watermarks_of_two_blocks_merge_beside_advisories_of_one(store: SqliteStore) -> None:
    await commit(store, watermark("w0"))
    for number in range(20):
        await commit(store, advisory(f"a{number}", block="others"))
        await commit(store, watermark(f"w{number + 1}"), watermark(f"x{number}", block="others"))
    found = await waiting(store, Lane.ADVISORIES)
    assert [text for text in found if text.startswith("w")] == ["w0", "w20"]
    assert [text for text in found if text[0] in "ax"] == [f"{kind}{each}" for each in range(20) for kind in "ax"]


async def test_a_block_does_not_wait_for_all_that_another_goes_on_appending(store: SqliteStore) -> None:
    told, after = [], 0
    await commit(store, *(advisory(f"a{number}", block="others") for number in range(8)))
    for number in range(20):
        await commit(store, watermark(f"w{number}"))
        await commit(store, *(advisory(f"b{number}.{part}", block="others") for part in range(4)))
        rows = await store.pending(Lane.ADVISORIES, after, 4)
        after = rows[-1].row_id
        told += [row.payload.decode() for row in rows if row.is_watermark]
    assert len(told) > 4, "it waits behind a lane that never becomes empty"
    assert told == sorted(told, key=lambda text: int(text[1:]))


async def test_none_that_a_transaction_may_replace_leaves_meanwhile(store: SqliteStore) -> None:
    await commit(store, advisory("a"), watermark("w"), advisory("b", "others"), watermark("x", block="others"))

    def at_hand(after: int) -> list[bytes] | None:
        rows = store.at_hand(Lane.ADVISORIES, after, 10)
        return None if rows is None else [row.payload for row in rows]

    async with store._lock:
        assert (at_hand(0), at_hand(1)) == ([b"a"], None)
    assert [row.payload for row in await store.pending(Lane.ADVISORIES, 1, 1)] == [b"w"]
    async with store._lock:
        assert (at_hand(2), at_hand(3)) == ([b"b"], None)


async def test_a_watermark_that_was_acknowledged_is_not_merged_away_twice(store: SqliteStore) -> None:
    await commit(store, watermark("w1"))
    rows = await taken(store)
    store.delete_through(Lane.ADVISORIES, rows[-1].row_id)
    store.release(Lane.ADVISORIES)
    await commit(store, watermark("w2"))
    assert store.depths()[Lane.ADVISORIES] == LaneDepth(1, watermark("w2").size)
