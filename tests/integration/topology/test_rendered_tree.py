"""The upper levels as rendered, attacked by who has a region's key or a relay's: what is not theirs is out of reach."""

import asyncio
import re
import shutil
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shared.identifiers import BlockId, Incarnation
from shared.nats.connection import ConnectFailed, RequestFailed, connect
from shared.wire import origin_header
from tests.support.agent.agent_process import AgentProcess
from tests.support.nats.certificates import Authority
from tests.support.nats.free_ports import free_ports
from tests.support.topology.leaf_intruder import hung_up, intruding
from tests.support.topology.rendered import (
    CONNECT_DEADLINE,
    Rendered,
    Visitor,
    encoded,
    muster,
    rendered_servers,
    running_servers,
    until_archived,
)
from tests.support.waiting import until

POLICY = "$JS.hub.API.CONSUMER"
ANOTHER_REGION = """
[[region]]
name = "us-east"
servers = ["nats://127.0.0.1:1"]

[[relay]]
name = "eu-relay"
region = "eu-west"

[[stream]]
name = "RELAYED"
subjects = ["fleet.*.*.*.registration"]
"""
RELAY = """
site = "eu-relay"
region = "eu-west"

[upstream]
servers = ["nats://127.0.0.1:{hub}"]
id_key_file = "relay.key"
auth = {{ nkey_seed_file = "nats/keys/eu-relay-relay.nk" }}
tls = {{ ca = "nats/keys/ca.pem", handshake_first = true }}

[store]
path = "relay.db"

[monitor]
listen = ""

[[stream]]
name = "up"
mode = "relay"

[stream.source]
servers = ["nats://127.0.0.1:{region}"]
stream = "FLEET"
auth = {{ nkey_seed_file = "nats/keys/eu-relay-relay.nk" }}
tls = {{ ca = "nats/keys/ca.pem", handshake_first = true }}

[stream.sender]
json_path = "sender"
"""
IN_THE_REGION = (
    "fleet.eu-west.dub1.nodes.registration",
    "muster.source.eu-west.FLEET",
    "$JS.API.CONSUMER.CREATE.FLEET.mine",
    "$JS.API.CONSUMER.CREATE.FLEET.muster-eu-relay-up",
    "$JS.API.CONSUMER.DELETE.FLEET.muster-eu-relay-up",
    "$JS.API.CONSUMER.RESET.FLEET.muster-archive",
    "$JS.API.CONSUMER.MSG.NEXT.MUSTER_POLICY.muster-dub1",
    "$JS.API.STREAM.PURGE.FLEET",
    "$JS.API.STREAM.MSG.DELETE.FLEET",
    "$JS.API.STREAM.INFO.MUSTER_POLICY",
    "$JS.ACK.FLEET.muster-archive.1.1.1.1.1",
    "_INBOX_dub1.answer",
)
AT_THE_HUB = (
    "fleet.us-east.nyc1.nodes.registration",
    "fleet.eu-west.dub1.nodes.advisory.stale",
    "fleet.eu-west.dub1.nodes.watermark",
    "muster.policy.eu-west.region",
    "muster.source.eu-west.FLEET",
    "$JS.API.STREAM.INFO.RELAYED",
    "$JS.API.STREAM.PURGE.RELAYED",
    "$JS.API.CONSUMER.CREATE.ARCHIVE.mine",
    "$JS.API.STREAM.MSG.GET.ARCHIVE",
)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("rendered"), ANOTHER_REGION, away=("us-east",)) as servers:
        yield servers


@pytest.mark.parametrize(
    "subject",
    [
        "_INBOX.answer",
        "_INBOX.us-east.answer",
        "$JSC.R.answer",
        "$JSC.R.us-east.hash.FLEET.muster-archive.answer",
        "$JS.S.delivered",
        "$JS.M.delivered",
        "muster.source.us-east.FLEET",
        "muster.source.hub.MUSTER_POLICY.us-east.MUSTER_POLICY",
        "fleet.us-east.nyc1.nodes.watermark",
        "fleet.eu-west.dub1.nodes.watermark",
        "muster.policy.eu-west.region",
        f"{POLICY}.CREATE.MUSTER_POLICY",
        f"{POLICY}.CREATE.MUSTER_POLICY.mine.muster.policy.eu-west.>",
        f"{POLICY}.CREATE.MUSTER_POLICY.JS_MIRROR_x.muster.policy.us-east.>",
        f"{POLICY}.CREATE.ARCHIVE.mine",
        f"{POLICY}.DELETE.MUSTER_POLICY.mine",
        f"{POLICY}.RESET.MUSTER_POLICY.muster-MUSTER_POLICY@us-east",
        f"{POLICY}.MSG.NEXT.ARCHIVE.mine",
        "$JS.hub.API.STREAM.INFO.ARCHIVE",
        "$JS.hub.API.STREAM.PURGE.ARCHIVE",
        "$JS.hub.API.STREAM.MSG.GET.MUSTER_POLICY",
        "$JS.API.STREAM.DELETE.ARCHIVE",
        "$JS.us-east.API.STREAM.DELETE.FLEET",
        "$JS.FC.ARCHIVE.mine.x",
        "$JS.FC.MUSTER_POLICY.mine.x",
        "$SYS.REQ.SERVER.PING",
    ],
)
async def test_a_regions_key_sends_the_hub_nothing_but_what_is_its_own(rendered: Rendered, subject: str) -> None:
    async with intruding(rendered.ports["leaf"], rendered.directory / "nats" / "keys", "eu-west-leaf") as intruder:
        await intruder.is_denied(subject)


async def test_a_regions_key_hears_its_own_policy_and_nothing_that_is_for_others(rendered: Rendered) -> None:
    async with intruding(rendered.ports["leaf"], rendered.directory / "nats" / "keys", "eu-west-leaf") as intruder:
        for subject in (">", "muster.>", "fleet.>", "$JSC.>", "$JS.M.>", "_INBOX.>"):
            await intruder.subscribe(subject)
        for region in ("us-east", "eu-west"):
            done = muster(rendered.directory, "policy", "set", "--region", region, "--sample-interval", "30m")
            assert done.returncode == 0, done.stderr
        await until(lambda: any("MUSTER_POLICY" in subject for subject in intruder.heard), "its own policy is heard")
        others = [
            subject
            for subject in intruder.heard
            if not subject.startswith(("muster.source.hub.MUSTER_POLICY.eu-west.", "$JS.FC.FLEET.", "$JS.eu-west.API."))
        ]
        # The hub answers, through the region's account there, what the region's own copy of the policy asks.
        answers = re.compile(r"\$JSC\.R\.hub\.[^.]+\.MUSTER_POLICY\.[^.]+@eu-west\.[^.]+")
        others = [subject for subject in others if not answers.fullmatch(subject)]
        assert [subject for subject in others if not subject.startswith(("$JS.ACK.FLEET", "$LDS"))] == []


async def test_the_leaf_port_greets_nobody_without_tls_and_lets_nobody_in_without_a_key(rendered: Rendered) -> None:
    port, authority = rendered.ports["leaf"], rendered.directory / "nats" / "keys" / "ca.pem"
    encrypted = ssl.create_default_context(cafile=str(authority))
    for context, greeted in ((None, False), (encrypted, True)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        heard = await asyncio.wait_for(reader.read(1 << 16), CONNECT_DEADLINE)
        assert (b"INFO" in heard) is greeted
        rest = await asyncio.wait_for(reader.read(), CONNECT_DEADLINE)
        assert not greeted or b"Authorization Violation" in heard + rest
        await hung_up(writer)


async def test_a_regions_servers_link_to_the_hub_by_tls_and_to_the_hub_that_they_know_alone(
    rendered: Rendered, tmp_path: Path
) -> None:
    """Both ends look: the hub for TLS, the region for its authority's signature."""
    whole, (own,) = rendered.config("us-east").read_text(), free_ports(1)
    whole = whole.replace("127.0.0.1:1", f"127.0.0.1:{own}", 1).replace("store/us-east", "store/tried")
    at = whole.index("leafnodes {")
    known, another = str(rendered.directory / "nats" / "us-east" / "ca.pem"), str(Authority(tmp_path, "another").ca)
    without_tls = re.sub(r" tls \{.*?\}", "", whole[at:].replace("tls://", "nats-leaf://"), flags=re.DOTALL)
    async with rendered.visited("hub", "aggregator") as hub:
        for name, uplink, said in (
            ("plain", without_tls, "Leafnode connection closed"),
            ("stranger", whole[at:].replace(known, another), "signed by unknown authority"),
            ("right", whole[at:], "Leafnode connection created"),
        ):
            config = tmp_path / "nats" / name / "nats-server.conf"
            config.parent.mkdir(parents=True)
            config.write_text(whole[:at] + uplink)
            shutil.copy(rendered.directory / "nats" / "us-east" / "leaf-seed.conf", config.parent)
            with running_servers(tmp_path, [name], [("127.0.0.1", own)]):
                log = tmp_path / f"{name}.log"
                await until(partial(says, log, said), f"{name}: {said}", CONNECT_DEADLINE)
                if name == "right":
                    await until(partial(reaches, hub, "us-east"), "the hub reaches the region", CONNECT_DEADLINE)
                else:
                    assert not await reaches(hub, "us-east")


def says(log: Path, text: str) -> bool:
    return text in log.read_text()


async def reaches(hub: Visitor, domain: str) -> bool:
    try:
        await hub.of_domain(domain, "INFO")
    except RequestFailed:
        return False
    return True


async def test_what_a_regions_key_delivers_is_its_own_regions_whatever_it_calls_it(rendered: Rendered) -> None:
    """A delivery names its subject where no permission looks."""
    names = ("fleet.us-east.nyc1.nodes.advisory.stale", "muster.policy.us-east.region", "$JS.x.y", "x.y", "x")
    async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
        await agent.store("fleet.eu-west.dub1.nodes.watermark", b"{}")
    keys = rendered.directory / "nats" / "keys"
    async with (
        rendered.visited("hub", "aggregator") as hub,
        intruding(rendered.ports["leaf"], keys, "eu-west-leaf") as it,
    ):

        async def all_is_taken() -> bool:
            held = (await hub.of_domain("eu-west", "STREAM.INFO.FLEET"))["state"]["last_seq"]
            return held in [each.get("seq") for each in (await hub.api("STREAM.INFO.ARCHIVE"))["sources"]]

        await until(all_is_taken, "the archive has what the region has")
        before = await rendered.archived()
        taken = (await hub.of_domain("eu-west", "CONSUMER.INFO.FLEET.muster-archive"))["delivered"]["stream_seq"]
        for number, name in enumerate(names, start=1):
            await it.deliver("muster.source.eu-west.FLEET", name, taken + number)
            await until_archived(rendered, before + number)
            stored = (await hub.api("STREAM.MSG.GET.ARCHIVE", {"seq": before + number}))["message"]["subject"]
            assert stored == "fleet.eu-west" or stored.startswith("fleet.eu-west.")


async def test_a_relay_passes_on_what_its_region_has(rendered: Rendered) -> None:
    origin = BlockId("eu-west", "dub1", "nodes")
    body = encoded({"sender": "web1"})
    async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
        header = {"Muster_Origin": origin_header(origin, Incarnation(1, 1), 1)}
        await agent.store(f"fleet.{origin}.registration", body, **header)
    config = rendered.directory / "relay.toml"
    config.write_text(RELAY.format(hub=rendered.ports["hub"], region=rendered.ports["eu-west"]))
    relay = AgentProcess(config)
    relay.start()
    try:
        async with rendered.visited("hub", "aggregator") as hub:

            async def is_relayed() -> bool:
                return bool((await hub.api("STREAM.INFO.RELAYED"))["state"]["messages"])

            await until(is_relayed, "the hub has the registration from the relay")
            message = (await hub.api("STREAM.MSG.GET.RELAYED", {"seq": 1}))["message"]
            assert message["subject"] == f"fleet.{origin}.registration"
    finally:
        relay.end()


@pytest.mark.parametrize(
    ("server", "subject"),
    [*(("eu-west", subject) for subject in IN_THE_REGION), *(("hub", subject) for subject in AT_THE_HUB)],
)
async def test_a_relays_key_does_nothing_else_on_either_level(rendered: Rendered, server: str, subject: str) -> None:
    async with rendered.visited(server, "eu-relay-relay", "_INBOX_eu-relay") as thief:
        await thief.is_denied(subject)


@pytest.mark.parametrize("subject", [">", "fleet.>", "_INBOX.>", "_INBOX_dub1.>", "muster.>", "$JS.>"])
async def test_a_relays_key_hears_its_own_answers_alone(rendered: Rendered, subject: str) -> None:
    for server in ("eu-west", "hub"):
        async with rendered.visited(server, "eu-relay-relay", "_INBOX_eu-relay") as thief:
            await thief.is_denied(subject, "subscribe")


async def test_connections_that_never_log_in_make_room_within_seconds(rendered: Rendered) -> None:
    """A server counts them among its connections, so that whoever reaches it could keep everybody out."""
    allowed = int(rendered.config("eu-west").read_text().split("max_connections: ")[1].split()[0])
    settings = rendered.settings("eu-west", "dub1-agent")
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:

        async def is_let_in() -> bool:
            try:
                async with await connect(settings, name="test", deadline=1):
                    return True
            except ConnectFailed:
                return False

        async def is_kept_out() -> bool:
            """Fill the server; a busy machine may take as long for it as the first ones are left alone."""
            opening = (asyncio.open_connection("127.0.0.1", rendered.ports["eu-west"]) for _ in range(allowed))
            idle.extend(await asyncio.gather(*opening))
            return not await is_let_in()

        await until(is_kept_out, "nobody is let in", CONNECT_DEADLINE)
        await until(is_let_in, "there is room again", CONNECT_DEADLINE)
    finally:
        for _, writer in idle:
            await hung_up(writer)
