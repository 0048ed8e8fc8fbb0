"""The rendered servers, attacked with keys that they gave out: each denied action is denied, each needed one works."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack

import nats.errors
import nats.js.errors
import pytest

from aggregator.topology.render.permissions import CONNECTIONS_OF_A_SITE
from shared.identifiers import message_id
from shared.nats.connection import ConnectFailed, connect
from shared.nats.jetstream_api import ApiError, request_json
from shared.wire import MESSAGE_ID_HEADER
from tests.support.topology.leaf_intruder import hung_up
from tests.support.topology.rendered import (
    CONNECT_DEADLINE,
    REQUEST_DEADLINE,
    SERVERS,
    Rendered,
    Visitor,
    assert_accepted,
    encoded,
    muster,
    rendered_servers,
    until_archived,
)
from tests.support.waiting import until

MEANT_FOR_SERVERS = (
    {"Nats-Expected-Stream": "FLEET"},
    {"Nats-Marker-Reason": "Purge"},
    {"Nats-Msg-Delete": "1"},
    {"Nats-Required-Api-Level": "99"},
    {"KV-Operation": "PURGE"},
    {"Status": "100"},
)
"""Headers that mean something to servers, and are stored: behind them the hub has to take what comes next."""
OWN = "fleet.eu-west.dub1.nodes"
OTHERS = "fleet.eu-west.lon1.nodes"
INBOX = "_INBOX_dub1"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("rendered")) as servers:
        yield servers


@pytest.mark.parametrize(
    "subject",
    [
        f"{OTHERS}.watermark",
        f"{OTHERS}.advisory.stale",
        "fleet.us-east.dub1.nodes.watermark",
        "fleet.eu-west.dub10.nodes.watermark",
        "muster.source.eu-west.FLEET",
        "_INBOX_lon1.answer",
        *(
            f"{api}.{action}"
            for api in ("$JS.API", "$JS.eu-west.API", "$JS.hub.API")
            for action in ("STREAM.DELETE.FLEET", "STREAM.PURGE.FLEET", "STREAM.UPDATE.FLEET", "STREAM.CREATE.MINE")
        ),
        "$JS.API.STREAM.MSG.DELETE.FLEET",
        "$JS.API.STREAM.MSG.GET.FLEET",
        "$JS.API.DIRECT.GET.FLEET",
        f"$JS.API.DIRECT.GET.FLEET.{OTHERS}.watermark",
        f"$JS.API.DIRECT.GET.FLEET.{OWN}.registration",
        "$JS.API.STREAM.LIST",
        "$JS.API.STREAM.INFO.FLEET",
        "$JS.API.CONSUMER.CREATE.FLEET.mine",
        "$JS.API.CONSUMER.DELETE.FLEET.muster-archive",
        "$JS.API.CONSUMER.MSG.NEXT.MUSTER_POLICY.muster-lon1",
        "$JS.API.CONSUMER.RESET.MUSTER_POLICY.muster-lon1",
        "$JS.API.CONSUMER.CREATE.MUSTER_POLICY.mine",
        "$JS.API.CONSUMER.CREATE.MUSTER_POLICY.muster-dub1",
        "$JS.API.CONSUMER.DELETE.MUSTER_POLICY.muster-dub1",
        "$JS.API.CONSUMER.INFO.MUSTER_POLICY.muster-lon1",
        "$JS.API.STREAM.INFO.MUSTER_POLICY",
        "$JS.API.STREAM.MSG.GET.MUSTER_POLICY",
        "$JS.API.DIRECT.GET.MUSTER_POLICY.muster.policy.eu-west.site.lon1",
        "muster.policy.eu-west.site.dub1",
        "muster.policy.eu-west.region",
        "$JS.API.CONSUMER.RESET.FLEET.muster-archive",
        "$JS.ACK.FLEET.muster-archive.1.1.1.1.1",
        "$JS.FC.FLEET.muster-archive.x",
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.CLAIMS.UPDATE",
    ],
)
async def test_a_sites_key_may_not_publish_elsewhere_in_its_region(rendered: Rendered, subject: str) -> None:
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as thief:
        await thief.is_denied(subject)


@pytest.mark.parametrize(
    "subject",
    [">", "fleet.>", f"{OWN}.>", f"{OTHERS}.watermark", "_INBOX.>", "_INBOX_lon1.>", "$JS.>", "$SYS.>", "muster.>"],
)
async def test_a_sites_key_hears_nothing_but_its_own_answers(rendered: Rendered, subject: str) -> None:
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as thief:
        await thief.is_denied(subject, "subscribe")


async def test_a_site_sees_the_last_watermark_of_its_own_block(rendered: Rendered) -> None:
    before = await rendered.archived()
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as agent:
        for body in (b"before", b"last"):
            await agent.store(f"{OWN}.watermark", body)
        await until_archived(rendered, before + 2)
        answer = await agent.client.request(f"$JS.API.DIRECT.GET.FLEET.{OWN}.watermark", b"", timeout=REQUEST_DEADLINE)
        assert answer.data == b"last"
        # What is put into the question lets nobody see more.
        for question in ({"seq": 1}, {"next_by_subj": f"{OTHERS}.watermark"}, {"multi_last": [f"{OTHERS}.watermark"]}):
            asked = encoded(question)
            answer = await agent.client.request(
                f"$JS.API.DIRECT.GET.FLEET.{OWN}.watermark", asked, timeout=REQUEST_DEADLINE
            )
            assert answer.data in (b"", b"last")
        assert not agent.denials


async def test_a_site_may_ask_which_stream_has_its_subjects(rendered: Rendered) -> None:
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as agent:
        answer = await agent.client.request(
            "$JS.API.STREAM.NAMES", encoded({"subject": f"{OWN}.watermark"}), timeout=60
        )
        assert b'"streams":["FLEET"]' in answer.data
        assert not agent.denials


async def test_a_site_hears_its_own_policy_and_no_others(rendered: Rendered) -> None:
    for whom in (
        ("--site", "lon1"),
        ("--site", "dub1"),
        ("--site", "dub1", "--block", "nodes"),
        ("--region", "eu-west"),
    ):
        done = muster(rendered.directory, "policy", "set", *whom, "--sample-interval", "30m")
        assert done.returncode == 0, done.stderr
    own, region = "muster.policy.eu-west.site.dub1", "muster.policy.eu-west.region"
    consumer = "MUSTER_POLICY.muster-dub1"
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as agent:
        heard: list[str] = []
        async with asyncio.timeout(60):
            while region not in heard:
                heard = []
                assert (await agent.api(f"CONSUMER.INFO.{consumer}"))["name"] == "muster-dub1"
                await agent.api(f"CONSUMER.RESET.{consumer}", {"seq": 1})
                while (message := await pulled(agent, consumer)) is not None:
                    heard.append(message)
        assert heard == [own, f"{own}.nodes", region]
        assert not agent.denials


async def pulled(visitor: Visitor, consumer: str) -> str | None:
    """Pull one message through a consumer; give its subject, None where there is none."""
    request = encoded({"batch": 1, "expires": 300_000_000})
    message = await visitor.client.request(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", request, timeout=5, old_style=True)
    return message.subject if message.data else None


async def test_a_region_may_not_speak_for_the_hub(rendered: Rendered) -> None:
    """Policy comes from the hub alone: what a leaf sends in its name is not let in."""
    hub = rendered.config("hub").read_text()
    leaf = hub[hub.index("# eu-west-leaf") :]
    allowed = leaf[leaf.index("publish") : leaf.index("subscribe")]
    assert '"muster.policy.>"' in hub[: hub.index("# eu-west-leaf")]
    assert '"muster.policy' not in allowed


async def test_a_sites_key_publishes_as_its_site_and_hears_that_it_is_stored(rendered: Rendered) -> None:
    before = await rendered.archived()
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as agent:
        await agent.store(f"{OWN}.watermark", b"{}")
        assert not agent.denials
    await until_archived(rendered, before + 1)


async def test_what_waits_in_a_region_is_seen_with_what_its_link_lets_pass(rendered: Rendered) -> None:
    pause = "$JS.eu-west.API.CONSUMER.PAUSE.FLEET.muster-archive"
    before = await rendered.archived()
    async with (
        rendered.visited("hub", "aggregator") as hub,
        rendered.visited("eu-west", "dub1-agent", INBOX) as agent,
    ):

        async def is_seen(expected: bool) -> bool:
            checked = await asyncio.to_thread(muster, rendered.directory, "check", "--behind", "0s,1h")
            waits = r"ARCHIVE is \d+ messages behind FLEET of eu-west, the oldest waits for"
            return bool(re.search(waits, checked.stdout)) is expected

        paused = {"pause_until": "2099-01-01T00:00:00Z"}
        await request_json(hub.client, pause, paused, dict[str, object], deadline=REQUEST_DEADLINE)
        try:
            await agent.store(f"{OWN}.watermark", b"{}")
            await until(lambda: is_seen(expected=True), "what waits is told")
        finally:
            await request_json(hub.client, pause, {}, dict[str, object], deadline=REQUEST_DEADLINE)
        await until_archived(rendered, before + 1)
        await until(lambda: is_seen(expected=False), "nothing is told to wait")


async def test_a_sites_key_can_neither_roll_up_nor_let_expire_what_others_stored(rendered: Rendered) -> None:
    before = await rendered.archived()
    async with rendered.visited("eu-west", "lon1-agent", "_INBOX_lon1") as other:
        await other.store(f"{OTHERS}.watermark", b"{}")
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as thief:
        for header in ({"Nats_Rollup": "all"}, {"Nats_TTL": "1s"}):
            with pytest.raises(nats.js.errors.APIError):
                await thief.store(f"{OWN}.watermark", b"{}", **header)
    await until_archived(rendered, before + 1)


async def test_a_sites_key_silences_nobody(rendered: Rendered) -> None:
    """A stream shares its window for message ids among all who publish: only who has a site's secret knows its ids."""
    before = await rendered.archived()
    secret, own_secret = secrets.token_bytes(32), secrets.token_bytes(32)
    identities = [("eu-west", "lon1", "nodes", kind, number) for kind in ("advisory", "watermark") for number in (1, 2)]
    ids = [message_id(secret, *identity) for identity in identities]
    guesses = [message_id(key, *identity) for identity in identities for key in (own_secret, bytes(32))]
    async with (
        rendered.visited("eu-west", "dub1-agent", INBOX) as thief,
        rendered.visited("eu-west", "lon1-agent", "_INBOX_lon1") as other,
    ):
        for header in [*({MESSAGE_ID_HEADER: guess} for guess in guesses), *MEANT_FOR_SERVERS]:
            stored = await thief.client.jetstream().publish(f"{OWN}.watermark", b"{}", headers=header, timeout=5)
            assert not stored.duplicate
        for message in ids:
            header = {MESSAGE_ID_HEADER: message}
            stored = await other.client.jetstream().publish(f"{OTHERS}.watermark", b"{}", headers=header, timeout=5)
            assert not stored.duplicate
        # Had he known one, the other's own would be swallowed.
        known = {MESSAGE_ID_HEADER: "known"}
        await thief.client.jetstream().publish(f"{OWN}.watermark", b"{}", headers=known, timeout=5)
        assert (await other.client.jetstream().publish(f"{OTHERS}.watermark", b"{}", headers=known)).duplicate
    count = len(guesses) + len(MEANT_FOR_SERVERS) + len(ids) + 1
    await until_archived(rendered, before + count)
    async with rendered.visited("hub", "aggregator") as hub:
        archived = (await hub.api("STREAM.INFO.ARCHIVE", {"subjects_filter": f"{OTHERS}.watermark"}))["state"]
        assert archived["subjects"][f"{OTHERS}.watermark"] >= len(ids)


async def test_an_answer_goes_nowhere_but_to_who_asked(rendered: Rendered) -> None:
    """A server lets the sender choose where its own answer goes: never into another account's streams."""
    before = await rendered.archived()
    tricked = "fleet.eu-west.lon1.tricked.watermark"
    targets = [tricked, "muster.source.eu-west.FLEET", "$JS.FC.FLEET.muster-archive.x"]
    targets += [f"$JS.API.{action}" for action in ("STREAM.PURGE.FLEET", "CONSUMER.DELETE.FLEET.muster-archive")]
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as thief:
        for reply in targets:
            await thief.client.publish(f"{OWN}.watermark", b"{}", reply=reply)
            # This answer would be a message of the thief's own making.
            await thief.client.publish(f"$JS.API.DIRECT.GET.FLEET.{OWN}.watermark", b"", reply=reply)
        await thief.store(f"{OWN}.watermark", b"{}")
    await until_archived(rendered, before + len(targets) + 1)
    assert await rendered.archived() == before + len(targets) + 1
    async with rendered.visited("hub", "aggregator") as hub:
        with pytest.raises(ApiError, match="no message found"):
            await hub.api("STREAM.MSG.GET.ARCHIVE", {"last_by_subj": tricked})


async def test_batches_are_stored_whole_across_accounts(rendered: Rendered) -> None:
    before = await rendered.archived()
    async with rendered.visited("eu-west", "dub1-agent", INBOX) as agent:
        for place in (1, 2, 3):
            headers = {"Nats-Batch-Id": "one", "Nats-Batch-Sequence": str(place)}
            if place == 3:
                answer = await agent.client.request(
                    f"{OWN}.watermark", b"{}", headers=headers | {"Nats-Batch-Commit": "1"}, timeout=5
                )
                assert b'"count":3' in answer.data
            else:
                await agent.client.publish(f"{OWN}.watermark", b"{}", headers=headers)
    await until_archived(rendered, before + 3)


@pytest.mark.parametrize(
    ("key", "subject"),
    [
        ("dub1-nodes", "$JS.API.STREAM.PURGE.REGISTRATION"),
        ("dub1-nodes", "$JS.API.STREAM.MSG.GET.REGISTRATION"),
        ("dub1-nodes", "$JS.API.CONSUMER.CREATE.REGISTRATION.mine"),
        ("dub1-nodes", "other"),
        ("dub1-agent", "registration.web1"),
        ("dub1-agent", "$JS.API.STREAM.DELETE.REGISTRATION"),
        ("dub1-agent", "$JS.API.STREAM.PURGE.REGISTRATION"),
        ("dub1-agent", "$JS.API.STREAM.UPDATE.REGISTRATION"),
        ("dub1-agent", "$JS.API.STREAM.MSG.DELETE.REGISTRATION"),
        ("dub1-agent", "$JS.API.CONSUMER.CREATE.REGISTRATION.mine"),
        ("dub1-agent", "$JS.API.CONSUMER.DELETE.REGISTRATION.muster-dub1-nodes"),
    ],
)
async def test_at_its_site_each_may_do_its_own_work_alone(rendered: Rendered, key: str, subject: str) -> None:
    async with rendered.visited("dub1", key, INBOX if key == "dub1-agent" else "_INBOX_nodes") as visitor:
        await visitor.is_denied(subject)


@pytest.mark.parametrize(
    ("server", "key"),
    [("hub", "dub1-agent"), ("hub", "eu-west-leaf"), ("eu-west", "aggregator"), ("eu-west", "dub1-nodes")],
    ids=["a site's at the hub", "a leaf's as a client", "the aggregator's in a region", "nodes' in a region"],
)
async def test_keys_open_no_other_door(rendered: Rendered, server: str, key: str) -> None:
    with pytest.raises(ConnectFailed, match="credentials|refused|Authorization"):
        await connect(rendered.settings(server, key), name="test", deadline=2)


async def test_a_sites_key_takes_no_other_sites_connections(rendered: Rendered) -> None:
    async with AsyncExitStack() as taken:
        settings = rendered.settings("eu-west", "dub1-agent")
        for _ in range(CONNECTIONS_OF_A_SITE):
            await taken.enter_async_context(await connect(settings, name="test", deadline=CONNECT_DEADLINE))
        with pytest.raises(ConnectFailed, match="account active connections exceeded"):
            await connect(settings, name="test", deadline=1)
        async with rendered.visited("eu-west", "lon1-agent", "_INBOX_lon1") as other:
            await other.store(f"{OTHERS}.watermark", b"{}")


async def test_the_aggregator_publishes_into_no_stream(rendered: Rendered) -> None:
    async with rendered.visited("hub", "aggregator") as aggregator:
        await aggregator.is_denied(f"{OWN}.watermark")


async def test_without_tls_nobody_is_greeted(rendered: Rendered) -> None:
    for server in SERVERS:
        reader, writer = await asyncio.open_connection("127.0.0.1", rendered.ports[server])
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert b"INFO" not in await reader.read()
        await hung_up(writer)


def test_nats_server_accepts_every_file(rendered: Rendered) -> None:
    for server in SERVERS:
        assert_accepted(rendered.config(server))


def test_rendering_again_keeps_every_secret(rendered: Rendered) -> None:
    secrets = [*rendered.directory.glob("nats/*/*.nk"), *rendered.directory.glob("nats/*/*.pem")]
    before = {path: path.read_bytes() for path in secrets}
    done = muster(rendered.directory, "render", "--make-keys", "--make-certificates")
    made = set(done.stdout.splitlines())
    assert made >= {f"{server}/{name}" for server in SERVERS for name in ("nats-server.conf", "ca.pem")}
    assert not {name for name in made if name.endswith((".nk", "key.pem")) or name.startswith("for ")}, (
        "no secret was made"
    )
    assert {path: path.read_bytes() for path in secrets} == before
    assert {path.stat().st_mode & 0o077 for path in secrets if path.suffix == ".nk" or "key" in path.name} == {0}
