"""What a large batch appends is kept as chunks, and nobody can tell: each record leaves in its order, or is counted."""

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, Decision, Forward
from edge_agent.core.observation import SourceMessage
from edge_agent.core.records import Emitter, Lane, OutboxRow, SizeLimit, TooLarge, WatermarkContext
from edge_agent.core.senders import SenderChanges
from edge_agent.inspection.decisions import DecisionFilter, LoggedDecision, last_decisions
from edge_agent.inspection.outbox import WAITING, write_records
from edge_agent.observability import status_report
from edge_agent.store import chunks, decision_log, housekeeping, outbox_index, schema
from edge_agent.store.files import prepare
from edge_agent.store.port import BatchCommit, LaneDepth
from edge_agent.store.read_only import store_reader
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import AdvisoryKind, SourcePosition
from shared.instants import SECOND
from shared.wire import ORIGIN_HEADER, ForwardReason, decode_advisory, parse_origin_header
from tests.support.store.quick_files import quick_directory
from tests.support.store.store_batches import (
    ALL_ROWS,
    BLOCK,
    BLOCK_ID,
    INCARNATION,
    POLICY,
    die,
    opened,
    waiting,
    watermark,
)
from tests.support.store.store_batches import advisory as advisory_row
from tests.support.store.store_batches import batch as batch_of
from tests.support.store.store_batches import registration as registration_row
from tests.support.waiting import until

EMITTER = Emitter(BLOCK_ID, "dub1-a", "boot", "1.0", "sender", bytes(32))
STEPS = 250
SENDERS = 30


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "WORTH_A_CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 4)
    monkeypatch.setattr(decision_log, "WORTH_A_CHUNK", 3)
    monkeypatch.setattr(decision_log, "CHUNK_ROWS", 4)


@pytest.fixture
def quick_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield Path(directory) / "agent.db"


def advise(sender_id: str, sequence: int) -> Advise:
    at = sequence * SECOND
    return Advise(AdvisoryKind.NEW, sender_id, at, at, INCARNATION, sequence, INCARNATION, sequence, ordinal=sequence)


def forward(sender_id: str, sequence: int) -> Forward:
    message = SourceMessage("registration", b"x" * random.randint(1, 900), None, sequence, sequence * SECOND)
    return Forward(sender_id, message, ForwardReason.INTERVAL)


def decided(decisions: list[Decision]) -> BatchCommit:
    state = BlockState(SourcePosition("REGISTRATION", INCARNATION, 1), POLICY, observed_since=1, observed_through=2)
    rows = EMITTER.rows(decisions, state, WatermarkContext({}, {}, {}))
    return BatchCommit(BLOCK_ID, state, SenderChanges([], [], []), rows, decisions=decisions)


def chunk_count(path: Path, lane: Lane) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute(f"SELECT COUNT(*) FROM {schema.CHUNKS[lane]}").fetchone()[0])


def depths_in(path: Path) -> dict[Lane, LaneDepth]:
    with closing(sqlite3.connect(path)) as database:
        kinds = {lane: database.execute(statement).fetchall() for lane, statement in WAITING.items()}
    return {lane: LaneDepth(sum(row[2] for row in rows), sum(row[3] for row in rows)) for lane, rows in kinds.items()}


def depths_told(path: Path) -> dict[Lane, LaneDepth]:
    """Read what ``status`` shows."""
    with store_reader(path) as database:
        reports = {lane: status_report._read_lane(database, lane) for lane in Lane}
    return {lane: LaneDepth(told.rows, told.size) for lane, told in reports.items()}


def sequence_of(row: OutboxRow) -> int:
    if row.lane is Lane.REGISTRATIONS:
        return parse_origin_header(row.headers[ORIGIN_HEADER])[2]
    return decode_advisory(row.payload).sequence  # type: ignore[union-attr]


def log_of(path: Path) -> list[LoggedDecision]:
    with store_reader(path) as database:
        return last_decisions(database, DecisionFilter(), limit=0)


class Life:
    """A store that is used at random, and what must become of each decision."""

    def __init__(self, path: Path, max_outbox: int) -> None:
        self.path = path
        self.max_outbox = max_outbox
        self.sequence = 0
        self.made: dict[Lane, list[int]] = {lane: [] for lane in schema.CHUNKS}
        self.delivered: dict[Lane, list[int]] = {lane: [] for lane in schema.CHUNKS}
        self.acknowledged = dict.fromkeys(schema.CHUNKS, 0)
        self.read_through = dict.fromkeys(schema.CHUNKS, 0)
        self.newest: dict[str, int] = {}
        self.dropped = 0

    async def begin(self) -> None:
        prepare(self.path)
        self.store = await SqliteStore.open(self.path, self.max_outbox)
        for lane, row_id in self.acknowledged.items():
            # After a kill it may come again: the region knows it by its id.
            self.store.delete_through(lane, row_id)
        self.read_through = dict(self.acknowledged)

    async def commit(self, _lane: Lane) -> None:
        if self.store.is_paused():
            return
        decisions: list[Decision] = []
        for _ in range(random.choice((1, 2, 12, 25))):
            self.sequence += 1
            sender_id = f"node{random.randrange(SENDERS)}"
            if random.random() < 0.5:
                decisions.append(advise(sender_id, self.sequence))
                self.made[Lane.ADVISORIES].append(self.sequence)
            else:
                decisions.append(forward(sender_id, self.sequence))
                self.made[Lane.REGISTRATIONS].append(self.sequence)
                self.newest[sender_id] = self.sequence
        await self.store.commit(decided(decisions))

    async def read(self, lane: Lane) -> None:
        after, limit = self.read_through[lane], random.randint(1, 9)
        rows = await self.store.pending(lane, after, limit)
        assert [row.row_id for row in rows] == sorted({row.row_id for row in rows if row.row_id > after})
        assert len(rows) <= limit
        self.read_through[lane] = rows[-1].row_id if rows else after

    async def acknowledge(self, lane: Lane) -> None:
        before = self.acknowledged[lane]
        through = random.randint(before, max(self.read_through[lane], before))
        rows = await self.store.pending(lane, before, ALL_ROWS)
        self.delivered[lane] += [sequence_of(row) for row in rows if row.row_id <= through]
        self.store.delete_through(lane, through)
        self.acknowledged[lane] = through
        await self.release(lane)

    async def release(self, lane: Lane) -> None:
        self.store.release(lane)
        self.read_through[lane] = self.acknowledged[lane]

    async def drop(self, _: Lane) -> None:
        self.dropped += (await self.store.drop_registrations(BLOCK)).rows

    async def close(self, _: Lane) -> None:
        await self.store.close()
        await self.begin()

    async def die(self, _: Lane) -> None:
        await die(self.store)
        await self.begin()

    async def step(self) -> None:
        steps = (self.commit, self.read, self.acknowledge, self.release, self.close, self.die, self.drop)
        (step,) = random.choices(steps, (8, 8, 6, 2, 0.5, 0.5, 0.3))
        await step(random.choice(list(schema.CHUNKS)))

    async def end(self) -> None:
        """Deliver all that waits."""
        await self.store.write_status({})
        assert self.store.depths() == depths_in(self.path) == depths_told(self.path)
        for lane, delivered in self.delivered.items():
            read = self.acknowledged[lane]
            while rows := await self.store.pending(lane, read, 7):
                delivered += [sequence_of(row) for row in rows]
                read = rows[-1].row_id
        await self.store.close()


@pytest.mark.parametrize("tail_bytes", [2_000, 1 << 20])
@pytest.mark.parametrize("max_outbox", [60_000, 1 << 30])
async def test_each_record_of_a_chunk_leaves_in_its_order_or_is_counted_and_its_fate_is_told(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None, tail_bytes: int, max_outbox: int
) -> None:
    """pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N."""
    monkeypatch.setattr(outbox_index, "MOST_BYTES", tail_bytes)
    life = Life(quick_path, max_outbox)
    await life.begin()
    for _ in range(STEPS):
        await life.step()
    counters = life.store.outbox_counters(BLOCK)
    await life.end()

    let_go = Counter({cause: count for causes in counters.values() for cause, count in causes.items()})
    assert let_go["operator"] == life.dropped
    assert life.delivered[Lane.ADVISORIES] == life.made[Lane.ADVISORIES]
    forwarded = life.delivered[Lane.REGISTRATIONS]
    assert forwarded == sorted(set(forwarded))
    assert len(forwarded) + let_go.total() == len(life.made[Lane.REGISTRATIONS])
    if not counters.get("dropped"):
        assert set(life.newest.values()) <= set(forwarded)

    told = log_of(quick_path)
    assert [each.sequence for each in told if each.decision == "new"] == life.made[Lane.ADVISORIES]
    fates = {each.sequence: str(each.record) for each in told if each.decision == "forwarded"}
    assert [*fates] == life.made[Lane.REGISTRATIONS]
    assert {each for each, fate in fates.items() if fate in ("waiting", "acknowledged")} == set(forwarded)
    assert Counter(fate for fate in fates.values() if fate not in ("waiting", "acknowledged")) == let_go


async def test_a_newer_registration_replaces_one_in_a_chunk_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    first = [registration_row(f"node{number}", f"first {number}") for number in range(2_500)]
    async with opened(path) as store:
        await store.commit(batch_of(1, first))
        await store.commit(batch_of(2, [registration_row("node7", "second 7")]))
        assert chunk_count(path, Lane.REGISTRATIONS) == 2
    async with opened(path) as store:
        await store.commit(batch_of(3, [registration_row("node7", "third 7"), registration_row("node2499", "second")]))
        assert chunk_count(path, Lane.REGISTRATIONS) == 1
        left = [f"first {number}" for number in range(2_499) if number != 7]
        assert await waiting(store, Lane.REGISTRATIONS) == [*left, "third 7", "second"]
        assert store.outbox_counters(BLOCK) == {"compacted": {"newer_sample": 3}}
        assert store.depths() == depths_in(path)


async def test_what_is_on_its_way_out_of_a_chunk_is_not_replaced(tmp_path: Path, small_chunks: None) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch_of(1, [registration_row(f"node{number}", str(number)) for number in range(4)]))
        assert len(await store.pending(Lane.REGISTRATIONS, 0, 2)) == 2
        await store.commit(batch_of(2, [registration_row("node1", "new 1"), registration_row("node2", "new 2")]))
        assert await waiting(store, Lane.REGISTRATIONS) == ["0", "1", "3", "new 1", "new 2"]


async def test_what_can_never_be_delivered_is_taken_out_of_its_chunk(tmp_path: Path, small_chunks: None) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch_of(1, [registration_row(f"node{number}", str(number)) for number in range(8)]))
        rows = await store.pending(Lane.REGISTRATIONS, 0, 8)
        await store.set_apart([(rows[1], TooLarge(SizeLimit.MAX_PAYLOAD, 1_000))])
        await store.set_apart([(rows[1], TooLarge(SizeLimit.MAX_PAYLOAD, 1_000))])
        assert chunk_count(path, Lane.REGISTRATIONS) == 1
        assert store.outbox_counters(BLOCK) == {"dropped": {"too_large": 1}}
        store.delete_through(Lane.REGISTRATIONS, rows[2].row_id)
        assert await waiting(store, Lane.REGISTRATIONS) == ["0", "2", "3", "4", "5", "6", "7"]
    assert depths_in(path)[Lane.REGISTRATIONS].rows == 5


async def test_a_watermark_is_in_no_chunk_and_is_shown_as_one(tmp_path: Path, small_chunks: None) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch_of(1, [*(advisory_row(str(number)) for number in range(5)), watermark("w1")]))
        await store.commit(batch_of(2, [watermark("w2")]))
        await store.commit(batch_of(3, [advisory_row(str(number)) for number in range(5, 9)]))
        assert chunk_count(path, Lane.ADVISORIES) == 1
        between = [advisory_row("9"), advisory_row("10"), watermark("w3"), advisory_row("11")]
        await store.commit(batch_of(4, between))
        with store_reader(path) as database:
            shown = {records: count for _, records, count, *_ in database.execute(WAITING[Lane.ADVISORIES])}
        assert shown == {"advisories": 12, "watermarks": 2}
        assert await waiting(store, Lane.ADVISORIES) == [*"01234", "w2", *"5678", "9", "10", "w3", "11"]


async def test_an_export_holds_what_stands_in_chunks(tmp_path: Path, small_chunks: None) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch_of(1, [registration_row("node", "one")]))
        await store.commit(batch_of(2, [registration_row("", str(number)) for number in range(9)]))
        await store.commit(batch_of(3, [advisory_row("a")]))
    with store_reader(path) as database, (tmp_path / "export").open("wb") as file:
        assert write_records(database, file) == 11
    assert (tmp_path / "export").read_bytes().count(b"\n") == 11


async def test_what_was_acknowledged_of_a_chunk_is_not_sent_again_by_who_opens_the_store_next(
    tmp_path: Path, small_chunks: None
) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch_of(1, [advisory_row(str(number)) for number in range(8)]))
        store.delete_through(Lane.ADVISORIES, 6)
    assert chunk_count(path, Lane.ADVISORIES) == 0
    async with opened(path) as store:
        assert await waiting(store, Lane.ADVISORIES) == ["6", "7"]


async def test_what_was_acknowledged_of_a_chunk_goes_where_the_link_fails_in_its_middle(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "FLUSH_INTERVAL", 0.01)
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch_of(1, [advisory_row(str(number)) for number in range(8)]))
        store.delete_through(Lane.ADVISORIES, 6)
        await until(lambda: depths_in(path)[Lane.ADVISORIES].rows == 2, "six of eight are gone")
        assert await waiting(store, Lane.ADVISORIES) == ["6", "7"]


async def test_what_was_acknowledged_of_a_chunk_goes_later_where_another_process_has_the_file_locked_then(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "FLUSH_INTERVAL", 0.01)
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store._database.execute("PRAGMA busy_timeout=1")
        await store.commit(batch_of(1, [advisory_row(str(number)) for number in range(8)]))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            store.delete_through(Lane.ADVISORIES, 6)
            failures = store.commits.failed
            await until(lambda: store.commits.failed > failures + 2 * housekeeping.STANDS_STILL, "it was tried in vain")
            other.execute("ROLLBACK")
        await until(lambda: depths_in(path)[Lane.ADVISORIES].rows == 2, "six of eight are gone")
