"""Two agents that know nothing of each other: on one consumer, or under one name. Each is told, and nobody loses."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from edge_agent.delivery import name_fence
from edge_agent.delivery.name_fence import AgentRun, EarlierStores, FencedBlock, NameFence, boot_id
from shared.identifiers import BlockId
from shared.wire import encode
from tests.support.agent.agent_process import SETTINGS, AgentProcess, Deployment, deployed, free_address
from tests.support.agent.mode_settings import ABOVE_BLOCKS, block
from tests.support.nats.one_server import written
from tests.support.nats.source_site import running_site
from tests.support.observability.six_places import over, shown
from tests.support.waiting import until

COPYING = ABOVE_BLOCKS + block("nodes", "copy", source='consumer = "shared"')
READ_BY_OTHERS = "consumer shared of stream REGISTRATION is read by somebody else"


def another(deployment: Deployment, settings: str, **names: str) -> AgentProcess:
    """Give a second agent with files of its own; ``names`` are the settings that it has otherwise, and as what."""
    for name, value in names.items():
        before = next(line for line in settings.splitlines() if line.startswith(f"{name} = "))
        settings = settings.replace(before, f'{name} = "{value}"', 1)
    directory = deployment.agent.config.parent / "other"
    directory.mkdir()
    config = directory / "agent.toml"
    links = {"upstream": deployment.region.link.url, "source": deployment.site.link.url, "listen": free_address()}
    config.write_text(settings.format(**links))
    return AgentProcess(config)


@asynccontextmanager
async def running(*agents: AgentProcess) -> AsyncIterator[None]:
    """Run agents, and leave none behind."""
    for agent in agents:
        agent.start()
    try:
        yield
    finally:
        for agent in agents:
            agent.end()


async def copied(deployment: Deployment, site: str) -> list[int]:
    """Give the numbers of the messages that a site's agent has copied, in the order of the region's stream."""
    records = await deployment.region.stored()
    return [msgspec.json.decode(each.payload)["number"] for each in records if each.subject.split(".")[2] == site]


async def publish_numbers(deployment: Deployment, first: int, last: int) -> None:
    """Store messages a few at a time."""
    for number in range(first, last + 1):
        await deployment.site.client.publish("registration.nodes", msgspec.json.encode({"number": number}))
        if number % 10 == 0:
            await asyncio.sleep(0.01)


async def complaint(agent: AgentProcess) -> str:
    """Give why ``status --check`` fails; "" where it does not."""
    code, output, errors = await agent.run_command("status", "--check", "--config", str(agent.config))
    return output + errors if code else ""


@pytest.mark.provokes("consumer_shared")
async def test_of_two_agents_on_one_consumer_one_reads_everything_and_the_other_says_why_not(tmp_path: Path) -> None:
    async with deployed(tmp_path, COPYING, free_address()) as deployment:
        first = deployment.agent
        second = another(deployment, COPYING, site="dub2", name="dub2-a")
        async with running(first, second):
            agents = {"dub1": first, "dub2": second}
            await publish_numbers(deployment, 1, 2_000)
            found: dict[str, list[int]] = {}

            async def one_has_all() -> bool:
                found.update({site: await copied(deployment, site) for site in agents})
                return any(len(numbers) == 2_000 for numbers in found.values())

            await until(one_has_all, "an agent has copied everything")
            for numbers in found.values():
                assert numbers == list(range(1, len(numbers) + 1))
            reader, other = sorted(agents, key=lambda site: -len(found[site]))

            async def says_so() -> bool:
                return READ_BY_OTHERS in await complaint(agents[other])

            await until(says_so, f"the agent of {other} says why it does not read")
            await shown(agents[other], "consumer_shared")
            await until(lambda: not_wrong(agents[reader]), f"the agent of {reader} is well")
            # Whoever is left takes over, from where it had read to itself.
            agents[reader].kill()
            await publish_numbers(deployment, 2_001, 2_100)

            async def other_has_all() -> bool:
                return await copied(deployment, other) == list(range(1, 2_101))

            await until(other_has_all, f"the agent of {other} has copied everything")
            await until(lambda: not_wrong(agents[other]), f"the agent of {other} is well")
            await over(agents[other], "consumer_shared")


async def not_wrong(agent: AgentProcess) -> bool:
    return not await complaint(agent)


async def complains_only(agent: AgentProcess, condition: str) -> bool:
    lines = (await complaint(agent)).splitlines()
    return len(lines) == 1 and f"({condition}" in lines[0]


# Under one name


@pytest.mark.provokes("name_contested")
async def test_a_later_agent_that_does_not_withdraw_is_told_of_until_it_falls_silent(tmp_path: Path) -> None:
    async with (
        deployed(tmp_path, SETTINGS, free_address()) as deployment,
        deployment.senders(["web1"]),
        running(deployment.agent),
    ):
        ours = await deployment.until_observed()

        async def vouch() -> None:
            later = boot_id(time.time_ns() // 1000 + 60_000_000, bytes(10))
            while True:
                through = await deployment.site_time()
                theirs = msgspec.structs.replace(ours, agent="b", boot_id=later, observed_through_us=through)
                await deployment.region.client.publish("fleet.eu-west.dub1.nodes.watermark", encode(theirs))
                await asyncio.sleep(0.15)

        other = asyncio.create_task(vouch())
        try:
            await shown(deployment.agent, "name_contested")
        finally:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
        await over(deployment.agent, "name_contested")


@pytest.mark.provokes("name_taken")
async def test_of_two_agents_under_one_name_the_later_withdraws_until_the_first_has_gone(tmp_path: Path) -> None:
    async with deployed(tmp_path, SETTINGS) as deployment, deployment.senders(["web1"]):
        first = deployment.agent
        second = another(deployment, SETTINGS.replace(STREAM_LINE, STREAM_LINE + 'consumer = "of-its-own"\n'), name="b")
        async with running(first):
            await until(lambda: watched(deployment, "dub1-a"), "the first vouches")
            async with running(second):
                await until(lambda: shows(second, "names", "taken"), "the second withdraws")
                await shown(second, "name_taken")
                text = await complaint(second)
                assert "another agent, dub1-a (run " in text
                assert "publishes as eu-west.dub1.nodes, and was there before: this one reads and publishes" in text
                await until(lambda: shows(first, "names", "ours"), "the first has its name to itself again")
                await until(lambda: not_wrong(first), "the first is well")
                await until(lambda: only_from(deployment, "dub1-a"), "the first alone vouches")
                first.kill()
                await until(lambda: only_from(deployment, "b"), "the second goes on once the first has gone")
                # Its store lacks the senders of the first one.
                await until(lambda: complains_only(second, "store_lost"), "the second is well but for its store")


async def test_of_two_sites_of_one_name_the_later_withdraws(tmp_path: Path) -> None:
    async with (
        deployed(tmp_path, SETTINGS) as deployment,
        running_site(tmp_path / "second") as site,
        deployment.senders(["web1"]),
    ):
        await site.make_stream()
        await site.publish(b'{"sender": "db1"}')
        # At leisure, so that the first is sure to go on vouching while the second looks.
        settings = SETTINGS.replace("{source}", site.link.url).replace('interval = "300ms"', 'interval = "1500ms"')
        second = another(deployment, settings, name="b")
        async with running(deployment.agent):
            await until(lambda: watched(deployment, "dub1-a"), "the first vouches")
            async with running(second):
                await until(lambda: shows(second, "names", "taken"), "the second withdraws")
                assert {watermark.agent for watermark in await deployment.watermarks()} == {"dub1-a"}
                assert {advisory.value for advisory in await deployment.advisories()} == {"web1"}
                await until(lambda: not_wrong(deployment.agent), "the first is well")


async def test_an_agent_that_is_killed_and_started_again_accuses_nobody(tmp_path: Path) -> None:
    async with deployed(tmp_path, SETTINGS) as deployment, deployment.senders(["web1"]):
        agent = deployment.agent
        async with running(agent):
            for _ in range(3):
                await until(lambda: shows(agent, "names", "ours"), "the agent looks")
                await deployment.region.link.cut()
                await until(lambda: has_something_to_say(agent), "something waits for the link")
                agent.kill()
                await deployment.region.link.restore()
                agent.start()
                await deployment.until_observed(await deployment.site_time())
            await agent.stopped()
        assert "another agent" not in agent.log


async def test_a_store_that_was_moved_to_another_host_accuses_nobody(tmp_path: Path) -> None:
    async with deployed(tmp_path, SETTINGS) as deployment, deployment.senders(["web1"]):
        first, second = deployment.agent, another(deployment, SETTINGS, name="b")
        async with running(first):
            await until(lambda: watched(deployment, "dub1-a"), "the first vouches")
            copy_store(first, second)
            await deployment.until_observed(await deployment.site_time())
            first.kill()
            async with running(second):
                await until(lambda: watched(deployment, "b"), "the second vouches")
                await until(lambda: shows(second, "names", "ours"), "the second looks")
                await deployment.until_observed(await deployment.site_time() + 5_000_000)
                assert "another agent" not in second.log
                # On the host that was given up it is started all the same: it came later.
                first.start()
                await until(lambda: shows(first, "names", "taken"), "the first withdraws")


STREAM_LINE = 'stream = "REGISTRATION"\n'


def copy_store(one: AgentProcess, other: AgentProcess) -> None:
    """Copy a running agent's store as a snapshot of its disk would."""
    for path in one.store.parent.glob("agent.db*"):
        if path.suffix != ".lock":
            shutil.copy(path, other.store.parent / path.name)


async def shows(agent: AgentProcess, part: str, phase: str) -> bool:
    parts = (await agent.status_json()).get("parts") or {}
    return bool(parts.get(part, {}).get("phase") == phase)


async def has_something_to_say(agent: AgentProcess) -> bool:
    outbox = (await agent.status_json()).get("outbox") or {}
    return bool(outbox.get("advisories", {}).get("rows"))


async def watched(deployment: Deployment, agent: str) -> bool:
    return any(watermark.agent == agent for watermark in await deployment.watermarks())


async def only_from(deployment: Deployment, agent: str) -> bool:
    """Tell whether the last twelve watermarks are one agent's."""
    last = (await deployment.watermarks())[-12:]
    return len(last) == 12 and {watermark.agent for watermark in last} == {agent}


@pytest.mark.parametrize("allows_direct", [True, False])
async def test_an_agent_that_may_not_look_says_so_once_and_goes_on(tmp_path: Path, allows_direct: bool) -> None:
    permissions = """
    authorization { users: [
      { user: admin, password: secret }
      { user: agent, password: secret, permissions: { publish: { allow: ["fleet.eu-west.dub1.>"] } } }
    ] }
    no_auth_user: admin
    """
    written(tmp_path / "password", "secret")
    auth = '[upstream.auth]\nuser = "agent"\npassword_file = "password"\n\n[store]'
    async with (
        deployed(tmp_path, SETTINGS.replace("[store]", auth), region_config=permissions) as deployment,
        deployment.senders(["web1"]),
    ):
        await deployment.region.update_stream(allow_direct=allows_direct)
        async with running(deployment.agent):
            await until(lambda: shows(deployment.agent, "names", "not watched"), "status says it")
            await deployment.until_observed(await deployment.site_time() + 3_000_000)
            reason = (await deployment.agent.status_json())["parts"]["names"]["reason"]
            assert reason == (
                "not permitted: publish on $JS.API.DIRECT.GET.FLEET.fleet.eu-west.dub1.nodes.watermark; "
                "a second agent of these names would not be noticed"
            )
            assert deployment.agent.log.count("not permitted") == 1
            assert "not accepted" not in deployment.agent.log
            await until(lambda: not_wrong(deployment.agent), "it is well")


async def test_a_region_that_answers_nobody_for_a_while_ends_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its domain is cut off, the stream takes what is published there, and its API answers nothing."""
    monkeypatch.setattr(name_fence, "HELD_READS", 1)
    block_id, writer = BlockId("eu-west", "dub1", "nodes"), AgentRun("dub1-a", "boot", 0.1)
    blocks = {"fleet.eu-west.dub1.nodes.watermark": FencedBlock(block_id)}
    async with running_site(tmp_path) as site:
        await site.create_stream({"name": "FLEET", "subjects": ["fleet.>"]})
        link = site.client, "$JS.away.API"
        fence = NameFence(link, writer, blocks, lambda _phase, _reason: None, EarlierStores())
        watching = asyncio.create_task(fence.run())
        try:
            await until(lambda: fence.may_publish.is_set() or watching.done(), "it has read more than once")
            assert not watching.done()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
