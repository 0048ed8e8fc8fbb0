"""Build the parts of an agent: a stream block's link, source, mode and loop, and the way to the region."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple

import msgspec
from nats.aio.client import Client

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.core.block_mode import D, Decider, MessageIntake, RecordWriter
from edge_agent.core.block_state import BlockState
from edge_agent.core.copy_mode import Copier, CopyDraft, CopyEmitter, CopyIntake
from edge_agent.core.draft import Draft
from edge_agent.core.intake import Intake
from edge_agent.core.policy import PolicyRevisions
from edge_agent.core.records import Emitter, Lane
from edge_agent.core.relay_mode import Relay, RelayDraft, RelayEmitter, RelayIntake
from edge_agent.core.senders import SenderTable
from edge_agent.core.tracker import Tracker
from edge_agent.delivery.fast_path import BlockFastPath, FastPath
from edge_agent.delivery.name_fence import AgentRun, EarlierStores, FencedBlock, NameFence
from edge_agent.delivery.region import JetStreamUpstream
from edge_agent.delivery.uploader import Uploader
from edge_agent.ingest.block import BlockRules, IngestPhase
from edge_agent.ingest.loop import Ingest
from edge_agent.ingest.port import Journal
from edge_agent.observability.clocks import Clocks, RegionClock, SiteClock
from edge_agent.observability.health import NAMES
from edge_agent.observability.status_board import (
    CONNECTED,
    NOT_ACCEPTED,
    UPSTREAM,
    StatusBoard,
    source_part,
    stream_part,
)
from edge_agent.policy.feed import PolicyFeed
from edge_agent.policy.orders import PolicyOrders
from edge_agent.runtime.links import Adapter, Links, max_payload_of
from edge_agent.source.api import SourceApi
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.own_messages import Heartbeat, Probe
from edge_agent.source.reader import JetStreamSource
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId
from shared.instants import SECOND
from shared.nats.client import EdgeClient
from shared.nats.jetstream_api import api_prefix
from shared.nats.secrets import login
from shared.subjects import copy_prefix, watermark_subject


class AgentIdentity(msgspec.Struct, frozen=True):
    """Identity of the writer of records: the agent's version, this run's id, and the site's key for message ids."""

    version: str
    boot_id: str
    key: bytes


class Mode(msgspec.Struct, Generic[D], frozen=True):
    """A block's mode. ``decides`` returns the decider of a state and its senders.

    ``uses_fast_path`` is True if rows may go to the region without being stored.
    """

    intake: MessageIntake[D]
    emitter: RecordWriter
    decides: Callable[[BlockState, SenderTable], Decider[D]]
    uses_fast_path: bool = False


def sample_mode(settings: AgentSettings, block: StreamSettings, identity: AgentIdentity) -> Mode[Draft]:
    block_id, rule = settings.block_id(block), block.sender_rule()
    emitter = Emitter(
        block_id=block_id,
        agent=settings.agent_name,
        boot_id=identity.boot_id,
        version=identity.version,
        inspect_field=rule.inspect_field,
        key=identity.key,
        prefix=block.target.prefix,
    )
    digest, goodbye = block.policy.digest_rule(), block.goodbye.rule()
    intake = Intake(rule, block.policy.force_path, digest, str(block_id), goodbye)
    return Mode(intake, emitter, Tracker)


def copy_mode(settings: AgentSettings, block: StreamSettings, identity: AgentIdentity) -> Mode[CopyDraft]:
    block_id = settings.block_id(block)
    intake = CopyIntake(block.copy_subject(copy_prefix(block_id)))
    emitter = CopyEmitter(block_id, identity.key)
    return Mode(intake, emitter, lambda state, _senders: Copier(state), uses_fast_path=True)


def relay_mode(settings: AgentSettings, block: StreamSettings, identity: AgentIdentity) -> Mode[RelayDraft]:
    """Sample once more the registrations that sites have forwarded."""
    intake = RelayIntake(Intake(block.sender_rule()))
    return Mode(intake, RelayEmitter(settings.block_id(block), identity.key), Relay)


MODES: dict[str, Callable[[AgentSettings, StreamSettings, AgentIdentity], Mode[Any]]] = {
    "sample": sample_mode,
    "copy": copy_mode,
    "relay": relay_mode,
}


class AgentParts(NamedTuple):
    """One agent around one store, which took the place of a lost one where ``replaces_lost``."""

    settings: AgentSettings
    identity: AgentIdentity
    store: SqliteStore
    links: Links
    board: StatusBoard
    policy_feed: PolicyFeed
    fast_path: FastPath
    clocks: Clocks
    earlier_stores: EarlierStores
    replaces_lost: bool


class BlockLink(NamedTuple):
    """An open connection to a block's stream; ``adapters`` hear of its ups and downs, ``report`` of reading."""

    block: StreamSettings
    client: EdgeClient
    source: JetStreamSource
    adapters: list[Adapter]
    report: Callable[[IngestPhase, str], None]


class BlockWiring:
    """Connects the blocks of one agent with their streams, and reads them."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._board = parts.board
        self.readers: dict[str, Ingest[Any]] = {}

    async def connect(self, block: StreamSettings) -> BlockLink:
        """Connect a block with its stream, however long that takes."""
        settings, source_settings = self._settings, block.source
        adapters: list[Adapter] = []
        report = self._board.reporter(stream_part(block.name))
        # A stream whose link has never been there is one that is not read, not one that nobody asked for.
        report(IngestPhase.STARTING, "")
        link_report = self._board.reporter(source_part(block.name))
        client = await self._parts.links.open(source_settings, f"source of {block.name}", adapters, link_report)
        address = SourceAddress(
            stream=source_settings.stream,
            consumer=settings.consumer_of(block),
            domain=source_settings.domain,
            creates_consumer=source_settings.create_consumer,
            filter_subject=block.filter_subject,
            start=source_settings.start_rule(),
            is_shared=bool(settings.pair.members),
        )
        source = JetStreamSource(
            client, SourceApi(client, address), int(source_settings.settle), self._probe(block, client)
        )
        adapters.append(source)

        def report_reading(phase: IngestPhase, reason: str) -> None:
            report(phase, reason)
            if phase in (IngestPhase.READING, IngestPhase.FOLLOWING) and client.is_connected:
                # Whatever was denied on the link is permitted again, or reading does without.
                link_report("connected", "")

        return BlockLink(block, client, source, adapters, report_reading)

    async def read(self, link: BlockLink, known: tuple[BlockState, SenderTable] | None) -> None:
        """Read a block in its mode until cancelled, from where the store knows it, if it does."""
        mode = MODES[link.block.mode](self._settings, link.block, self._parts.identity)
        await self.ingest(link, mode, mode.decides(*known) if known else None)

    async def ingest(
        self, link: BlockLink, mode: Mode[D], decider: Decider[D] | None, journal: Journal | None = None
    ) -> None:
        """Read a block until cancelled; ``decider`` is None where the store does not know it."""
        block = link.block
        fast_path = BlockFastPath(self._parts.fast_path, block.name) if mode.uses_fast_path else None
        rules = msgspec.structs.replace(self.rules(link, mode), journal=journal)
        if decider is None and block.mode == "sample" and not rules.rebuilding:
            rebuilding = await self._parts.earlier_stores.served(block.name)
            rules = msgspec.structs.replace(rules, rebuilding=rebuilding)
        ingest = Ingest(rules, link.source, self._parts.store, decider, link.report, fast_path)
        self._board.watch(block.name, ingest)
        self.readers[block.name] = ingest
        heartbeat = self._heartbeat(block, link.client)
        if heartbeat is None:
            await ingest.run()
            return
        link.adapters.append(heartbeat)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ingest.run(), name=f"stream {block.name}")
                tasks.create_task(heartbeat.run(lambda: ingest.read_at), name=f"heartbeat of {block.name}")
        finally:
            link.adapters.remove(heartbeat)

    def rules(self, link: BlockLink, mode: Mode[D]) -> BlockRules[D]:
        block = link.block
        return BlockRules(
            stream=block.source.stream,
            policy=block.policy.policy(),
            intake=mode.intake,
            emitter=mode.emitter,
            watermark_interval=int(self._settings.watermark.interval),
            rebuilding=self._parts.replaces_lost and block.mode == "sample",
            mode=block.mode,
            decides=lambda state: mode.decides(state, SenderTable()),
            orders=PolicyOrders(
                self._settings.block_id(block), block, self._parts.policy_feed, self._policy_reporter(block)
            ),
            # Copies go on whatever the clock shows.
            clock=None if block.mode == "copy" else SiteClock(self._parts.clocks, int(block.source.max_clock_ahead)),
            conditions=partial(self._board.last_found, block.name),
        )

    def _policy_reporter(self, block: StreamSettings) -> Callable[[str], None]:
        part = f"policy of {block.name}"

        def report(reason: str) -> None:
            if reason or part in self._board.parts:
                self._board.reporter(part)("refused" if reason else "taken", reason)

        return report

    def _probe(self, block: StreamSettings, client: EdgeClient) -> Probe | None:
        if not block.is_probed:
            return None
        rule = block.probe_rule(self._settings.region, self._settings.site)
        origin = str(self._settings.block_id(block))
        report = self._board.reporter(f"probe of {block.name}")
        return Probe(client, rule, origin, report, partial(max_payload_of, client, block.source))

    def _heartbeat(self, block: StreamSettings, client: Client) -> Heartbeat | None:
        subject, interval = block.heartbeat.subject, int(block.heartbeat.interval)
        if not subject:
            return None
        report = self._board.reporter(f"heartbeat of {block.name}")
        return Heartbeat(client, subject, interval, self._settings.agent_name, report)


class RegionLink(NamedTuple):
    """An open connection to the region; ``names`` fences the publishes over it."""

    client: EdgeClient
    upstream: JetStreamUpstream
    clock: RegionClock
    names: NameFence


class UploadPath:
    """The agent's side towards its region."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts

    async def open(self) -> RegionLink:
        adapters: list[Adapter] = []
        report = self._parts.board.reporter(UPSTREAM)
        # Before anything is read in this run: what the store knows now was read by runs before.
        known = {block_id.block: state for block_id, state in await self._parts.store.block_states()}
        agent, settings = self._parts.settings, self._parts.settings.upstream
        client = await self._parts.links.open(settings, "upstream", adapters, report)
        limit, whom = partial(max_payload_of, client, settings), login(settings.auth, settings.tls).whom
        interval, members = int(agent.watermark.interval) / SECOND, frozenset(agent.pair.members)
        names = NameFence(
            (client, api_prefix(settings.domain)),
            AgentRun(agent.agent_name, self._parts.identity.boot_id, interval, members),
            {
                watermark_subject(agent.block_id(block), block.target.prefix): _fenced(
                    agent.block_id(block), known.get(block.name)
                )
                for block in agent.stream
                if block.mode == "sample"
            },
            self._parts.board.reporter(NAMES),
            self._parts.earlier_stores,
        )
        upstream = JetStreamUpstream(client, limit, settings.domain, whom, names)
        clock = RegionClock(client, self._parts.settings, self._parts.clocks)
        # Who has asked takes a denial: the first that has.
        adapters += (self._parts.policy_feed, upstream, clock, names)
        return RegionLink(client, upstream, clock, names)

    async def run(self, link: RegionLink) -> None:
        """Upload, and read the hub's policy, until cancelled; it may run again then."""
        report = self._parts.board.reporter(UPSTREAM)
        known = {block_id.block: state.revisions for block_id, state in await self._parts.store.block_states()}
        taken = [known.get(block.name, PolicyRevisions()) for block in self._parts.settings.stream]

        def report_upload(problem: str) -> None:
            if not problem:
                report(CONNECTED, "")
            elif link.client.is_established:
                # A link that is down reports that itself, with the time and the reason.
                report(NOT_ACCEPTED, problem)

        bandwidth = self._parts.settings.upstream.max_bandwidth
        uploader = Uploader(
            self._parts.store,
            link.upstream,
            bytes_per_second=bandwidth,
            report=report_upload,
            fast_path=self._parts.fast_path,
        )
        self._parts.board.publishes = uploader.publishes
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(uploader.run(), name="uploader")
                tasks.create_task(self._parts.policy_feed.run(link.client, taken), name="policy")
        finally:
            for lane in Lane:
                self._parts.store.release(lane)

    def leave_it_to_another(self, link: RegionLink) -> None:
        """Withdraw the report on undelivered records: the other member sends them, and reports, from now on."""
        if link.client.is_connected:
            self._parts.board.reporter(UPSTREAM)(CONNECTED, "")


def _fenced(block_id: BlockId, state: BlockState | None) -> FencedBlock:
    return FencedBlock(block_id, state.observed_through, state.position) if state else FencedBlock(block_id)
