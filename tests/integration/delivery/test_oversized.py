"""A record that its target cannot take holds up no other: it is set apart, and sent when the limit has risen."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from edge_agent.core.copy_mode import CopyEmitter
from edge_agent.core.decisions import Copy, Forward
from edge_agent.core.observation import SourceMessage
from edge_agent.core.records import Lane, OutboxRow, WatermarkContext
from edge_agent.core.relay_mode import RelayEmitter
from edge_agent.delivery import oversized
from edge_agent.delivery import region as upstream
from edge_agent.delivery.region_protocol import least_size
from edge_agent.delivery.shipment import Form, Shipment
from edge_agent.store import port
from edge_agent.store.port import LaneDepth
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId
from shared.subjects import registration_subject
from shared.wire import ORIGIN_HEADER, REASON_HEADER, SENDER_HEADER, SOURCE_HEADER, ForwardReason, origin_header
from tests.support.delivery.fleet_region import EMPTY, Region, Stored, running_region, tell_of_shipments, uploading
from tests.support.store.store_batches import (
    BLOCK,
    BLOCK_ID,
    INCARNATION,
    advisory,
    batch,
    copy,
    die,
    opened,
    registration,
    state_at,
    watermark,
)
from tests.support.waiting import until

LIMIT = 65_536
DUB1 = BlockId("eu-west", "dub1", "nodes")
ANOTHERS_HEADERS = {
    "X-Own": "kept",
    ORIGIN_HEADER: origin_header(DUB1, INCARNATION, 7),
    SOURCE_HEADER: "REGISTRATION 7 dub1 nodes 1700000000000",
    SENDER_HEADER: "a",
    REASON_HEADER: "new",
}
RAISED = "max_payload: 1048576"
LOWER = f"max_payload: {LIMIT}"


@pytest.fixture(autouse=True)
def trials_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oversized, "LOOK_EVERY", 0.2)
    monkeypatch.setattr(oversized, "FIRST_TRIAL", 0.2)
    monkeypatch.setattr(upstream, "ASK_EVERY", 0.2)


async def fill(store: SqliteStore, rows: Sequence[OutboxRow]) -> None:
    for start in range(0, len(rows), 1_000):
        await store.commit(batch(start + 1, rows[start : start + 1_000]))


async def emptied(store: SqliteStore, set_apart: int) -> None:
    def is_so() -> bool:
        return store.depths() == EMPTY and store.set_apart_depth().rows == set_apart

    await until(is_so, f"nothing waits, and {set_apart} rows are set apart", 60.0)


def words(stored: Sequence[Stored], part: str) -> list[str]:
    return [record.text for record in stored if part in record.subject]


def copies(first: int, count: int) -> list[OutboxRow]:
    return [copy(f"c{number}", size=500) for number in range(first, first + count)]


def with_all_headers(row: OutboxRow, payload_size: int) -> OutboxRow:
    """Give a row the headers that a copy has, and a payload of a size."""
    headers = {
        "X-Own": "kept",
        **row.headers,
        ORIGIN_HEADER: "eu-west.dub1.nodes.1-1.7",
        SOURCE_HEADER: "REGISTRATION 7 dub1 nodes 1700000000000",
        REASON_HEADER: "copy",
    }
    return structs.replace(row, headers=headers, payload=row.payload.ljust(payload_size))


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize(
    ("server", "stream", "cause"),
    [(LOWER, {}, "max_payload"), ("", {"max_msg_size": LIMIT}, "max_msg_size")],
)
async def test_a_copy_that_nobody_takes_holds_up_none_and_arrives_when_the_limit_has_risen(
    tmp_path: Path, store: SqliteStore, server: str, stream: dict[str, object], cause: str, batches: bool
) -> None:
    rows = [*copies(0, 700), copy("large", size=100_000), *copies(700, 1_427)]
    await fill(store, [*rows, advisory("a"), registration("", "r")])
    async with running_region(tmp_path, extra_config=server or "max_payload: 1000000") as region:
        await region.make_stream(allow_atomic=batches, **stream)
        async with uploading(region, store) as told:
            await emptied(store, 1)
            assert words(await region.stored(), ".copy.") == [row.payload.decode().strip() for row in copies(0, 2_127)]
            assert store.outbox_counters(BLOCK) == {"set_apart": {cause: 1}}
            if server:
                region.server.reload(RAISED)
            else:
                await region.update_stream(max_msg_size=-1)
            await emptied(store, 0)
        stored = await region.stored()
    assert words(stored, ".copy.")[-1] == "large"
    assert len(stored) == len(rows) + 2
    assert store.outbox_counters(BLOCK) == {"set_apart": {cause: 1}}, "counted once, however often it was tried"
    assert not any("too large" in text for text in told)


async def test_what_fits_without_headers_that_can_be_spared_leaves_without_as_few_as_will_do(
    tmp_path: Path, store: SqliteStore
) -> None:
    names = ("1", "2", "3", "4")
    row = with_all_headers(copy("1"), 0)
    room = LIMIT - least_size(row) + len(row.payload)
    reason, source = (len(f"{name}: {row.headers[name]}\r\n") for name in (REASON_HEADER, SOURCE_HEADER))
    sizes = (room - source - reason, room - source, room, room + 1)
    await fill(store, [with_all_headers(copy(name), size) for name, size in zip(names, sizes, strict=True)])
    async with running_region(tmp_path, extra_config=LOWER) as region:
        await region.make_stream(allow_atomic=True)
        async with uploading(region, store):
            await emptied(store, 1)
        stored = await region.stored()
    spared = {record.text: {REASON_HEADER, SOURCE_HEADER} - record.headers.keys() for record in stored}
    assert spared == {"1": set(), "2": {REASON_HEADER}, "3": {REASON_HEADER, SOURCE_HEADER}}
    assert {record.headers["X-Own"] for record in stored} == {"kept"}
    assert all(ORIGIN_HEADER in record.headers for record in stored)


@pytest.mark.parametrize("make", [copy, partial(registration, "")])
async def test_a_stream_that_refuses_a_row_gets_it_once_more_without_what_can_be_spared(
    tmp_path: Path, store: SqliteStore, make: "partial[OutboxRow]"
) -> None:
    row = with_all_headers(make("c"), 60_000)
    async with running_region(tmp_path) as region:
        await region.make_stream(max_msg_size=least_size(row))
        await fill(store, [row, make("next")])
        async with uploading(region, store):
            await emptied(store, 0)
        stored = {record.text: record for record in await region.stored()}
    assert stored.keys() == {"c", "next"}
    assert stored["c"].headers == {"Nats-Msg-Id": "c", "X-Own": "kept", ORIGIN_HEADER: row.headers[ORIGIN_HEADER]}


def from_another_agent(emitter: CopyEmitter | RelayEmitter, payload_size: int) -> OutboxRow:
    """Make the row of a record that another agent has sent."""
    message = SourceMessage(registration_subject(DUB1), bytes(payload_size), ANOTHERS_HEADERS, 1, 1)
    is_copy = isinstance(emitter, CopyEmitter)
    decision = Copy(message, "fleet.reg") if is_copy else Forward("a", message, ForwardReason.INTERVAL)
    (row,) = emitter.rows([decision], state_at(1), WatermarkContext({}, {}, {}))
    return row


@pytest.mark.parametrize(
    ("emitter", "kept"),
    [
        (CopyEmitter(BLOCK_ID, bytes(32)), {"X-Own", SENDER_HEADER}),
        (RelayEmitter(BLOCK_ID, bytes(32)), {"X-Own", SENDER_HEADER, SOURCE_HEADER, REASON_HEADER}),
    ],
)
async def test_headers_that_a_record_came_with_are_never_left_out(
    store: SqliteStore, region: Region, emitter: CopyEmitter | RelayEmitter, kept: set[str]
) -> None:
    limit = 10_000
    row = from_another_agent(emitter, limit - least_size(from_another_agent(emitter, 0)))
    await region.make_stream(max_msg_size=limit)
    await fill(store, [row])
    async with uploading(region, store):
        await emptied(store, 0)
    (stored,) = await region.stored()
    assert stored.payload == row.payload
    assert stored.headers.keys() == {ORIGIN_HEADER, "Nats-Msg-Id", *kept}
    assert {name: stored.headers[name] for name in kept} == {name: ANOTHERS_HEADERS[name] for name in kept}


async def test_a_stream_that_takes_less_than_a_question_gets_copies_one_by_one(
    tmp_path: Path, store: SqliteStore
) -> None:
    rows = [copy(f"c{number}") for number in range(50)]
    await fill(store, [*rows[:20], copy("large", size=500), *rows[20:]])
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True, max_msg_size=100)
        async with uploading(region, store):
            await emptied(store, 1)
        assert words(await region.stored(), ".copy.") == [row.payload.decode() for row in rows]


async def test_watermarks_leave_behind_an_advisory_that_nobody_takes(tmp_path: Path, store: SqliteStore) -> None:
    async with running_region(tmp_path) as region:
        await region.make_stream(max_msg_size=2_000)
        async with uploading(region, store):
            await fill(store, [advisory("a1"), advisory("large", size=3_000), watermark("w1"), advisory("a2")])
            await emptied(store, 1)
            await fill(store, [watermark("w2", since=2), structs.replace(watermark("w3", 3), payload=bytes(3_000))])
            await emptied(store, 1)
            assert [record.text for record in await region.stored()] == ["a1", "w1", "a2", "w2"]
            await region.update_stream(max_msg_size=-1)
            await emptied(store, 0)
        assert [record.text for record in await region.stored()][4:] == ["large"]
    assert store.outbox_counters(BLOCK) == {"set_apart": {"max_msg_size": 1}, "dropped": {"too_large": 1}}


async def test_a_store_that_cannot_set_a_row_apart_holds_up_its_lane_alone(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def note(shipment: Shipment) -> None:
        if shipment.form is not Form.QUESTION:
            sent.extend(row.payload.decode().strip() for row in shipment.rows)

    tell_of_shipments(monkeypatch, note)
    await store._database.execute("PRAGMA busy_timeout=1")
    advisories = [advisory(f"a{number}", size=2_000) for number in range(3_000)]
    await fill(store, [copy("large", size=100_000), *copies(0, 1), *advisories])
    async with running_region(tmp_path, round_trip=0.1, bandwidth=2 << 20) as region:
        await region.make_stream(max_msg_size=LIMIT)
        with closing(sqlite3.connect(tmp_path / "agent.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with uploading(region, store) as told:
                await until(partial(_has_stored, region, 3_000), "all advisories have arrived", 60.0)
                await until(lambda: any("store locked" in text for text in told), "the lane says why it waits", 60.0)
                assert store.set_apart_depth() == LaneDepth()
                other.execute("ROLLBACK")
                await emptied(store, 1)
        stored = await region.stored()
    assert words(stored, ".copy.") == ["c0"]
    assert sorted(text for text in sent if text.startswith("a")) == sorted(f"a{number}" for number in range(3_000))


async def test_rows_that_are_refused_together_are_set_apart_together(tmp_path: Path, store: SqliteStore) -> None:
    await fill(store, [advisory(f"large{number}", size=3_000) for number in range(500)])
    commits = store.commits.done
    async with running_region(tmp_path) as region:
        await region.make_stream(max_msg_size=2_000)
        async with uploading(region, store):
            await emptied(store, 500)
    assert store.commits.done - commits < 250


async def test_a_flood_of_rows_that_nobody_takes_breaks_no_batch_and_stays_within_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "ASK_EVERY", 60.0)
    forms: list[tuple[Form, int]] = []
    tell_of_shipments(monkeypatch, lambda shipment: forms.append(_form_of(shipment)))
    rows: list[OutboxRow] = []
    for number in range(200):
        rows += [*copies(number * 20, 20), copy(f"large{number}", size=100_000)]
    async with opened(tmp_path / "agent.db", max_outbox=40 << 20) as store:
        await fill(store, rows)
        async with running_region(tmp_path, extra_config=LOWER) as region:
            await region.make_stream(allow_atomic=True)
            async with uploading(region, store):
                await until(lambda: store.depths() == EMPTY, "all others have arrived", 60.0)
            assert words(await region.stored(), ".copy.") == [f"c{number}" for number in range(4_000)]
        kept = store.set_apart_depth()
        assert kept.size <= 10 << 20
        counters = store.outbox_counters(BLOCK)
    assert kept.rows + counters["dropped"]["set_apart_full"] == counters["set_apart"]["max_payload"] == 200
    assert sum(count for form, count in forms if form is Form.SINGLE) <= 210, "rows that fit were sent one by one"


def _form_of(shipment: Shipment) -> tuple[Form, int]:
    return shipment.form, len(shipment.rows)


async def test_a_limit_that_has_risen_for_some_only_lets_these_through_and_leaves_the_others_alone(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some are refused again before the last have gone back.
    monkeypatch.setattr(oversized, "SLICE_BYTES", 1)
    tried: list[str] = []
    tell_of_shipments(monkeypatch, lambda shipment: tried.append(shipment.rows[0].payload.decode().strip()))
    large = [copy(f"large{number}", size=200_000 + number) for number in range(20)]
    async with running_region(tmp_path) as region:
        await region.make_stream(max_msg_size=LIMIT)
        async with uploading(region, store):
            await fill(store, [copy("small", size=80_000), *large])
            await emptied(store, 21)
            tried.clear()
            await region.update_stream(max_msg_size=100_000)
            await until(partial(_has_stored, region, 1), "the small one has arrived", 60.0)
            await until(lambda: "large19" in tried, "all others were tried", 60.0)
            await emptied(store, 20)
            await fill(store, copies(0, 1))
            await until(partial(_has_stored, region, 2), "copying goes on", 60.0)
            await emptied(store, 20)
        # But for the smallest, which is tried now and then.
        assert {text: tried.count(text) for text in tried if text.startswith("large") and text != "large0"} == {
            f"large{number}": 1 for number in range(1, 20)
        }


@pytest.mark.parametrize("is_raised_for_all", [True, False])
async def test_a_limit_that_was_not_raised_holds_up_no_record_that_was_over_the_other(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, is_raised_for_all: bool
) -> None:
    monkeypatch.setattr(oversized, "FIRST_TRIAL", 3_600.0)
    monkeypatch.setattr(oversized, "LONGEST_PAUSE", 3_600.0)
    async with running_region(tmp_path, extra_config=LOWER) as region:
        await region.make_stream(max_msg_size=20_000)
        await region.api("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other.>"]})
        await fill(store, [copy("small", size=30_000), structs.replace(copy("large", size=100_000), subject="other.a")])
        async with uploading(region, store):
            await emptied(store, 2)
            if is_raised_for_all:
                await region.update_stream(max_msg_size=-1)
            region.server.reload(RAISED)
            await emptied(store, 0 if is_raised_for_all else 1)


@pytest.mark.parametrize("cause", ["max_payload", "max_msg_size"])
async def test_nobody_is_told_to_raise_a_limit_that_has_become_high_enough(
    tmp_path: Path, store: SqliteStore, cause: str
) -> None:
    is_servers = cause == "max_payload"
    async with running_region(tmp_path, extra_config=LOWER if is_servers else RAISED) as region:
        await region.make_stream(max_msg_size=-1 if is_servers else LIMIT)
        async with uploading(region, store):
            await fill(store, [registration("", "largest", size=100_000), registration("", "large", size=90_000)])
            await until(partial(_knows_dropped, store, [cause]), "it is known that one was dropped", 60.0)
            if is_servers:
                region.server.reload(RAISED)
            else:
                await region.update_stream(max_msg_size=-1)
                await fill(store, [registration("", "as large", size=100_000)])
            await until(partial(_knows_dropped, store, []), "what was dropped would be taken now", 60.0)


async def test_a_smaller_record_that_is_taken_proves_no_limit_for_the_largest(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = SqliteStore.dropped_too_large

    async def counted(store: SqliteStore) -> list[port.DroppedTooLarge]:
        nonlocal looks
        looks += 1
        return await look(store)

    monkeypatch.setattr(SqliteStore, "dropped_too_large", counted)
    async with running_region(tmp_path) as region:
        await region.make_stream(max_msg_size=LIMIT)
        async with uploading(region, store):
            await fill(store, [registration("", "largest", size=100_000)])
            await until(partial(_knows_dropped, store, ["max_msg_size"]), "it is known that one was dropped", 60.0)
            await region.update_stream(max_msg_size=95_000)
            await fill(store, [registration("", "smaller", size=90_000)])
            await emptied(store, 0)
            seen = looks
            await until(lambda: looks > seen + 2, "it was looked again since", 60.0)
            assert [each.too_large.limit for each in await look(store)] == ["max_msg_size"]


async def test_what_was_dropped_long_ago_says_no_more_what_the_next_ones_need(
    store: SqliteStore, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    await region.make_stream(max_msg_size=2_000)
    async with uploading(region, store):
        await fill(store, [registration("", "large", size=100_000)])
        await until(partial(_knows_dropped, store, ["max_msg_size"]), "it is known that one was dropped", 60.0)
        monkeypatch.setattr(oversized, "DROPPED_LATELY", 0)
        await until(partial(_knows_dropped, store, []), "it is forgotten", 60.0)
        monkeypatch.setattr(oversized, "DROPPED_LATELY", port.DROPPED_LATELY)
        await fill(store, [registration("", "small", size=3_000)])
        await until(partial(_knows_dropped, store, ["max_msg_size"]), "it is known that one was dropped", 60.0)
        (dropped,) = await store.dropped_too_large()
    assert 3_000 < dropped.too_large.needed < 4_000


async def _knows_dropped(store: SqliteStore, causes: list[str]) -> bool:
    return [each.too_large.limit for each in await store.dropped_too_large()] == causes


async def _has_stored(region: Region, count: int) -> bool:
    return await region.stored_count() >= count


async def test_what_is_set_apart_outlives_the_agent_and_is_tried_again_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oversized, "FIRST_TRIAL", 3_600.0)
    path = tmp_path / "agent.db"
    async with running_region(tmp_path) as region:
        await region.make_stream(max_msg_size=LIMIT)
        async with opened(path) as store:
            await fill(store, [*copies(0, 10), *(copy(f"large{number}", size=100_000) for number in range(5))])
        store = await SqliteStore.open(path, 1 << 30)
        async with uploading(region, store):
            await emptied(store, 5)
        await die(store)
        await region.update_stream(max_msg_size=-1)
        async with opened(path) as store:
            assert store.set_apart_depth().rows == 5
            async with uploading(region, store):
                await emptied(store, 0)
        assert sorted(words(await region.stored(), ".copy.")[10:]) == [f"large{number}" for number in range(5)]


@pytest.mark.parametrize(
    "row",
    [
        registration("", "large", size=100_000),
        advisory("large", size=100_000),
        with_all_headers(copy("large"), LIMIT - 100),
    ],
)
async def test_a_limit_that_was_raised_by_a_reload_costs_no_record_and_no_header(
    tmp_path: Path, store: SqliteStore, row: OutboxRow
) -> None:
    async with running_region(tmp_path, extra_config=LOWER) as region:
        await region.make_stream()
        async with uploading(region, store) as told:
            await fill(store, copies(0, 1))
            await emptied(store, 0)
            region.server.reload(RAISED)
            await until(lambda: _has_reloaded(region), "the server has taken its new configuration", 60.0)
            await fill(store, [row])
            await emptied(store, 0)
        _, arrived = await region.stored()
    assert (arrived.payload, arrived.headers) == (row.payload, row.headers)
    assert store.outbox_counters(BLOCK) == {}
    assert set(told) == {""}, "the connection has stood"


async def test_a_limit_that_was_lowered_ends_one_connection_and_sets_apart_what_it_does_not_take(
    tmp_path: Path, store: SqliteStore
) -> None:
    async with running_region(tmp_path, extra_config=RAISED) as region:
        await region.make_stream()
        async with uploading(region, store) as told:
            await fill(store, copies(0, 1))
            await emptied(store, 0)
            region.server.reload(LOWER)
            await until(lambda: _has_reloaded(region), "the server has taken its new configuration", 60.0)
            await fill(store, [copy("large", size=100_000), *copies(1, 10)])
            await emptied(store, 1)
            assert len({text for text in told if "Maximum Payload" in text}) <= 1
        assert words(await region.stored(), ".copy.") == [f"c{number}" for number in range(11)]


def _has_reloaded(region: Region) -> bool:
    return "max_payload" in region.server.log_tail()


async def test_lanes_measure_what_is_set_apart_no_longer(store: SqliteStore, region: Region) -> None:
    await region.make_stream(max_msg_size=LIMIT)
    await fill(store, [copy("large", size=100_000)])
    async with uploading(region, store):
        await emptied(store, 1)
    assert store.depths()[Lane.COPIES] == LaneDepth()
    assert store.set_apart_depth() == LaneDepth(1, 100_256)
    assert not store.copies_wait()
