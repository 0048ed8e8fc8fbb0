"""The agent always starts: what cannot be read is set aside, what is gone is noticed, what is not ours is refused."""

import asyncio
import os
import resource
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edge_agent.core.records import Lane
from edge_agent.inspection.outbox import drop_registrations
from edge_agent.store import housekeeping
from edge_agent.store.files import DIRECTORY_REMEDY, Preparation, StoreUnusable, hold_of, prepare, set_aside_before
from edge_agent.store.site_key import site_key
from edge_agent.store.sqlite import StoreDamaged
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.store.store_batches import (
    BLOCK,
    advisory,
    batch,
    fill,
    opened,
    read_wholly,
    registration,
    sender,
    waiting,
)

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


async def copy_of_a_killed_store(path: Path) -> Path:
    """Give a store as a killed agent leaves it: what was committed last is in its log only."""
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("in the log")]))
        copy = path.parent / "copy"
        copy.mkdir()
        for suffix in ("", "-wal", ".marker"):
            shutil.copy(f"{path}{suffix}", copy)
    return copy / path.name


async def works(path: Path) -> bool:
    """Tell whether a store is there, empty, and takes what it is given."""
    async with opened(path) as store:
        assert await store.load_block(BLOCK) is None
        await store.commit(batch(1, [advisory("a")]))
        return await waiting(store, Lane.ADVISORIES) == ["a"]


async def test_a_first_start_is_no_loss(path: Path) -> None:
    assert prepare(path) == Preparation(was_lost=False)
    assert prepare(path) == Preparation(was_lost=False)
    assert await works(path)


@pytest.mark.parametrize("directory", ["muster-agnet", "muster-agnet/below"])
def test_a_mistyped_path_makes_no_directory(tmp_path: Path, directory: str) -> None:
    path = tmp_path / directory / "agent.db"
    with pytest.raises(StoreUnusable) as refusal, hold_of(path):
        pass
    assert str(refusal.value) == f"store {path}: there is no directory {path.parent}; {DIRECTORY_REMEDY}"
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_is_gone_is_noticed_by_its_marker(path: Path) -> None:
    await fill(path)
    remove(path)
    assert prepare(path) == Preparation(was_lost=True, replaces_lost=True)
    assert await works(path)


async def test_a_loss_is_remembered_by_the_store_that_was_made_in_its_place(path: Path) -> None:
    await fill(path)
    remove(path)
    prepare(path)
    assert prepare(path) == Preparation(was_lost=False, replaces_lost=True)


async def test_a_store_from_before_its_marker_is_kept(path: Path) -> None:
    await fill(path)
    path.with_name("agent.db.marker").unlink()
    assert prepare(path) == Preparation(was_lost=False)
    async with opened(path) as store:
        assert await store.load_block(BLOCK) is not None


@pytest.mark.parametrize("damage", ["first page", "a page in the middle", "cut short", "empty", "not a database"])
async def test_a_damaged_store_is_set_aside_and_a_new_one_begun(path: Path, damage: str) -> None:
    await fill(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        match damage:
            case "first page":
                file.write(b"\xff" * PAGE)
            case "a page in the middle":
                file.seek(size // PAGE // 2 * PAGE)
                file.write(b"\xff" * 4 * PAGE)
            case "cut short":
                file.truncate(size // 2 + 100)
            case "empty":
                file.truncate(0)
            case _:
                file.truncate(0)
                file.write(b"not a database " * 1_000)
    damaged = path.read_bytes()

    prepared = prepare(path)
    aside = path.with_name("agent.db.corrupt-1")
    assert prepared == Preparation(was_lost=True, set_aside=aside, replaces_lost=True)
    assert aside.read_bytes() == damaged
    assert await works(path)


async def write_status_for_ever(store: SqliteStore) -> None:
    while True:
        await store.write_status({})
        await asyncio.sleep(0.01)


async def test_damage_that_is_met_while_deleting_is_not_kept_from_whoever_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "FLUSH_INTERVAL", 0.01)
    async with opened(path) as store:
        await store.commit(batch(1, [registration(f"node{number}", "r") for number in range(200)]))
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE registration_chunk SET body = zeroblob(length(body))")
        # A part of a chunk stays: it has to be unpacked.
        store.delete_through(Lane.REGISTRATIONS, 100)
        with pytest.raises(StoreDamaged):
            await asyncio.wait_for(write_status_for_ever(store), 60)
        store.delete_through(Lane.REGISTRATIONS, 200)


async def test_nothing_is_dropped_from_a_damaged_store_and_it_is_called_so(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(batch(1, [registration(f"node{number}", "r") for number in range(200)]))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE registration_chunk SET body = zeroblob(length(body))")
    with pytest.raises(StoreUnusable, match=r"it is damaged .*; start the agent, which looks at it"):
        await drop_registrations(path, "")


@contextmanager
def no_room() -> Iterator[None]:
    """Let no file grow beyond a page: what a full disk does to one that is to be made anew."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_sound_store_is_not_set_aside_because_the_disk_is_full(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a")]))
    with no_room(), pytest.raises(StoreUnusable, match="the agent needs to write there"):
        prepare(path)
    assert prepare(path) == Preparation(was_lost=False)
    async with opened(path) as store:
        assert await waiting(store, Lane.ADVISORIES) == ["a"]


async def test_a_disk_that_fills_just_before_a_store_is_opened_is_a_refusal_in_one_clear_line(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a")]))
    with no_room(), pytest.raises(StoreUnusable, match="the agent needs to write there"):
        await SqliteStore.open(path, 1 << 20)


async def test_each_damaged_store_is_kept_under_a_name_of_its_own_the_first_and_the_last_two(path: Path) -> None:
    for number in range(1, 13):
        await fill(path)
        path.write_bytes(b"damaged" * number)
        prepared = prepare(path)
        assert prepared.set_aside == path.with_name(f"agent.db.corrupt-{number}")
        assert prepared.removed == ((path.with_name(f"agent.db.corrupt-{number - 2}"),) if number > 3 else ())
        assert prepared.set_aside.read_bytes() == b"damaged" * number
    assert [each.name for each in set_aside_before(path)] == [f"agent.db.corrupt-{number}" for number in (1, 11, 12)]


async def test_only_what_was_set_aside_makes_room_whatever_the_stores_name(tmp_path: Path) -> None:
    path = tmp_path / "agent[1].db"
    own = [tmp_path / "agent[1].db.corrupt-1.saved-1", tmp_path / "agent[1].db.corrupt-x"]
    for each in own:
        each.write_text("somebody's own")
    (tmp_path / "agent[1].db.corrupt-9").mkdir()
    for number in (1, 2, 3, 4):
        path.write_bytes(b"damaged")
        assert prepare(path).set_aside == tmp_path / f"agent[1].db.corrupt-{number}"
    assert all(each.exists() for each in own)
    assert [each.name.rpartition("-")[2] for each in set_aside_before(path)] == ["1", "3", "4"]


async def test_a_store_of_another_version_is_not_taken_for_a_damaged_one(path: Path) -> None:
    await fill(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE block SET state = json_set(state, '$.pending_blind', 'a later one')")
    async with opened(path) as store:
        with pytest.raises(StoreUnusable, match="is of another version of the agent .*; use that one"):
            await store.block_states()
        with pytest.raises(StoreUnusable, match="is of another version of the agent .*; use that one"):
            await store.load_block(BLOCK)


@pytest.mark.parametrize(
    ("within", "written"),
    [
        pytest.param(b'"observed_through"', bytes(12), id="a block's state"),
        pytest.param(b"node00250.example.net", b"\xff", id="a sender's name"),
        pytest.param(b"Nats-Msg-Id", bytes(12), id="a chunk of the outbox"),
    ],
)
async def test_damage_within_records_is_found_though_sqlite_finds_the_file_sound(
    path: Path, within: bytes, written: bytes
) -> None:
    """After a power loss whole sectors may be empty, in the midst of what rows hold."""
    async with opened(path) as store:
        rows = [registration(f"node{number}", f"r{number}", size=900) for number in range(200)]
        await store.commit(batch(1, rows, heard=[sender(slot) for slot in range(500)]))
    content = path.read_bytes()
    assert within in content, "all of the log is in the file"
    with path.open("r+b") as file:
        file.seek(content.index(within))
        file.write(written)

    assert prepare(path) == Preparation(was_lost=False)
    with pytest.raises(StoreDamaged) as met:
        await read_wholly(path)
    aside = path.with_name("agent.db.corrupt-1")
    assert prepare(path, met.value) == Preparation(was_lost=True, set_aside=aside, replaces_lost=True)
    assert await works(path)


@pytest.mark.parametrize("what", ["its log is gone", "its log is empty", "an older copy", "empty, without rows"])
async def test_a_store_that_holds_less_than_was_committed_is_a_lost_one(path: Path, what: str) -> None:
    async with opened(path) as store:
        await store.commit(batch(1, [] if "without rows" in what else [advisory("a")]))
        if what == "an older copy":
            with closing(sqlite3.connect(path)) as database, closing(sqlite3.connect(path.with_name("older"))) as older:
                database.backup(older)
            await store.commit(batch(2, [advisory("b")]))
        copy = path.parent / "copy" / path.name
        copy.parent.mkdir()
        shutil.copy(path.with_name("older") if what == "an older copy" else path, copy)
        shutil.copy(f"{path}.marker", f"{copy}.marker")
        if what == "its log is empty":
            Path(f"{copy}-wal").touch()

    found = prepare(copy)
    aside = copy.with_name("agent.db.corrupt-1")
    assert found == Preparation(was_lost=True, set_aside=aside, replaces_lost=True, is_older=True)
    assert await works(copy)
    assert prepare(copy) == Preparation(was_lost=False, replaces_lost=True)


@pytest.mark.parametrize("note", [b"", b'{"last_row', b"\0\0\0\0", b"\xff"])
async def test_a_marker_that_says_nothing_is_no_proof_of_a_loss(path: Path, note: bytes) -> None:
    await fill(path)
    path.with_name("agent.db.marker").write_bytes(note)
    assert prepare(path) == Preparation(was_lost=False)


async def test_an_operator_who_drops_from_a_copy_of_before_does_not_hide_that_it_is_one(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(batch(1, [registration("node1", "r")]))
    older = path.read_bytes()
    async with opened(path) as store:
        await store.commit(batch(2, [advisory("b")]))
    path.write_bytes(older)
    assert (await drop_registrations(path, "")).rows == 1
    assert prepare(path).is_older


@pytest.mark.parametrize("loss", ["damaged", "gone"])
async def test_the_log_of_a_lost_store_is_not_written_into_the_new_one(path: Path, loss: str) -> None:
    copy = await copy_of_a_killed_store(path)
    if loss == "gone":
        copy.unlink()
    else:
        copy.write_bytes(b"damaged" * PAGE)
    assert prepare(copy).was_lost
    assert await works(copy)


async def test_a_store_that_was_killed_in_the_midst_of_being_made_is_made_again(path: Path) -> None:
    path.with_name("agent.db.new").write_bytes(b"half")
    assert prepare(path) == Preparation(was_lost=False)
    assert await works(path)


async def test_the_log_that_a_killed_agent_left_is_read(path: Path) -> None:
    copy = await copy_of_a_killed_store(path)
    assert prepare(copy) == Preparation(was_lost=False)
    async with opened(copy) as store:
        assert await waiting(store, Lane.ADVISORIES) == ["in the log"]


def test_a_place_where_no_store_can_be_is_refused_in_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable) as refusal, hold_of(tmp_path / "file" / "agent.db"):
        pass
    place = tmp_path / "file" / "agent.db"
    assert str(refusal.value) == f"store {place}: {place}.lock: not a directory; the agent needs to write there"


def test_the_sites_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "id-key"
    key = site_key(path)
    assert len(key) == 32
    assert site_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert site_key(tmp_path / "another") != key


def test_the_sites_secret_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "id-key"
    synced: list[tuple[Path, bool, int]] = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        sync(descriptor)
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((file, path.exists(), 0 if file.is_dir() else file.stat().st_size))

    monkeypatch.setattr(os, "fsync", noting)
    (tmp_path / "id-key.new").write_text("of a start that was killed, and longer than a key is " * 4)
    key = site_key(path)
    assert synced == [(tmp_path / "id-key.new", False, 65), (tmp_path, True, 0)]
    assert path.read_text() == f"{key.hex()}\n"
    assert [each.name for each in tmp_path.iterdir()] == ["id-key"]


@pytest.mark.parametrize("body", [b"", b"0", b"00ff", b"0" * 63, bytes(65), b"\n"])
def test_a_secret_that_was_cut_or_emptied_is_set_aside_and_made_anew(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "id-key"
    path.write_bytes(body)
    key = site_key(path)
    assert (len(key), site_key(path)) == (32, key)
    assert path.with_name("id-key.damaged").read_bytes() == body
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"set aside as {path}.damaged" in caplog.text


@pytest.mark.parametrize("body", [b"\xff" * 65, b"garbage", b"00" * 33])
def test_whatever_stands_in_a_file_beside_the_store_keeps_no_agent_from_starting(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "agent.db.id-key"
    path.write_bytes(body)
    assert len(site_key(path, is_default_path=True)) == 32
    assert path.with_name("agent.db.id-key.damaged").read_bytes() == body


@pytest.mark.parametrize(
    "text", ["open sesame", "SUAM3ZPOZ6PAPXIZMM4XVMVSNVBCYQRNFKKQBGTV3OH3YIYBBAFYQQQQQQ", "00" * 33]
)
def test_a_secret_that_cannot_be_used_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "id-key"
    path.write_text(text)
    with pytest.raises(StoreUnusable, match=f"id key file {path}: .*it must hold 32"):
        site_key(path)
    assert path.read_text() == text
