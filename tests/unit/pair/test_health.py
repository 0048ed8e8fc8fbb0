"""The lead is handed over where the other can do more, for long enough, and nowhere else: it never goes to and fro."""

from itertools import chain, combinations
from pathlib import Path

from edge_agent.observability.status_board import StatusBoard
from edge_agent.pair.health import Handover, MemberHealth, Trouble
from tests.support.store.store_batches import opened

NONE: frozenset[Trouble] = frozenset()
DEAF = frozenset({Trouble.DELIVERING})
FULL = frozenset({Trouble.COMMITTING})
AFTER = 10.0


def test_the_other_must_have_been_able_to_do_more_all_the_time() -> None:
    handover = Handover(AFTER)
    assert not handover.is_due(0.0, DEAF, NONE)
    assert not handover.is_due(9.9, DEAF, NONE)
    assert not handover.is_due(10.0, DEAF, DEAF), "the other cannot do it either"
    assert not handover.is_due(10.5, DEAF, NONE), "it begins anew"
    assert not handover.is_due(12.0, DEAF, None), "the other could not lead"
    assert not handover.is_due(13.0, DEAF, NONE)
    assert handover.is_due(23.0, DEAF, NONE)


def test_who_can_do_something_else_gets_nothing() -> None:
    handover = Handover(AFTER)
    assert not any(handover.is_due(at, DEAF, FULL) for at in (0.0, 60.0))
    assert not any(handover.is_due(at, NONE, NONE) for at in (100.0, 160.0))
    assert not handover.is_due(200.0, DEAF | FULL, FULL)
    assert handover.is_due(210.0, DEAF | FULL, FULL), "more than we can is enough"


def test_no_two_members_would_each_hand_over_to_the_other() -> None:
    every = [frozenset(some) for some in chain(*(combinations(Trouble, count) for count in range(len(Trouble) + 1)))]

    def gives(ours: frozenset[Trouble], theirs: frozenset[Trouble]) -> bool:
        handover = Handover(AFTER)
        return handover.is_due(0.0, ours, theirs) or handover.is_due(AFTER, ours, theirs)

    assert any(gives(ours, theirs) for ours in every for theirs in every)
    assert not any(gives(ours, theirs) and gives(theirs, ours) for ours in every for theirs in every)


async def test_who_cannot_ask_its_disk_for_room_cannot_write_its_store(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    board = StatusBoard("dub1-a", "eu-west", "dub1", "1", "boot", 1 << 30)
    async with opened(tmp_path / "disk" / "agent.db") as store:
        health = MemberHealth(board, [], store, "fleet.watermark")
        assert health.troubles() == DEAF
        (tmp_path / "disk").rename(tmp_path / "gone")
        assert health.troubles() == DEAF | FULL
