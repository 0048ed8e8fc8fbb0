"""A disk that fails proves nothing of what it holds: a sound store is kept, and the disk is named."""

import os
import sqlite3
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.records import Lane
from edge_agent.store import files, schema
from edge_agent.store.files import Preparation, StoreUnusable, prepare, set_aside_before
from edge_agent.store.port import StoreFailing
from edge_agent.store.sqlite import StoreDamaged
from tests.support.store.failing_disk import dead_sector, fail, failing_disk
from tests.support.store.store_batches import BLOCK, advisory, batch, fill, opened, read_wholly, waiting

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


async def test_a_store_that_its_disk_does_not_give_is_refused_and_left_where_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(path)
    pauses: list[float] = []
    monkeypatch.setattr("edge_agent.store.files.time.sleep", pauses.append)
    with dead_sector(path), pytest.raises(StoreUnusable) as refusal:
        prepare(path)
    remedy = "its disk fails: the store is left as it is, and the kernel's log says more; replace the disk"
    assert str(refusal.value) == f"store {path}: input/output error; {remedy}"
    assert pauses == list(files.LOOK_AGAIN_AFTER)
    assert prepare(path) == Preparation(was_lost=False)
    await read_wholly(path)


@pytest.mark.parametrize("version", [schema.VERSION, schema.VERSION + 1])
async def test_a_store_that_its_disk_does_not_give_for_a_moment_is_taken_as_it_is(
    path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version={version}")
    with ExitStack() as trouble:
        trouble.enter_context(dead_sector(path))
        monkeypatch.setattr("edge_agent.store.files.time.sleep", lambda _: trouble.close())
        if version == schema.VERSION:
            assert prepare(path) == Preparation(was_lost=False)
        else:
            with pytest.raises(StoreUnusable, match="use a newer agent"):
                prepare(path)
    assert not set_aside_before(path)


@pytest.mark.parametrize(
    ("met", "check", "times"),
    [
        (None, "quick_check", 1),
        # Where memory is smaller than the store, what was just read through has to be read again.
        (None, "quick_check", 2),
        (StoreDamaged("malformed", is_proven=False), "integrity_check", 1),
    ],
)
async def test_a_check_that_fails_for_the_disks_sake_sets_nothing_aside(
    path: Path, monkeypatch: pytest.MonkeyPatch, met: StoreDamaged | None, check: str, times: int
) -> None:
    """SQLite calls a file malformed whose pages the kernel does not give."""
    await fill(path)
    failures: list[str] = []

    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if check in sql and len(failures) < times:
                failures.append(sql)
                for kept in fail(path).values():
                    os.close(kept)
            return super().execute(sql, *parameters)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Failing))
        assert prepare(path, met) == Preparation(was_lost=False)
    assert len(failures) == times
    await read_wholly(path)


async def test_a_store_whose_disk_fails_while_it_is_used_is_kept(path: Path) -> None:
    await fill(path)
    async with opened(path) as store:
        with closing(sqlite3.connect(path)) as other, other:
            # What the store has in memory is no longer valid.
            other.execute("INSERT INTO status VALUES ('another', '')")
        with failing_disk(path), pytest.raises(StoreDamaged) as met:
            await store.pending(Lane.REGISTRATIONS, 0, 1_000)
    assert not met.value.is_proven
    assert prepare(path, met.value) == Preparation(was_lost=False)
    await read_wholly(path)


async def test_damage_that_sqlite_met_is_believed_where_a_look_at_everything_finds_it(path: Path) -> None:
    await fill(path)
    with closing(sqlite3.connect(path)) as database:
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_block_1'")
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(BLOCK.encode(), (root - 1) * PAGE))
        file.write(b"other")
    # The check at the start does not hold indexes against their tables.
    assert prepare(path) == Preparation(was_lost=False)
    met = StoreDamaged("database disk image is malformed", is_proven=False)
    assert prepare(path, met).set_aside == path.with_name("agent.db.corrupt-1")


async def test_damage_in_names_that_are_no_text_any_more_is_damage(path: Path) -> None:
    await fill(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema=ON")
        # One more column, by the name of one byte that is no UTF-8; every row lacks it.
        database.execute(
            "UPDATE sqlite_master SET sql = CAST(CAST(rtrim(sql, ')') AS BLOB) || X'2C2022A922204E4F54204E554C4C29'"
            " AS TEXT) WHERE name = 'origin'"
        )
    assert prepare(path).set_aside == path.with_name("agent.db.corrupt-1")


async def test_a_disk_with_room_that_cannot_be_written_is_called_failing_and_changes_nothing(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a")]))
        with failing_disk(path), pytest.raises(StoreFailing, match=r"disk I/O error \(SQLITE_IOERR_WRITE\)"):
            await store.commit(batch(2, [advisory("b")]))
        assert await waiting(store, Lane.ADVISORIES) == ["a"]
        await store.commit(batch(2, [advisory("b")]))
        assert await waiting(store, Lane.ADVISORIES) == ["a", "b"]
    async with opened(path) as store:
        assert await waiting(store, Lane.ADVISORIES) == ["a", "b"]
