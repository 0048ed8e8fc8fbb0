"""Whatever happens between the agent and a stream that others write to, copies are stored once and in their order.

All but those that the stream does not take: these are set apart, each once, and hold up nobody.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from edge_agent.core.records import Lane, OutboxRow, TooLarge
from edge_agent.delivery import copy_lane, lane
from edge_agent.delivery.shipment import Answer, Form, Shipment, Terms
from edge_agent.store.port import EVERYTHING, StoreFull
from tests.support.delivery.asked_lane import copies_lane
from tests.support.delivery.region_model import NEVER_TAKEN, RegionModel, drawn_copies

HISTORIES = 1_500
LONGEST_HISTORY = 60_000
STEPS = (0.001, 0.05, 0.3)


class Waiting:
    """The rows of a store that have come so far."""

    def __init__(self, rows: Sequence[OutboxRow]) -> None:
        self.rows = rows
        self.come = self.acknowledged_through = self.append_count = 0
        self.set_apart_ids: list[int] = []
        self.is_unwritable: Callable[[], bool] = lambda: False

    def at_hand(self, _lane: Lane, after_row_id: int, row_limit: int) -> list[OutboxRow]:
        come = [row for row in self.rows[: self.come] if row.row_id > after_row_id]
        return [row for row in come if row.row_id not in self.set_apart_ids][:row_limit]

    async def pending(
        self, _lane: Lane, _after_row_id: int, _row_limit: int, _byte_limit: int = EVERYTHING
    ) -> list[OutboxRow]:
        raise AssertionError("all of them are at hand")

    async def set_apart(self, rows: Sequence[tuple[OutboxRow, TooLarge]]) -> None:
        await asyncio.sleep(0)
        if self.is_unwritable():
            raise StoreFull("the disk has no room")
        self.set_apart_ids += [row.row_id for row, _ in rows]

    def delete_through(self, _lane: Lane, row_id: int) -> None:
        self.acknowledged_through = max(self.acknowledged_through, row_id)

    def is_filling(self) -> bool:
        return False

    def release(self, _lane: Lane) -> None:
        """Send again from what is not acknowledged: they are at hand all the same."""

    @property
    def are_gone(self) -> bool:
        return all(row.row_id in self.set_apart_ids for row in self.rows[self.acknowledged_through :])


class Clock:
    """Passes when it is told to."""

    def __init__(self) -> None:
        self.at = 1.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have all that a lane does happen with few rows, and in no time."""
    clock = Clock()
    for module in (copy_lane, lane):
        monkeypatch.setattr(module, "BATCH_ROWS", 8)
        monkeypatch.setattr(module, "loop_time", clock)
    monkeypatch.setattr(copy_lane, "WORTH_A_CHAIN", 2)
    for name, value in (("LARGE_ROW", 0), ("MEASURED", 2), ("MEASURED_AGAIN_AFTER", 4), ("FIRST_PAUSE", 1)):
        monkeypatch.setattr(copy_lane, name, value)
    return clock


class History:
    """One lane and one stream: rows come, shipments and answers are under way, links are lost, rows are refused."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._draw = draw = random.Random(seed)
        self._clock = clock
        self.waiting = Waiting(list(drawn_copies(draw, draw.choice((30, 120, 300)))))
        self.region = RegionModel(
            draw, takes_batches=draw.random() < 0.85, others_write=draw.choice((0.0, 0.0, 0.1, 0.4))
        )
        self._terms = Terms()
        # What the servers refuse is known beforehand, what a stream refuses is not.
        self._terms.max_payload = draw.choice((EVERYTHING, NEVER_TAKEN))
        self._lane = copies_lane(self.waiting, self._terms)
        self.waiting.is_unwritable = lambda: draw.random() < 0.2
        self._sent: deque[Shipment] = deque()
        self._answers: deque[Answer] = deque()
        self.forms: set[Form] = set()

    async def step(self) -> None:
        draw = self._draw
        self._clock.at += draw.choice(STEPS)
        chance = draw.random()
        if chance < 0.25 and self.waiting.come < len(self.waiting.rows):
            self.waiting.come = min(len(self.waiting.rows), self.waiting.come + draw.choice((1, 5, 30)))
            self.waiting.append_count += 1
        if chance < 0.6 and (shipment := self._lane.next_shipment()) is not None:
            self._sent.append(shipment)
            self.forms.add(shipment.form)
        if self._sent and draw.random() < 0.5:
            self._answers.append(self.region.take(self._sent.popleft()))
        if self._answers and draw.random() < 0.5:
            self._lane.take_answer(self._answers.popleft())
        if self._lane.has_too_large and draw.random() < 0.5:
            setting_apart = asyncio.create_task(self._lane.set_apart())
            await asyncio.sleep(0)
            if draw.random() < 0.1:
                self._lose_the_link()
            assert self._lane.next_shipment() is None
            await setting_apart
        if draw.random() < 0.01:
            self._lose_the_link()
        if draw.random() < 0.003:
            self.region.refuse([draw.choice(self.waiting.rows)])
        elif draw.random() < 0.01:
            self.region.refuse([])

    def begin_again(self) -> None:
        """Have all rows wait once more, as when an older copy of the store was put back; the region keeps its own."""
        self.waiting.acknowledged_through, self.waiting.set_apart_ids = 0, []
        self._sent.clear()
        self._answers.clear()
        self._terms.forget()
        self._lane = copies_lane(self.waiting, self._terms)

    def _lose_the_link(self) -> None:
        """What is on its way may arrive still, in part; what was answered is not heard."""
        for _ in range(self._draw.randint(0, len(self._sent))):
            self.region.take(self._sent.popleft())
        self._sent.clear()
        self._answers.clear()
        self._terms.forget()
        self._lane.rewind()


async def test_copies_are_stored_once_and_in_their_order(clock: Clock) -> None:
    first_seed = random.getrandbits(32)
    forms: set[Form] = set()
    for seed in range(first_seed, first_seed + HISTORIES):
        history = History(seed, clock)
        for _ in range(LONGEST_HISTORY):
            if history.waiting.are_gone:
                break
            await history.step()
        rows = history.waiting.rows
        wanted = [str(row.row_id) for row in rows if len(row.payload) != NEVER_TAKEN]
        assert (history.waiting.are_gone, history.region.stored) == (True, wanted), f"History({seed}, clock)"
        set_apart = [row.row_id for row in rows if len(row.payload) == NEVER_TAKEN]
        assert history.waiting.set_apart_ids == set_apart, f"History({seed}, clock)"
        forms |= history.forms
    assert forms == set(Form)


async def test_what_waits_once_more_is_set_apart_again_and_never_taken_for_known(clock: Clock) -> None:
    first_seed = random.getrandbits(32)
    for seed in range(first_seed, first_seed + HISTORIES // 5):
        history = History(seed, clock)
        for begins_again in (True, False):
            for _ in range(LONGEST_HISTORY):
                if history.waiting.are_gone:
                    break
                await history.step()
            if begins_again:
                history.begin_again()
        set_apart = [row.row_id for row in history.waiting.rows if len(row.payload) == NEVER_TAKEN]
        assert (history.waiting.are_gone, history.waiting.set_apart_ids) == (True, set_apart), f"History({seed}, clock)"
