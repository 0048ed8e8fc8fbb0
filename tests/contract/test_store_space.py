"""A full disk stops commits and loses nothing; the store goes on by itself, and gives back what it no longer needs."""

import asyncio
import gc
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from edge_agent.core.records import Lane
from edge_agent.store import housekeeping, sqlite_store
from edge_agent.store.housekeeping import FREE_PAGES_KEPT, PAGE_SIZE
from edge_agent.store.port import StoreFull, StoreLocked
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.store.store_batches import (
    ALL_ROWS,
    BLOCK,
    advisory,
    batch,
    opened,
    registration,
    sender,
    state_at,
    waiting,
)
from tests.support.waiting import until

BALLAST = 4 << 20


class SmallDisk:
    """A disk of its own for the store, of which somebody else may use the rest."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "agent.db"
        self._ballast = directory / "ballast"

    def fill(self) -> None:
        """Leave not one byte."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(BALLAST)):
                    pass
            except OSError:
                pass

    def make_room(self) -> None:
        self._ballast.unlink()


def mounted(directory: Path, megabytes: int) -> Iterator[SmallDisk]:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a disk of its own for the store can be mounted by root only")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    yield from mounted(tmp_path / "disk", 24)


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    yield from mounted(tmp_path / "disk", 96)


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Let reading a store's files fail, for this process, as on a disk that is broken."""
    names = {str(path), f"{path}-wal"}
    files = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if os.path.realpath(entry) in names]
    kept = [os.dup(file) for file in files]
    nothing = os.open(os.devnull, os.O_WRONLY)
    for file in files:
        os.dup2(nothing, file)
    os.close(nothing)
    try:
        yield
    finally:
        for file, copy in zip(files, kept, strict=True):
            os.dup2(copy, file)
            os.close(copy)


async def fill_with_rows(store: SqliteStore) -> int:
    """Commit until the store is full; give the last batch that was committed."""
    number = 0
    while True:
        rows = [registration(f"{number}.{part}", f"{number}.{part}", size=10_000) for part in range(50)]
        try:
            await store.commit(batch(number + 1, rows, heard=[sender(number)]))
        except StoreFull:
            return number
        number += 1


async def test_a_full_disk_changes_nothing_and_commits_go_on_when_there_is_room(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "DISK_RESERVE", 0)
    async with opened(disk.path) as store:
        await store.commit(batch(1, [advisory("a")], heard=[sender(0)]))
        disk.fill()
        number = await fill_with_rows(store)
        full = await store.load_block(BLOCK)
        depths, counters = store.depths(), store.outbox_counters(BLOCK)
        with pytest.raises(StoreFull):
            await store.commit(batch(3, [advisory("never", size=1 << 20)], heard=[sender(2)]))
        assert (store.depths(), store.outbox_counters(BLOCK)) == (depths, counters)

        disk.make_room()
        await store.commit(batch(4, [advisory("b")]))
        known = await store.load_block(BLOCK)
        assert full is not None
        assert known is not None
        assert (full[0].position.sequence, known[0]) == (number or 1, state_at(4))
        assert known[1].slots == full[1].slots
        assert await waiting(store, Lane.ADVISORIES) == ["a", "b"]


async def test_a_commit_that_meets_a_full_disk_after_its_block_was_stopped_is_no_error_of_the_program(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "DISK_RESERVE", 0)
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: errors.append(told["message"]))
    async with opened(disk.path) as store:
        await store.commit(batch(1, [advisory("a")], heard=[sender(0)]))
        disk.fill()
        number = await fill_with_rows(store) or 1
        commit = asyncio.create_task(store.commit(batch(number + 1, [advisory("never", size=1 << 20)])))
        await asyncio.sleep(0)
        commit.cancel()
        await asyncio.wait([commit])
        assert commit.cancelled()
        with pytest.raises(StoreFull):
            await store.commit(batch(number + 2, [advisory("never", size=1 << 20)]))
        gc.collect()
        known = await store.load_block(BLOCK)
        assert known is not None
        assert (errors, known[0].position.sequence) == ([], number)


async def test_a_store_on_a_full_disk_can_be_closed_and_loses_nothing(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "DISK_RESERVE", 0)
    async with opened(disk.path) as store:
        number = await fill_with_rows(store)
        disk.fill()
        rows = await store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
        store.delete_through(Lane.REGISTRATIONS, rows[-1].row_id)
    disk.make_room()
    async with opened(disk.path) as store:
        known = await store.load_block(BLOCK)
        assert known is not None
        assert known[0] == state_at(number)


async def test_a_disk_that_the_outbox_filled_is_free_again_once_the_region_has_everything(
    larger_disk: SmallDisk,
) -> None:
    async with opened(larger_disk.path) as store:
        number = await fill_with_rows(store)
        await store.write_status({"agent": "the last of the disk is left for this"})
        rows = await store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
        assert len(rows) == number * 50
        store.delete_through(Lane.REGISTRATIONS, rows[-1].row_id)
        await until(lambda: not store.depths()[Lane.REGISTRATIONS].rows, "what was acknowledged is deleted")
        await store.commit(batch(number + 1, [registration("n", "r", size=10_000)] * 50))


async def test_space_is_given_back_after_a_large_outbox_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        for number in range(1, 13):
            await store.commit(batch(number, [registration("", "r", size=20_000)] * 200))
        large = path.stat().st_size
        rows = await store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
        store.delete_through(Lane.REGISTRATIONS, rows[-1].row_id)
        kept = FREE_PAGES_KEPT * PAGE_SIZE
        await until(lambda: path.stat().st_size < kept + (1 << 20), "the file is small again")
    assert large > 2 * kept


def has_registrations(store: SqliteStore, rows: int) -> bool:
    return store.depths()[Lane.REGISTRATIONS].rows == rows


async def test_while_a_large_outbox_drains_what_waits_is_not_moved_about(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        for number in range(1, 13):
            await store.commit(batch(number, [registration("", "r", size=20_000)] * 200))
        rows = await store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
        large = path.stat().st_size
        for left in (1_800, 1_600, 1_400, 1_200, 1_000, 800):
            store.delete_through(Lane.REGISTRATIONS, rows[-1 - left].row_id)
            await until(partial(has_registrations, store, left), "so many are deleted")
        assert path.stat().st_size >= large
        await until(lambda: path.stat().st_size < large, "some is given back when it stands still")


async def test_a_reader_who_takes_his_time_holds_up_no_commit_while_space_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "LOCK_PATIENCE", 600.0)
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        for number in range(1, 13):
            await store.commit(batch(number, [registration("", "r", size=20_000)] * 200))
        with closing(sqlite3.connect(path)) as looking, closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM registration_outbox").fetchone()
            rows = await store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
            store.delete_through(Lane.REGISTRATIONS, rows[-1].row_id)

            def is_given_back() -> bool:
                """Look by a connection of its own: a question beside it ends what the store does about its log."""
                ((pages,),) = looking.execute("PRAGMA freelist_count")
                return bool(0 < pages <= FREE_PAGES_KEPT)

            await until(is_given_back, "the pages are given back")
            async with asyncio.timeout(60):
                await store.commit(batch(13, [advisory("a")]))
            reader.execute("COMMIT")


async def test_a_store_that_somebody_else_keeps_locked_for_a_while_deletes_later_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store._database.execute("PRAGMA busy_timeout=1")
        await store.commit(batch(1, [advisory("a")]))
        (row,) = await store.pending(Lane.ADVISORIES, 0, ALL_ROWS)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            store.delete_through(Lane.ADVISORIES, row.row_id)
            failures = store.commits.failed
            await until(lambda: store.commits.failed > failures + 2, "the store has tried again")
            with pytest.raises(StoreLocked) as refusal:
                await store.commit(batch(2, [advisory("b")]))
            assert str(refusal.value) == f"another process keeps {path} locked; end that one"
            assert store.depths()[Lane.ADVISORIES].rows == 1
            other.execute("ROLLBACK")
        await until(lambda: not store.depths()[Lane.ADVISORIES].rows, "the acknowledged row is deleted")
        await store.commit(batch(2, [advisory("b")]))
    said = f"another process keeps {path} locked; end that one; trying again"
    assert caplog.messages == [f"store {path}: what was delivered cannot be deleted: {said}"]


async def test_a_store_that_is_locked_can_be_closed_and_sends_again_what_it_could_not_delete(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(path))
        await store._database.execute("PRAGMA busy_timeout=1")
        await store.commit(batch(1, [advisory("a")]))
        (row,) = await store.pending(Lane.ADVISORIES, 0, ALL_ROWS)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            store.delete_through(Lane.ADVISORIES, row.row_id)
            await stack.aclose()
    async with opened(path) as store:
        assert await waiting(store, Lane.ADVISORIES) == ["a"]


async def test_a_disk_that_cannot_be_read_where_it_is_nearly_full_stops_a_commit_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a")]))
        monkeypatch.setattr(housekeeping, "DISK_RESERVE", 1 << 60)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            # What the store has in memory is no longer valid.
            other.execute("DELETE FROM status")
            other.execute("INSERT INTO status VALUES ('another', '')")
        with unreadable(path), pytest.raises(StoreFull, match="disk I/O error"):
            await store.commit(batch(2, [advisory("b")]))
        monkeypatch.setattr(housekeeping, "DISK_RESERVE", 0)
        await store.commit(batch(2, [advisory("b")]))
        assert await waiting(store, Lane.ADVISORIES) == ["a", "b"]
