"""In a cluster, who delivers may lack what the stream holds, and say that nothing waits: that proves nothing."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.errors import NoRespondersError

from edge_agent.config.agent import load
from edge_agent.doctor.source import check_source
from edge_agent.source.consumer import SourceAddress, creation
from edge_agent.source.port import SourceUnavailable, StreamCheck
from shared.embedded.link import EmbeddedLink
from shared.embedded.server import ServerSettings
from shared.instants import parse_instant
from shared.nats.jetstream_api import ApiError, RequestFailed, request_json
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member
from tests.support.nats.source_site import CONSUMER, STREAM, SUBJECT, Reader, Site, reading
from tests.support.topology.regions import client_of
from tests.support.waiting import until

MEMBERS = [Member(f"n{number}", (f"az:{number}",)) for number in (1, 2, 3)]
EVERYTHING = SourceAddress(STREAM, CONSUMER)
FILTERED = SourceAddress(STREAM, CONSUMER, filter_subject=SUBJECT)
OF_CONSUMER = f"{STREAM}.{CONSUMER}"
MISSED = 120_000
MISSED_AT_ONCE = 1_000
ELECTION = 120.0


def catching_up_slowly(settings: ServerSettings) -> ServerSettings:
    """Let a server that comes back be sent what it lacks message by message."""
    return msgspec.structs.replace(settings, jetstream_config="max_outstanding_catchup: 1KB")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster("site", tmp_path, MEMBERS, catching_up_slowly) as cluster:
        yield cluster


async def test_who_delivers_from_a_copy_that_has_not_caught_up_proves_nothing(cluster: EmbeddedCluster) -> None:
    async with site_of(cluster) as site, reading(site) as reader:
        lagging = "n2" if await leader_of(site, "STREAM", STREAM) == "n3" else "n3"
        await cluster.servers[lagging].kill()
        await until(lambda: stores(site), "two of three store", ELECTION)
        await fill(site)
        await reader.read_on(await site.last_sequence(), ELECTION)

        coming = asyncio.create_task(cluster.servers[lagging].start(ELECTION))
        await until(lambda: leads(site, "CONSUMER", OF_CONSUMER, lagging), "it is made the one that delivers", ELECTION)
        unread = await site.stored(await site.publish(b"unread"))
        stored_at, doubts = parse_instant(unread.time), set()

        async def is_delivered() -> bool:
            checked = await looked_at(reader)
            assert checked.caught_up_through < stored_at, "it vouches for what it has not delivered"
            doubts.add(checked.facts.storage_fault)
            return reader.source.holds_unread

        await until(is_delivered, "what it lacked is delivered", ELECTION)
        assert f"is not complete on {lagging}, which delivers it" in doubts
        await reader.read_on(unread.seq)
        await coming

        async def is_vouched_for() -> bool:
            return (await looked_at(reader)).caught_up_through > stored_at

        await until(is_vouched_for, "it vouches once it has caught up", ELECTION)
        assert reader.sequences == list(range(1, unread.seq + 1)), "some were read twice, or not at all"


async def test_what_does_not_pass_the_filter_leaves_no_doubt_in_a_cluster(cluster: EmbeddedCluster) -> None:
    async with site_of(cluster, FILTERED) as site, reading(site, FILTERED) as reader:
        await reader.read_on(await site.publish(b"ours"))
        last = await site.publish(b"another's", subject="registration.others")
        checked = await looked_at(reader)
        assert (checked.facts.storage_fault, checked.examined_sequence) == ("", last)
        assert checked.caught_up_through > 0


async def test_a_leader_that_is_cut_off_from_the_others_vouches_for_nothing_that_they_may_store(
    cluster: EmbeddedCluster,
) -> None:
    async with site_of(cluster) as site, reading(site) as reader:
        await until(lambda: leads(site, "STREAM", STREAM, "n1"), "n1 leads the stream", ELECTION)
        await until(lambda: leads(site, "CONSUMER", OF_CONSUMER, "n1"), "n1 leads the consumer", ELECTION)
        await reader.read_on(await site.publish(b"the last of both"))
        await looked_at(reader)
        for name in ("n2", "n3"):
            cluster.servers[name].suspend()
        alone_from, shown_at = int(time.time() * 1_000_000), 0
        try:
            while shown_at < alone_from + 4_000_000:
                checked = await reader.check()
                assert checked.caught_up_through < alone_from, "another may lead by now, and store"
                shown_at = checked.facts.server_at
        finally:
            for name in ("n2", "n3"):
                cluster.servers[name].resume()

        async def vouches_again() -> bool:
            return (await looked_at(reader)).caught_up_through > alone_from

        await until(vouches_again, "it vouches once it hears them again", ELECTION)


async def test_doctor_looks_whether_the_leader_of_a_filtered_stream_may_be_asked(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    async with site_of(cluster, FILTERED) as site:
        (tmp_path / "agent.toml").write_text(f"""
            site = "dub1"
            region = "eu-west"
            [upstream]
            servers = ["{site.server.url}"]
            [store]
            path = "{tmp_path}/agent.db"
            [[stream]]
            name = "nodes"
            sender.json_path = "sender"
            [stream.source]
            servers = ["{site.server.url}"]
            stream = "{STREAM}"
            filter_subject = "{SUBJECT}"
            """)
        settings = load(tmp_path / "agent.toml")
        said = [finding.text async for finding in check_source(settings, settings.stream[0])]
    assert "reading, resetting, asking what waits and acknowledging are permitted" in said


async def looked_at(reader: Reader) -> StreamCheck:
    """Check, as often as reading breaks off because another server delivers."""
    while True:
        try:
            return await reader.check()
        except SourceUnavailable:
            await reader.open_again()


@asynccontextmanager
async def site_of(cluster: EmbeddedCluster, address: SourceAddress = EVERYTHING) -> AsyncIterator[Site]:
    """Make a stream that all three hold, and a consumer."""
    async with AsyncExitStack() as stack:
        client = await client_of(cluster.servers["n1"])
        stack.push_async_callback(client.close)
        link = await stack.enter_async_context(EmbeddedLink(cluster.servers["n1"].port))
        site = Site(cluster.servers["n1"], client, link)
        await until(lambda: is_made(site, address), "the stream and its consumer are made", ELECTION)
        yield site


async def is_made(site: Site, address: SourceAddress) -> bool:
    """Make the stream and its consumer; tell whether both have leaders."""
    with contextlib.suppress(ApiError, RequestFailed):  # while the cluster has no leader
        await site.make_stream(num_replicas=3)
        await site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", creation(address, "limits"))
    return bool(await leader_of(site, "STREAM", STREAM) and await leader_of(site, "CONSUMER", OF_CONSUMER))


async def fill(site: Site) -> None:
    """Store many messages, as fast as the stream takes them."""
    for number in range(MISSED):
        await site.client.publish(SUBJECT, b"x" * 900)
        if number % MISSED_AT_ONCE == 0:
            await until(lambda: stores(site), "they are stored", ELECTION)


async def stores(site: Site) -> bool:
    try:
        await site.client.request(SUBJECT, b"x", timeout=5)
    except (TimeoutError, NoRespondersError):  # while another leader is elected
        return False
    return True


async def ask(site: Site, subject: str, body: object = None) -> dict[str, Any]:
    """Ask once: nobody answers for what has no leader."""
    return await request_json(site.client, f"$JS.API.{subject}", body, dict[str, Any], deadline=1)


async def leader_of(site: Site, kind: str, name: str) -> str:
    """Name the server that leads a stream, or a consumer; "" while none does."""
    return str((await group_of(site, kind, name)).get("leader", ""))


async def group_of(site: Site, kind: str, name: str) -> dict[str, Any]:
    """Give the servers of a stream, or a consumer; nothing while none leads."""
    with contextlib.suppress(ApiError, RequestFailed):
        return dict((await ask(site, f"{kind}.INFO.{name}")).get("cluster") or {})
    return {}


async def leads(site: Site, kind: str, name: str, server: str) -> bool:
    """Let a server lead a stream, or a consumer, as soon as it has caught up with that; tell whether it does."""
    group = await group_of(site, kind, name)
    if any(replica["name"] == server and replica["current"] for replica in group.get("replicas", ())):
        with contextlib.suppress(ApiError, RequestFailed):
            await ask(site, f"{kind}.LEADER.STEPDOWN.{name}", {"placement": {"preferred": server}})
    return bool(group.get("leader") == server)
