"""One member of a pair: it follows while the other leads, and leads when the other is silent, never both.

Rules:

1. A member leads from its own LEADS entry at the log's end until the other's. A member that leads appends an entry
   every ``takeover_after`` / 3; one that cannot append no longer leads.
2. A member that follows takes the lead as ``edge_agent.pair.standby`` says.
3. The log is begun by the member named first; after its loss, by the last leader, or else by a member whose store was
   in it. A store continues behind the entry that its last commit names, and only in the log that it was in; an empty
   store only if the pair began with empty ones.
4. A member whose store cannot follow the log (it is empty, or older than the log's beginning, or a message that the
   leader has read is deleted) copies the leader's store. Until then it does not take the lead.
5. A member uploads from when it leads until it reads that the other does: records sent twice have the same ids.
6. A member that leads hands over to one that stands by and can do all that it can itself, and more: read, commit,
   reach the region.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from nats.aio.client import Client

from edge_agent.config.agent import AgentSettings
from edge_agent.core.block_state import PairMark
from edge_agent.core.draft import Draft
from edge_agent.core.replay import OutOfStep
from edge_agent.core.senders import NO_CHANGES
from edge_agent.core.tracker import Tracker
from edge_agent.ingest.port import Journal
from edge_agent.observability.announcements import Announcements
from edge_agent.observability.status_board import PairPhase, PairStatus, StatusBoard, now
from edge_agent.pair.deliveries import Deliveries
from edge_agent.pair.follower import Follower
from edge_agent.pair.health import Handover, MemberHealth, unlike
from edge_agent.pair.lease import Lead, LeadLost
from edge_agent.pair.log import (
    Entry,
    EntryKind,
    LogAddress,
    LogOutrun,
    LogRecord,
    LogUnavailable,
    OtherKey,
    PairLog,
    Writer,
)
from edge_agent.pair.peer import OtherMember, PairRefused, log_address, other_key, writer_of
from edge_agent.pair.standby import RETRY_AFTER, Standby
from edge_agent.pair.store_copy import CopyArrived, CopyDesk, NoCopy, copied_lately, fetch_copy
from edge_agent.runtime.pace import loop_time
from edge_agent.store.port import BatchCommit, StoreUnwritable
from edge_agent.store.sqlite_store import SqliteStore
from edge_agent.wiring import AgentParts, BlockLink, BlockWiring, Mode, RegionLink, UploadPath, sample_mode
from shared.instants import SECOND
from shared.subjects import watermark_subject
from shared.tasks import cancel_all, is_cancelled

LOOK_AGAIN_AFTER = 30.0
LOOK_AT_BOTH_EVERY = 0.5


class MemberParts(Protocol):
    """The parts of the agent that a member runs."""

    store: SqliteStore
    health: MemberHealth

    async def follower(self, block: str, deliveries: Deliveries) -> Follower:
        """Return a follower of a block, which begins at the store's position."""

    def lead(self, block: str, followed: Follower | None, journal: Journal) -> Coroutine[Any, Any, None]:
        """Read a block and decide, from the follower's state on, until the lead is lost."""

    def upload(self) -> Coroutine[Any, Any, None]:
        """Send the outbox, until cancelled."""

    def stop_uploading(self) -> None:
        """Withdraw reports on uploading: the other member sends from now on."""


class PairMember:
    """One member."""

    def __init__(
        self,
        client: Client,
        address: LogAddress,
        writer: Writer,
        settings: AgentSettings,
        parts: MemberParts,
        board: StatusBoard,
    ) -> None:
        self._client = client
        self._address = address
        self._log = PairLog(client, address)
        self._writer = writer
        self._settings = settings
        self._other = OtherMember(settings, writer, board.reporter("other member"))
        self._takeover_after = settings.pair.takeover_after / SECOND
        self._hand_over_after = settings.pair.hand_over_after / SECOND
        self._has_handed_over = False
        self._parts, self._store = parts, parts.store
        self._store_path = Path(settings.store.path)
        self._blocks = [block.name for block in settings.stream]
        self._board = board
        self._report = board.reporter("pair")
        is_first = settings.pair.members[0] == writer.member
        self._bootstrap = LogBootstrap(
            self._log, writer, self._store, self._blocks, is_first, self._other.name, self._report_phase
        )
        self._followers: dict[str, Follower] = {}
        self._beside = asyncio.TaskGroup()
        self._upload: asyncio.Task[None] | None = None
        self._last_leader = ""
        self._phase = PairPhase.STARTING
        self._since = 0
        self._takeovers = 0

    def status(self) -> PairStatus:
        other = self._other
        member = self._writer.member
        return PairStatus(member, other.name, self._phase, self._since, other.phase, other.heard_at, self._takeovers)

    async def run(self) -> None:
        """Follow and lead until cancelled; raise CopyArrived, PairRefused, or a part's error, in a group."""
        here = self._address.announcements
        await self._other.listen(self._client, here)
        async with self._beside:
            announcing = self._beside.create_task(
                self._other.announce(self._client, here, lambda: self._phase, self._parts.health), name="announcement"
            )
            try:
                while not is_cancelled():
                    await self._follow_and_lead()
            finally:
                await cancel_all([announcing, *([self._upload] if self._upload else [])])

    async def _follow_and_lead(self) -> None:
        self._followers = {}
        try:
            await self._log.open()
            lead = await self._follow()
        except OtherKey as error:
            raise PairRefused(other_key(self._other.name, self._settings.id_key_path)) from error
        except (LogUnavailable, NotYet, StoreUnwritable) as error:
            self._report_phase(PairPhase.WAITING if isinstance(error, NotYet) else PairPhase.UNREACHABLE, str(error))
            await asyncio.sleep(RETRY_AFTER)
        except OutOfStep as error:
            await self._copy(str(error))
        else:
            await self._lead(lead)

    # Following

    async def _follow(self) -> Lead:
        """Follow until the lead is taken; raise OutOfStep if the store cannot follow."""
        last = await self._log.last()
        if last is None:
            return self._new_lead(*await self._bootstrap.begin(0, self._last_leader))
        await self._hear(last, is_live=False)
        marks = await self._bootstrap.marks()
        if self._bootstrap.may_bootstrap(last, marks):
            return self._new_lead(*await self._bootstrap.begin(last.sequence, self._last_leader))
        cursor = await self._bootstrap.begins_after(last, marks)
        reached = {name: mark.sequence for name, mark in marks.items() if mark is not None}
        deliveries = Deliveries(reached, self._store.last_row_ids())
        for block in self._blocks:
            self._followers[block] = follower = await self._parts.follower(block, deliveries)
            self._board.watch(block, follower)
        standby = Standby(
            self._log,
            self._writer,
            self._store,
            self._followers,
            deliveries,
            self._takeover_after,
            self._has_handed_over,
            self._hear,
            self._report_phase,
        )
        mark = await standby.run(cursor, last)
        if self._last_leader == self._other.name:
            self._takeovers += 1
        return self._new_lead(mark, deliveries)

    async def _hear(self, logged: LogRecord, is_live: bool) -> None:
        self._other.hear_entry(logged, is_live=is_live)
        self._last_leader = logged.entry.writer.member
        if self._upload is not None and self._last_leader == self._other.name:
            await cancel_all([self._upload])
            self._upload = None
            self._parts.stop_uploading()

    def _new_lead(self, mark: PairMark, deliveries: Deliveries) -> Lead:
        renew_every = self._takeover_after / 3
        return Lead(self._log, self._writer, mark, store=self._store, deliveries=deliveries, renew_every=renew_every)

    # Leading

    async def _lead(self, lead: Lead) -> None:
        self._report_phase(PairPhase.LEADING, "")
        self._has_handed_over = False
        self._last_leader = self._writer.member
        if self._upload is None or self._upload.done():
            self._upload = self._beside.create_task(self._parts.upload(), name="upload")
        # A separate task: in Python 3.11 a task that owns a failed group counts as cancelled from then on.
        leading = asyncio.create_task(self._lead_all(lead), name="leading")
        try:
            await leading
        except BaseExceptionGroup as group:
            _, others = group.split(LeadLost)
            if others is not None:
                raise others from None
            self._report_phase(PairPhase.CATCHING_UP, "")
        except asyncio.CancelledError:
            await lead.resign()
            raise

    async def _lead_all(self, lead: Lead) -> None:
        desk = CopyDesk(self._store_path, self._writer)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lead.keep(), name="lead")
            tasks.create_task(self._hand_over(lead), name="handover")
            tasks.create_task(desk.serve(self._client, self._address.subject("copy")), name="copies")
            for block in self._blocks:
                led = self._parts.lead(block, self._followers.get(block), lead)
                tasks.create_task(led, name=f"lead of {block}")

    async def _hand_over(self, lead: Lead) -> None:
        """Wait until the other can do more than this member, then hand over: raise LeadLost."""
        handover = Handover(self._hand_over_after)
        while not is_cancelled():
            await asyncio.sleep(LOOK_AT_BOTH_EVERY)
            ours, theirs = self._parts.health.troubles(), self._other.troubles
            if handover.is_due(loop_time(), ours, theirs):
                assert theirs is not None
                self._report_phase(
                    PairPhase.HANDING_OVER, f"it cannot {unlike(ours, theirs)}, and {self._other.name} can"
                )
                self._has_handed_over = True
                await lead.hand_over()

    # Copying

    async def _copy(self, reason: str) -> None:
        """Request the leader's store, and raise CopyArrived once it is here; return after LOOK_AGAIN_AFTER seconds."""
        other, give_up_at = self._other.name, loop_time() + LOOK_AGAIN_AFTER
        while loop_time() < give_up_at and not is_cancelled():
            if copied_lately(self._store_path):
                self._report_phase(
                    PairPhase.WAITING, f"{reason}, again; the store of {other} was copied less than a minute ago"
                )
                await asyncio.sleep(RETRY_AFTER)
                continue
            self._report_phase(PairPhase.COPYING, f"{reason}: copying the store of {other}")
            try:
                await fetch_copy(self._client, self._address.subject("copy"), self._writer, self._store_path)
            except NoCopy as error:
                remedy = f"start {other}; where it is gone for good, delete stream {self._address.stream}"
                wanting = f"{reason}, and {other} hands over no copy of its store ({error}): {remedy}"
                self._report_phase(PairPhase.WAITING, wanting)
                await asyncio.sleep(RETRY_AFTER)
            else:
                raise CopyArrived

    def _report_phase(self, phase: PairPhase, reason: str) -> None:
        if phase is not self._phase:
            self._phase, self._since = phase, now()
        self._report(phase, reason)


async def serve_pair(parts: AgentParts, blocks: BlockWiring, upload_path: UploadPath) -> None:
    """Build one member of a pair and run it until cancelled; the log is kept with the first block's stream."""
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
        member = PairMember(client, address, writer, settings, member_parts, parts.board)
        parts.board.pair = member.status
        over = partial(_over, link)
        tasks.create_task(over(lambda region: health.watch_region(region.client)), name="reach of the region")
        tasks.create_task(over(lambda region: region.clock.run()), name="clock of the region")
        tasks.create_task(over(lambda region: region.names.run()), name="names")
        tasks.create_task(member.run(), name="pair")


async def _over(link: asyncio.Task[RegionLink], work: Callable[[RegionLink], Awaitable[None]]) -> None:
    await work(await asyncio.shield(link))


class _MemberParts(msgspec.Struct):
    """The parts of a member in an agent; see ``MemberParts``."""

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
            # A member that no longer leads must not repeat watermarks: the leader's time advances.
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


BEGIN_AGAIN_AFTER = 10.0
EMPTY, HISTORY = "empty", "history"


class NotYet(Exception):
    """The pair cannot begin yet; the text has the reason."""


class LogBootstrap(msgspec.Struct, frozen=True):
    """The place of one member's store in the log.

    ``is_first``: the settings name this member first; ``other`` is the other's name. ``say`` is called with every
    phase and its reason.
    """

    log: PairLog
    writer: Writer
    store: SqliteStore
    blocks: Sequence[str]
    is_first: bool
    other: str
    say: Callable[[PairPhase, str], None]

    async def marks(self) -> dict[str, PairMark | None]:
        """Return the place in the log of every block of the settings that the store holds."""
        known = {block_id.block: state.mark for block_id, state in await self.store.block_states()}
        return {name: mark for name, mark in known.items() if name in self.blocks}

    def may_bootstrap(self, last: LogRecord, marks: Mapping[str, PairMark | None]) -> bool:
        """Return True if the log has lost its end (its server was restored), or ends where this member began it."""
        if last.entry.founds and last.entry.writer.member == self.writer.member:
            return True
        return any(
            mark is not None and mark.generation == last.entry.generation and mark.sequence > last.sequence
            for mark in marks.values()
        )

    async def begins_after(self, last: LogRecord, marks: Mapping[str, PairMark | None]) -> int:
        """Return the entry behind which following begins; raise OutOfStep."""
        if not marks:
            first = await self.log.next_after(0)
            if first is None or first.entry.founds != EMPTY or first.entry.generation != last.entry.generation:
                raise OutOfStep("this member's store is empty")
            return first.sequence
        sequences = []
        for name, mark in marks.items():
            if mark is None or mark.generation != last.entry.generation:
                raise OutOfStep(f"block {name} of this member's store has another past than the pair")
            sequences.append(mark.sequence)
        return min(sequences)

    async def begin(self, behind: int, last_leader: str) -> tuple[PairMark, Deliveries]:
        """Begin the log with this member's store as it is; return the mark that it leads from, and its deliveries.

        ``last_leader`` is "" if none is known. Raise NotYet if the other begins the pair, LogUnavailable if it was
        quicker.
        """
        states = await self.store.block_states()
        if not self.is_first and not any(state.mark is not None for _, state in states):
            raise NotYet(f"{self.other} begins the pair, as it is named first: start it")
        if last_leader == self.other or not (self.is_first or last_leader):
            # The other's store is at least as new.
            self.say(PairPhase.WAITING, f"the log is lost: {self.other} may begin it anew, or else this member")
            await asyncio.sleep(BEGIN_AGAIN_AFTER)
        entry = Entry(
            kind=EntryKind.LEADS,
            generation=uuid.uuid4().hex[:12],
            writer=self.writer,
            founds=HISTORY if states else EMPTY,
        )
        try:
            mark = PairMark(entry.generation, await self.log.append(entry, behind))
        except LogOutrun as error:
            raise LogUnavailable(f"{self.other} has begun the pair") from error
        for block_id, state in states:
            marked = msgspec.structs.replace(state, mark=mark)
            await self.store.commit(BatchCommit(block_id, marked, NO_CHANGES, []))
        reached = {block_id.block: mark.sequence for block_id, _ in states}
        return mark, Deliveries(reached, self.store.last_row_ids())
