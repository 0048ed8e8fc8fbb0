"""What the page on disasters says is done, to servers and an agent on rendered configurations: it helps."""

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shared.nats.jetstream_api import ApiError, RequestFailed
from shared.wire import Advisory, decode_advisory
from tests.support.agent.agent_process import AgentProcess
from tests.support.topology.rendered import Rendered, encoded, lay_out, member, muster, rendered_servers
from tests.support.waiting import until


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("disasters")) as servers:
        yield servers


@pytest.fixture(scope="module")
def agent(rendered: Rendered) -> Iterator[AgentProcess]:
    agent = member(rendered, "dub1-a")
    agent.start()
    try:
        yield agent
    finally:
        agent.end()


async def register(rendered: Rendered, sender: str) -> None:
    async with rendered.visited("dub1", "dub1-nodes", "_INBOX_nodes") as nodes:
        await nodes.store("registration.web", encoded({"sender": sender}))


async def known(rendered: Rendered) -> list[str]:
    """Give the senders that ARCHIVE says are new, in its order."""
    found, sequence = list[str](), 1
    async with rendered.visited("hub", "aggregator") as hub:
        while True:
            asked = {"seq": sequence, "next_by_subj": "fleet.eu-west.dub1.nodes.advisory.new"}
            try:
                message = (await hub.api("STREAM.MSG.GET.ARCHIVE", asked))["message"]
            except ApiError:
                return found
            advisory = decode_advisory(b64decode(message["data"]))
            assert isinstance(advisory, Advisory)
            found.append(advisory.value)
            sequence = message["seq"] + 1


async def until_known(rendered: Rendered, *senders: str) -> None:
    async def are_known() -> bool:
        try:
            return set(senders) <= set(await known(rendered))
        except RequestFailed:
            return False

    await until(are_known, f"the hub knows {', '.join(senders)}")


def render_again(directory: Path, *options: str) -> None:
    done = muster(directory, "render", *options)
    assert done.returncode == 0, done.stderr


async def test_a_sites_key_is_replaced_and_nothing_is_lost(rendered: Rendered, agent: AgentProcess) -> None:
    await register(rendered, "before-key")
    await until_known(rendered, "before-key")
    (rendered.directory / "nats" / "keys" / "dub1-agent.nk").unlink()
    render_again(rendered.directory, "--make-keys")
    for server in ("eu-west", "dub1"):
        rendered.reload(server)
    await register(rendered, "meanwhile")
    await agent.stopped()
    agent.start()
    await until_known(rendered, "meanwhile")
    assert (await known(rendered)).count("meanwhile") == 1


async def test_servers_certificates_are_replaced_while_all_runs(rendered: Rendered, agent: AgentProcess) -> None:
    nats = rendered.directory / "nats"
    before = (nats / "hub" / "server.pem").read_bytes()
    for server in ("hub", "eu-west", "dub1"):
        for name in ("server.pem", "server-key.pem"):
            (nats / server / name).unlink()
    render_again(rendered.directory, "--make-certificates")
    assert (nats / "hub" / "server.pem").read_bytes() != before
    for server in ("hub", "eu-west", "dub1"):
        rendered.reload(server)
    await register(rendered, "after-certificates")
    await until_known(rendered, "after-certificates")


async def test_a_hub_that_is_lost_learns_again_what_the_regions_hold(rendered: Rendered, agent: AgentProcess) -> None:
    await register(rendered, "before-hub")
    await until_known(rendered, "before-hub")
    rendered.begin_anew("hub")
    await register(rendered, "without-hub")
    await asyncio.to_thread(lay_out, rendered.directory)
    await until_known(rendered, "before-hub", "without-hub")
    assert [(await known(rendered)).count(name) for name in ("before-hub", "without-hub")] == [1, 1]


async def test_a_region_that_is_lost_goes_on_and_the_hub_keeps_what_it_had(
    rendered: Rendered, agent: AgentProcess
) -> None:
    await register(rendered, "before-region")
    await until_known(rendered, "before-region")
    before = await known(rendered)
    rendered.begin_anew("eu-west")
    await register(rendered, "without-region")
    await asyncio.to_thread(lay_out, rendered.directory)
    # What the hub took of the region that was.
    again = partial(muster, rendered.directory, "apply")

    async def is_known() -> bool:
        await asyncio.to_thread(again)
        return "without-region" in await known(rendered)

    await until(is_known, "the hub hears the region again")
    assert set(before) <= set(await known(rendered))
