"""Build one member of a pair: its blocks, followed or led, and its way to the region while it leads."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from edge_agent.core.draft import Draft
from edge_agent.core.tracker import Tracker
from edge_agent.ingest.port import Journal
from edge_agent.observability.announcements import Announcements
from edge_agent.pair.deliveries import Deliveries
from edge_agent.pair.follower import Follower
from edge_agent.pair.health import MemberHealth
from edge_agent.pair.member import Member
from edge_agent.pair.peer_check import log_address, writer_of
from edge_agent.store.sqlite_store import SqliteStore
from edge_agent.wiring import AgentParts, BlockLink, BlockWiring, Mode, RegionLink, UploadPath, sample_mode
from shared.instants import SECOND
from shared.subjects import watermark_subject


async def serve_pair(parts: AgentParts, blocks: BlockWiring, upload_path: UploadPath) -> None:
    """Be a member until cancelled; the log is kept where the first block's stream is."""
    settings, identity, first = parts.settings, parts.identity, parts.settings.stream[0]
    async with asyncio.TaskGroup() as tasks:
        link = tasks.create_task(upload_path.open(), name="upstream")
        found = {block.name: tasks.create_task(blocks.connect(block), name=block.name) for block in settings.stream}
        address = log_address(settings, identity.key)
        writer = writer_of(settings, identity.key, identity.boot_id)
        client = (await asyncio.shield(found[first.name])).client
        subject = watermark_subject(settings.block_id(first), first.target.prefix)
        modes = {block.name: sample_mode(settings, block, identity) for block in settings.stream}
        health = MemberHealth(parts.board, list(found), parts.store, subject)
        member_parts = _MemberParts(parts.store, parts, health, blocks, modes, found, upload_path, link)
        member = Member(client, address, writer, settings, member_parts, parts.board)
        parts.board.pair = member.status
        over = partial(_over, link)
        tasks.create_task(over(lambda region: health.watch_region(region.client)), name="reach of the region")
        tasks.create_task(over(lambda region: region.clock.run()), name="clock of the region")
        tasks.create_task(over(lambda region: region.names.run(region.client)), name="names")
        tasks.create_task(member.run(), name="pair")


async def _over(link: asyncio.Task[RegionLink], work: Callable[[RegionLink], Awaitable[None]]) -> None:
    await work(await asyncio.shield(link))


class _MemberParts(msgspec.Struct):
    """What a member works with; see ``MemberParts``."""

    store: SqliteStore
    agent: AgentParts
    health: MemberHealth
    blocks: BlockWiring
    modes: Mapping[str, Mode[Draft]]
    links: Mapping[str, asyncio.Task[BlockLink]]
    upload_path: UploadPath
    region: asyncio.Task[RegionLink]

    async def follower(self, block: str, deliveries: Deliveries) -> Follower:
        link = await asyncio.shield(self.links[block])
        rules = self.blocks.rules(link, self.modes[block])
        return Follower(rules, link.source, self.store, await self._tracker(block), deliveries, link.report)

    async def lead(self, block: str, followed: Follower | None, journal: Journal) -> None:
        link = await asyncio.shield(self.links[block])
        tracker = followed.decider if followed is not None else await self._tracker(block)
        try:
            await self.blocks.ingest(link, self.modes[block], tracker, journal)
        finally:
            # Who leads no more says nothing of why its time does not pass: another's does.
            self.blocks.readers.pop(block, None)

    async def upload(self) -> None:
        region, settings = await asyncio.shield(self.region), self.agent.settings
        interval = int(settings.watermark.interval) / SECOND
        announcements = Announcements(region.client, self.blocks.readers.items, self.agent.board.conditions, interval)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(announcements.run(), name="announcements")
            await self.upload_path.run(region)

    def stop_uploading(self) -> None:
        if self.region.done():
            self.upload_path.leave_it_to_another(self.region.result())

    async def _tracker(self, block: str) -> Tracker | None:
        known = await self.store.load_block(block)
        return Tracker(*known) if known else None
