"""A record that raises while it is folded, or stored, is quarantined, and all others count."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.senders import UP
from aggregator.records.judge import QuarantineReason
from shared.instants import MINUTE
from tests.integration.live.test_serve import now, reading_feed
from tests.support.lakehouse.hub import Block, Hub, Message
from tests.support.waiting import until

ODD = "odd agent"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as running_hub:
        yield running_hub


def fail(_fleet: Fleet, _number: int) -> None:
    raise KeyError(ODD)


def store_what_does_not_fit(fleet: Fleet, number: int) -> None:
    fleet.blocks[number].forgotten_count = 1 << 80


def records(at: int) -> Iterator[Message]:
    """Yield records of several blocks, some of which the fold of the test cannot take."""
    for number in range(40):
        block = Block("eu-west", f"site{number % 4}", agent=ODD if number % 13 == 5 else "muster")
        yield block.new(f"web{number}", at + number)
        yield block.watermark(at, at + number)


@pytest.mark.parametrize("defect", [fail, store_what_does_not_fit], ids=["folded", "stored"])
async def test_record_that_the_fold_cannot_take_is_quarantined(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Callable[[Fleet, int], None]
) -> None:
    fold = Fleet._watermark

    def watermark(fleet: Fleet, judged: Any, archived_at: int, changes: Any) -> None:
        fold(fleet, judged, archived_at, changes)
        if judged.agent == ODD:
            number = fleet.number_of((judged.region, judged.site, judged.block))
            assert number is not None
            defect(fleet, number)

    messages = list(records(now() - MINUTE))
    odd = sum(ODD.encode() in message.body for message in messages)
    assert odd == 3
    monkeypatch.setattr(Fleet, "_watermark", watermark)
    last = await asyncio.to_thread(hub.publish, messages)
    async with reading_feed(hub, tmp_path) as feed:
        await until(lambda: feed.is_ready and feed.fleet.sequence == last, "all is read")
        fleet = feed.fleet
        assert fleet.refused == {QuarantineReason.NOT_JUDGED: odd}
        fleet.check_invariants()
        agents = [block.agent for block in fleet.blocks]
        assert (agents, fleet.senders.state[:40].tolist()) == (["muster"] * 4, [UP] * 40)
    async with reading_feed(hub, tmp_path) as feed:
        await until(lambda: feed.is_ready, "it continues where it stood")
        assert (feed.fleet.sequence, feed.fleet.refused) == (last, {})
