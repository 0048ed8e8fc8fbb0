"""What is set apart is kept whole, within a bound of its own, counted once, and outlives whatever ends the agent."""

import base64
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from edge_agent.core.records import Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.inspection.outbox import SetApartRow, drop_set_apart, list_set_apart, write_set_apart
from edge_agent.store.files import prepare
from edge_agent.store.port import EVERYTHING, LaneDepth, Retry, SetApart
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.faults import database as fault_database
from tests.support.store.store_batches import ALL_ROWS, BLOCK, advisory, batch, copy, die, opened, registration, waiting

ROOM = 8 << 20
BOUND = ROOM // 4
OF_SERVERS = TooLarge(SizeLimit.MAX_PAYLOAD, 100_500)
OF_STREAM = TooLarge(SizeLimit.MAX_MSG_SIZE, 100_500)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


async def set_apart(store: SqliteStore, rows: Sequence[OutboxRow], too_large: TooLarge = OF_SERVERS) -> None:
    """Let rows wait, and set them apart as an uploader does."""
    await store.commit(batch(1, rows))
    for lane in {row.lane for row in rows}:
        for row in await store.pending(lane, store.acknowledged_through()[lane], ALL_ROWS):
            await store.set_apart([(row, too_large)])
            store.delete_through(lane, row.row_id)


def rows_apart(path: Path) -> list[SetApartRow]:
    with closing(sqlite3.connect(path)) as database:
        return list_set_apart(database)


async def test_a_row_is_there_once_however_the_agent_ends(path: Path) -> None:
    prepare(path)
    store = await SqliteStore.open(path, ROOM)
    await store.commit(batch(1, [copy("before"), copy("large", size=100_000), copy("behind")]))
    _, large, _ = await store.pending(Lane.COPIES, 0, ALL_ROWS)
    await store.set_apart([(large, OF_SERVERS)])
    await store.set_apart([(large, OF_SERVERS)])
    await die(store)
    async with opened(path, ROOM) as store:
        assert await waiting(store, Lane.COPIES) == ["before", "behind"]
        assert store.set_apart_depth() == LaneDepth(1, 100_256)
        assert store.outbox_counters(BLOCK) == {"set_apart": {"max_payload": 1}}
        assert await store.smallest_set_apart() == [SetApart(Lane.COPIES, BLOCK, large.row_id, OF_SERVERS)]
        (row_id,) = await store.retry(Retry(Lane.COPIES, BLOCK, OF_SERVERS.limit, OF_SERVERS.needed))
        *_, again = await store.pending(Lane.COPIES, 0, ALL_ROWS)
        assert (again.row_id, again.subject, again.headers, again.payload) == (
            row_id,
            large.subject,
            large.headers,
            large.payload,
        )
        assert store.set_apart_depth() == LaneDepth()


async def test_a_row_that_was_tried_again_is_no_news(path: Path) -> None:
    async with opened(path, ROOM) as store:
        await set_apart(store, [copy("large", size=100_000)], OF_STREAM)
        (first,) = rows_apart(path)
        for _ in range(2):
            (row_id,) = await store.retry(Retry(Lane.COPIES, BLOCK, OF_STREAM.limit, EVERYTHING))
            (row,) = await store.pending(Lane.COPIES, 0, ALL_ROWS)
            await store.set_apart([(row, OF_STREAM)])
            assert await store.has_set_apart(row_id)
        (last,) = rows_apart(path)
        assert (last.at, last.row_id > first.row_id) == (first.at, True)
        assert store.outbox_counters(BLOCK) == {"set_apart": {"max_msg_size": 1}}


async def test_beyond_its_bound_the_oldest_copies_go_and_no_advisory_before_them(path: Path) -> None:
    async with opened(path, ROOM) as store:
        await set_apart(store, [advisory("a", size=100_000)])
        await set_apart(store, [copy(f"c{number}", size=100_000) for number in range(30)])
        kept = BOUND // 100_256
        depth = store.set_apart_depth()
        assert depth == LaneDepth(kept, kept * 100_256)
        assert not store.is_paused()
        assert store.depths()[Lane.COPIES].rows == 0
        assert store.outbox_counters(BLOCK) == {
            "set_apart": {"max_payload": 31},
            "dropped": {"set_apart_full": 31 - kept},
        }
        taken = await store.retry(Retry(Lane.COPIES, BLOCK, OF_SERVERS.limit, EVERYTHING))
        assert len(taken) == kept - 1
        assert await waiting(store, Lane.COPIES) == [f"c{number}" for number in range(31 - kept, 30)]


async def test_rows_of_a_chunk_are_set_apart_alone(path: Path) -> None:
    async with opened(path, ROOM) as store:
        await store.commit(batch(1, [advisory(f"a{number}") for number in range(200)]))
        rows = await store.pending(Lane.ADVISORIES, 0, ALL_ROWS)
        await store.set_apart([(rows[77], OF_STREAM)])
        assert await waiting(store, Lane.ADVISORIES) == [f"a{number}" for number in range(200) if number != 77]
        assert [row.row_id for row in rows_apart(path)] == [rows[77].row_id]


async def test_what_goes_back_is_chosen_by_block_lane_limit_and_size_the_smallest_first(path: Path) -> None:
    async with opened(path, ROOM) as store:
        for needed in (300, 100, 200):
            rows = [copy(f"c{needed}"), copy(f"other{needed}", "events"), advisory(f"a{needed}")]
            await set_apart(store, rows, TooLarge(SizeLimit.MAX_MSG_SIZE, needed))
        await set_apart(store, [copy("of servers")], TooLarge(SizeLimit.MAX_PAYLOAD, 90))
        assert {(each.lane, each.block, each.too_large) for each in await store.smallest_set_apart()} == {
            (Lane.COPIES, BLOCK, TooLarge(SizeLimit.MAX_MSG_SIZE, 100)),
            (Lane.COPIES, BLOCK, TooLarge(SizeLimit.MAX_PAYLOAD, 90)),
            (Lane.COPIES, "events", TooLarge(SizeLimit.MAX_MSG_SIZE, 100)),
            (Lane.ADVISORIES, BLOCK, TooLarge(SizeLimit.MAX_MSG_SIZE, 100)),
        }
        await store.retry(Retry(Lane.COPIES, BLOCK, OF_STREAM.limit, 250, byte_limit=1))
        assert await waiting(store, Lane.COPIES) == ["c100"]
        await store.retry(Retry(Lane.COPIES, BLOCK, OF_STREAM.limit, 250))
        assert await waiting(store, Lane.COPIES) == ["c100", "c200"]
        assert [row.subject for row in rows_apart(path) if row.needed == 200].count(copy("").subject) == 0
        assert store.set_apart_depth().rows == 8


async def test_an_export_has_the_bytes_and_the_headers(path: Path) -> None:
    payload = bytes(range(256)) * 400
    async with opened(path, ROOM) as store:
        row = copy("large")
        await set_apart(store, [OutboxRow(Lane.COPIES, BLOCK, row.subject, {"X-Own": "ü"}, payload)])
        file = BytesIO()
        with closing(sqlite3.connect(path)) as database:
            assert write_set_apart(database, list_set_apart(database), file) == 1
    (line,) = file.getvalue().splitlines()
    record = msgspec.json.decode(line)
    assert (base64.b64decode(record["payload"]), record["headers"], record["needed"]) == (
        payload,
        {"X-Own": "ü"},
        100_500,
    )


@pytest.mark.parametrize("has_agent", [True, False])
async def test_an_operator_drops_what_is_set_apart_and_nothing_else(path: Path, has_agent: bool) -> None:
    async with opened(path, ROOM) as store:
        await set_apart(store, [copy("large"), copy("other", "events"), advisory("a")])
        await store.commit(batch(2, [registration("", "r"), copy("c")]))
        dropped = await store.drop_set_apart(BLOCK) if has_agent else None
    dropped = dropped or await drop_set_apart(path, BLOCK)
    assert dropped.rows == 2
    async with opened(path, ROOM) as store:
        assert [row.stream for row in rows_apart(path)] == ["events"]
        assert await waiting(store, Lane.COPIES) == ["c"]
        assert store.outbox_counters(BLOCK)["dropped"] == {"operator": 2}


async def test_a_store_that_is_put_back_to_the_first_version_keeps_an_advisory_that_was_set_apart(path: Path) -> None:
    async with opened(path, ROOM) as store:
        await set_apart(store, [advisory("large")])
        await store.commit(batch(2, [advisory("behind")]))
    fault_database.change(path, "make_old")
    async with opened(path, ROOM) as store:
        assert await waiting(store, Lane.ADVISORIES) == ["behind", "large"]


async def test_a_store_with_a_copy_set_apart_is_not_put_back_to_read_all_behind_it_again(path: Path) -> None:
    async with opened(path, ROOM) as store:
        await set_apart(store, [copy("large")])
        await store.commit(batch(9, [copy("behind")]))
    fault_database.change(path, "make_old")
    async with opened(path, ROOM) as store:
        assert await waiting(store, Lane.COPIES) == ["behind"]
        assert [row.stream for row in rows_apart(path)] == ["nodes"]
