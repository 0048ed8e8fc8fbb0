"""What may pass the store by, and what becomes of it."""

import asyncio

import pytest
from msgspec.structs import replace

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.delivery import fast_path
from edge_agent.delivery.fast_path import ROOM, BlockFastPath, DeliveredCopies, FastPath
from tests.support.store.store_batches import copy, state_at


class Situation:
    """A fast path whose link is up, with an empty store behind it."""

    def __init__(self) -> None:
        self.copies_wait = False
        self.woken = 0
        self.fast_path = FastPath(lambda: self.copies_wait)
        self.a = BlockFastPath(self.fast_path, "a")
        self.b = BlockFastPath(self.fast_path, "b")
        self.fast_path.link_is_up(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    async def leaving(self, after: int = 0) -> list[str]:
        """Give what may leave behind a row, by its words."""
        return [row.payload.decode() for row in await self.fast_path.pending(Lane.COPIES, after, 100)]

    def acknowledge(self, through: int) -> None:
        """Let the region acknowledge rows."""
        self.fast_path.delete_through(Lane.COPIES, through)


@pytest.fixture
async def situation() -> Situation:
    return Situation()


def rows(*texts: str) -> list[OutboxRow]:
    return [copy(text, text[0]) for text in texts]


async def test_what_is_delivered_is_committed_in_order_and_several_pieces_at_once(situation: Situation) -> None:
    for sequence in (1, 2, 3):
        assert situation.a.hand_over(state_at(sequence), rows(f"a{sequence}.1", f"a{sequence}.2"))
    assert situation.woken == 3
    assert await situation.leaving() == ["a1.1", "a1.2", "a2.1", "a2.2", "a3.1", "a3.2"]
    assert await situation.leaving(after=4) == ["a3.1", "a3.2"]
    situation.acknowledge(1)
    assert situation.a.conclude() is None
    situation.acknowledge(5)
    assert situation.a.conclude() == DeliveredCopies(state_at(2))
    situation.acknowledge(6)
    assert situation.a.conclude() == DeliveredCopies(state_at(3))
    assert not situation.a.is_under_way


async def test_nothing_passes_while_the_store_holds_copies_or_the_link_is_down(situation: Situation) -> None:
    situation.copies_wait = True
    assert not situation.a.hand_over(state_at(1), rows("a1"))
    situation.copies_wait = False
    situation.fast_path.link_is_down()
    assert not situation.a.hand_over(state_at(1), rows("a1"))
    assert not situation.a.is_under_way


async def test_a_block_whose_copies_were_being_stored_while_another_opened_the_passage_stores_behind_them(
    situation: Situation,
) -> None:
    assert situation.b.hand_over(state_at(1), rows("b1"))
    situation.copies_wait = True
    assert not situation.a.hand_over(state_at(2), rows("a2"))
    assert await situation.leaving() == ["b1"]
    situation.acknowledge(1)
    assert situation.b.conclude() == DeliveredCopies(state_at(1))
    situation.copies_wait = False
    assert situation.a.hand_over(state_at(2), rows("a2"))


async def test_what_is_not_delivered_when_the_link_fails_is_stored_from_the_first_row_on_that_is_not(
    situation: Situation,
) -> None:
    situation.a.hand_over(state_at(1), rows("a1", "a2", "a3"))
    situation.a.hand_over(state_at(2), rows("a4"))
    situation.acknowledge(2)
    situation.fast_path.link_is_down()
    concluded = situation.a.conclude()
    assert concluded is not None
    assert concluded.state == state_at(2)
    assert [row.payload for row in concluded.rows] == [b"a3", b"a4"]
    assert not situation.a.is_under_way


async def test_a_closed_passage_lets_nothing_leave_and_stays_closed_until_every_block_has_taken_back(
    situation: Situation,
) -> None:
    situation.a.hand_over(state_at(1), rows("a1"))
    situation.b.hand_over(state_at(1), rows("b1"))
    situation.fast_path.link_is_down()
    situation.fast_path.link_is_up(lambda: None)
    assert await situation.leaving() == []
    assert situation.a.conclude() is not None
    assert not situation.a.hand_over(state_at(2), rows("a2"))
    assert situation.b.conclude() is not None
    assert situation.a.hand_over(state_at(2), rows("a2"))
    assert await situation.leaving() == ["a2"]


async def test_what_waits_too_long_for_its_acknowledgement_is_stored(
    situation: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    situation.a.hand_over(state_at(1), rows("a1"))
    assert situation.a.conclude() is None
    monkeypatch.setattr(fast_path, "PATIENCE", 0.0)
    concluded = situation.a.conclude()
    assert concluded is not None
    assert [row.payload for row in concluded.rows] == [b"a1"]


async def test_an_acknowledgement_that_comes_after_a_row_was_taken_back_means_nothing(situation: Situation) -> None:
    situation.a.hand_over(state_at(1), rows("a1"))
    situation.fast_path.close()
    assert situation.a.conclude() is not None
    situation.acknowledge(1)
    assert situation.a.conclude() is None
    situation.a.hand_over(state_at(2), rows("a2"))
    assert situation.a.conclude() is None
    situation.acknowledge(2)
    assert situation.a.conclude() == DeliveredCopies(state_at(2))


async def test_messages_of_which_nothing_is_copied_are_committed_behind_those_before_them(situation: Situation) -> None:
    situation.a.hand_over(state_at(1), rows("a1"))
    situation.a.hand_over(state_at(2), [])
    assert situation.a.conclude() is None
    situation.acknowledge(1)
    assert situation.a.conclude() == DeliveredCopies(state_at(2))


async def test_who_has_nothing_under_way_may_hand_over_a_row_of_any_size(situation: Situation) -> None:
    situation.a.hand_over(state_at(1), [copy("a1", "a", size=ROOM)])
    assert (situation.a.has_room, situation.b.has_room) == (False, True)
    situation.acknowledge(1)
    assert situation.a.conclude() == DeliveredCopies(state_at(1))
    assert situation.a.hand_over(state_at(2), rows("a2"))
    assert (situation.a.has_room, situation.b.has_room) == (True, True)


async def test_a_passage_that_opens_again_does_not_wait_for_what_was_taken_back(situation: Situation) -> None:
    situation.a.hand_over(state_at(1), rows("a1"))
    situation.fast_path.close()
    assert situation.a.conclude() is not None
    situation.a.hand_over(state_at(2), [])
    assert situation.a.conclude() == DeliveredCopies(state_at(2))


async def test_nothing_passes_while_copies_come_into_the_store_that_no_ingest_commits(situation: Situation) -> None:
    assert situation.a.hand_over(state_at(1), rows("a1"))
    with situation.fast_path.hold_closed():
        assert await situation.leaving() == []
        assert not await situation.fast_path.wait_until_empty(0.01), "what was handed over has not been taken back"
        assert situation.a.conclude() == DeliveredCopies(state_at(1), rows_with_ids("a1"))
        assert await situation.fast_path.wait_until_empty(0.01)
        assert not situation.a.hand_over(state_at(2), rows("a2"))
    assert situation.a.hand_over(state_at(2), rows("a2"))


async def test_a_closed_fast_path_is_empty_as_soon_as_what_was_on_its_way_is_acknowledged(situation: Situation) -> None:
    assert situation.a.hand_over(state_at(1), rows("a1"))
    with situation.fast_path.hold_closed():
        waiting = asyncio.create_task(situation.fast_path.wait_until_empty(3600))
        await asyncio.sleep(0)
        situation.acknowledge(1)
        async with asyncio.timeout(60):
            assert await waiting
    assert situation.a.conclude() == DeliveredCopies(state_at(1))


def rows_with_ids(*texts: str) -> list[OutboxRow]:
    return [replace(row, row_id=number) for number, row in enumerate(rows(*texts), 1)]
