"""Large copies leave as chains: whatever breaks one, each copy is stored once and in its order."""

import asyncio
import base64
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pytest
from msgspec import structs
from nats.js.errors import ServiceUnavailableError

from edge_agent.delivery import copy_lane, lane, uploader
from edge_agent.delivery.copy_lane import WORTH_A_CHAIN, CopyScheduler, FormChoice
from edge_agent.delivery.region import JetStreamUpstream
from edge_agent.delivery.shipment import Form, Shipment
from edge_agent.store.sqlite_store import SqliteStore
from shared.embedded.link import EmbeddedLink
from shared.nats import client as nats_client
from shared.nats.connection import ConnectionSettings, connect
from tests.support.agent.agent_process import AgentProcess, deployed
from tests.support.agent.chaining_agent import chain_unless_one_broke
from tests.support.agent.mode_settings import ABOVE_BLOCKS, block
from tests.support.delivery.fleet_region import EMPTY, Region, running_region, tell_of_shipments, uploading
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member
from tests.support.nats.insisting import insist
from tests.support.nats.linked_server import DEADLINE
from tests.support.store.store_batches import batch, copy
from tests.support.waiting import until

LARGE = 6_000
PATIENCE = 60.0
MEMBERS = [Member("n1"), Member("n2"), Member("n3")]
OF_A_CHAIN = "Nats-Expected-Last-Sequence"


@pytest.fixture(autouse=True)
def retries_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_client, "LONGEST_RETRY", 0.2)
    monkeypatch.setattr(uploader, "LONGEST_RETRY", 0.5)
    monkeypatch.setattr(lane, "LONGEST_RETRY", 0.5)


@pytest.fixture
def chains_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every shipment that may be a chain be one."""
    monkeypatch.setattr(copy_lane, "FIRST_PAUSE", 1)
    monkeypatch.setattr(copy_lane, "LONGEST_PAUSE", 1)
    monkeypatch.setattr(FormChoice, "of", chain_unless_one_broke)


class Forms(list[Form]):
    """What was sent, in which form, in its order."""

    def __init__(self) -> None:
        self._grown = asyncio.Event()

    def note(self, form: Form) -> None:
        self.append(form)
        self._grown.set()

    async def chains(self, wanted: int) -> None:
        """Wait until so many chains are under way or were: asking now and then would find one's middle too rarely."""
        async with asyncio.timeout(PATIENCE):
            while self.count(Form.CHAIN) < wanted:
                self._grown.clear()
                await self._grown.wait()

    @property
    def broken(self) -> int:
        """Count the chains after which it was asked how much of them is stored."""
        return sum(first is Form.CHAIN and then is Form.QUESTION for first, then in pairwise(self))


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Forms:
    """Note what is sent in which form."""
    sent = Forms()
    tell_of_shipments(monkeypatch, lambda shipment: sent.note(shipment.form))
    return sent


async def large_copies(store: SqliteStore, count: int) -> list[bytes]:
    rows = [copy(f"c{number}", size=LARGE) for number in range(count)]
    for start in range(0, count, 500):
        await store.commit(batch(start + 1, rows[start : start + 500]))
    return [row.payload for row in rows]


async def copies_in(region: Region) -> list[bytes]:
    return [record.payload for record in await region.stored() if ".copy." in record.subject]


@pytest.mark.usefixtures("chains_at_once")
async def test_chains_are_stored_in_order(tmp_path: Path, store: SqliteStore, forms: Forms) -> None:
    bodies = await large_copies(store, 3_000)
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True)
        async with uploading(region, store):
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        assert await copies_in(region) == bodies
    assert Form.CHAIN in forms


@pytest.mark.usefixtures("chains_at_once")
async def test_chains_that_break_since_others_write_to_the_stream_lose_double_and_reorder_nothing(
    tmp_path: Path, store: SqliteStore, forms: Forms
) -> None:
    bodies = await large_copies(store, 6_000)
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True)
        writing = asyncio.create_task(write_under_chains(region, forms))
        async with uploading(region, store):
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert await copies_in(region) == bodies
    assert forms.broken, "no chain was broken"


async def test_a_chain_that_another_site_writes_before_loses_none_of_its_rows_behind_a_batch_still_under_way(
    tmp_path: Path, store: SqliteStore, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written comes before the batch, which ends further on than it was to: a chain may not count on that."""
    monkeypatch.setattr(copy_lane, "MEASURED", 3)
    monkeypatch.setattr(copy_lane, "FIRST_PAUSE", 1)
    bodies = await large_copies(store, 3_000)
    async with running_region(tmp_path, round_trip=0.05, bandwidth=6_000_000) as region:
        await region.make_stream(allow_atomic=True)
        send = JetStreamUpstream.send

        async def sent_behind_another_sites(upstream: JetStreamUpstream, shipment: Shipment) -> None:
            if shipment.form is Form.CHAIN and forms.count(Form.CHAIN) < 3:
                for _ in range(2):
                    await region.client.jetstream().publish("fleet.eu-west.other.nodes.registration", b"")
            await send(upstream, shipment)

        monkeypatch.setattr(JetStreamUpstream, "send", sent_behind_another_sites)
        async with uploading(region, store):
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        assert await copies_in(region) == bodies
    assert forms.count(Form.CHAIN) >= 3


async def write_under_chains(region: Region, forms: Forms) -> None:
    """Write to the stream whenever a few more chains have been sent."""
    for chains in count(1, 3):
        await forms.chains(chains)
        await region.client.publish("fleet.eu-west.other.nodes.registration", b"")


@pytest.mark.usefixtures("chains_at_once")
async def test_a_link_that_is_cut_under_chains_loses_doubles_and_reorders_nothing(
    tmp_path: Path, store: SqliteStore, forms: Forms
) -> None:
    bodies = await large_copies(store, 4_000)
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True)
        async with uploading(region, store):
            for part in (500, 1_500, 2_500):
                await until(partial(has_stored, region, part), f"{part} copies have arrived")
                await region.link.cut()
                await region.link.restore()
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        assert await copies_in(region) == bodies
    assert Form.CHAIN in forms


async def has_stored(region: Region, copies: int) -> bool:
    return await region.stored_count() >= copies


@pytest.mark.usefixtures("chains_at_once")
async def test_a_row_that_the_stream_does_not_take_breaks_its_chain_and_is_set_apart(
    tmp_path: Path, store: SqliteStore, forms: Forms
) -> None:
    rows = [copy(f"c{number}", size=20_000 if number == 1_200 else LARGE) for number in range(2_000)]
    for start in range(0, 2_000, 500):
        await store.commit(batch(start + 1, rows[start : start + 500]))
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True, max_msg_size=10_000)
        async with uploading(region, store):
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        assert await copies_in(region) == [row.payload for row in (*rows[:1_200], *rows[1_201:])]
    assert store.set_apart_depth().rows == 1
    assert Form.CHAIN in forms


@pytest.mark.usefixtures("chains_at_once")
async def test_where_others_may_write_the_same_subjects_copies_leave_as_batches(
    tmp_path: Path, store: SqliteStore, forms: Forms
) -> None:
    rows = [structs.replace(copy(f"c{number}", size=LARGE), subject="fleet.nodes.reg") for number in range(1_500)]
    await store.commit(batch(1, rows))
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True)
        async with uploading(region, store):
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        assert [record.payload for record in await region.stored()] == [row.payload for row in rows]
    assert Form.CHAIN not in forms


@pytest.mark.usefixtures("chains_at_once")
async def test_a_region_killed_under_chains_loses_doubles_and_reorders_nothing(
    tmp_path: Path, store: SqliteStore, forms: Forms
) -> None:
    bodies = await large_copies(store, 4_000)
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True)
        async with uploading(region, store):
            for _ in range(3):
                await forms.chains(forms.count(Form.CHAIN) + 2)
                await region.server.kill()
                await region.server.start()
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        assert await copies_in(region) == bodies


async def test_an_agent_killed_under_chains_loses_doubles_and_reorders_nothing(tmp_path: Path) -> None:
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy")) as deployment:
        site, region = deployment.site, deployment.region
        await region.update_stream(allow_atomic=True)
        # What is under way takes a while, so that the agent dies in its midst.
        region.link.bandwidth = 8_000_000
        bodies = [b"%d" % number for number in range(4_000)]
        await site.publish(*(body.ljust(LARGE) for body in bodies))
        agent = AgentProcess(deployment.agent.config, [sys.executable, "-m", "tests.support.agent.chaining_agent"])
        try:
            for _ in range(3):
                before = await region.stored_count()
                agent.start()
                await until(partial(stores_a_chain, region, before + 1), "a chain is being stored")
                agent.kill()
            region.link.bandwidth = 0
            agent.start()
            await until(partial(has_stored, region, len(bodies)), "everything is copied", PATIENCE)
        finally:
            agent.end()
        assert [body.rstrip() for body in await copies_in(region)] == bodies


async def stores_a_chain(region: Region, after: int) -> bool:
    if await region.stored_count() <= after:
        return False
    found = await region.api(f"STREAM.MSG.GET.{region.stream}", {"last_by_subj": region.subjects})
    return OF_A_CHAIN in base64.b64decode(found["message"]["hdrs"]).decode()


@asynccontextmanager
async def replicated_region(directory: Path) -> AsyncIterator[Region]:
    """Start a region of three servers that hold FLEET each; its link leads to one of them."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(EmbeddedCluster("region", directory, MEMBERS))
        server = cluster.servers["n1"]
        link = await stack.enter_async_context(EmbeddedLink(server.port))
        client = await connect(ConnectionSettings(servers=cluster.urls), name="test", deadline=DEADLINE)
        stack.push_async_callback(client.close)
        region = Region(server, client, link)
        await insist(
            client, f"$JS.API.STREAM.CREATE.{region.stream}", region.stream_config(allow_atomic=True, num_replicas=3)
        )
        yield region
        logs = [each.log_path.read_text() for each in cluster.servers.values()]
        assert not [line for log in logs for line in log.splitlines() if "critical" in line]


async def test_chains_that_break_on_a_replicated_stream_lose_double_and_reorder_nothing_and_leave_it_whole(
    tmp_path: Path, store: SqliteStore, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They break there whenever a row comes before the one before it is applied: nearly always."""
    monkeypatch.setattr(
        CopyScheduler, "_form_of", lambda _, rows: Form.CHAIN if len(rows) >= WORTH_A_CHAIN else Form.BATCH
    )
    bodies = await large_copies(store, 2_000)
    async with replicated_region(tmp_path) as region:
        writing = asyncio.create_task(write_under_chains(region, forms))
        async with uploading(region, store):
            await forms.chains(2)
            await region.api(f"STREAM.LEADER.STEPDOWN.{region.stream}")
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", PATIENCE)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert forms.broken > 2
        found: list[bytes] = []

        async def are_read() -> bool:
            try:
                found[:] = await copies_in(region)
            except ServiceUnavailableError:  # while the reader's consumer has no leader yet
                return False
            return True

        await until(are_read, "all copies are read")
        assert found == bodies

        async def is_everywhere() -> bool:
            cluster = (await region.api(f"STREAM.INFO.{region.stream}"))["cluster"]
            return [each["current"] and not each.get("lag") for each in cluster["replicas"]] == [True, True]

        await until(is_everywhere, "every server holds all of it")
        await region.client.jetstream().publish("fleet.eu-west.other.nodes.registration", b"it takes more")
