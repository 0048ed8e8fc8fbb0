"""Ingest over a real store and a scripted stream: what it makes of gaps and changed pasts, and when it pauses."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import msgspec
import pytest

from edge_agent.config.stream import StreamSettings
from edge_agent.core.decisions import BlindCause, BlindSpan, EpochBegun, PolicyChanged
from edge_agent.core.intake import Intake, SenderByPath
from edge_agent.core.payload import DigestRule
from edge_agent.core.policy import Policy
from edge_agent.core.records import Lane
from edge_agent.ingest.block import IngestPhase
from edge_agent.policy.orders import PolicyOrders
from edge_agent.runtime import pace
from edge_agent.source.port import SourceUnavailable, StreamCheck
from shared import wire
from shared.instants import SECOND
from shared.policy import Order, RetireSender, Revision, Scope, ScopedRevision
from shared.wire import Watermark
from tests.support.agent.mortal_agent import BLOCK_ID, MortalAgent
from tests.support.core.scripted_stream import SETTLE, ScriptedStream
from tests.support.waiting import until

START = 1_700_000_000 * SECOND
POLICY = Policy(sample_interval=30 * SECOND, stale_after=20 * SECOND, retire_after=50 * SECOND, blind_after=8 * SECOND)
EVERY_ROW = 1 << 30
SETTINGS = msgspec.convert(
    {"name": "nodes", "source": {"servers": ["nats://a"], "stream": "R"}, "sender": {"json_path": "sender"}},
    StreamSettings,
)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[MortalAgent]:
    agent = MortalAgent(tmp_path / "agent.db", ScriptedStream(START), POLICY, 1000)
    await agent.start()
    yield agent
    await agent.store.close()


def publish(agent: MortalAgent, *senders: str, every: int = 1) -> None:
    for sender in senders:
        agent.stream.publish({"sender": sender})
        agent.stream.clock += every * SECOND


async def watermarks(agent: MortalAgent) -> list[Watermark]:
    rows = await agent.store.pending(Lane.ADVISORIES, 0, EVERY_ROW)
    agent.store.release(Lane.ADVISORIES)
    return [wire.decode_watermark(row.payload) for row in rows if row.is_watermark]


class Hub:
    """Has said one thing to all sites of the region."""

    def __init__(self, order: Order, given_at: int) -> None:
        revision = Revision(revision=1, stream_created_us=1, given_at_us=given_at, author="ops", order=order)
        self._said = [ScopedRevision(Scope(BLOCK_ID.region), revision)]

    def orders(self) -> list[ScopedRevision]:
        return self._said


async def seen_by_others(agent: MortalAgent, work: Coroutine[None, None, None]) -> set[int]:
    """Do some work; give behind how many messages that are slow to read others on the loop were run."""
    intake = agent.ingest._intake
    before, seen = intake.slow_count, set[int]()
    task = asyncio.ensure_future(work)
    while not task.done():
        seen.add(intake.slow_count - before)
        await asyncio.sleep(0)
    await task
    return seen


# How long it takes


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b'{"sender":"a","x":[1,2,],}', id="tolerated"),
        pytest.param(b"[" * 100_000, id="rejected"),
        pytest.param(msgspec.json.encode({"sender": "a", "zipped": gzip.compress(b"{}")}), id="zipped"),
    ],
)
async def test_others_run_behind_every_message_that_is_slow_to_read(
    agent: MortalAgent, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """Else a batch of such would hold up all that the agent does, and its watchdog would end it, every time anew."""
    monkeypatch.setattr(pace, "LONGEST_STRETCH", 0.0)
    agent.ingest._intake = Intake(SenderByPath("sender"), digest=DigestRule(("zipped",)))
    for _ in range(5):
        agent.stream.publish({"sender": "a"}, payload=payload)
    assert await seen_by_others(agent, agent.read(5)) >= {1, 2, 3, 4}


async def test_nobody_waits_for_others_behind_what_is_read_at_once(
    agent: MortalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "LONGEST_STRETCH", 0.0)
    publish(agent, *"abcab")
    assert await seen_by_others(agent, agent.read(5)) == {0}
    assert agent.tracker.state.counters["valid"] == {"registrations": 5}


# What is recorded


async def test_messages_lost_to_retention_are_a_blind_span_and_counted(agent: MortalAgent) -> None:
    publish(agent, "a", "b", "c", "d")
    await agent.read(1)
    agent.stream.let_go(3)
    await agent.reopen()
    await agent.read(1)
    assert agent.recorded_inputs()[1:] == [BlindSpan(START, START + 3 * SECOND, BlindCause.GAP, 1)]
    assert agent.tracker.state.counters["blind"] == {"gap": 1}
    assert agent.tracker.state.observed_since == START + 3 * SECOND


async def test_a_gap_behind_messages_that_are_still_to_be_read_is_not_counted_before_them(
    agent: MortalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hole behind them tells of it, at its place."""
    publish(agent, "a", "b", "c", "d")
    await agent.read(1)
    agent.stream.let_go(3)
    monkeypatch.setattr(ScriptedStream, "holds_unread", True)
    await agent.ingest._take_check(await agent.stream.check(agent.policy.blind_after))
    assert "blind" not in agent.tracker.state.counters
    monkeypatch.setattr(ScriptedStream, "holds_unread", False)
    await agent.ingest._take_check(await agent.stream.check(agent.policy.blind_after))
    assert agent.tracker.state.counters["blind"] == {"gap": 1}


async def test_what_was_read_past_is_no_gap_though_it_proved_no_time(agent: MortalAgent) -> None:
    publish(agent, "a")
    await agent.read(1)
    through = agent.tracker.state.observed_through
    facts = (await agent.stream.check(agent.policy.blind_after)).facts
    await agent.ingest._take_check(StreamCheck(facts, examined_sequence=7))
    assert (agent.tracker.state.read_through, agent.tracker.state.observed_through) == (7, through)


async def test_messages_that_retention_takes_after_they_were_read_are_no_gap(agent: MortalAgent) -> None:
    publish(agent, "a", "b", "c")
    await agent.read(2)
    agent.stream.let_go(2)
    await agent.reopen()
    await agent.read(1)
    await agent.check()
    assert "blind" not in agent.tracker.state.counters


async def test_a_stream_whose_clock_steps_back_begins_an_epoch_behind_what_was_read(agent: MortalAgent) -> None:
    publish(agent, "a", "b", "c")
    first = agent.tracker.state.position.incarnation
    agent.stream.clock -= 60 * SECOND
    publish(agent, "d")
    await agent.read(4)
    state = agent.tracker.state
    (epoch, span) = agent.recorded_inputs()[1:3]
    assert epoch == EpochBegun(state.position.incarnation, START + 2 * SECOND, 3)
    assert span == BlindSpan(START + 2 * SECOND, START + 2 * SECOND, BlindCause.NEW_EPOCH, 3)
    assert (state.position.incarnation.created_at, state.position.sequence) == (first.created_at, 4)
    assert state.position.incarnation != first


async def test_a_quiet_stream_whose_clock_steps_back_begins_an_epoch_too(agent: MortalAgent) -> None:
    publish(agent, "a", every=30)
    await agent.read(1)
    await agent.check()
    agent.stream.clock -= 60 * SECOND
    await agent.check()
    assert [type(item) for item in agent.recorded_inputs()].count(EpochBegun) == 1


async def test_a_restored_stream_is_read_on_behind_the_committed_time(agent: MortalAgent) -> None:
    publish(agent, "a", "b", "c")
    await agent.read(3)
    agent.stream.restore(1)
    publish(agent, "d", "e")
    with pytest.raises(SourceUnavailable):
        await agent.read(5)
    await agent.reopen()
    await agent.read(5)
    state = agent.tracker.state
    assert state.counters["advisories"] == {"new": 5}
    assert (state.position.sequence, state.advisory_ordinal) == (3, 2)


async def test_a_stream_made_anew_is_read_from_its_first_message(agent: MortalAgent) -> None:
    publish(agent, "a", "b")
    await agent.read(2)
    agent.stream.recreate()
    publish(agent, "c")
    await agent.reopen()
    await agent.read(5)
    state = agent.tracker.state
    assert (state.position.sequence, state.position.incarnation.created_at) == (1, START + 2 * SECOND)
    assert state.counters["advisories"] == {"new": 3}


@pytest.mark.parametrize(
    ("given_at", "what"), [(START, "too_old"), (START + 1, "retire")], ids=["before the store", "since"]
)
async def test_an_order_is_void_if_it_is_older_than_the_store_however_late_the_past_changed(
    agent: MortalAgent, given_at: int, what: str
) -> None:
    publish(agent, "a", every=2 * 3600)
    await agent.read(1)
    agent.stream.recreate()
    publish(agent, "b")
    await agent.reopen()
    await agent.read(1)
    # Only now the link to the region is back.
    orders = PolicyOrders(BLOCK_ID, SETTINGS, Hub(RetireSender("a"), given_at), lambda _reason: None)
    for give in orders.inputs(agent.tracker.state):
        await agent.ingest._apply(give)
    assert agent.tracker.state.counters["policy"] == {what: 1}
    assert ("a" in agent.tracker.senders.slots) is (what == "too_old")


async def test_edited_settings_take_effect_where_time_has_come_to(agent: MortalAgent) -> None:
    publish(agent, "a", "b")
    await agent.read(2)
    await agent.store.close()
    agent.policy = msgspec.structs.replace(POLICY, stale_after=30 * SECOND)
    await agent.start()
    assert agent.recorded_inputs()[-1] == PolicyChanged(START + SECOND, agent.policy, 2)
    await agent.store.close()
    await agent.start()
    assert len(agent.recorded_inputs()) == 2, "the same settings are no change"


async def test_messages_older_than_max_age_are_seen_and_not_forwarded(agent: MortalAgent) -> None:
    publish(agent, "a", every=40)
    publish(agent, "b")
    await agent.store.close()
    agent.policy = msgspec.structs.replace(POLICY, max_age=10 * SECOND)
    await agent.start()
    await agent.read(2)
    counters = agent.tracker.state.counters
    assert (counters["withheld"], counters["forwarded"]) == ({"max_age": 1}, {"new": 1})
    assert counters["advisories"] == {"new": 2}


# Watermarks


async def test_a_watermark_is_made_once_for_an_instant(agent: MortalAgent) -> None:
    publish(agent, "a")
    await agent.read(1)
    await agent.vouch()
    # In flight, it would not be merged with another.
    await agent.store.pending(Lane.ADVISORIES, 0, EVERY_ROW)
    await agent.vouch()
    assert len(await watermarks(agent)) == 1


async def test_a_check_alone_moves_what_is_vouched_for(agent: MortalAgent) -> None:
    publish(agent, "a", every=6)
    await agent.read(1)
    await agent.check()
    await agent.vouch()
    (mark,) = await watermarks(agent)
    assert (mark.observed_since_us, mark.observed_through_us) == (START, START + 6 * SECOND - SETTLE)


async def test_a_changed_past_is_not_vouched_for_before_it_was_seen(agent: MortalAgent) -> None:
    publish(agent, "a", "b")
    await agent.read(2)
    old = str(agent.tracker.state.position.incarnation)
    agent.stream.recreate()
    await agent.reopen()
    await agent.vouch()
    (closing,) = await watermarks(agent)
    assert (closing.incarnation, closing.advisory_ordinal, closing.sequence) == (old, 2, 2)


@pytest.mark.parametrize("is_closing", [False, True])
async def test_what_a_run_repeated_for_an_instant_it_never_claims_otherwise(
    agent: MortalAgent, *, is_closing: bool
) -> None:
    """Readers keep one watermark of a run for an instant, and it may be the one that names a condition."""
    publish(agent, "a", "b")
    await agent.read(2)
    rows = await agent.store.pending(Lane.ADVISORIES, 0, EVERY_ROW)
    agent.store.delete_through(Lane.ADVISORIES, rows[-1].row_id)
    await agent.store.close()
    await agent.start()
    repeated = agent.ingest.restatement("stream_not_read", 1)
    assert repeated is not None
    # An advisory more at the instant that is claimed already.
    await agent.retire("a")
    if is_closing:
        agent.stream.clock += 60 * SECOND
        publish(agent, "b")
        await agent.read(1)
    else:
        await agent.vouch()
    first, *_ = await watermarks(agent)
    before = wire.decode_watermark(repeated.payload)
    assert first.observed_through_us == before.observed_through_us == START + SECOND
    assert (first.observed_since_us, first.advisory_ordinal) == (before.observed_since_us, before.advisory_ordinal)
    assert agent.tracker.state.advisory_ordinal == before.advisory_ordinal + 1


# Pauses


async def test_a_full_disk_pauses_reading_and_says_so_until_there_is_room(
    agent: MortalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.ingest.commits.RETRY_AFTER", 0.01)
    reports: list[tuple[IngestPhase, str]] = []
    agent.ingest._report = lambda phase, reason: reports.append((phase, reason))
    await limit_pages(agent, 1)
    agent.stream.publish({"sender": "a", "facts": "x" * 100_000})
    reading = asyncio.create_task(agent.read(1))
    await until(lambda: reports, "the pause is reported")
    assert set(reports) == {(IngestPhase.DISK_FULL, "database or disk is full")}
    assert await committed_sequence(agent) == 0
    await limit_pages(agent, 1 << 30)
    await reading
    assert reports[-1] == (IngestPhase.READING, "")
    assert await committed_sequence(agent) == 1


async def committed_sequence(agent: MortalAgent) -> int:
    ((_, state),) = await agent.store.block_states()
    return state.position.sequence


async def limit_pages(agent: MortalAgent, count: int) -> None:
    """Let SQLite find the disk full at a number of pages, at the present one where that is more."""
    await agent.store._database.execute(f"PRAGMA max_page_count={count}")
