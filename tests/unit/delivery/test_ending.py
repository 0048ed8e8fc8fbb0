import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import pytest

from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.delivery import uploader
from edge_agent.delivery.fast_path import FastPath
from edge_agent.delivery.port import UpstreamUnavailable
from edge_agent.delivery.shipment import Answer, Shipment
from edge_agent.delivery.uploader import Uploader
from edge_agent.source.port import SourceUnavailable
from shared.instants import SECOND
from shared.tasks import cancel_all
from tests.support.agent.mortal_agent import MortalAgent
from tests.support.core.scripted_stream import ScriptedStream
from tests.support.store.store_batches import opened
from tests.support.waiting import until

START = 1_700_000_000 * SECOND
POLICY = Policy(sample_interval=30 * SECOND, stale_after=20 * SECOND, retire_after=50 * SECOND, blind_after=8 * SECOND)


class Wait:
    """Waits for ever, and loses its first cancellation, as a wait does whose answer comes at that moment."""

    def __init__(self) -> None:
        self.began = False
        self._has_lost = False

    async def forever(self) -> None:
        self.began = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._has_lost:
                raise
            self._has_lost = True


class WaitingStream(ScriptedStream):
    """A stream that delivers nothing; ``fails`` where every read ends with an error."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__(START)
        self.wait = Wait()
        self._fails = fails

    async def read(self, _patience: float) -> Sequence[SourceMessage]:
        await self.wait.forever()
        if self._fails:
            raise SourceUnavailable("the connection is down")
        return []


class WaitingUpstream:
    """A region that is never there."""

    def __init__(self) -> None:
        self.wait = Wait()

    async def ready(self) -> None:
        await self.wait.forever()
        raise UpstreamUnavailable("the connection is down")

    async def send(self, _shipment: Shipment) -> None:
        raise UpstreamUnavailable("the connection is down")

    async def answers(self, _patience: float) -> Sequence[Answer]:
        return []

    def poke(self) -> None:
        """Let nobody wait on."""

    max_payload = 1 << 20

    async def ask_max_payload(self) -> int:
        return self.max_payload

    def give_up(self) -> None:
        """Nothing waits here for a word on its size."""

    def takes_more(self) -> bool:
        return False


async def until_ended(run: Callable[[], Coroutine[None, None, None]], wait: Wait) -> None:
    """End a part as the agent does; its group of tasks cancels each of them once."""

    async def part() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run())

    running = asyncio.create_task(part())
    await until(lambda: wait.began, "it waits")
    async with asyncio.timeout(30):
        await cancel_all([running])


async def test_a_part_ends_although_a_wait_lost_its_cancellation() -> None:
    async def loses_the_first() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    part = asyncio.create_task(loses_the_first())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await cancel_all([part])
    assert part.cancelled()


@pytest.mark.parametrize("fails", [False, True])
async def test_reading_ends_although_a_wait_lost_its_cancellation(tmp_path: Path, fails: bool) -> None:
    stream = WaitingStream(fails=fails)
    agent = MortalAgent(tmp_path / "agent.db", stream, POLICY, 1000)
    await agent.start()
    try:
        await until_ended(agent.ingest.run, stream.wait)
    finally:
        await agent.store.close()


async def test_uploading_ends_although_a_wait_lost_its_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "FIRST_RETRY", 0.01)
    upstream = WaitingUpstream()
    async with opened(tmp_path / "agent.db") as store:
        fast_path = FastPath(store.copies_wait)
        uploads = Uploader(store, upstream, bytes_per_second=0, report=lambda _problem: None, fast_path=fast_path)
        await until_ended(uploads.run, upstream.wait)
