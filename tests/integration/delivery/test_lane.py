"""The lane of registrations, asked by hand: what leaves while reading is behind the stream."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from edge_agent.core.records import Lane
from edge_agent.delivery.flow_control import MOST, FlightLimit
from edge_agent.delivery.lane import YIELDING_ROWS, UploadLane
from edge_agent.delivery.shipment import Answer, Form, Outcome
from edge_agent.store import outbox_index
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.delivery.asked_lane import next_of, parallel_lane
from tests.support.store.store_batches import advisory, batch, opened, registration, watermark
from tests.support.waiting import until

BEHIND = 8_000
"""So many at a time come from a reader that is behind."""

A_SECOND = YIELDING_ROWS[Lane.REGISTRATIONS]


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let reading count as behind until this is undone, however long a busy machine takes to ask a lane."""
    monkeypatch.setattr(outbox_index, "FILLS_WITHIN", 3_600.0)
    return monkeypatch


def lane_of(store: SqliteStore, lane: Lane) -> UploadLane:
    limit = FlightLimit()
    limit.limit = MOST
    return parallel_lane(lane, store, limit)


async def leaves(lane: UploadLane) -> int:
    """Let leave what may leave now, all of it stored at once; give how many rows, one that leaves twice once."""
    row_ids: set[int] = set()
    while (shipment := await next_of(lane)) is not None:
        row_ids.update(row.row_id for row in shipment.rows)
        lane.take_answer(Answer(shipment.number, Outcome.STORED))
    return len(row_ids)


def has_rested(lane: UploadLane) -> bool:
    return asyncio.get_running_loop().time() >= lane.paused_until


async def test_what_comes_by_the_thousand_lets_reading_go_first(tmp_path: Path, behind: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "agent.db") as store:
        rows = [registration(f"node{number}", "text") for number in range(BEHIND)]
        await store.commit(batch(1, [*rows, *(advisory(str(number)) for number in range(BEHIND))], is_behind=True))
        lanes = [lane_of(store, lane) for lane in YIELDING_ROWS if YIELDING_ROWS[lane]]
        left = [await leaves(lane) for lane in lanes]
        for lane, count in zip(lanes, left, strict=True):
            assert YIELDING_ROWS[lane.lane] - 1 <= count < YIELDING_ROWS[lane.lane] + 1_000
        behind.undo()
        await until(lambda: not store.is_filling(), "reading has come to the stream's end")
        for lane, count in zip(lanes, left, strict=True):
            await until(partial(has_rested, lane), "the lane looks again")
            assert count + await leaves(lane) == BEHIND


async def test_advisories_leave_while_a_transaction_is_under_way(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, [*(advisory(str(number)) for number in range(10)), watermark("seen")]))
        lane = lane_of(store, Lane.ADVISORIES)
        async with store._lock:
            left = 0
            while (shipment := lane.next_shipment()) is not None:
                left += len(shipment.rows)
                lane.take_answer(Answer(shipment.number, Outcome.STORED))
            # The watermark at the end may be replaced by what is being committed.
            assert left == 10
            assert lane.flight.reader.is_reading
        assert await leaves(lane) == 1


@pytest.mark.usefixtures("behind")
async def test_registrations_leave_each_second_while_reading_stays_behind(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        rows = [registration(f"node{number}", "text") for number in range(BEHIND)]
        await store.commit(batch(1, rows, is_behind=True))
        lane, left = lane_of(store, Lane.REGISTRATIONS), 0
        began_at = asyncio.get_running_loop().time()

        async def two_seconds_have_left() -> bool:
            nonlocal left
            left += await leaves(lane)
            return left >= 2 * A_SECOND

        await until(two_seconds_have_left, "what may leave in another second has left")
        assert asyncio.get_running_loop().time() - began_at >= 1


async def test_registrations_that_come_by_the_hundred_at_the_streams_end_leave_as_they_come(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        lane, left = lane_of(store, Lane.REGISTRATIONS), 0
        for number in range(1, 7):
            await store.commit(batch(number, [registration(f"node{number}.{place}", "text") for place in range(500)]))
            left += await leaves(lane)
        assert left == 3_000


@pytest.mark.usefixtures("behind")
async def test_a_small_outbox_drops_nothing_because_registrations_would_have_waited(tmp_path: Path) -> None:
    """What is read while they wait must fit in beside them."""
    for max_outbox, waits in ((16 << 20, False), (40 << 20, True)):
        async with opened(tmp_path / f"{max_outbox}.db", max_outbox) as store:
            rows = [registration(f"node{number}", "text") for number in range(200)]
            await store.commit(batch(1, rows, is_behind=True))
            assert store.is_filling() is waits


async def test_whether_batches_are_taken_is_asked_for_each_block(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        for number, block in enumerate("ab", 1):
            await store.commit(batch(number, [registration("", f"{block}{place}", block) for place in range(300)]))
        lane = lane_of(store, Lane.REGISTRATIONS)
        forms: dict[str, set[Form]] = {"a": set(), "b": set()}
        outcomes = {"a": Outcome.NO_BATCHES, "b": Outcome.MISPLACED}
        while (shipment := await next_of(lane)) is not None:
            block = shipment.rows[0].block
            forms[block].add(shipment.form)
            is_question = shipment.form is Form.QUESTION
            lane.take_answer(Answer(shipment.number, outcomes[block] if is_question else Outcome.STORED))
        assert forms == {"a": {Form.QUESTION, Form.SINGLE}, "b": {Form.QUESTION, Form.BATCH}}


async def test_a_lane_that_is_refused_while_its_question_is_under_way_asks_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, [registration("", f"r{number}") for number in range(300)]))
        lane = lane_of(store, Lane.REGISTRATIONS)
        question, refused = await next_of(lane), await next_of(lane)
        assert question is not None
        assert refused is not None
        assert (question.form, refused.form) == (Form.QUESTION, Form.SINGLE)
        lane.take_answer(Answer(refused.number, Outcome.REFUSED, reason="maximum messages exceeded"))
        lane.take_answer(Answer(question.number, Outcome.MISPLACED))
        await until(partial(has_rested, lane), "the lane has rested")
        question = await next_of(lane)
        assert question is not None
        assert question.form is Form.QUESTION
        lane.take_answer(Answer(question.number, Outcome.MISPLACED))
        shipment = await next_of(lane)
        assert shipment is not None
        assert shipment.form is Form.BATCH
