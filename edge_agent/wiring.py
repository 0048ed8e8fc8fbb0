"""Put together what a stream block is read with: a link, a source, its mode, and the loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from edge_agent.agent_parts import AgentParts
from edge_agent.config.stream import StreamSettings
from edge_agent.core.block_mode import Decider
from edge_agent.core.senders import SenderTable
from edge_agent.ingest.block import BlockRules, IngestPhase
from edge_agent.ingest.loop import Ingest
from edge_agent.ingest.port import Journal
from edge_agent.modes import Mode, mode_of
from edge_agent.observability.clocks import SiteClock
from edge_agent.observability.status_board import source_part, stream_part
from edge_agent.passing import Passing
from edge_agent.policy.orders import PolicyOrders
from edge_agent.runtime.links import Adapter, max_payload_of
from edge_agent.source.api import SourceApi
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.heartbeat import Heartbeat
from edge_agent.source.probe import Probe
from edge_agent.source.reader import JetStreamSource
from shared.nats.client import EdgeClient


class Seat(NamedTuple):
    """What a block is read with; ``adapters`` hear of its link."""

    block: StreamSettings
    client: EdgeClient
    source: JetStreamSource
    mode: Mode
    adapters: list[Adapter]
    report: Callable[[IngestPhase, str], None]


class Seats:
    """Makes them for the blocks of one agent."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._board = parts.board

    async def seat(self, block: StreamSettings) -> Seat:
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

        return Seat(block, client, source, mode_of(settings, block, self._parts.identity), adapters, report_reading)

    async def ingest(self, seat: Seat, decider: Decider | None, journal: Journal | None = None) -> None:
        """Read the block until cancelled; ``decider`` is None where the store does not know it."""
        block = seat.block
        passing = Passing(self._parts.passage, block.name) if seat.mode.passes else None
        rules = msgspec.structs.replace(self.rules(seat), journal=journal)
        ingest = Ingest(rules, seat.source, self._parts.store, decider, seat.report, passing)
        self._board.watch(block.name, ingest)
        heartbeat = self._heartbeat(block, seat.client)
        if heartbeat is None:
            await ingest.run()
            return
        seat.adapters.append(heartbeat)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ingest.run(), name=f"stream {block.name}")
                tasks.create_task(heartbeat.run(lambda: ingest.read_at), name=f"heartbeat of {block.name}")
        finally:
            seat.adapters.remove(heartbeat)

    def rules(self, seat: Seat) -> BlockRules:
        """Say what a block's loop goes by."""
        block, mode = seat.block, seat.mode
        return BlockRules(
            stream=block.source.stream,
            policy=block.policy.policy(),
            intake=mode.intake,
            emitter=mode.emitter,
            watermark_interval=int(self._settings.watermark.interval),
            rebuilding=self._parts.replaces_lost,
            mode=block.mode,
            decides=lambda state: mode.decides(state, SenderTable()),
            orders=PolicyOrders(self._settings.block_id(block), block, self._parts.policy_feed, self._refusals(block)),
            # Copies go on whatever the clock shows.
            clock=None if block.mode == "copy" else SiteClock(self._parts.clocks, int(block.source.max_clock_ahead)),
        )

    def _refusals(self, block: StreamSettings) -> Callable[[str], None]:
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
