"""Put together what the outbox leaves by: the link to the region, the uploader, and what the hub answers."""

import asyncio
from typing import NamedTuple

from edge_agent.agent_parts import AgentParts
from edge_agent.core.policy_revisions import Standing
from edge_agent.core.records import Lane
from edge_agent.delivery.region import JetStreamUpstream
from edge_agent.delivery.uploader import Uploader
from edge_agent.observability.health import NAMES
from edge_agent.observability.name_watch import NameWatch
from edge_agent.observability.region_clock import RegionClock
from edge_agent.observability.status_board import CONNECTED, NOT_ACCEPTED, UPSTREAM
from edge_agent.runtime.links import Adapter, max_payload_of
from shared.nats.client import EdgeClient


class RegionLink(NamedTuple):
    """An open connection to the region; ``names`` looks over it who else publishes there as we do."""

    client: EdgeClient
    upstream: JetStreamUpstream
    clock: RegionClock
    names: NameWatch


class Uploading:
    """The agent's side towards its region."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts

    async def open(self) -> RegionLink:
        """Connect, however long that takes."""
        adapters: list[Adapter] = []
        report = self._parts.board.reporter(UPSTREAM)
        # Before anything is read in this run: what the store knows now was read by runs before.
        known = {block_id.block: state for block_id, state in await self._parts.store.known_blocks()}
        client = await self._parts.links.open(self._parts.settings.upstream, "upstream", adapters, report)

        async def ask_limit() -> int:
            return await max_payload_of(client, self._parts.settings.upstream)

        upstream = JetStreamUpstream(client, ask_limit)
        clock = RegionClock(client, self._parts.settings, self._parts.clocks)
        boot_id, report_names = self._parts.identity.boot_id, self._parts.board.reporter(NAMES)
        names = NameWatch(self._parts.settings, boot_id, known, report_names)
        # Who has asked takes a denial: the first that has.
        adapters += (self._parts.policy_feed, upstream, clock, names)
        return RegionLink(client, upstream, clock, names)

    async def run(self, link: RegionLink) -> None:
        """Upload, and hear what the hub says, until cancelled; it may run again then."""
        report = self._parts.board.reporter(UPSTREAM)
        known = {block_id.block: state.standing for block_id, state in await self._parts.store.known_blocks()}
        taken = [known.get(block.name, Standing()) for block in self._parts.settings.stream]

        def report_upload(problem: str) -> None:
            if not problem:
                report(CONNECTED, "")
            elif link.client.is_established:
                # Of a link that is down the link itself says so, since when and why.
                report(NOT_ACCEPTED, problem)

        bandwidth = self._parts.settings.upstream.max_bandwidth
        uploader = Uploader(
            self._parts.store,
            link.upstream,
            bytes_per_second=bandwidth,
            report=report_upload,
            passage=self._parts.passage,
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
        """Take back why records did not leave: whoever sends them now says so."""
        if link.client.is_connected:
            self._parts.board.reporter(UPSTREAM)(CONNECTED, "")
