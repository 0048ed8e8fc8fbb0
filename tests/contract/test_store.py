"""What was committed is there, all of it, whatever happened to the process; what was not is not there at all."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from edge_agent.core.decisions import BlindCause, BlindSpan, Clamped
from edge_agent.core.records import Lane
from edge_agent.core.senders import SenderPhase, SenderState, SenderTable
from edge_agent.store import schema
from edge_agent.store import senders as sender_rows
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId, Incarnation
from tests.contract import mortal_committer
from tests.contract.mortal_committer import ACKNOWLEDGED_EVERY, numbered_batch, senders_after
from tests.support.store.store_batches import (
    BLOCK,
    BLOCK_ID,
    advisory,
    batch,
    opened,
    registration,
    sender,
    state_at,
    waiting,
)

KILLS = 12
LONGEST_LIFE = 0.15


def states_in(senders: SenderTable) -> dict[str, SenderState]:
    return {sender_id: senders.load(slot) for sender_id, slot in senders.slots.items()}


def recorded_inputs(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [body for (body,) in database.execute("SELECT body FROM recorded_input ORDER BY row_id")]


def live_and_be_killed(path: Path, life: float) -> int:
    """Let a process commit for ``life`` seconds from its first commit on; give the last batch that it told of."""
    command = [sys.executable, "-m", mortal_committer.__name__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        time.sleep(life)
        process.kill()
        return int([told, *process.stdout.read().split("\n")[:-1]][-1])


async def check_that_batches_are_whole(store: SqliteStore, path: Path, told: int) -> int:
    """Give the last batch that is in the file: the last one told of, or one more, and every part of it."""
    known = await store.load_block(BLOCK)
    assert known is not None
    state, senders = known
    number = state.position.sequence
    assert told <= number <= told + 1
    assert state == state_at(number)
    assert states_in(senders) == senders_after(number)
    assert len(recorded_inputs(path)) == number

    # An acknowledgement goes with the next transaction, or with the flusher's: both states are whole.
    rows = {lane: await waiting(store, lane) for lane in Lane}
    acknowledged = (number - 1) // ACKNOWLEDGED_EVERY * ACKNOWLEDGED_EVERY
    assert rows == rows_between(acknowledged, number) or (
        number % ACKNOWLEDGED_EVERY == 0 and rows == rows_between(number, number)
    )
    for lane, depth in store.depths().items():
        assert depth.rows == len(rows[lane])
    return number


def rows_between(after: int, through: int) -> dict[Lane, list[str]]:
    made = [row for number in range(after + 1, through + 1) for row in numbered_batch(number).rows]
    return {lane: [row.payload.decode().strip() for row in made if row.lane is lane] for lane in Lane}


async def test_a_batch_is_wholly_there_or_not_at_all_when_its_process_is_killed(tmp_path: Path) -> None:
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    path, number = tmp_path / "agent.db", 0
    for life in [random.uniform(0, LONGEST_LIFE) for _ in range(KILLS)]:
        told = live_and_be_killed(path, life)
        assert told > number
        async with opened(path) as store:
            number = await check_that_batches_are_whole(store, path, told)


async def test_what_was_committed_is_restored_as_it_was(tmp_path: Path) -> None:
    another = Incarnation(7, 8)
    heard = [
        SenderState("ä\u2028\U0001f600", 3, SenderPhase.HEARD, 5, 6, another, 7, 8, 9, (1 << 64) - 1, False, 0),
        SenderState("x" * 1024, 0, SenderPhase.HEARD, 50, 60, another, 70, 80, 90, 1 << 63, True, 0),
    ]
    stale = [sender(2, phase=SenderPhase.STALE, seen_at=11, digest=(1 << 63) - 1), sender(9, phase=SenderPhase.STALE)]
    state = msgspec.structs.replace(state_at(77), pending_blind=BlindCause.GAP, rebuilding=True, settling_at=4)
    given = msgspec.structs.replace(batch(77, heard=heard, stale=stale), state=state)

    async with opened(tmp_path / "agent.db") as store:
        await store.commit(given)
    async with opened(tmp_path / "agent.db") as store:
        known = await store.load_block(BLOCK)

    assert known is not None
    assert known[0] == state
    assert states_in(known[1]) == {each.sender_id: each for each in (*heard, *stale)}


async def test_blocks_keep_their_own_senders(tmp_path: Path) -> None:
    other = BlockId("eu-west", "dub1", "others")
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, heard=[sender(0), sender(1)]))
        await store.commit(batch(5, heard=[sender(1, seen_at=5)], block_id=other))
        await store.commit(batch(2, retired=[sender(1)]))
        first, second = await store.load_block(BLOCK), await store.load_block("others")
        assert await store.load_block("unheard-of") is None

    assert first is not None
    assert second is not None
    assert states_in(first[1]) == {sender(0).sender_id: sender(0)}
    assert states_in(second[1]) == {sender(1).sender_id: sender(1, seen_at=5)}
    assert (first[0], second[0]) == (state_at(2), state_at(5))


async def test_a_retired_sender_leaves_its_slot_to_another(tmp_path: Path) -> None:
    newcomer = msgspec.structs.replace(sender(1), sender_id="newcomer")
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, heard=[sender(0), sender(1)]))
        await store.commit(batch(2, heard=[newcomer], retired=[sender(1)]))
    async with opened(tmp_path / "agent.db") as store:
        known = await store.load_block(BLOCK)

    assert known is not None
    assert states_in(known[1]) == {sender(0).sender_id: sender(0), "newcomer": newcomer}


async def test_a_commit_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a"), registration("node", "r")], heard=[sender(0)]))
        # A number that SQLite cannot hold fails the transaction after its first statements.
        impossible = msgspec.structs.replace(sender(1), last_seen_at=1 << 63)
        with pytest.raises(OverflowError):
            await store.commit(batch(2, [advisory("b"), registration("node", "s")], heard=[impossible]))
        before = (store.depths(), store.outbox_counters(BLOCK))
        await store.commit(batch(2, [advisory("c")]))

        known = await store.load_block(BLOCK)
        assert known is not None
        assert (known[0], states_in(known[1])) == (state_at(2), {sender(0).sender_id: sender(0)})
        assert await waiting(store, Lane.ADVISORIES) == ["a", "c"]
        assert await waiting(store, Lane.REGISTRATIONS) == ["r"]
        assert (before[0][Lane.ADVISORIES].rows, before[0][Lane.REGISTRATIONS].rows, before[1]) == (1, 1, {})


async def test_a_commit_that_is_cancelled_is_wholly_there_or_not_at_all_and_the_store_goes_on(tmp_path: Path) -> None:
    path, number = tmp_path / "agent.db", 0
    async with opened(path) as store:
        for _ in range(100):
            commit = asyncio.create_task(store.commit(numbered_batch(number + 1)))
            await asyncio.wait({commit}, timeout=random.uniform(0, 0.003))
            commit.cancel()
            await asyncio.wait({commit})
            await store.write_status({})  # behind whatever is still under way
            known = await store.load_block(BLOCK)
            number = known[0].position.sequence if known else 0
        await store.commit(numbered_batch(number + 1))
    async with opened(path) as store:
        known = await store.load_block(BLOCK)
        assert known is not None
        assert states_in(known[1]) == senders_after(number + 1)
        assert {lane: await waiting(store, lane) for lane in Lane} == rows_between(0, number + 1)


async def test_who_asks_where_blocks_stand_hears_of_a_commit_that_nobody_waits_for_any_more(tmp_path: Path) -> None:
    """What is written next goes on from the answer: an old one would take the position back, behind its rows."""
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, [advisory("a")]))
        async with store._lock:
            commit = asyncio.create_task(store.commit(batch(2, [advisory("b")])))
            await asyncio.wait({commit}, timeout=0)
            commit.cancel()
            await asyncio.wait({commit})
            assert commit.cancelled()
            asked = asyncio.create_task(store.block_states())
        assert await asked == [(BLOCK_ID, state_at(2))]
        assert store.last_row_ids()[Lane.ADVISORIES] == 2


async def test_recorded_inputs_are_kept_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.db"
    inputs = [BlindSpan(at, at + 1, BlindCause.UNPROVEN, at) for at in range(schema.RECORDED_INPUTS_KEPT)]
    async with opened(path) as store:
        await store.commit(batch(1, recorded=inputs))
        await store.commit(batch(2, recorded=[Clamped(1, 2), Clamped(3, 4)]))

    kept = recorded_inputs(path)
    expected = [msgspec.json.encode(each).decode() for each in (*inputs[2:], Clamped(1, 2), Clamped(3, 4))]
    assert kept == expected


async def test_status_is_replaced_as_a_whole_and_left_by_every_other_transaction(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.write_status({"agent": {"pid": 1}, "part:stream removed": {"phase": "reading"}})
    async with opened(path) as store:
        await store.write_status({"agent": {"pid": 2}, "last_problem": None})
        await store.commit(batch(1))
        await store.drop_registrations("*")
    with closing(sqlite3.connect(path)) as database:
        assert dict(database.execute("SELECT name, body FROM status")) == {"agent": '{"pid":2}', "last_problem": "null"}


async def test_counters_of_block_and_outbox_are_given_together(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, [registration("node", "old")]))
        await store.commit(batch(2, [registration("node", "new")]))
        assert store.counters() == {BLOCK_ID.block: {"valid": {"registrations": 2}, "compacted": {"newer_sample": 1}}}


async def test_incarnations_that_nothing_refers_to_any_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_rows, "INCARNATIONS_KEPT", 8)
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        newest = sender(0)
        await store.commit(batch(1, heard=[newest, sender(1)]))
        for number in range(1, 60):
            newest = msgspec.structs.replace(sender(0), opening_incarnation=Incarnation(number, 1))
            await store.commit(batch(number + 1, heard=[newest]))
            # What is rolled back forgets and numbers nothing.
            failing = msgspec.structs.replace(
                sender(0), opening_incarnation=Incarnation(number, 2), last_seen_at=1 << 63
            )
            with pytest.raises(OverflowError):
                await store.commit(batch(number + 1, heard=[failing]))
    with closing(sqlite3.connect(path)) as database:
        ((kept,),) = database.execute("SELECT COUNT(*) FROM incarnation")
    assert kept <= 8
    async with opened(path) as store:
        known = await store.load_block(BLOCK)
        assert known is not None
        assert states_in(known[1]) == {each.sender_id: each for each in (newest, sender(1))}
