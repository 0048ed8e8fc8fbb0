"""Put together one member of a pair: its blocks, followed or led, and its way to the region while it leads."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from edge_agent.core.tracker import Tracker
from edge_agent.ingest.port import Journal
from edge_agent.pair.follower import Follower
from edge_agent.pair.health import MemberHealth
from edge_agent.pair.log_deliveries import Deliveries
from edge_agent.pair.member import Member
from edge_agent.pair.peer_check import log_address, writer_of
from edge_agent.store.sqlite_store import SqliteStore
from edge_agent.wiring import AgentParts, BlockParts, BlockWiring, RegionLink, UploadPath
from shared.subjects import watermark_subject


async def serve_pair(parts: AgentParts, seats: BlockWiring, uploading: UploadPath) -> None:
    """Be a member until cancelled; the log is kept where the first block's stream is."""
    settings, identity, first = parts.settings, parts.identity, parts.settings.stream[0]
    async with asyncio.TaskGroup() as tasks:
        link = tasks.create_task(uploading.open(), name="upstream")
        found = {block.name: tasks.create_task(seats.seat(block), name=block.name) for block in settings.stream}
        address = log_address(settings, identity.key)
        writer = writer_of(settings, identity.key, identity.boot_id)
        client = (await asyncio.shield(found[first.name])).client
        subject = watermark_subject(settings.block_id(first), first.target.prefix)
        fitness = MemberHealth(parts.board, list(found), Path(settings.store.path), subject)
        hands = _Hands(parts.store, fitness, seats, uploading, found, link)
        member = Member(client, address, writer, settings, hands, parts.board)
        parts.board.pair = member.status
        tasks.create_task(_watch_region(fitness, link), name="reach of the region")
        tasks.create_task(_hear_clock(link), name="clock of the region")
        tasks.create_task(_watch_names(link), name="names")
        tasks.create_task(member.run(), name="pair")


async def _watch_names(link: asyncio.Task[RegionLink]) -> None:
    opened = await asyncio.shield(link)
    await opened.names.run(opened.client)


async def _watch_region(fitness: MemberHealth, link: asyncio.Task[RegionLink]) -> None:
    await fitness.watch_region((await asyncio.shield(link)).client)


async def _hear_clock(link: asyncio.Task[RegionLink]) -> None:
    await (await asyncio.shield(link)).clock.run()


class _Hands:
    """What a member works with; see ``Hands``."""

    def __init__(
        self,
        store: SqliteStore,
        fitness: MemberHealth,
        seats: BlockWiring,
        uploading: UploadPath,
        found: Mapping[str, asyncio.Task[BlockParts]],
        link: asyncio.Task[RegionLink],
    ) -> None:
        self.store = store
        self.fitness = fitness
        self._seats = seats
        self._uploading = uploading
        self._found = found
        self._link = link

    async def follower(self, block: str, deliveries: Deliveries) -> Follower:
        seat = await asyncio.shield(self._found[block])
        return Follower(
            self._seats.rules(seat), seat.source, self.store, await self._tracker(block), deliveries, seat.report
        )

    async def lead(self, block: str, followed: Follower | None, journal: Journal) -> None:
        seat = await asyncio.shield(self._found[block])
        tracker = followed.decider if followed is not None else await self._tracker(block)
        await self._seats.ingest(seat, tracker, journal)

    async def upload(self) -> None:
        await self._uploading.run(await asyncio.shield(self._link))

    def leave_uploading(self) -> None:
        if self._link.done():
            self._uploading.leave_it_to_another(self._link.result())

    async def _tracker(self, block: str) -> Tracker | None:
        known = await self.store.load_block(block)
        return Tracker(*known) if known else None
