"""The headers that messages came with count: an outbox takes on disk about what its limit says, whatever waits."""

from pathlib import Path

import pytest

from edge_agent.core.copy_mode import CopyEmitter
from edge_agent.core.decisions import Copy, Decision, Forward
from edge_agent.core.observation import SourceMessage
from edge_agent.core.records import Emitter, Lane, OutboxRow, WatermarkContext
from edge_agent.delivery.fast_path import ROOM, FastPath
from edge_agent.store.port import LaneDepth
from edge_agent.store.sqlite_store import SqliteStore
from shared.wire import ForwardReason
from tests.support.store.store_batches import ALL_ROWS, BLOCK, BLOCK_ID, batch, opened, state_at

LIMIT = 1 << 20
COUNT = 1_000
HEADER = {"X-Own": "y" * 4_000}
SIZE = 4_000 + 200
"""About what one of these takes."""

CONTEXT = WatermarkContext({}, {}, {})


def messages(count: int = COUNT) -> list[SourceMessage]:
    return [SourceMessage("reg", b"x" * 200, HEADER, number, number) for number in range(1, count + 1)]


def copies(count: int = COUNT) -> list[OutboxRow]:
    made: list[Decision] = [Copy(message, "copy.reg") for message in messages(count)]
    return CopyEmitter(BLOCK_ID, bytes(32)).rows(made, state_at(1), CONTEXT)


def samples() -> list[OutboxRow]:
    emitter = Emitter(BLOCK_ID, "dub1-a", "boot", "1", "sender", bytes(32))
    made: list[Decision] = [Forward("", message, ForwardReason.NEW) for message in messages()]
    return emitter.rows(made, state_at(1), CONTEXT)


async def used(store: SqliteStore) -> int:
    """Measure what the store's tables take, in bytes."""
    async with store._database.execute(
        "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, "
        "pragma_freelist_count, pragma_page_size"
    ) as cursor:
        row = await cursor.fetchone()
    assert row
    return int(row[0])


async def test_copies_with_large_headers_pause_reading_before_they_take_much_more_than_the_limit(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "agent.db", max_outbox=LIMIT) as store:
        rows = copies()
        while rows and not store.is_paused():
            await store.commit(batch(1, rows[:10]))
            del rows[:10]
        assert store.is_paused()
        assert await used(store) < 2 * LIMIT


async def test_samples_with_large_headers_go_before_they_take_much_more_than_the_limit(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db", max_outbox=LIMIT) as store:
        await store.commit(batch(1, samples()))
        depth = store.depths()[Lane.REGISTRATIONS]
        assert LIMIT // 2 < depth.size <= LIMIT
        assert store.outbox_counters(BLOCK) == {"dropped": {"outbox_full": COUNT - depth.rows}}
        assert await used(store) < 2 * LIMIT


@pytest.mark.parametrize("count", [10, COUNT])
async def test_a_row_has_the_size_that_it_was_counted_with_however_it_is_read(tmp_path: Path, count: int) -> None:
    path = tmp_path / "agent.db"
    rows = samples()[:count]
    size = sum(row.size for row in rows)
    assert size > count * SIZE
    async with opened(path) as store:
        await store.commit(batch(1, rows))
        assert store.depths()[Lane.REGISTRATIONS] == LaneDepth(count, size)
        assert (store._index.chunked[Lane.REGISTRATIONS] > 0) == (count == COUNT)
    async with opened(path) as store:
        assert store.depths()[Lane.REGISTRATIONS] == LaneDepth(count, size)
        read = await store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
        assert sum(row.size for row in read) == size
        store.delete_through(Lane.REGISTRATIONS, read[-1].row_id)
        await store.write_status({})
        assert store.depths()[Lane.REGISTRATIONS] == LaneDepth(0, 0)


def test_what_passes_the_store_by_is_bounded_with_its_headers() -> None:
    fast_path = FastPath(lambda: False)
    fast_path.link_is_up(lambda: None)
    assert fast_path.try_open()
    fast_path.hand_over(copies(ROOM // SIZE))
    assert fast_path.is_full
