"""Two agents serve one site: whatever befalls either, the region hears a straight run's advisories, and all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from edge_agent.inspection.outbox import read_outbox
from edge_agent.observability.status_board import CONNECTED, NOT_ACCEPTED, PairPhase
from edge_agent.store.read_only import store_reader
from shared.identifiers import AdvisoryKind
from shared.instants import DAY
from tests.support.agent.agent_process import AgentProcess, agent_process
from tests.support.agent.agent_stage import registering
from tests.support.agent.straight_run import assert_straight_run
from tests.support.faults.disk import SmallDisk
from tests.support.nats.source_site import STREAM
from tests.support.nats.stepped_clock import CANNOT_STEP, SteppedClock
from tests.support.pair.pair_stage import HAND_OVER, MEMBERS, MemberStage, PairStage, pair_stage
from tests.support.topology.policy_hub import said, write_topology
from tests.support.waiting import until

# Seconds: the leader, which has no way to go, writes several entries in that time.
LONG_WAY, STANDS_BY_WITHIN = 0.5, 30.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Give the first member's store a disk of its own."""
    with SmallDisk(tmp_path / MEMBERS[0]) as disk:
        if not disk.is_small:
            pytest.skip("a disk of its own for the store can be mounted by root only")
        yield disk


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[PairStage]:
    async with pair_stage(tmp_path) as pair:
        yield pair


async def test_the_other_takes_over_whatever_befalls_the_leader(pair: PairStage) -> None:
    a, b, region = pair.a, pair.b, pair.stage.region
    async with registering(pair.stage.site, "a", "b") as nodes:
        await pair.start()
        await until(knows(pair, "a", "b"), "both are known")

        a.agent.kill()
        nodes.speak_up("c")
        nodes.fall_silent("b")
        await until(lambda: b.does(PairPhase.LEADING), "the other leads")
        await until(knows(pair, "c"), "what was said meanwhile has arrived")

        a.agent.start()
        await until(lambda: a.does(PairPhase.STANDING_BY), "the first stands by")
        b.agent.suspend()
        nodes.speak_up("d")
        await until(lambda: a.does(PairPhase.LEADING), "the first leads again")
        b.agent.resume()
        await until(lambda: b.does(PairPhase.STANDING_BY), "who comes back too late stands by")

        await a.link.cut()
        await until(lambda: b.does(PairPhase.LEADING), "who reaches the site leads")
        await until(lambda: region.senders_with(AdvisoryKind.STALE), "b is missed")
        nodes.speak_up("b")
        await until(lambda: region.senders_with(AdvisoryKind.RECOVERED), "b is back")
    await ended_as_a_straight_run(pair, leader=b)


@pytest.mark.skipif(bool(CANNOT_STEP), reason=CANNOT_STEP)
async def test_a_site_clock_that_one_does_not_follow_the_other_does_not_follow_either(pair: PairStage) -> None:
    a, b, region, server = pair.a, pair.b, pair.stage.region, pair.stage.site.server
    with SteppedClock(server) as clock:
        async with registering(pair.stage.site, "a", "b") as nodes:
            await pair.start()
            await until(knows(pair, "a", "b"), "both are known")
            clock.set(365 * DAY)
            await until(lambda: is_held(a) and is_held(b), "neither follows the clock")
            a.agent.kill()
            nodes.speak_up("c")
            nodes.fall_silent("b")
            await until(lambda: b.does(PairPhase.LEADING), "the other leads")
            await until(knows(pair, "c"), "who is new is heard")
            assert is_held(b)
            clock.set(0)
            await until(lambda: not is_held(b), "it goes on with the right clock")
            await until(lambda: region.senders_with(AdvisoryKind.STALE), "b is missed")
        assert await region.senders_with(AdvisoryKind.STALE) == ["b"]
        advisories = await region.advisories()
        assert len({each.event_id for each in advisories}) == len(advisories)
    await ended_as_a_straight_run(pair, leader=b)


def is_held(member: MemberStage) -> bool:
    """Tell whether a member does not follow its site's clock."""
    report = member.report
    return report is not None and any(block.state.clock_ahead for block in report.blocks)


async def test_who_reads_the_log_over_a_longer_way_than_it_is_written_over_stands_by_and_takes_over(
    pair: PairStage,
) -> None:
    a, b = pair.a, pair.b
    async with registering(pair.stage.site, "a"):
        a.agent.start()
        await until(lambda: a.does(PairPhase.LEADING), "the first leads")
        b.link.round_trip = LONG_WAY
        b.agent.start()
        await until(lambda: b.does(PairPhase.STANDING_BY), "the second stands by", STANDS_BY_WITHIN)
        a.agent.kill()
        await until(lambda: b.does(PairPhase.LEADING), "the other leads")


async def test_what_the_dead_leader_could_not_send_leaves_with_the_other(pair: PairStage) -> None:
    a, b, region = pair.a, pair.b, pair.stage.region
    async with registering(pair.stage.site, "a") as nodes:
        a.agent.start()
        await until(knows(pair, "a"), "one is known")
        await region.link.cut()
        nodes.speak_up("b")
        await until(lambda: waiting(a) > 0, "an advisory waits")
        # It knows nothing of what was before: it copies the leader's store.
        b.agent.start()
        await until(lambda: b.does(PairPhase.STANDING_BY), "the second stands by")
        assert waiting(b) > 0
        _, said, _ = await b.agent.command("outbox")
        assert "Nothing leaves here: this member of the pair stands by. dub1-a sends the same records" in said
        nodes.speak_up("c")
        await until(lambda: waiting(a) > 1 and waiting(b) == waiting(a), "both have decided the same")
        a.agent.kill()
        await until(lambda: b.does(PairPhase.LEADING), "the other leads")
        await region.link.restore()
        await until(knows(pair, "a", "b", "c"), "all is told")
    await ended_as_a_straight_run(pair, leader=b)


async def test_the_member_that_uploads_says_what_it_cannot_read(pair: PairStage) -> None:
    region = pair.stage.region
    async with registering(pair.stage.site, "a"):
        pair.a.agent.start()
        await until(knows(pair, "a"), "one is known")

        async def has_vouched() -> bool:
            return bool(await region.watermarks())

        # It says its last watermark again, so there must be one.
        await until(has_vouched, "its first watermark")
    assert not any(mark.condition for mark in await region.watermarks())
    await pair.stage.site.server.stop()

    async def has_said() -> bool:
        return bool({mark.condition for mark in await region.watermarks()} & {"link_down", "stream_not_read"})

    await until(has_said, "what it cannot read")


async def test_who_stands_by_complains_of_no_region_any_more(pair: PairStage) -> None:
    a, b, region = pair.a, pair.b, pair.stage.region
    async with registering(pair.stage.site, "a") as nodes:
        await pair.start()
        await until(knows(pair, "a"), "one is known")
        await region.update_stream(subjects=["elsewhere.>"])
        nodes.speak_up("b")
        await until(lambda: a.upstream == NOT_ACCEPTED, "the region refuses what the first sends")
        a.agent.suspend()
        await until(lambda: b.does(PairPhase.LEADING), "the other leads")
        a.agent.resume()
        await until(lambda: a.does(PairPhase.STANDING_BY), "the first stands by")
        await until(lambda: a.upstream == CONNECTED, "it takes back what it said of the region")
        await region.update_stream(subjects=["fleet.>"])
        await until(knows(pair, "a", "b"), "the other has told of all")
    await ended_as_a_straight_run(pair, leader=b)


async def test_who_alone_cannot_reach_the_region_or_write_its_store_hands_over(
    disk: SmallDisk, pair: PairStage
) -> None:
    a, b, region = pair.a, pair.b, pair.stage.region
    async with registering(pair.stage.site, "a") as nodes:
        await pair.start()
        await until(knows(pair, "a"), "one is known")

        await a.uplink.cut()
        nodes.speak_up("b")
        await until(lambda: b.does(PairPhase.LEADING), "who reaches the region leads")
        await until(knows(pair, "b"), "what the first could not deliver has arrived")
        assert "pair: handing over: it cannot reach the region, and dub1-b can" in a.agent.log

        # What both cannot do moves nothing.
        await region.link.cut()
        await a.uplink.restore()
        nodes.speak_up("c")
        await until(lambda: waiting(b) > 0, "an advisory waits")
        await asyncio.sleep(HAND_OVER + 2.0)
        assert b.does(PairPhase.LEADING)
        # Who finds the region again first may well lead: let it be the one that does, and see that the other's link,
        # when it works again, does not bring the lead back.
        await a.uplink.cut()
        await region.link.restore()
        await until(knows(pair, "c"), "the region hears of it")
        await a.uplink.restore()
        await until(lambda: a.does(PairPhase.STANDING_BY), "the first stands by")

        # Of a link that says nothing, the one that leads knows by what is not acknowledged.
        b.uplink.stall()
        await until(lambda: a.does(PairPhase.LEADING), "the first leads again")
        await b.uplink.restore()
        await until(lambda: b.does(PairPhase.STANDING_BY), "the second stands by")

        disk.fill(0)
        nodes.speak_up("d")
        await until(lambda: b.does(PairPhase.LEADING), "who can commit leads")
        await until(knows(pair, "d"), "nobody waits for the full disk")
        disk.free()
        await until(lambda: a.does(PairPhase.STANDING_BY), "who has room again follows")
        assert b.does(PairPhase.LEADING)
    await ended_as_a_straight_run(pair, leader=b)


async def test_what_the_hub_says_around_a_takeover_is_done_once(pair: PairStage) -> None:
    a, b, region = pair.a, pair.b, pair.stage.region
    write_topology(pair.stage)
    await said(pair.stage, "apply", "--force")

    async def taken() -> bool:
        return (await region.watermarks())[-1].policy_revision == 3

    async with registering(pair.stage.site, "web1", "web2") as nodes:
        await pair.start()
        await until(knows(pair, "web1", "web2"), "both are known")
        nodes.fall_silent("web2")
        await said(pair.stage, "policy", "set", "--site", "dub1", "--stale-after", "10m", "--sample-interval", "2h")
        await said(pair.stage, "policy", "forward", "--site", "dub1", "--sender", "web1")
        a.agent.kill()
        await said(pair.stage, "policy", "retire", "--site", "dub1", "--sender", "web2")
        await until(lambda: b.does(PairPhase.LEADING), "the other leads")
        await until(taken, "all that was said is taken")
        a.agent.start()
        await until(lambda: a.does(PairPhase.STANDING_BY), "the first stands by")
        b.agent.kill()
        await until(lambda: a.does(PairPhase.LEADING), "the first leads again")
        nodes.speak_up("web3")
        await until(knows(pair, "web3"), "it has read on")
        assert await taken()
    assert [each.value for each in await region.advisories() if each.by_operator] == ["web2"]

    async def forwarded() -> int:
        return sum(each.headers["Muster-Reason"] == "policy" for each in await region.records(".registration"))

    await until(forwarded, "what was to be forwarded has arrived")
    await ended_as_a_straight_run(pair, leader=a)
    assert await forwarded() == 1


async def test_a_stranger_on_a_members_consumer_reads_nothing_beside_it_and_keeps_it_from_leading_where_it_came_first(
    pair: PairStage,
) -> None:
    async def says(agent: AgentProcess) -> bool:
        return "(consumer_shared for " in (await agent.command("status", "--check"))[1]

    async with registering(pair.stage.site, "a") as nodes:
        await pair.start()
        await until(knows(pair, "a"), "a is known")
        async with agent_process(single_agent_on(pair, MEMBERS[0])) as stranger:
            await until(lambda: says(stranger), "the stranger says that somebody else reads")
            nodes.speak_up("b")
            await until(knows(pair, "b"), "b is known")
            assert pair.a.does(PairPhase.LEADING)
            pair.a.agent.kill()
            await until(lambda: pair.b.does(PairPhase.LEADING), "the other leads")
            await until(lambda: has_read(stranger), "the stranger has taken the consumer")
            pair.a.agent.start()
            await until(lambda: says(pair.a.agent), "the member says that somebody else reads")
            nodes.speak_up("c")
            await until(knows(pair, "c"), "c is known")
            assert pair.b.does(PairPhase.LEADING)
        await until(lambda: pair.a.does(PairPhase.STANDING_BY), "the member stands by again")
    told = [each.value for each in await pair.stage.region.advisories() if each.site == "dub1"]
    assert sorted(told) == ["a", "b", "c"]


def single_agent_on(pair: PairStage, member: str) -> Path:
    """Write the settings of an agent of another site, and of no pair, that name a member's consumer."""
    text, _, _ = pair.stage.config_path.with_name(f"{member}.toml").read_text().partition("[pair]")
    text = text.replace(f'name = "{member}"', 'name = "stranger"').replace('site = "dub1"', 'site = "dub2"')
    text = text.replace(f"/{member}/", "/stranger/")
    line = f'stream = "{STREAM}"\n'
    assert text.count(line) == 1
    path = pair.stage.config_path.with_name("stranger.toml")
    path.with_suffix("").mkdir()
    path.write_text(text.replace(line, f'{line}consumer = "muster-dub1-nodes-{member}"\n'))
    return path


async def has_read(agent: AgentProcess) -> bool:
    status = await agent.report()
    return status is not None and status.parts["stream nodes"].phase == "reading"


async def test_both_die_and_come_back_in_any_order(pair: PairStage) -> None:
    a, b = pair.a, pair.b
    async with registering(pair.stage.site, "a") as nodes:
        await pair.start()
        b.agent.kill()
        nodes.speak_up("b")
        await until(knows(pair, "b"), "the leader goes on alone")
        a.agent.kill()
        nodes.speak_up("c")
        b.agent.start()
        await until(lambda: b.does(PairPhase.LEADING), "who was away has caught up, and leads")
        await until(knows(pair, "a", "b", "c"), "all are known")
        assert await b.agent.stop() == 0
        a.agent.start()
        await until(lambda: a.does(PairPhase.LEADING), "the other leads at once")
    await ended_as_a_straight_run(pair, leader=a)


async def test_who_cannot_follow_waits_for_the_other_and_copies_its_store(pair: PairStage) -> None:
    a, b, site = pair.a, pair.b, pair.stage.site
    async with registering(site, "a") as nodes:
        a.agent.start()
        await until(knows(pair, "a"), "one is known")
        b.agent.start()
        await until(lambda: b.does(PairPhase.STANDING_BY), "the second stands by")
        b.agent.kill()
        read = await site.last_sequence()
        await until(lambda: reads_past(a, read + 2), "more was read")
        a.agent.kill()
        # What the first has read and the second has not is gone, as when the stream's retention is short.
        await site.api(f"STREAM.PURGE.{STREAM}", {"seq": read + 2})
        b.agent.start()
        await until(lambda: b.does(PairPhase.WAITING), "the second cannot follow, and does not lead")
        _, said, _ = await b.agent.command("outbox")
        assert "This member of the pair does not lead, it is waiting: the one that leads sends the same." in said
        nodes.speak_up("b")
        a.agent.start()
        await until(lambda: b.does(PairPhase.STANDING_BY), "the second has copied, and follows")
        await until(knows(pair, "b"), "the first tells")
        await until(lambda: a.does(PairPhase.LEADING), "the first leads")
        assert b.store_path.with_name("agent.db.before-copy").exists()


async def test_members_that_do_not_fit_together_are_refused_in_one_line(pair: PairStage) -> None:
    a, b, keys = pair.a, pair.b, pair.stage.config_path.parent
    a.agent.start()
    await until(lambda: a.does(PairPhase.LEADING), "the first leads")
    for file, before, after, words in (
        (b.agent.config, '"sender"', '"other"', "stream block nodes is set otherwise than at dub1-a"),
        (keys / "id.key", "", "0" * 64, "is not that of dub1-a: copy the id key file of dub1-a"),
    ):
        whole = file.read_text()
        file.write_text(whole.replace(before, after) if before else after)
        b.agent.start()
        assert await b.agent.ended() == 1
        assert words in b.agent.log.splitlines()[-1]
        if not before:
            code, output, _ = await b.agent.command("doctor")
            assert (code, words in " ".join(output.split())) == (2, True), output
        file.write_text(whole)


# Helpers


def reads_past(member: MemberStage, sequence: int) -> bool:
    """Tell whether a member has committed a message of the site's stream, or a later one."""
    report = member.report
    return report is not None and report.blocks[0].state.position.sequence > sequence


def knows(pair: PairStage, *names: str) -> Callable[[], object]:
    async def told() -> bool:
        return set(names) <= set(await pair.stage.region.senders_with(AdvisoryKind.NEW))

    return told


def waiting(member: MemberStage) -> int:
    """Count the advisories that wait at a member."""
    with store_reader(member.store_path) as database:
        return sum(each.count for each in read_outbox(database).waiting if each.records == "advisories")


async def ended_as_a_straight_run(pair: PairStage, leader: MemberStage) -> None:
    """End the one that leads: the region has these bytes and no others, whoever sent them."""
    await until(lambda: not waiting(leader), "everything has arrived")
    assert await leader.agent.stop() == 0
    arrived = {record.payload for record in await pair.stage.region.records(".advisory.")}
    await assert_straight_run(arrived, leader.agent.config, pair.stage.site.client)
