"""A stream that copies from another proves by its silence only what it has heard of that one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from edge_agent.core.stream_past import PastChange
from edge_agent.source import stream_facts
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.port import SourceUnavailable
from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings
from shared.identifiers import AdvisoryKind
from shared.nats import client as nats_client
from shared.nats.connection import ConnectionSettings, connect
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.agent.agent_within import agent_within
from tests.support.nats.linked_server import DEADLINE
from tests.support.nats.source_site import CONSUMER, STREAM, SUBJECT, Site, reading, running_site
from tests.support.waiting import until

ORIGIN = {"name": "ORIGIN", "subjects": ["registration.>"]}
FROM_HUB = {"name": "ORIGIN", "external": {"api": "$JS.hub.API"}}
STALE_AFTER = 4_000_000
"""As in the stage's settings."""


@pytest.fixture(autouse=True)
def connections_come_back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_client, "LONGEST_RETRY", 0.2)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Site]:
    """Start a server at which nodes register; its link is the one that leaf nodes come over."""
    async with AsyncExitStack() as stack:
        settings = ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub", leaf_port=0)
        server = await stack.enter_async_context(EmbeddedNats(settings))
        link = await stack.enter_async_context(EmbeddedLink(server.leaf_port))
        client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=DEADLINE)
        stack.push_async_callback(client.close)
        hub = Site(server, client, link)
        await hub.api("STREAM.CREATE.ORIGIN", ORIGIN)
        yield hub


@pytest.mark.parametrize("copies", [{"mirror": FROM_HUB}, {"sources": [FROM_HUB]}], ids=["mirror", "sources"])
async def test_a_cut_between_a_copy_and_its_origin_accuses_nobody(
    tmp_path: Path, hub: Site, copies: dict[str, object]
) -> None:
    leaf = LeafRemote(f"nats-leaf://127.0.0.1:{hub.link.port}")
    async with agent_stage(tmp_path, leaf) as stage, registering(hub, "a", "b") as nodes:
        await stage.site.delete_stream()
        await stage.site.create_stream({"name": STREAM, **copies})
        async with agent_within(stage.config_path):
            await until(lambda: are_new(stage, {"a", "b"}), "both are known")
            await until(lambda: vouches(stage, 0), "the site is vouched for")
            await hub.link.cut()
            seen_through = await stage.region.observed_through()
            await until(lambda: passed(stage.site, seen_through + 3 * STALE_AFTER), "they were long unheard")
            vouched = await stage.region.observed_through()
            assert vouched - seen_through < STALE_AFTER, "nothing vouches for what was not heard"
            assert not await stage.region.senders_with(AdvisoryKind.STALE)
            await hub.link.restore()
            await until(lambda: vouches(stage, seen_through + 4 * STALE_AFTER), "what was missed is read")
            nodes.fall_silent("b")
            await until(lambda: are_stale(stage, ["b"]), "who is silent is told")
        assert not await stage.region.senders_with(AdvisoryKind.RECOVERED)


async def test_what_one_place_sends_proves_nothing_of_another_that_is_cut_off(
    tmp_path: Path, hub: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_facts, "HEARD_WITHIN", 4_000_000_000)
    leaf = LeafRemote(f"nats-leaf://127.0.0.1:{hub.link.port}")
    async with agent_stage(tmp_path, leaf) as stage, registering(hub, "a", "b"):
        text = stage.config_path.read_text().replace('"4s"', '"12s"').replace('"1500ms"', '"5s"')
        stage.config_path.write_text(text)
        site = stage.site
        await site.delete_stream()
        await site.api(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["local.*"], "sources": [FROM_HUB]})

        async def register_here() -> None:
            while True:
                await site.client.publish("local.c", b'{"sender":"c"}')
                await asyncio.sleep(0.25)

        here = asyncio.create_task(register_here())
        try:
            async with agent_within(stage.config_path):
                await until(lambda: are_new(stage, {"a", "b", "c"}), "all are known")
                await hub.link.cut()
                cut_at = await stage.region.observed_through()
                await until(lambda: passed(site, cut_at + 24_000_000), "two of them were long unheard")
                await hub.link.restore()
                restored_at = await site.time()
                await until(lambda: covers(stage, restored_at), "time is known again")
                assert not await stage.region.senders_with(AdvisoryKind.STALE)
                here.cancel()
                await until(lambda: are_stale(stage, ["c"]), "who is silent is told")
        finally:
            here.cancel()
            await asyncio.wait({here})


async def covers(stage: Stage, instant: int) -> bool:
    """Tell whether what was unknown has ended, behind an instant."""
    marks = await stage.region.watermarks()
    return (
        bool(marks) and marks[-1].observed_since_us > instant - 12_000_000 and marks[-1].observed_through_us > instant
    )


async def are_new(stage: Stage, senders: set[str]) -> bool:
    return set(await stage.region.senders_with(AdvisoryKind.NEW)) == senders


async def are_stale(stage: Stage, senders: list[str]) -> bool:
    return await stage.region.senders_with(AdvisoryKind.STALE) == senders


async def vouches(stage: Stage, instant: int) -> bool:
    return await stage.region.observed_through() > instant


async def passed(site: Site, instant: int) -> bool:
    return await site.time() > instant


async def test_a_mirror_that_is_made_anew_is_read_on_behind_what_was_read(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.api("STREAM.CREATE.ORIGIN", ORIGIN)
        mirror = {"name": STREAM, "mirror": {"name": "ORIGIN"}}
        await site.create_stream(mirror)
        await site.publish(*(b"%d" % number for number in range(20)))
        async with reading(site) as reader:
            await reader.read_on(20)
            await site.delete_stream()
            with pytest.raises(SourceUnavailable):
                await reader.source.read(5)
            await site.create_stream(mirror)
            await until(lambda: holds(site, 20), "the mirror is whole again")
            opened = await reader.open_again()
            assert (opened.change, opened.sequence) == (PastChange.RECREATED, 20)
            await site.publish(b"20")
            await reader.read_on(21)
            assert [message.payload for message in reader.received] == [b"%d" % number for number in range(21)]


async def holds(site: Site, sequence: int) -> bool:
    return await site.last_sequence() == sequence


async def test_what_others_publish_is_no_gap_while_nothing_is_proven(tmp_path: Path) -> None:
    """All of it has been read past; that it proves no time is another matter."""
    async with running_site(tmp_path) as site:
        await site.make_stream(max_msgs=50, sources=[{"name": "NOWHERE"}])
        address = SourceAddress(STREAM, CONSUMER, filter_subject=SUBJECT)
        await site.publish(*[b"1"] * 10)
        async with reading(site, address) as reader:
            await reader.read_on(10)
            await site.publish(*[b"2"] * 200, subject="registration.others")

            async def is_read_past() -> bool:
                checked = await reader.check()
                assert not checked.caught_up_through
                return checked.examined_sequence == 210

            await until(is_read_past, "what others published has been read past")
