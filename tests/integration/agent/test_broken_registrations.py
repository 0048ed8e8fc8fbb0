"""No living node is accused for what its registrations look like; where one may be, everybody who asks is told."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from shared.identifiers import AdvisoryKind
from tests.support.agent.agent_stage import Stage, agent_stage
from tests.support.agent.operated_agent import OperatedAgent, operated_agent
from tests.support.waiting import until

BROKEN = [
    b'{"sender":"broken","load":NaN}',
    b'{"fact":"\\udce9","sender":"broken"}',
    b'{"fact":"a\tb","sender":"broken"}',
    b'\xef\xbb\xbf{"sender":"broken"}',
    b'{"sender":"broken"}\0',
    b'{"sender":"broken"}{"sender":"broken"}',
    b'{"path":"C:\\W","sender":"broken"}',
    b'{"sender":"broken",}',
    b'{"sender":"broken","code":007,"step":+1,"fact":"caf\xe9"}',
    b'{"sender":"broken","facts":{"os":"Deb',
]


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with agent_stage(tmp_path) as stage:
        yield stage


async def test_a_node_whose_registrations_are_not_quite_json_is_never_called_stale(stage: Stage) -> None:
    published = 0

    async def register() -> None:
        nonlocal published
        for body in itertools.cycle(BROKEN):
            await stage.site.publish(body)
            published += 1
            await asyncio.sleep(0.1)

    async def another_is_stale() -> bool:
        return published > len(BROKEN) and "dead" in await stage.region.senders_with(AdvisoryKind.STALE)

    async with operated_agent(stage.config_path) as agent:
        await stage.site.publish(b'{"sender":"dead"}')
        # Also while commands run, which on a busy machine takes longer than stale_after.
        registering = asyncio.create_task(register())
        await until(another_is_stale, "who is really silent is told")
        code, page, _ = await agent.command("status")
        assert code == 0
        assert "  tolerated " in page
        assert "rejected" not in page
        await until(lambda: is_useful(agent), "status --check says so")
        assert await stage.region.senders_with(AdvisoryKind.STALE) == ["dead"]
        registering.cancel()
        await asyncio.gather(registering, return_exceptions=True)
    assert sorted(await stage.region.senders_with(AdvisoryKind.NEW)) == ["broken", "dead"]


async def test_whoever_asks_is_told_that_a_silent_node_may_have_sent_what_was_rejected(stage: Stage) -> None:
    async with operated_agent(stage.config_path) as agent:
        await stage.site.publish(b'{"sender":"web1"}', b'{"sender":"web2"}')

        async def both_are_stale() -> bool:
            await stage.site.publish(b'{"host":"web1"}', subject="registration.web1")
            return len(await stage.region.senders_with(AdvisoryKind.STALE)) == 2

        await until(both_are_stale, "nobody can tell that web1 lives")

        async def register() -> None:
            # What was rejected is told of for stale_after: on a busy machine a command takes longer than that.
            while True:
                await stage.site.publish(b'{"host":"web1"}', subject="registration.web1")
                await asyncio.sleep(0.5)

        registering = asyncio.create_task(register())

        async def is_warned() -> bool:
            (code, said, _), (_, page, _) = await asyncio.gather(
                agent.command("status", "--check"), agent.command("status")
            )
            expected = "warning: stream nodes: messages that name no sender are rejected, the last "
            shown = 'on subject registration.web1 (no_sender): {"host":"web1"}; whoever sent it may be called stale'
            return code == 1 and expected in said and shown in page

        await until(is_warned, "monitoring and whoever looks are told")
        code, page, _ = await agent.command("doctor")
        registering.cancel()
        await asyncio.gather(registering, return_exceptions=True)
        assert code == 1
        assert "on registration.web1: {" in page
        its, anybodys = [" ".join((await agent.command("explain", each))[1].split()) for each in ("web1", "web2")]
        assert "rejected since it may have been living: these are its, by their subjects or bodies: " in its
        assert " on registration.web1 (no_sender), the last at 20" in its
        assert "rejected since it may have been living: one of these may be its, which nobody can tell: " in anybodys
        _, _, errors = await agent.command("explain", "registration")
        assert "a message that may be its was rejected (no_sender) on subject registration.web1" in errors


async def test_senders_beyond_the_limit_are_turned_away_and_flood_nobody(stage: Stage) -> None:
    # What was turned away is warned of for as long as a living sender may be silent.
    text = stage.config_path.read_text().replace('stale_after = "4s"', 'stale_after = "2m"')
    stage.config_path.write_text(text + "max_senders = 3\n")
    async with operated_agent(stage.config_path) as agent:
        for first in range(0, 300, 50):
            await stage.site.publish(*(b'{"sender":"message-%d"}' % each for each in range(first, first + 50)))
        await until(lambda: is_limited(agent), "status --check says so")
        counters = (await agent.json("status"))["blocks"][0]["counters"]
        assert counters["valid"] == {"registrations": 3}
        assert counters["rejected"] == counters["withheld"] == {"too_many_senders": 297}
        await until(stage.region.observed_through, "the agent has vouched for the site")
        await until(lambda: everything_left(agent), "everything has arrived")
        assert len(await stage.region.records(".registration")) == 3
    assert len(await stage.region.senders_with(AdvisoryKind.NEW)) == 3


async def test_a_path_that_names_messages_is_said_by_doctor(stage: Stage) -> None:
    text = stage.config_path.read_text().replace('"4s"', '"2100ms"').replace('"1500ms"', '"1s"')
    stage.config_path.write_text(text.replace('settle = "300ms"', 'settle = "0s"'))
    for number in range(4):
        await stage.site.publish(*(b'{"sender": "%d-%d"}' % (number, each) for each in range(30)))
        # Doctor goes by the stream's own time, which passes on the server alone.
        await passes(stage, 1_500_000)
    code, page, _ = await OperatedAgent(stage.config_path).command("doctor")
    assert code == 2
    assert "nearly every one of 120 messages names another sender, that is never heard again: " in page


async def passes(stage: Stage, duration: int) -> None:
    began_at = await stage.site.time()

    async def has_passed() -> bool:
        return await stage.site.time() >= began_at + duration

    await until(has_passed, "the stream's time has passed")


async def is_useful(agent: OperatedAgent) -> bool:
    return (await agent.command("status", "--check"))[:2] == (0, "useful\n")


async def everything_left(agent: OperatedAgent) -> bool:
    return not any(lane["rows"] for lane in (await agent.json("status"))["outbox"].values())


async def is_limited(agent: OperatedAgent) -> bool:
    code, said, _ = await agent.command("status", "--check")
    _, page, _ = await agent.command("status")
    return code == 1 and "max_senders (3) is reached, with 3 senders" in said and "297" in page
