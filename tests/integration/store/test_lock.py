import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.inspection.outbox import drop_registrations
from edge_agent.store import sqlite_store
from edge_agent.store.files import StoreUnusable, hold_of, prepare
from edge_agent.store.port import StoreFailing, StoreLocked
from tests.support.store.store_batches import batch, opened, registration
from tests.support.waiting import until

HOLD = """
import sys, time
from pathlib import Path
from edge_agent.store.files import hold_of
with hold_of(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_agent_is_kept_out_of_a_store_in_use(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with hold_of(path), pytest.raises(StoreUnusable, match="another agent is running on it"), hold_of(path):
        pass
    with hold_of(path):
        pass


def test_a_second_agent_is_kept_out_of_a_store_that_it_knows_by_another_name(tmp_path: Path) -> None:
    path, other = tmp_path / "agent.db", tmp_path / "other.db"
    prepare(path)
    with hold_of(path) as hold, hold.lock_file():
        other.hardlink_to(path)
        refused = pytest.raises(StoreUnusable, match="another agent is running on it")
        with hold_of(other) as second, refused, second.lock_file():
            pass
    with hold_of(other) as second, second.lock_file():
        pass


def test_a_killed_agent_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "held\n"
        with pytest.raises(StoreUnusable), hold_of(path):
            pass
        agent.kill()
    with hold_of(path):
        pass


async def test_a_store_says_why_nothing_can_be_written_and_that_a_write_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process's lock, waited for longer than a lock is: as a disk that hangs."""
    monkeypatch.setattr(sqlite_store, "HANGS_AFTER", 0.2)
    monkeypatch.setattr(sqlite_store, "LOCK_PATIENCE", 2.0)
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.create_task(store.commit(batch(1, [registration("web1", "r")])))
            await until(lambda: isinstance(store.trouble, StoreFailing), "a write that does not end is said")
            with pytest.raises(StoreLocked):
                await writing
            assert isinstance(store.trouble, StoreLocked)
            other.execute("ROLLBACK")
        await store.commit(batch(1, [registration("web1", "r")]))
        assert store.trouble is None


async def test_nothing_is_dropped_from_a_store_that_another_program_keeps_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "LOCK_PATIENCE", 0.1)
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch(1, [registration("web1", "r")]))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnusable) as refusal:
            await drop_registrations(path, "")
        assert str(refusal.value) == f"another process keeps {path} locked; end that one"
        other.execute("ROLLBACK")
    assert (await drop_registrations(path, "")).rows == 1
