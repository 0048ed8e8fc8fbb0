"""Two agents serve one site: whatever befalls either, the region hears a straight run's advisories, and all of them."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest_asyncio

from edge_agent.pair.status import PairPhase
from edge_agent.store.reading import reading
from shared.identifiers import AdvisoryKind
from tests.support.agent_stage import registering
from tests.support.pair_stage import TAKEOVER, PairStage, Seat, pair_stage
from tests.support.straight_run import advisories_of_a_straight_run
from tests.support.waiting import until


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[PairStage]:
    async with pair_stage(tmp_path) as pair:
        yield pair


async def test_the_other_takes_over_whatever_befalls_the_leader(pair: PairStage) -> None:
    a, b, region = pair.a, pair.b, pair.stage.region
    async with registering(pair.stage.site, "a", "b") as nodes:
        await pair.start()
        await until(knows(pair, "a", "b"), "both are known")

        await a.agent.kill()
        nodes.speak_up("c")
        nodes.fall_silent("b")
        await until(lambda: b.does(PairPhase.LEADING), "the other leads", TAKEOVER)
        await until(knows(pair, "c"), "what was said meanwhile has arrived")

        await a.agent.start()
        await until(lambda: a.does(PairPhase.STANDING_BY), "the first stands by")
        b.agent.suspend()
        nodes.speak_up("d")
        await until(lambda: a.does(PairPhase.LEADING), "the first leads again")
        b.agent.resume()
        await until(lambda: b.does(PairPhase.STANDING_BY), "who comes back too late stands by")

        await a.link.cut()
        await until(lambda: b.does(PairPhase.LEADING), "who reaches the site leads")
        await until(lambda: region.told(AdvisoryKind.STALE), "b is missed")
        nodes.speak_up("b")
        await until(lambda: region.told(AdvisoryKind.RECOVERED), "b is back")
    await assert_straight_run(pair, leader=b)


async def test_what_the_dead_leader_could_not_send_leaves_with_the_other(pair: PairStage) -> None:
    a, b, region = pair.a, pair.b, pair.stage.region
    async with registering(pair.stage.site, "a") as nodes:
        await a.agent.start()
        await until(knows(pair, "a"), "one is known")
        await region.link.cut()
        nodes.speak_up("b")
        await until(lambda: waiting(a) > 0, "an advisory waits")
        # It knows nothing of what was before: it copies the leader's store.
        await b.agent.start()
        await until(lambda: b.does(PairPhase.STANDING_BY), "the second stands by")
        assert waiting(b) > 0
        nodes.speak_up("c")
        await until(lambda: waiting(a) > 1 and waiting(b) == waiting(a), "both have decided the same")
        await a.agent.kill()
        await until(lambda: b.does(PairPhase.LEADING), "the other leads", TAKEOVER)
        await region.link.restore()
        await until(knows(pair, "a", "b", "c"), "all is told")
    await assert_straight_run(pair, leader=b)


async def test_both_die_and_come_back_in_any_order(pair: PairStage) -> None:
    a, b = pair.a, pair.b
    async with registering(pair.stage.site, "a") as nodes:
        await pair.start()
        await b.agent.kill()
        nodes.speak_up("b")
        await until(knows(pair, "b"), "the leader goes on alone")
        await a.agent.kill()
        nodes.speak_up("c")
        await b.agent.start()
        await until(lambda: b.does(PairPhase.LEADING), "who was away has caught up, and leads")
        await until(knows(pair, "a", "b", "c"), "all are known")
        assert await b.agent.stop() == 0
        await a.agent.start()
        await until(lambda: a.does(PairPhase.LEADING), "the other leads at once")
    await assert_straight_run(pair, leader=a)


# Helpers


def knows(pair: PairStage, *names: str) -> Callable[[], object]:
    async def told() -> bool:
        return set(names) <= set(await pair.stage.region.told(AdvisoryKind.NEW))

    return told


def waiting(seat: Seat) -> int:
    """Count the advisories that wait at a member."""
    with reading(seat.store_path) as database:
        return int(database.execute("SELECT COUNT(*) FROM advisory_outbox WHERE watermark_since = 0").fetchone()[0])


async def assert_straight_run(pair: PairStage, leader: Seat) -> None:
    """End the one that leads: the region has these bytes and no others, whoever sent them."""
    await until(lambda: not waiting(leader), "everything has arrived")
    assert await leader.agent.stop() == 0
    arrived = {record.payload for record in await pair.stage.region.records(".advisory.")}
    straight = await advisories_of_a_straight_run(leader.agent.config_path, pair.stage.site.client)
    assert sorted(arrived, key=_ordinal) == straight


def _ordinal(payload: bytes) -> int:
    return int(msgspec.json.decode(payload)["ordinal"])
