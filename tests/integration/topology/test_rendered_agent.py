"""Agents on rendered servers, with the keys that these gave out: what is needed works, all the way up and down."""

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from functools import partial

import pytest

from shared.embedded.link import EmbeddedLink
from shared.nats.jetstream_api import ApiError
from shared.wire import decode_watermark
from tests.support.agent.agent_process import DEADLINE, AgentProcess
from tests.support.topology.rendered import Rendered, Visitor, encoded, member, muster, rendered_servers
from tests.support.waiting import until

OWN = "fleet.eu-west.dub1.nodes"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("rendered")) as servers:
        yield servers


async def test_a_registration_becomes_an_advisory_at_the_hub(rendered: Rendered) -> None:
    """Whatever is needed on the way works: nodes, agent, region, leaf link, hub."""
    agent, other = (member(rendered, name) for name in ("dub1-a", "dub1-b"))
    agent.start()
    try:
        async with rendered.visited("dub1", "dub1-nodes", "_INBOX_nodes") as nodes:
            await nodes.store("registration.web1", encoded({"sender": "web1"}))
        async with rendered.visited("hub", "aggregator") as hub:

            async def announced() -> bool:
                try:
                    last = await hub.api("STREAM.MSG.GET.ARCHIVE", {"last_by_subj": f"{OWN}.advisory.new"})
                except ApiError:
                    return False
                return bool(last)

            await until(announced, "the hub knows web1")
        async with rendered.visited("dub1", "aggregator") as operator:
            # What the log no longer says, the second copies from the first.
            await operator.api("STREAM.PURGE.MUSTER_PAIR_dub1", {"keep": 1})
        other.start()
        await until(lambda: stands_by(other), "the second agent stands by")
        code, output, errors = await agent.run_command("doctor", "--config", str(other.config))
        assert code in (0, 1), output + errors
        assert "dub1-a leads" in output
        await until(lambda: knows_whose_its_names_are(agent), "the first agent may look who else has its names")
    finally:
        agent.end()
        other.end()


async def test_what_is_said_at_the_hub_reaches_the_agent_when_its_link_returns(rendered: Rendered) -> None:
    async with EmbeddedLink(rendered.ports["eu-west"]) as link, rendered.visited("hub", "aggregator") as hub:
        agent = member(rendered, "dub1-a", link.url)
        agent.start()
        try:
            await until(partial(runs, hub, 0), "the agent vouches", DEADLINE)
            await link.cut()
            for whom, interval in (("lon1", "3h"), ("dub1", "2h")):
                await said(rendered, "set", "--site", whom, "--sample-interval", interval)
            assert "revision" not in await agent.status()
            assert await taken_and_said(rendered) == (0, 2)
            await link.restore()
            await until(partial(runs, hub, 2), "the hub hears which revision the agent runs", DEADLINE)
            assert "revision 2: sample_interval 2h (for eu-west.dub1)" in await agent.status()
            assert await taken_and_said(rendered) == (2, 2)
        finally:
            agent.end()


async def said(rendered: Rendered, *command: str) -> str:
    done = await asyncio.to_thread(muster, rendered.directory, "policy", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def taken_and_said(rendered: Rendered) -> tuple[int, int]:
    """Give which revision the hub knows the agent to run, and which it shall."""
    (row,) = [line for line in (await said(rendered, "show")).splitlines() if line.startswith("eu-west.dub1.nodes ")]
    _, taken, said_last, *_ = row.split()
    return int(taken), int(said_last)


async def runs(hub: Visitor, revision: int) -> bool:
    """Tell whether the last watermark at the hub says that its agent runs a revision."""
    try:
        last = await hub.api("STREAM.MSG.GET.ARCHIVE", {"last_by_subj": f"{OWN}.watermark"})
    except ApiError:
        return False
    return decode_watermark(b64decode(last["message"]["data"])).policy_revision == revision


async def knows_whose_its_names_are(agent: AgentProcess) -> bool:
    parts = (await agent.status_json()).get("parts") or {}
    return bool(parts.get("names", {}).get("phase") == "ours")


async def stands_by(agent: AgentProcess) -> bool:
    pair = (await agent.status_json()).get("pair") or {}
    return bool(pair.get("phase") == "standing by")
