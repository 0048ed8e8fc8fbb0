"""A store that an older agent wrote goes on as if it had always been ours; one of a newer agent is not touched."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.core.records import Lane
from edge_agent.core.senders import SenderPhase
from edge_agent.store import files, schema
from edge_agent.store.files import Preparation, StoreUnusable, prepare
from edge_agent.store.port import LaneDepth
from edge_agent.store.read_only import StoreUnreadable, store_reader
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.store.old_stores import STATEMENTS, make_old_store
from tests.support.store.store_batches import (
    ALL_ROWS,
    BLOCK,
    ROOM,
    advisory,
    batch,
    copy,
    opened,
    registration,
    sender,
    state_at,
)

OLD_VERSIONS = range(files.OLDEST, schema.VERSION)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def contents(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump(), str(database.execute("PRAGMA user_version").fetchone()[0])]


def tables(path: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as database:
        return set(database.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))


def test_every_released_version_has_a_golden_store() -> None:
    assert sorted(each.name for each in STATEMENTS.iterdir()) == [f"version_{each}.sql" for each in OLD_VERSIONS]


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_a_migrated_store_has_the_tables_of_a_new_one(path: Path, version: int) -> None:
    make_old_store(path, version)
    assert prepare(path) == Preparation(was_lost=False, migrated_from=version)
    assert prepare(path) == Preparation(was_lost=False)
    prepare(path.with_name("new.db"))
    assert tables(path) == tables(path.with_name("new.db"))


@pytest.mark.parametrize("version", OLD_VERSIONS)
async def test_what_an_older_agent_knew_and_had_not_sent_is_all_there(path: Path, version: int) -> None:
    make_old_store(path, version)
    async with opened(path) as store:
        known = await store.load_block(BLOCK)
        assert known is not None
        state, senders = known
        assert state == state_at(5)
        found = {sender_id: senders.load(slot) for sender_id, slot in senders.slots.items()}
        assert list(found.values()) == [
            sender(1, seen_at=1),
            sender(2, seen_at=4, digest=(1 << 64) - 1),
            sender(3, seen_at=3, phase=SenderPhase.STALE),
        ]
        assert [row.row_id for row in await store.pending(Lane.ADVISORIES, 0, ALL_ROWS)] == [3, 5, 8]
        first, second = await store.pending(Lane.REGISTRATIONS, 0, ALL_ROWS)
        assert (first.row_id, first.payload, first.headers["X-Site"]) == (6, b'{"fqdn":"n3"}', "café")
        assert first.headers["Nats-Msg-Id"] == "a26c1eea22574222ae70384e3e9959dc"
        assert (second.row_id, second.payload) == (7, b'{"fqdn":"n2","again":true}')
        assert store.outbox_counters(BLOCK) == {"compacted": {"newer_sample": 1}}
        assert store.depths() == {
            Lane.ADVISORIES: LaneDepth(3, 2205),
            Lane.REGISTRATIONS: LaneDepth(2, 551),
            Lane.COPIES: LaneDepth(),
        }


@pytest.mark.parametrize("version", OLD_VERSIONS)
async def test_a_migrated_store_takes_rows_behind_those_that_it_had(path: Path, version: int) -> None:
    make_old_store(path, version)
    async with opened(path) as store:
        await store.commit(batch(6, [advisory("a"), registration("", "r"), copy("c")]))
        assert [row.row_id for lane in Lane for row in await store.pending(lane, 8, ALL_ROWS)] == [9, 10, 11]


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_a_migration_that_fails_leaves_the_old_store_whole(
    path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old_store(path, version)
    before = contents(path)
    broken = {**files.STEPS, schema.VERSION - 1: "CREATE TABLE half (n INTEGER); INSERT INTO nowhere VALUES (1);"}
    monkeypatch.setattr(files, "STEPS", broken)
    with pytest.raises(StoreUnusable, match="no such table: nowhere") as refusal:
        prepare(path)
    assert "\n" not in str(refusal.value)
    assert contents(path) == before
    monkeypatch.undo()
    assert prepare(path) == Preparation(was_lost=False, migrated_from=version)


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_an_old_store_is_not_shown_by_commands_but_they_say_what_to_do(path: Path, version: int) -> None:
    make_old_store(path, version)
    before = contents(path)
    with (
        pytest.raises(StoreUnreadable, match=f"version {version}, .* reads {schema.VERSION}; the agent migrates it"),
        store_reader(path),
    ):
        pass
    assert contents(path) == before


async def test_a_newer_store_is_refused_and_nothing_beside_it_is_touched(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("in the log")]))
        await store._database.execute(f"PRAGMA user_version={schema.VERSION + 1}")
        aside = path.parent / "newer"
        aside.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", aside)
    newer = aside / path.name
    before = {each.name: each.read_bytes() for each in aside.iterdir()}

    with pytest.raises(StoreUnusable) as refusal:
        prepare(newer)

    expected = f"store {newer}: version {schema.VERSION + 1}, this agent reads {schema.VERSION}; use a newer agent"
    assert str(refusal.value) == expected
    assert {each.name: each.read_bytes() for each in aside.iterdir() if not each.name.endswith("-shm")} == before


async def test_a_store_that_no_agent_made_is_set_aside(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE something (n INTEGER)")
    assert prepare(path).set_aside == path.with_name("agent.db.corrupt-1")
    store = await SqliteStore.open(path, ROOM)
    await store.close()
