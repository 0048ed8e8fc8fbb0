"""The log of decisions: written with its batch or not at all, bounded, and true about what became of each record."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, CloseCoverage, Decision, Forward
from edge_agent.core.observation import SourceMessage
from edge_agent.core.records import Emitter, Lane, WatermarkContext
from edge_agent.core.senders import SenderChanges
from edge_agent.inspection import decisions
from edge_agent.inspection.decisions import DecisionFilter, LoggedDecision, last_decisions
from edge_agent.store import chunks, decision_log
from edge_agent.store.marker import last_row_id
from edge_agent.store.port import BatchCommit
from edge_agent.store.read_only import store_reader
from shared.identifiers import AdvisoryKind, BlockId, SourcePosition
from shared.instants import SECOND
from shared.wire import ForwardReason
from tests.support.store.store_batches import BLOCK_ID, INCARNATION, POLICY, opened


def forward(sender_id: str, sequence: int, size: int = 10) -> Forward:
    message = SourceMessage("registration", b"x" * size, None, sequence, sequence * SECOND)
    return Forward(sender_id, message, ForwardReason.INTERVAL)


def advise(sender_id: str, sequence: int, kind: AdvisoryKind = AdvisoryKind.NEW) -> Advise:
    at = sequence * SECOND
    return Advise(kind, sender_id, at, at, INCARNATION, sequence, INCARNATION, sequence, ordinal=sequence)


def batch(decisions: Sequence[Decision], block_id: BlockId = BLOCK_ID) -> BatchCommit:
    state = BlockState(SourcePosition("REGISTRATION", INCARNATION, 1), POLICY, observed_since=1, observed_through=2)
    emitter = Emitter(block_id, "dub1-a", "boot", "1.0", "sender", bytes(32))
    rows = emitter.rows(list(decisions), state, WatermarkContext({}, {}, {}))
    return BatchCommit(block_id, state, SenderChanges([], [], []), rows, decisions=decisions)


def logged(path: Path) -> list[LoggedDecision]:
    with store_reader(path) as database:
        return last_decisions(database, DecisionFilter(), limit=0)


def records(path: Path) -> list[tuple[str, str, str]]:
    return [(each.decision, each.sender_id, each.record) for each in logged(path)]


async def test_decisions_are_kept_in_the_order_in_which_they_were_taken(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(
            batch([advise("a", 1), forward("a", 1), CloseCoverage(1, 2, 1, SourcePosition("R", INCARNATION, 1))])
        )
        await store.commit(batch([forward("", 2), forward("b", 3), advise("a", 4, AdvisoryKind.STALE)]))
    assert records(tmp_path / "agent.db") == [
        ("new", "a", "waiting"),
        ("forwarded", "a", "waiting"),
        ("forwarded", "b", "waiting"),
        ("stale", "a", "waiting"),
    ]


async def test_a_batch_that_fails_leaves_no_decision_and_the_next_is_counted_right(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        good = batch([advise("a", 1), forward("a", 1)])
        await store.commit(good)
        too_large_for_sqlite = advise("b", 1 << 70)
        with pytest.raises(OverflowError):
            await store.commit(msgspec.structs.replace(good, decisions=[forward("b", 2), too_large_for_sqlite]))
        await store.commit(batch([advise("c", 3)]))
    assert [each.sender_id for each in logged(path)] == ["a", "a", "c"]


def ends_of_log(path: Path) -> tuple[int, str, str]:
    with closing(sqlite3.connect(path)) as database:
        logged = database.execute(f"SELECT sender_id FROM {decision_log.LOGGED_ADVISORIES} ORDER BY row_id").fetchall()
        return len(logged), logged[0][0], logged[-1][0]


async def test_the_logs_are_bounded_each_by_itself_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch([forward(f"first-{n}", 1) for n in range(3)]))
        for first in range(0, decision_log.DECISIONS_KEPT, 10_000):
            await store.commit(batch([advise(f"node{n}", n + 1) for n in range(first, first + 10_000)]))
            store.delete_through(Lane.ADVISORIES, 1 << 60)
    async with opened(path) as store:
        await store.commit(batch([advise(f"last-{n}", n + 1) for n in range(7)]))
        # Of a chunk all decisions are kept, or none.
        assert ends_of_log(path) == (decision_log.DECISIONS_KEPT + 7, "node0", "last-6")
        for first in range(0, chunks.CHUNK_ROWS, 70):
            await store.commit(batch([advise(f"more-{n}", n + 1) for n in range(first, first + 70)]))
        assert ends_of_log(path) == (decision_log.DECISIONS_KEPT + 57, "node1000", "more-1049")
        for first in range(0, decision_log.DECISIONS_KEPT, 10_000):
            await store.commit(batch([advise(f"next{n}", n + 1) for n in range(first, first + 10_000)]))
            store.delete_through(Lane.ADVISORIES, 1 << 60)
        assert ends_of_log(path) == (decision_log.DECISIONS_KEPT, "next0", "next99999")
    with store_reader(path) as database:
        assert [each.sender_id for each in last_decisions(database, DecisionFilter(kinds=("forwarded",)), 0)] == [
            f"first-{n}" for n in range(3)
        ]


async def test_the_log_says_what_became_of_each_record(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path, max_outbox=1 << 20) as store:
        await store.commit(batch([advise("a", 1), forward("a", 1), forward("b", 2), forward("c", 3)]))
        await store.commit(batch([forward("b", 4)]))
        await store.commit(batch([forward("c", 5), forward("c", 6)]))
        (first, *_) = await store.pending(Lane.REGISTRATIONS, 0, 10)
        store.delete_through(Lane.REGISTRATIONS, first.row_id)
        store.delete_through(Lane.ADVISORIES, 1)
        store.release(Lane.REGISTRATIONS)
        await store.commit(batch([forward("big", 7, size=1 << 20)]))
    assert [(each.sender_id, each.sequence, each.record) for each in logged(path)] == [
        ("a", 1, "acknowledged"),
        ("a", 1, "acknowledged"),
        ("b", 2, "newer_sample"),
        ("c", 3, "newer_sample"),
        ("b", 4, "outbox_full"),
        ("c", 5, "newer_sample"),
        ("c", 6, "outbox_full"),
        ("big", 7, "outbox_full"),
    ]


@pytest.mark.parametrize("at_once", [False, True], ids=["in rows", "in chunks"])
async def test_the_last_decisions_of_one_block_are_found_however_busy_another_is(
    tmp_path: Path, *, at_once: bool
) -> None:
    path = tmp_path / "agent.db"
    quiet, busy = BlockId("eu-west", "dub1", "quiet"), BlockId("eu-west", "dub1", "busy")
    count = chunks.CHUNK_ROWS if at_once else 5

    def both(name: str, number: int) -> list[Decision]:
        return [advise(f"{name}-{number}", number), forward(f"{name}-{number}", number)]

    def last(limit: int) -> list[tuple[str, str, str]]:
        wanted = DecisionFilter(stream="quiet")
        with store_reader(path) as database:
            return [(each.stream, each.decision, each.sender_id) for each in last_decisions(database, wanted, limit)]

    async with opened(path) as store:
        for name, block_id in (("quiet", quiet), ("busy", busy)):
            decisions = [both(name, number) for number in range(1, count + 1)]
            for each in [list(chain.from_iterable(decisions))] if at_once else decisions:
                await store.commit(batch(each, block_id))
    assert last(3) == [
        ("quiet", "forwarded", f"quiet-{count - 1}"),
        ("quiet", "new", f"quiet-{count}"),
        ("quiet", "forwarded", f"quiet-{count}"),
    ]
    assert len(last(0)) == 2 * count


async def test_what_is_on_its_way_is_not_dropped_by_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch([forward("a", 1), forward("b", 2)]))
        await store.pending(Lane.REGISTRATIONS, 0, 1)
        dropped = await store.drop_registrations("*")
        assert dropped.rows == 1
        assert store.depths()[Lane.REGISTRATIONS].rows == 1
        assert store.outbox_counters("nodes") == {"dropped": {"operator": 1}}
        assert (await store.drop_registrations("nothing")).rows == 0
    assert records(path) == [("forwarded", "a", "waiting"), ("forwarded", "b", "operator")]


async def test_row_ids_rise_across_lanes_and_are_not_used_again(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch([advise("a", 1), forward("a", 1), advise("b", 2)]))
        store.delete_through(Lane.ADVISORIES, 3)
        store.delete_through(Lane.REGISTRATIONS, 3)
    async with opened(path) as store:
        await store.commit(batch([forward("c", 3), advise("d", 4)]))
    assert [each.row_id for each in logged(path)] == [1, 2, 3, 4, 5]
    with store_reader(path) as database:
        assert last_row_id(database) == 5


async def test_a_decision_that_is_committed_while_another_is_shown_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "POLL_INTERVAL", 0.0)
    path, loop = tmp_path / "agent.db", asyncio.get_running_loop()
    async with opened(path) as store:
        await store.commit(batch([advise("a", 1)]))
        to_come = [batch([advise("b", 2)]), batch([advise("c", 3)])]

        def meanwhile(database: sqlite3.Connection) -> int:
            newest = last_row_id(database)
            if to_come:
                asyncio.run_coroutine_threadsafe(store.commit(to_come.pop(0)), loop).result(30)
            return newest

        monkeypatch.setattr(decisions, "last_row_id", meanwhile)
        following = decisions.follow(path, DecisionFilter(), print)
        shown = await asyncio.to_thread(lambda: [next(following).sender_id for _ in range(3)])
    assert shown == ["a", "b", "c"]
