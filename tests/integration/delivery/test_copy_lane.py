"""The lane of copies, asked by hand: what it sends next, and what it concludes from the answers."""

import asyncio
from pathlib import Path

import pytest

from edge_agent.core.records import OutboxRow
from edge_agent.delivery import copy_lane
from edge_agent.delivery.copy_lane import CopyScheduler
from edge_agent.delivery.lane import READ_BYTES, READ_ROWS, UploadLane
from edge_agent.delivery.shipment import Answer, Form, Outcome, Shipment, ShipmentPlace, Terms
from edge_agent.store.sqlite_store import SqliteStore
from tests.support.delivery.asked_lane import copies_lane, next_of
from tests.support.delivery.fleet_region import EMPTY, running_region, uploading
from tests.support.store.store_batches import batch, copy, opened
from tests.support.waiting import until


async def sent(lane: UploadLane) -> Shipment:
    """Give the next shipment; a lane that was refused something rests before."""
    await until(lambda: asyncio.get_running_loop().time() >= lane.paused_until, "the lane has rested")
    shipment = await next_of(lane)
    assert shipment is not None
    return shipment


async def answer(lane: UploadLane, shipment: Shipment, outcome: Outcome, sequence: int = 0, reason: str = "") -> None:
    lane.take_answer(Answer(shipment.number, outcome, sequence, reason))


async def test_copies_of_a_block_are_sent_though_those_of_another_around_them_are_known(
    tmp_path: Path, store: SqliteStore
) -> None:
    known = [copy(f"a{number}", block="a") for number in range(300)]
    unknown = [copy(f"b{number}", block="b") for number in range(300)]
    interleaved: list[OutboxRow] = []
    for start in range(0, 300, 10):
        interleaved += known[start : start + 10] + unknown[start : start + 10]
    await store.commit(batch(1, interleaved))
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True)
        for row in known:
            await region.client.jetstream().publish(row.subject, row.payload, headers=dict(row.headers))
        async with uploading(region, store):
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", 60.0)
        texts = [record.text for record in await region.stored()]
    assert [text for text in texts if text.startswith("b")] == [row.payload.decode() for row in unknown]
    assert len(texts) == 600


async def test_a_batch_follows_one_in_flight_of_its_own_block_alone(store: SqliteStore) -> None:
    """Another's may go into another stream, where the condition means nothing."""
    for number, block in enumerate("aba"):
        await store.commit(batch(number + 1, [copy(f"{block}{number}.{part}", block) for part in range(3_000)]))
    lane = copies_lane(store)
    in_flight: list[Shipment] = []
    sequence = followers = 0
    while True:
        shipment = await next_of(lane)
        if shipment is not None:
            if shipment.behind is not None:
                assert shipment.rows[0].block == in_flight[-1].rows[0].block
                followers += 1
            in_flight.append(shipment)
        elif in_flight:
            first = in_flight.pop(0)
            if first.form is Form.QUESTION:
                await answer(lane, first, Outcome.MISPLACED)
                continue
            sequence += len(first.rows)
            await answer(lane, first, Outcome.STORED, sequence)
        else:
            break
    assert sequence == 9_000
    assert followers > 3


async def test_nothing_follows_a_batch_that_will_be_refused_since_others_wrote_before_the_one_ahead_of_it(
    store: SqliteStore,
) -> None:
    """As many as it has rows: then what follows would find the subject's end where it expects it."""
    await store.commit(batch(1, [copy(f"c{number}") for number in range(9_000)]))
    lane = copies_lane(store)
    await answer(lane, await sent(lane), Outcome.MISPLACED)
    first = await sent(lane)
    end = len(first.rows)
    await answer(lane, first, Outcome.STORED, end)
    ahead, behind = await sent(lane), await sent(lane)
    assert behind.behind == ShipmentPlace(ahead.rows[-1].subject, end + len(ahead.rows))
    await answer(lane, ahead, Outcome.STORED, end + len(behind.rows) + len(ahead.rows))
    assert await next_of(lane) is None
    await answer(lane, behind, Outcome.MISPLACED)
    again = await sent(lane)
    assert (again.rows[0], again.behind) == (behind.rows[0], None)


async def test_rows_of_a_refused_batch_go_alone_with_nothing_behind_them(store: SqliteStore) -> None:
    await store.commit(batch(1, [copy(f"c{number}") for number in range(4_000)]))
    lane = copies_lane(store)
    await answer(lane, await sent(lane), Outcome.MISPLACED)
    shipment = await sent(lane)
    assert shipment.form is Form.BATCH
    refused = len(shipment.rows)
    await answer(lane, shipment, Outcome.REFUSED, reason="maximum messages exceeded")
    for number in range(refused):
        shipment = await sent(lane)
        assert (shipment.form, shipment.rows[0].payload.decode()) == (Form.SINGLE, f"c{number}")
        assert await next_of(lane) is None
        await answer(lane, shipment, Outcome.STORED, number + 1)
    shipment = await sent(lane)
    assert (shipment.form, shipment.rows[0].payload.decode()) == (Form.BATCH, f"c{refused}")


async def test_a_lane_of_small_rows_and_then_large_ones_is_not_read_into_memory_whole(tmp_path: Path) -> None:
    sizes = [100] * (READ_ROWS // 10) + [1_000_000] * 30
    async with opened(tmp_path / "agent.db") as store:
        await store.commit(batch(1, [copy(f"c{number}", size=size) for number, size in enumerate(sizes)]))
    async with opened(tmp_path / "agent.db") as store:
        lane = copies_lane(store)
        await answer(lane, await sent(lane), Outcome.NO_BATCHES)
        for _ in range(60):
            await answer(lane, await sent(lane), Outcome.STORED, 1)
        assert sum(row.size for row in lane.flight.ready) < 2 * READ_BYTES


async def test_a_refusal_is_no_longer_told_when_the_region_knows_what_was_refused(store: SqliteStore) -> None:
    await store.commit(batch(1, [copy("c")]))
    lane = copies_lane(store)
    await answer(lane, await sent(lane), Outcome.REFUSED, reason="maximum messages exceeded")
    assert lane.flight.problem == "block nodes: fleet.eu-west.dub1.nodes.copy.reg: maximum messages exceeded"
    await answer(lane, await sent(lane), Outcome.DUPLICATE)
    assert lane.flight.problem == ""


async def test_a_refusal_is_still_told_while_a_question_says_that_the_region_does_not_know_the_row(
    store: SqliteStore,
) -> None:
    await store.commit(batch(1, [copy("c")]))
    lane = copies_lane(store)
    await answer(lane, await sent(lane), Outcome.REFUSED, reason="maximum messages exceeded")
    await answer(lane, await sent(lane), Outcome.MISPLACED)
    assert lane.flight.problem == "block nodes: fleet.eu-west.dub1.nodes.copy.reg: maximum messages exceeded"


@pytest.mark.parametrize("outcome", [Outcome.NO_BATCHES, Outcome.MISPLACED, Outcome.DUPLICATE])
async def test_rows_go_one_by_one_though_a_question_is_answered_after_another_lane_has_learnt_that_they_must(
    store: SqliteStore, outcome: Outcome
) -> None:
    """Copies of a block leave in two lanes, and what one learns of the region holds for both."""
    await store.commit(batch(1, [copy("c")]))
    terms = Terms()
    lane = copies_lane(store, terms)
    question = await sent(lane)
    assert question.form is Form.QUESTION
    terms.learn(question.rows[0].block, Form.QUESTION, Outcome.NO_BATCHES)
    assert await next_of(lane) is None
    await answer(lane, question, outcome)
    assert (await sent(lane)).form is Form.SINGLE


@pytest.mark.parametrize("batches_were_taken", [True, False])
async def test_a_region_that_stays_busy_gets_rows_one_by_one_and_batches_again_when_it_takes_them(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, batches_were_taken: bool
) -> None:
    monkeypatch.setattr(copy_lane, "BUSY_PATIENCE", 0.1)
    monkeypatch.setattr(copy_lane, "ONE_BY_ONE_FOR", 0.4)
    await store.commit(batch(1, [copy(f"c{number}") for number in range(20)]))
    lane = copies_lane(store)
    if batches_were_taken:
        await answer(lane, await sent(lane), Outcome.MISPLACED)
    gathered = Form.BATCH if batches_were_taken else Form.QUESTION
    for _ in range(2):
        shipment = await sent(lane)
        assert shipment.form is gathered
        await answer(lane, shipment, Outcome.BUSY, reason="too many batches")
    for number in range(2):
        shipment = await sent(lane)
        assert (shipment.form, shipment.rows[0].payload.decode()) == (Form.SINGLE, f"c{number}")
        await answer(lane, shipment, Outcome.STORED, number + 1)
    scheduler = lane._scheduler
    assert isinstance(scheduler, CopyScheduler)
    await until(lambda: asyncio.get_running_loop().time() >= scheduler._batches_from, "it is time for another batch")
    shipment = await sent(lane)
    assert (shipment.form, shipment.rows[0].payload.decode()) == (gathered, "c2")
    await answer(lane, shipment, Outcome.BUSY, reason="too many batches")
    shipment = await sent(lane)
    assert (shipment.form, shipment.rows[0].payload.decode()) == (Form.SINGLE, "c2")
    assert lane.flight.problem == ""


async def test_a_block_whose_stream_takes_no_batches_takes_them_from_no_other(store: SqliteStore) -> None:
    await store.commit(batch(1, [copy(f"a{number}", "a") for number in range(2)]))
    await store.commit(batch(2, [copy(f"b{number}", "b") for number in range(20)]))
    await store.commit(batch(3, [copy("a2", "a")]))
    lane = copies_lane(store)
    await answer(lane, await sent(lane), Outcome.NO_BATCHES)
    for number in range(2):
        shipment = await sent(lane)
        assert (shipment.form, shipment.rows[0].payload.decode()) == (Form.SINGLE, f"a{number}")
        assert await next_of(lane) is None
        await answer(lane, shipment, Outcome.STORED, number + 1)
    question = await sent(lane)
    assert (question.form, question.rows[0].block) == (Form.QUESTION, "b")
    await answer(lane, question, Outcome.MISPLACED)
    shipment = await sent(lane)
    assert (shipment.form, len(shipment.rows)) == (Form.BATCH, 20)
    await answer(lane, shipment, Outcome.STORED, 20)
    assert (await sent(lane)).form is Form.SINGLE
