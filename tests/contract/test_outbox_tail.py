"""Rows that are handed out of memory are those that the file holds, whatever was replaced, dropped or sent again."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.core.records import Lane
from edge_agent.store import outbox_index
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.store.quick_files import quick_directory
from tests.support.store.store_batches import BLOCK, advisory, batch, copy, opened, registration, watermark

STEPS = 300


@pytest.fixture
def quick_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield Path(directory)


def in_file(path: Path, lane: Lane, after: int, limit: int) -> list[tuple[int, bytes]]:
    table = {Lane.ADVISORIES: "advisory_outbox", Lane.REGISTRATIONS: "registration_outbox", Lane.COPIES: "copy_outbox"}
    query = f"SELECT row_id, payload FROM {table[lane]} WHERE row_id > ? ORDER BY row_id LIMIT ?"
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query, (after, limit)).fetchall()


async def test_a_row_that_leaves_at_once_is_not_read_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        done: list[str] = []
        await store._database.set_trace_callback(done.append)
        await store.commit(batch(1, [advisory("a"), registration("n", "r"), copy("c")]))
        rows = [row for lane in Lane for row in await store.pending(lane, 0, 10)]
        assert [(row.row_id, row.payload) for row in rows] == [(1, b"a"), (2, b"r"), (3, b"c")]
        assert not [text for text in done if text.startswith("SELECT") and "payload" in text]


async def test_what_another_member_has_delivered_is_not_kept_in_memory(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, [registration("n", "r"), registration("m", "s"), registration("o", "t")]))
        store.delete_through(Lane.REGISTRATIONS, 2)
        tail = store._index.tail._lanes[Lane.REGISTRATIONS]
        assert ([*tail.rows], tail.begins_after, tail.size) == ([3], 2, tail.rows[3].size)
        assert [row.row_id for row in await store.pending(Lane.REGISTRATIONS, 2, 10)] == [3]


@pytest.mark.parametrize("most_bytes", [3_000, 1 << 20])
async def test_what_is_handed_out_is_what_the_file_holds(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(outbox_index, "MOST_BYTES", most_bytes)
    path = quick_path / "agent.db"
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    read_through = dict.fromkeys(Lane, 0)
    deleted_through = dict.fromkeys(Lane, 0)
    async with opened(path, max_outbox=40_000) as store:
        for step in range(STEPS):
            lane = random.choice(list(Lane))
            match random.randrange(6):
                case 0 | 1 | 2:
                    await commit_some(store, step)
                case 3:
                    limit = random.randint(1, 20)
                    expected = in_file(path, lane, read_through[lane], limit)
                    rows = await store.pending(lane, read_through[lane], limit)
                    assert [(row.row_id, row.payload) for row in rows] == expected
                    read_through[lane] = rows[-1].row_id if rows else read_through[lane]
                case 4:
                    store.release(lane)
                    read_through[lane] = deleted_through[lane]
                case _:
                    deleted_through[lane] = random.randint(deleted_through[lane], read_through[lane])
                    store.delete_through(lane, deleted_through[lane])
                    if random.random() < 0.2:
                        await store.drop_registrations(BLOCK)


async def commit_some(store: SqliteStore, step: int) -> None:
    rows = [
        random.choice(
            [
                advisory(f"a{step}"),
                watermark(f"w{step}"),
                watermark(f"x{step}", block="others"),
                copy(f"c{step}"),
                registration(f"node{random.randrange(5)}", f"r{step}", size=random.randint(1, 1_000)),
            ]
        )
        for _ in range(random.randint(1, 6))
    ]
    await store.commit(batch(step + 1, rows))
