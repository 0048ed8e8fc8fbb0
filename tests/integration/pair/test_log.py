"""A log takes an entry behind its end or not at all, and a store is handed over whole, to whom it is meant for."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from nats.errors import NoRespondersError

from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy
from edge_agent.core.senders import NO_CHANGES
from edge_agent.pair.log import (
    Entry,
    EntryKind,
    LogAddress,
    LogOutrun,
    LogUnavailable,
    NoLog,
    OtherKey,
    PairLog,
    Writer,
)
from edge_agent.pair.store_copy import CopyDesk, NoCopy, adopt_copy, check_records, copied_lately, fetch_copy
from edge_agent.store.files import prepare
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite import StoreDamaged
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId, Incarnation, SourcePosition
from shared.nats.connection import ConnectionSettings, connect
from tests.support.nats.linked_server import DEADLINE
from tests.support.nats.source_site import Site, running_site
from tests.support.store.store_batches import batch, opened, registration
from tests.support.waiting import until

ADDRESS = LogAddress("eu-west", "dub1", "1f0c")
A, B = Writer("dub1-a", "boot-a", "key", {}), Writer("dub1-b", "boot-b", "key", {})
SUBJECT = ADDRESS.subject("copy")


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def store_in(directory: Path) -> Path:
    """Return the path of a store in a directory that is made for it."""
    directory.mkdir()
    return directory / "agent.db"


def entry(writer: Writer = A, kind: EntryKind = EntryKind.RENEWED) -> Entry:
    return Entry(kind=kind, generation="1", writer=writer)


async def test_entries_stand_behind_the_last_one_or_nowhere(site: Site) -> None:
    log, other = PairLog(site.client, ADDRESS), PairLog(site.client, ADDRESS)
    with pytest.raises(NoLog):
        await log.last()
    with pytest.raises(LogUnavailable, match="no stream answers there"):
        await log.append(entry(), behind=0)
    await log.open()
    await other.open()
    assert await log.last() is None
    assert await log.append(entry(), behind=0) == 1
    assert await other.append(entry(B, EntryKind.LEADS), behind=1) == 2
    # Who was suspended meanwhile believes that the log ends where it left it.
    for behind in (0, 1, 3):
        with pytest.raises(LogOutrun):
            await log.append(entry(), behind)
    last = await log.last()
    assert last is not None
    assert (last.sequence, last.entry) == (2, entry(B, EntryKind.LEADS))
    first = await other.next_after(0)
    assert first is not None
    assert (first.sequence, first.entry.writer.member) == (1, "dub1-a")
    assert await other.next_after(2) is None
    found = [await other.entries_after(0, most) for most in (1, 2, 5)]
    assert [[each.sequence for each in records] for records in found] == [[1], [1, 2], [1, 2]]


async def test_who_does_not_know_the_secret_cannot_write_into_the_log(site: Site) -> None:
    log, other = PairLog(site.client, ADDRESS), PairLog(site.client, msgspec.structs.replace(ADDRESS, secret="beef"))
    await log.open()
    assert await log.append(entry(), behind=0) == 1
    with pytest.raises(OtherKey):
        await other.open()
    await site.make_stream()
    stored = await site.last_sequence()
    # The server answers a publish under the reply subject, whatever the publisher may publish to itself.
    for subject in ("muster.pair.eu-west.dub1.log", "muster.pair.eu-west.dub1.beef.log"):
        await site.client.publish("registration.site", b"{}", reply=subject)
    await until(lambda: has_stored(site, stored + 2), "both were stored")
    last = await log.last()
    assert last is not None
    assert last.sequence == 1


async def has_stored(site: Site, sequence: int) -> bool:
    return await site.last_sequence() >= sequence


async def test_what_could_not_be_asked_on_a_dead_link_is_not_sent_when_it_is_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.pair.store_copy.COPY_DEADLINE", 0.5)
    monkeypatch.setattr("edge_agent.pair.store_copy.ANSWER_DEADLINE", 0.2)
    asked = await site.client.subscribe(SUBJECT)
    client = await connect(ConnectionSettings(servers=(site.link.url,)), name="member", deadline=DEADLINE)
    try:
        log = PairLog(client, ADDRESS)
        await log.open()
        assert await log.append(entry(), behind=0) == 1
        known = len(client._subs)
        await site.link.cut()
        await until(lambda: not client.is_connected, "the link is lost")
        for _ in range(3):
            with pytest.raises(LogUnavailable):
                await log.append(entry(), behind=1)
            with pytest.raises(NoCopy):
                await fetch_copy(client, SUBJECT, B, tmp_path / "agent.db")
        await site.link.restore()
        await until(lambda: client.is_connected, "the link is back")
        await client.flush()
        assert await log.append(entry(), behind=1) == 2, "nothing came before it"
        assert (len(client._subs), asked.pending_msgs) == (known, 0)
    finally:
        await client.close()


async def test_a_store_is_handed_over_whole_to_whom_it_is_meant_for(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = store_in(tmp_path / "a"), store_in(tmp_path / "b")
    prepare(theirs)
    prepare(ours)
    store = await SqliteStore.open(theirs, 1 << 30)
    state = BlockState(SourcePosition("REGISTRATION", Incarnation(1, 2), 7), Policy(1, 1, 1, 1))
    rows = [registration("node", "r"), registration("node", "r")]
    await store.commit(BatchCommit(BlockId("eu-west", "dub1", "nodes"), state, NO_CHANGES, rows))
    await store.write_status({"agent": {"pid": 1}})
    with pytest.raises(NoCopy, match="it does not answer"):
        await fetch_copy(site.client, SUBJECT, B, ours)
    serving = asyncio.create_task(CopyDesk(theirs, A).serve(site.client, SUBJECT))
    try:
        await until(lambda: hands_over(site, B, ours), "the store is handed over")
        for stranger, problem in ((Writer("dub1-b", "", "other", {}), "another"), (A, "the same name")):
            with pytest.raises(NoCopy, match=problem):
                await fetch_copy(site.client, SUBJECT, stranger, ours)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await store.close()
    assert not copied_lately(ours)
    adopt_copy(ours)
    assert copied_lately(ours)
    now = time.time()
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: now - 3_600)
        assert not copied_lately(ours), "the clock was set back"
    assert sorted(path.name for path in ours.parent.iterdir()) == [
        "agent.db",
        "agent.db.before-copy",
        "agent.db.marker",
    ]
    assert not list(theirs.parent.glob("*.handed-over"))
    handed_over = contents(ours)
    assert handed_over["status"] == []
    assert handed_over["sqlite_sequence"]
    assert handed_over == contents(theirs) | {"status": [], "operator_request": []}
    copy = await SqliteStore.open(ours, 1 << 30)
    try:
        assert [known for _, known in await copy.block_states()] == [state]
    finally:
        await copy.close()


def contents(path: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {table: sorted(database.execute(f"SELECT * FROM {table}")) for (table,) in tables}


async def test_damage_that_nobody_has_met_yet_is_not_handed_over(site: Site, tmp_path: Path) -> None:
    theirs, ours = store_in(tmp_path / "a"), store_in(tmp_path / "b")
    async with opened(theirs) as store:
        await store.commit(batch(1, [registration(f"node{number}", "r") for number in range(200)]))
    serving = asyncio.create_task(CopyDesk(theirs, A).serve(site.client, SUBJECT))
    try:
        await until(lambda: hands_over(site, B, ours), "what is whole is handed over")
        with closing(sqlite3.connect(theirs)) as database, database:
            database.execute("UPDATE registration_chunk SET body = zeroblob(length(body))")
        for _ in range(2):
            with pytest.raises(NoCopy, match="its store is damaged: "):
                await fetch_copy(site.client, SUBJECT, B, ours)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert not list(theirs.parent.glob("*.handed-over"))


async def test_a_disk_that_fails_for_a_moment_costs_one_copy_and_is_not_called_damage(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = store_in(tmp_path / "a"), store_in(tmp_path / "b")
    async with opened(theirs) as store:
        await store.commit(batch(1, [registration("node", "r")]))
    failures = [StoreDamaged("database disk image is malformed", is_proven=False)]

    def fail_once(database: sqlite3.Connection) -> None:
        if failures:
            raise failures.pop()
        check_records(database)

    monkeypatch.setattr("edge_agent.pair.store_copy.check_records", fail_once)
    serving = asyncio.create_task(CopyDesk(theirs, A).serve(site.client, SUBJECT))
    try:
        await until(lambda: answers(site, ours, "it cannot copy its store: "), "the copy has failed")
        await fetch_copy(site.client, SUBJECT, B, ours)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_who_stops_handing_over_holds_no_store_open(site: Site, tmp_path: Path) -> None:
    """Whoever opens and closes the file next would take away the locks of a copy that goes on."""
    theirs, ours = store_in(tmp_path / "a"), store_in(tmp_path / "b")
    prepare(theirs)
    with closing(sqlite3.connect(theirs)) as database, database:
        database.execute("INSERT INTO recorded_input (block, body) VALUES ('', randomblob(100 << 20))")
    serving = asyncio.create_task(CopyDesk(theirs, A).serve(site.client, SUBJECT))
    asking = asyncio.create_task(until(lambda: hands_over(site, B, ours), "the store is handed over"))
    await until(lambda: theirs in files_held(), "the copy is being made")
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert theirs not in files_held()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_copy_that_nobody_makes_any_more_is_not_waited_for(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    """Who has lost the lead, or was killed, answers nothing; who leads again knows nothing of what it was asked."""
    theirs, ours = store_in(tmp_path / "a"), store_in(tmp_path / "b")
    prepare(theirs)
    is_made, may_end = threading.Event(), threading.Event()

    def hold(database: sqlite3.Connection) -> None:
        is_made.set()
        may_end.wait()
        check_records(database)

    monkeypatch.setattr("edge_agent.pair.store_copy.check_records", hold)
    monkeypatch.setattr("edge_agent.pair.store_copy.ANSWER_DEADLINE", 0.2)
    serving = asyncio.create_task(CopyDesk(theirs, A).serve(site.client, SUBJECT))
    await until(lambda: is_answered(site), "it serves")
    fetching = asyncio.create_task(fetch_copy(site.client, SUBJECT, B, ours))
    try:
        await until(is_made.is_set, "the copy is being made")
        done, _ = await asyncio.wait({fetching}, timeout=1.0)
        assert not done, "as long as it is made it is waited for"
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        if comes_back:
            serving = asyncio.create_task(CopyDesk(theirs, A).serve(site.client, SUBJECT))
        await until(fetching.done, "it is given up")
        with pytest.raises(NoCopy, match="it was given up|it does not answer" if comes_back else "it does not answer"):
            await fetching
    finally:
        may_end.set()
        for each in (serving, fetching):
            each.cancel()
        await asyncio.gather(serving, fetching, return_exceptions=True)


async def test_who_loses_its_link_and_the_lead_hands_over_nothing_when_the_link_is_back(
    site: Site, tmp_path: Path
) -> None:
    theirs = store_in(tmp_path / "a")
    prepare(theirs)
    client = await connect(ConnectionSettings(servers=(site.link.url,)), name="member", deadline=DEADLINE)
    try:
        serving = asyncio.create_task(CopyDesk(theirs, A).serve(client, SUBJECT))
        await until(lambda: is_answered(site), "it serves")
        await site.link.cut()
        await until(lambda: not client.is_connected, "the link is lost")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await site.link.restore()
        await until(lambda: client.is_connected, "the link is back")
        await client.flush()
        assert not await is_answered(site)
    finally:
        await client.close()


async def is_answered(site: Site) -> bool:
    try:
        await site.client.request(SUBJECT, b"{}", timeout=DEADLINE)
    except NoRespondersError:
        return False
    return True


def files_held() -> list[Path]:
    held = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            held.append(each.readlink())
    return held


async def answers(site: Site, path: Path, problem: str) -> bool:
    try:
        await fetch_copy(site.client, SUBJECT, B, path)
    except NoCopy as error:
        return str(error).startswith(problem)
    return False


async def hands_over(site: Site, writer: Writer, path: Path) -> bool:
    try:
        await fetch_copy(site.client, SUBJECT, writer, path)
    except NoCopy:
        return False
    return True
