"""What a member does beside following and leading is watched all the time: what ends it ends the member, aloud."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from edge_agent.observability.status_board import PairPhase, StatusBoard
from edge_agent.pair import peer
from edge_agent.pair.deliveries import Deliveries
from edge_agent.pair.follower import Follower
from edge_agent.pair.health import MemberHealth, Trouble
from edge_agent.pair.log import LogAddress, Writer
from edge_agent.pair.member import PairMember
from edge_agent.pair.peer import OtherMember
from edge_agent.store.sqlite import StoreDamaged
from edge_agent.store.sqlite_store import SqliteStore
from shared.nats.connection import ConnectionSettings, connect
from shared.wire import PAIR_ALONE
from tests.support.agent.agent_file import SMALLEST, parsed
from tests.support.nats.linked_server import DEADLINE
from tests.support.nats.source_site import Site, running_site
from tests.support.store.store_batches import opened
from tests.support.waiting import until

ADDRESS = LogAddress("eu-west", "dub1", "1f0c")
PAIR = '[pair]\nmembers = ["dub1-a", "dub1-b"]\ntakeover_after = "1s"'


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


class ShortSighted(MemberHealth):
    """It finds what nobody has foreseen."""

    def troubles(self) -> frozenset[Trouble]:
        raise ZeroDivisionError


class Hands:
    """It reads nothing, and its upload goes on until it meets damage."""

    def __init__(self, store: SqliteStore, health: MemberHealth) -> None:
        self.store, self.health = store, health
        self.meets_damage = asyncio.Event()

    async def follower(self, block: str, deliveries: Deliveries) -> Follower:
        raise NotImplementedError

    async def lead(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def upload(self) -> None:
        await self.meets_damage.wait()
        raise StoreDamaged("met")

    def stop_uploading(self) -> None:
        raise NotImplementedError


@asynccontextmanager
async def serving(
    site: Site, path: Path, name: str, health: type[MemberHealth] = MemberHealth
) -> AsyncIterator[tuple[PairMember, Hands, asyncio.Task[None]]]:
    """Let a member run, over the site's link."""
    settings = parsed(f'name = "{name}"\n{SMALLEST}\n[store]\npath = "{path}"\n{PAIR}')
    board = StatusBoard(name, "eu-west", "dub1", "1", "boot", 1 << 30)
    client = await connect(ConnectionSettings(servers=(site.link.url,)), name="member", deadline=DEADLINE)
    try:
        async with opened(path) as store:
            hands = Hands(store, health(board, [], store, "fleet.watermark"))
            member = PairMember(client, ADDRESS, Writer(name, "boot", "key", {}), settings, hands, board)
            running = asyncio.create_task(member.run())
            try:
                yield member, hands, running
            finally:
                running.cancel()
                await asyncio.wait({running})
    finally:
        await client.close()


def does(member: PairMember, phase: PairPhase) -> bool:
    return member.status().phase == phase


async def test_damage_that_the_upload_meets_is_heard_of_by_who_leads_no_more(site: Site, tmp_path: Path) -> None:
    async with serving(site, tmp_path / "agent.db", "dub1-a") as (member, hands, running):
        await until(lambda: does(member, PairPhase.LEADING), "it leads")
        await site.link.cut()
        await until(lambda: does(member, PairPhase.UNREACHABLE), "it leads no more, and uploads")
        hands.meets_damage.set()
        await until(running.done, "it has ended")
        assert told(running, StoreDamaged) == ["met"]


async def test_damage_that_the_upload_meets_lets_who_leads_end(site: Site, tmp_path: Path) -> None:
    async with serving(site, tmp_path / "agent.db", "dub1-a") as (member, hands, running):
        await until(lambda: does(member, PairPhase.LEADING), "it leads")
        hands.meets_damage.set()
        await until(running.done, "it has ended")
        assert told(running, StoreDamaged) == ["met"]


async def test_who_cannot_announce_itself_any_more_ends(site: Site, tmp_path: Path) -> None:
    async with serving(site, tmp_path / "agent.db", "dub1-b", ShortSighted) as (_, _, running):
        await until(running.done, "it has ended")
        assert told(running, ZeroDivisionError) == [""]


async def test_who_is_heard_and_does_not_stand_by_for_long_leaves_the_other_alone(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = StatusBoard("dub1-a", "eu-west", "dub1", "1", "boot", 1 << 30)
    settings = parsed(f'name = "dub1-a"\n{SMALLEST}\n{PAIR}')
    other = OtherMember(settings, Writer("dub1-a", "boot", "key", {}), board.reporter("other member"))

    def is_alone() -> bool:
        return PAIR_ALONE in {each.name for each in board.conditions()}

    client = await connect(ConnectionSettings(servers=(site.link.url,)), name="dub1-a", deadline=DEADLINE)
    try:
        await other.listen(client, ADDRESS.announcements)
        async with serving(site, tmp_path / "agent.db", "dub1-b"):
            await until(lambda: other.phase == PairPhase.WAITING, "it waits for the first, and says so")
            assert not is_alone()
            monkeypatch.setattr(peer, "READY_LATELY", 0.0)
            await until(is_alone, "it still waits")
        await client.publish(ADDRESS.announcements, b'{"member":"dub1-b","phase":"standing by"}')
        await until(lambda: not is_alone(), "it stands by")
    finally:
        await client.close()


def told(running: asyncio.Task[None], kind: type[Exception]) -> list[str]:
    """Give what ended it, all of it of one kind."""
    error = running.exception()
    assert isinstance(error, BaseExceptionGroup)
    expected, others = error.split(kind)
    assert others is None
    assert expected is not None
    return [str(each) for each in expected.exceptions]
