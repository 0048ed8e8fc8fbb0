"""What the page on disasters says is done, to servers and an agent on rendered configurations: it helps."""

import asyncio
import shutil
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import nats.errors
import pytest

from aggregator.topology.render import certificates
from shared.nats.connection import ConnectFailed
from shared.nats.jetstream_api import ApiError, RequestFailed
from shared.wire import Advisory, decode_advisory
from tests.support.agent.agent_process import AgentProcess
from tests.support.topology.rendered import Rendered, Visitor, encoded, lay_out, member, muster, rendered_servers
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
    """Register, once the site's server has read its configuration."""

    async def is_stored() -> bool:
        try:
            async with rendered.visited("dub1", "dub1-nodes", "_INBOX_nodes") as nodes:
                await nodes.store("registration.web", encoded({"sender": sender}))
        except (ConnectFailed, nats.errors.Error):
            return False
        return True

    await until(is_stored, f"{sender} is stored")


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
        return await knows(rendered, *senders)

    await until(are_known, f"the hub knows {', '.join(senders)}")


async def knows(rendered: Rendered, *senders: str) -> bool:
    try:
        return set(senders) <= set(await known(rendered))
    except (ConnectFailed, RequestFailed):
        return False


async def until_answered(hub: Visitor, subject: str) -> None:
    async def is_answered() -> bool:
        try:
            await hub.of_domain("eu-west", subject)
        except (ApiError, RequestFailed):
            return False
        return True

    await until(is_answered, f"eu-west answers {subject}")


def render_again(directory: Path, *options: str) -> None:
    done = muster(directory, "render", *options)
    assert done.returncode == 0, done.stderr


def renew_certificates(rendered: Rendered) -> None:
    nats = rendered.directory / "nats"
    for server in ("hub", "eu-west", "dub1"):
        for name in ("server.pem", "server-key.pem"):
            (nats / server / name).unlink()
    render_again(rendered.directory, "--make-certificates")
    for server in ("hub", "eu-west", "dub1"):
        rendered.reload(server)


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


@pytest.mark.parametrize(
    ("key", "opened"), [("eu-west-leaf", ""), ("aggregator", "hub"), ("reader", "hub"), ("dub1-nodes", "dub1")]
)
async def test_every_other_key_is_replaced_and_the_old_one_opens_nothing(
    rendered: Rendered, agent: AgentProcess, key: str, opened: str
) -> None:
    seed = rendered.directory / "nats" / "keys" / f"{key}.nk"
    before = seed.read_bytes()
    seed.rename(seed.with_name(f"old-{key}.nk"))
    render_again(rendered.directory, "--make-keys")
    assert seed.read_bytes() != before
    for server in ("hub", "eu-west", "dub1"):
        rendered.reload(server)
    await register(rendered, f"after-{key}")
    await until_known(rendered, f"after-{key}")
    if opened:

        async def is_refused() -> bool:
            try:
                async with rendered.visited(opened, f"old-{key}", deadline=1.0):
                    return False
            except ConnectFailed:
                return True

        await until(is_refused, "the server has read its configuration")


async def test_expired_certificates_keep_everybody_out_until_they_are_renewed(
    rendered: Rendered, agent: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats = rendered.directory / "nats"
    await register(rendered, "long-before-expiry")
    await until_known(rendered, "long-before-expiry")
    await agent.stopped()
    await register(rendered, "before-expiry")
    monkeypatch.setattr(certificates, "VALID_FOR", -certificates._SLACK / 2)
    authority = certificates.Pem(*((nats / "keys" / name).read_bytes() for name in ("ca.pem", "ca-key.pem")))
    for server in ("hub", "eu-west", "dub1"):
        expired = certificates.make_certificate(authority, server, ["127.0.0.1"])
        (nats / server / "server.pem").write_bytes(expired.certificate)
        (nats / server / "server-key.pem").write_bytes(expired.key)
        rendered.reload(server)
    agent.start()
    await until(lambda: "expired" in agent.log, "the agent says why it cannot connect")
    renew_certificates(rendered)
    await until_known(rendered, "before-expiry")
    assert (await known(rendered)).count("before-expiry") == 1


async def test_servers_certificates_are_replaced_while_all_runs(rendered: Rendered, agent: AgentProcess) -> None:
    before = (rendered.directory / "nats" / "hub" / "server.pem").read_bytes()
    renew_certificates(rendered)
    assert (rendered.directory / "nats" / "hub" / "server.pem").read_bytes() != before
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
        return await knows(rendered, "without-region")

    await until(is_known, "the hub hears the region again")
    assert set(before) <= set(await known(rendered))


async def test_a_hub_gets_back_from_its_backup_what_no_region_holds_any_more(
    rendered: Rendered, agent: AgentProcess, tmp_path: Path
) -> None:
    await register(rendered, "in-backup")
    await until_known(rendered, "in-backup")
    before = await known(rendered)
    # As the page says, while the server does not run: here it ends and begins as it was.
    rendered.running["hub"].kill()
    rendered.running["hub"].wait()
    shutil.copytree(rendered.directory / "store" / "hub", tmp_path / "backup")
    rendered.begin_anew("hub", tmp_path / "backup")
    async with rendered.visited("hub", "aggregator") as hub:
        await until_answered(hub, "STREAM.PURGE.FLEET")
    await register(rendered, "after-backup")
    await until_known(rendered, "after-backup")
    rendered.begin_anew("hub", tmp_path / "backup")
    await asyncio.to_thread(lay_out, rendered.directory)
    done = await asyncio.to_thread(muster, rendered.directory, "apply", "--again", "eu-west")
    assert done.returncode == 0, done.stderr
    await until_known(rendered, *before, "after-backup")


async def test_a_sites_server_that_is_lost_begins_anew_and_nobody_is_announced_twice(
    rendered: Rendered, agent: AgentProcess
) -> None:
    await register(rendered, "before-site")
    await until_known(rendered, "before-site")
    rendered.begin_anew("dub1")
    await asyncio.to_thread(lay_out, rendered.directory)
    await register(rendered, "before-site")
    await register(rendered, "after-site")
    await until_known(rendered, "after-site")
    assert (await known(rendered)).count("before-site") == 1
