"""Whatever happens to an agent, what its region hears is a straight run's advisories, to the byte."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest_asyncio

from shared.identifiers import AdvisoryKind
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.agent.running_agent import AgentProcess, agent_process
from tests.support.agent.straight_run import advisories_of_a_straight_run
from tests.support.waiting import until


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with agent_stage(tmp_path) as stage:
        yield stage


@pytest_asyncio.fixture
async def agent(stage: Stage) -> AsyncIterator[AgentProcess]:
    async with agent_process(stage.config_path) as agent:
        yield agent


async def test_a_silent_node_is_told_apart_from_living_ones(stage: Stage, agent: AgentProcess) -> None:
    async with registering(stage.site, "a", "b") as nodes:
        await until(knows(stage, "a", "b"), "both are known")
        nodes.fall_silent("b")
        await until(lambda: stage.region.senders_with(AdvisoryKind.STALE), "b is missed")
        nodes.speak_up("b")
        await until(lambda: stage.region.senders_with(AdvisoryKind.RECOVERED), "b is back")
    assert await stage.region.senders_with(AdvisoryKind.STALE) == ["b"]
    assert await stage.region.senders_with(AdvisoryKind.RECOVERED) == ["b"]
    await assert_advisories_are_those_of_a_straight_run(stage, agent)


async def test_a_cut_link_is_explained_and_nothing_is_lost_by_it(stage: Stage, agent: AgentProcess) -> None:
    async with registering(stage.site, "a", "b") as nodes:
        await until(knows(stage, "a", "b"), "both are known")
        await stage.region.link.cut()
        nodes.speak_up("c")
        await until(is_said(agent, "upstream          not connected for "), "the status says that the link is down")
        await until(is_said(agent, " wait for the region's acknowledgement"), "an advisory waits")
        _, status, _ = await agent.command("status")
    lines = dict(line.split(maxsplit=1) for line in status.splitlines()[2:] if line)
    assert lines["upstream"].startswith("not connected for "), status
    assert f": 127.0.0.1:{stage.region.link.port}: " in lines["upstream"], status
    assert lines["source"].startswith("connected for "), status
    assert lines["stream"].startswith("nodes      reading for "), status
    assert "wait for the region's acknowledgement; room for 2 GiB more" in lines["outbox"], status
    assert lines["senders"].endswith(" stale"), status

    await agent.kill()
    code, status, _ = await agent.command("status")
    assert (code, "NOT RUNNING, last sign of life " in status) == (0, True)
    await agent.start()
    await stage.region.link.restore()
    await until(knows(stage, "a", "b", "c"), "what was decided during the cut has arrived")
    await assert_advisories_are_those_of_a_straight_run(stage, agent)


async def test_an_agent_that_is_killed_again_and_again_says_everything_once(stage: Stage, agent: AgentProcess) -> None:
    draw = random.Random(5)
    names = [f"node-{number}" for number in range(60)]
    async with registering(stage.site) as nodes:
        for number in range(6):
            nodes.speak_up(*names[number * 10 : number * 10 + 10])
            nodes.fall_silent(*names[: number * 3])
            await asyncio.sleep(draw.uniform(0.3, 1.2))
            await agent.kill()
            await agent.start()
        await until(knows(stage, *names), "every node is known")
        await until(lambda: stage.region.senders_with(AdvisoryKind.STALE), "somebody is missed")
    await assert_advisories_are_those_of_a_straight_run(stage, agent)
    assert sorted(await stage.region.senders_with(AdvisoryKind.NEW)) == sorted(names)


# Helpers


def knows(stage: Stage, *names: str) -> Callable[[], object]:
    async def told() -> bool:
        return set(names) <= set(await stage.region.senders_with(AdvisoryKind.NEW))

    return told


def is_said(agent: AgentProcess, words: str) -> Callable[[], object]:
    async def said() -> bool:
        _, output, _ = await agent.command("status")
        return words in output

    return said


async def assert_advisories_are_those_of_a_straight_run(stage: Stage, agent: AgentProcess) -> None:
    """Stop the agent: the region has these bytes and no others."""
    await until(is_said(agent, "running for"), "the agent has started")
    await until(is_said(agent, "the region has acknowledged everything"), "the outbox is empty")
    assert await agent.stop() == 0
    arrived = {record.payload for record in await stage.region.records(".advisory.")}
    straight = await advisories_of_a_straight_run(stage.config_path, stage.site.client)
    assert sorted(arrived, key=_ordinal) == straight


def _ordinal(payload: bytes) -> int:
    return int(msgspec.json.decode(payload)["ordinal"])
