"""A region's server with its FLEET stream, and an uploader that empties a store into it over a link."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from nats.aio.client import Client

from edge_agent.core.records import Lane
from edge_agent.delivery.fast_path import FastPath
from edge_agent.delivery.name_fence import AgentRun, EarlierStores, FencedBlock, NameFence
from edge_agent.delivery.region import JetStreamUpstream
from edge_agent.delivery.shipment import Shipment
from edge_agent.delivery.uploader import Uploader
from edge_agent.runtime.links import max_payload_of
from edge_agent.store.port import LaneDepth
from edge_agent.store.sqlite_store import SqliteStore
from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.identifiers import AdvisoryKind
from shared.nats.connection import ConnectionSettings, LinkEvent, LinkState, connect
from shared.nats.jetstream_api import api_prefix
from shared.nats.stream_messages import every_message
from shared.subjects import watermark_subject
from shared.wire import Advisory, Watermark, decode_advisory, decode_watermark
from tests.support.nats.linked_server import DEADLINE, LinkedServer
from tests.support.store.store_batches import BLOCK_ID
from tests.support.waiting import until

STREAM = "FLEET"
EMPTY = {lane: LaneDepth() for lane in Lane}


class Stored(NamedTuple):
    """One record as FLEET holds it."""

    sequence: int
    subject: str
    payload: bytes
    headers: dict[str, str]

    @property
    def text(self) -> str:
        """Give the words that a row was made with."""
        return self.payload.decode().strip()


class Region(LinkedServer):
    """A server, a client beside it, and a link that agents come over."""

    stream, subjects = STREAM, "fleet.>"

    async def stored_count(self) -> int:
        """Count the records in FLEET."""
        return int((await self.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"])

    async def stored_bytes(self) -> int:
        """Give what FLEET's records take, in bytes as the server counts them."""
        return int((await self.api(f"STREAM.INFO.{STREAM}"))["state"]["bytes"])

    async def stored(self) -> list[Stored]:
        """Read all of FLEET."""
        return [
            Stored(message.metadata.sequence.stream, message.subject, message.data, message.headers or {})
            async for message in every_message(self.client, STREAM, api=api_prefix(), deadline=DEADLINE)
        ]

    async def records(self, part: str = "") -> list[Stored]:
        """Return the records of FLEET on subjects that contain ``part``, in order."""
        return [record for record in await self.stored() if part in record.subject]

    async def advisories(self) -> list[Advisory]:
        """Return the advisories, in the order of their arrival."""
        found = [decode_advisory(record.payload) for record in await self.records(".advisory.")]
        return [advisory for advisory in found if isinstance(advisory, Advisory)]

    async def senders_with(self, kind: AdvisoryKind) -> list[str]:
        """Return the senders of one kind of advisory, in the order of their arrival."""
        return [advisory.value for advisory in await self.advisories() if advisory.kind is kind]

    async def watermarks(self) -> list[Watermark]:
        """Return the watermarks, in the order of their arrival."""
        return [decode_watermark(record.payload) for record in await self.records(".watermark")]

    async def observed_through(self) -> int:
        """Return the instant through which the site is covered, 0 if it never was."""
        return max((watermark.observed_through_us for watermark in await self.watermarks()), default=0)

    async def forgets_ids(self) -> None:
        """Wait until FLEET has forgotten every message id it knows: it forgets them in the order they came."""
        subject, headers = "fleet.probe", {"Nats-Msg-Id": "probe"}
        publish = self.client.jetstream().publish

        async def forgot() -> bool:
            return not (await publish(subject, headers=headers)).duplicate

        await publish(subject, headers=headers)
        await until(forgot, "the last message id is forgotten", DEADLINE)
        await self.api(f"STREAM.PURGE.{STREAM}", {"filter": subject})


@asynccontextmanager
async def running_region(
    directory: Path, *, round_trip: float = 0.0, bandwidth: int = 0, extra_config: str = "", domain: str = ""
) -> AsyncIterator[Region]:
    """Start a region; its link has a round trip in seconds and a bandwidth in bytes per second."""
    async with AsyncExitStack() as stack:
        settings = ServerSettings(
            name="region", store_dir=directory / "region", extra_config=extra_config, domain=domain
        )
        server = await stack.enter_async_context(EmbeddedNats(settings))
        link = EmbeddedLink(server.port, round_trip=round_trip, bandwidth=bandwidth)
        await stack.enter_async_context(link)
        client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=DEADLINE)
        stack.push_async_callback(client.close)
        yield Region(server, client, link)


def fence_of(
    client: Client, run: str = "run", report: Callable[[str, str], None] = lambda _phase, _why: None
) -> NameFence:
    """Make the fence that a run of the agent of ``BLOCK`` has."""
    blocks = {watermark_subject(BLOCK_ID): FencedBlock(BLOCK_ID)}
    return NameFence((client, api_prefix()), AgentRun("a", run, 1.0), blocks, report, EarlierStores())


@asynccontextmanager
async def uploading(
    region: Region, store: SqliteStore, bytes_per_second: int = 0, fast_path: FastPath | None = None
) -> AsyncIterator[list[str]]:
    """Run an uploader over the region's link; give what it reports: "" when all goes well, else why nothing leaves."""
    adapters: list[JetStreamUpstream | NameFence] = []

    def on_state(state: LinkState) -> None:
        is_taken = [state.event is LinkEvent.DENIED and adapter.takes_denial(state.reason) for adapter in adapters]
        if state.event is not LinkEvent.RETRY_FAILED and not any(is_taken):
            for adapter in adapters:
                adapter.break_off(str(state.event))

    settings = ConnectionSettings(servers=(region.link.url,))
    client = await connect(settings, name="uploader", deadline=DEADLINE, on_state=on_state)
    fence = fence_of(client)
    upstream = JetStreamUpstream(client, partial(max_payload_of, client, settings), fence=fence)
    adapters += (upstream, fence)
    told: list[str] = []
    uploader = Uploader(
        store,
        upstream,
        bytes_per_second=bytes_per_second,
        report=told.append,
        fast_path=fast_path or FastPath(store.copies_wait),
    )
    running = asyncio.create_task(uploader.run())
    try:
        yield told
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await client.close()


def tell_of_shipments(monkeypatch: pytest.MonkeyPatch, note: Callable[[Shipment], None]) -> None:
    """Let ``note`` hear of every shipment just before it is sent."""
    send = JetStreamUpstream.send

    async def noting(upstream: JetStreamUpstream, shipment: Shipment) -> None:
        note(shipment)
        await send(upstream, shipment)

    monkeypatch.setattr(JetStreamUpstream, "send", noting)
