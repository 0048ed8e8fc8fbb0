"""Read the archive on and on, fold what comes, and commit it with its position, a batch at a time.

What is folded is advisories, watermarks and the policy: the server chooses them, but where they are most of what the
archive holds (``archive/consumer.py``). A key that may only read makes no consumer: with ``reading = "direct"``
everything comes, and the fold passes over the rest. The hub's own time and how it gets what the regions hold come with
each look at the stream.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats.errors

from aggregator.archive.consumer import NOTHING_LEFT, Messages, StreamConsumer
from aggregator.archive.direct_gets import DirectGets
from aggregator.archive.hub_clock import SMALLEST_STEP
from aggregator.archive.reader import PAUSES as ELECTION_PAUSES
from aggregator.archive.reader import batches_of, explain_refusal
from aggregator.config import Reading
from aggregator.live.fold.changes import Changes
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.view import Source, Sourcing
from aggregator.live.store import ArchiveId, LiveStore
from aggregator.records.judge import QuarantineReason
from shared.decoding import Count, Nanoseconds, ReportedInstant
from shared.nats.connection import ConnectFailed, connect
from shared.nats.dispatch import DirectClient
from shared.nats.jetstream_api import (
    ApiError,
    RequestFailed,
    api_prefix,
    domain_of,
    request_json,
)
from shared.nats.settings import ConnectionSettings
from shared.nats.stream_messages import get_message
from shared.policy import EVERY_REVISION
from shared.subjects import BLOCKS_PER_SITE, ROOT
from shared.tasks import cancel_all

CONNECT_DEADLINE = 20.0
LOOK_EVERY = 2.0
"""Seconds between two looks at the stream: what it holds, the hub's time, the regions' sources."""
IDLE = 0.2
"""Seconds before an archive that had nothing new is asked again."""
PAUSES = (0.5, 1.0, 2.0, 5.0)
BATCH_BYTES = 3 << 20
"""Two batches are in memory at once, which shows where records are large: with 6 MiB, those of 900 kB took 32 MB."""
TURN = 0.02
"""Seconds of folding before the event loop runs other tasks."""
REST = 4.0
"""Reading pauses for this multiple of the time that ``rebuild_outdated`` took, so that a site that makes each batch
cause a rebuild gets no more than a fifth of a core."""
LONGEST_REST = 10.0
FOLDED_SUBJECTS = (f"{ROOT}.*.*.*.advisory.*", f"{ROOT}.*.*.*.watermark", EVERY_REVISION)
"""What matters of an archive; plain Choria advisories may be on any subject."""

_NO_SUBJECT = ROOT.encode()
"""The subject of no record, over which the fold passes."""

CROWDED = (
    "region %s, site %s: records of more than %d stream blocks (blocks_per_site) are quarantined: see who else has the"
    " site's key, or raise blocks_per_site in aggregator.toml"
)

logger = logging.getLogger(__name__)


class _LastSequence(msgspec.Struct, frozen=True):
    last_seq: Count = 0


class _External(msgspec.Struct, frozen=True):
    api: str = ""


class _Transform(msgspec.Struct):
    src: str = ""


class _Source(msgspec.Struct):
    name: str
    lag: Count = 0
    active: Nanoseconds = -1
    external: _External = _External()
    filter_subject: str = ""
    subject_transforms: list[_Transform] = []
    error: dict[str, Any] | None = None


class _ArchiveInfo(msgspec.Struct):
    created: ReportedInstant
    ts: ReportedInstant = 0
    state: _LastSequence = _LastSequence()
    sources: list[_Source] = []


class _Asked(NamedTuple):
    """A batch that was asked for, and what time it was then."""

    at: int
    answer: asyncio.Task[tuple[Messages | None, str]]


class AnotherArchive(Exception):
    """The archive is not the one that was read: it was created again, or restored from an older copy."""


class Feed:
    """One reader of one archive. ``on_changes`` hears of each batch after it is committed.

    ``blocks_per_site`` is set before ``run``.
    """

    def __init__(
        self,
        connection: ConnectionSettings,
        stream: str,
        path: Path,
        *,
        reading: Reading = "consumer",
        choria_region: str = "",
        on_changes: Callable[[Changes], None] = lambda _changes: None,
    ) -> None:
        self._connection, self._stream, self._path = connection, stream, path
        self._reading, self._choria_region, self._on_changes = reading, choria_region, on_changes
        self._api = api_prefix(connection.domain)
        self.blocks_per_site, self._crowded = BLOCKS_PER_SITE, set[tuple[str, str]]()
        self.fleet = Fleet(choria_region)
        self.store: LiveStore
        self.wrong = "not connected yet"
        self.restored = 0
        self._origin: ArchiveId | None = None
        self._looked: tuple[Sourcing, float] = Sourcing(), time.monotonic()

    @property
    def sourcing(self) -> Sourcing:
        """Say what the hub said last, with its time brought up to now: by how long ago it said so."""
        said, looked_at = self._looked
        elapsed = round((time.monotonic() - looked_at) * 1_000_000)
        return msgspec.structs.replace(said, now=said.now + elapsed) if said.now else said

    @property
    def is_open(self) -> bool:
        """Tell whether there is a store to read from."""
        return self._origin is not None

    @property
    def is_ready(self) -> bool:
        """Tell whether everything was read that the archive held at some time."""
        return self._looked[0].caught_up_at > 0

    async def run(self) -> None:
        """Read for ever; end only when cancelled, or where the store fails."""
        failures = 0
        while True:
            try:
                client = await connect(self._connection, name="muster-live", deadline=CONNECT_DEADLINE)
                async with client:
                    await self._open(client)
                    failures = 0
                    await self._read(client)
            except ApiError as error:
                self._say_wrong(explain_refusal(self._stream, error))
            except (ConnectFailed, RequestFailed, nats.errors.Error, OSError) as error:
                self._say_wrong(str(error) or type(error).__name__)
            except AnotherArchive as error:
                logger.warning("%s: the live state is made anew", error)
                self._set_aside()
                self.restored += 1
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            failures += 1

    def _report_crowded(self) -> None:
        """Log each site that has more blocks than count, once."""
        for site in self.fleet.site_blocks.refused.keys() - self._crowded:
            self._crowded.add(site)
            logger.warning(CROWDED, *site, self.blocks_per_site)

    def close(self) -> None:
        """Close the store."""
        if self._origin is not None:
            self.store.close()

    def _say_wrong(self, wrong: str) -> None:
        if wrong != self.wrong:
            logger.warning("the archive cannot be read: %s", wrong)
        self.wrong = wrong

    async def _open(self, client: DirectClient) -> None:
        """Load what was folded of this archive; raise AnotherArchive where it is not the same any more."""
        info = await self._info(client)
        origin = self._origin_in(info)
        if self._origin is None:
            self.store = LiveStore(self._path)
            self._origin = origin
            await self._load(origin)
        info = await self._checked(client, info)
        await self._check_past(client, self.fleet.sequence, self.fleet.stamped_through)
        self._look(info, self.fleet.known_through)

    async def _load(self, origin: ArchiveId) -> None:
        """Load the state that was committed last."""
        loaded = await asyncio.to_thread(self.store.load, origin)
        if loaded is None and self.store.is_of_another:
            raise AnotherArchive(f"{self._path} holds the state of another archive, or of an older version")
        self.fleet = loaded or Fleet(self._choria_region, self.store.entry)
        self.fleet.site_blocks.most = self.blocks_per_site

    def _origin_in(self, info: _ArchiveInfo) -> ArchiveId:
        return ArchiveId(self._stream, info.created, self._choria_region)

    async def _checked(self, client: DirectClient, info: _ArchiveInfo) -> _ArchiveInfo:
        """Give ``info`` of a stream that holds what was read; raise AnotherArchive where it is not the same any more.

        A server that has just come to lead the archive may have something still to take: it is asked again, until it
        has, or stays behind, or holds other messages.
        """
        sequence, stamped_through = self.fleet.sequence, self.fleet.stamped_through
        pauses = list(ELECTION_PAUSES)
        while self._origin_in(info) == self._origin:
            if info.state.last_seq >= sequence:
                return info
            if not pauses:
                raise AnotherArchive(f"{self._stream} ends before what was read: it was restored from an older copy")
            await asyncio.sleep(pauses.pop(0))
            info = await self._info(client)
            await self._check_past(client, sequence, stamped_through)
        raise AnotherArchive(f"{self._stream} was created again")

    async def _check_past(self, client: DirectClient, sequence: int, stamped_through: int) -> None:
        """Raise AnotherArchive if message ``sequence``, which was read, was stored after ``stamped_through``."""
        if not sequence:
            return
        wanted = {"seq": sequence}
        found = await get_message(client, self._stream, wanted, api=self._api, deadline=CONNECT_DEADLINE)
        if found is not None and found.time > stamped_through:
            raise AnotherArchive(f"{self._stream} holds other messages than were read: it was restored")

    def _set_aside(self) -> None:
        """Begin again; the old file stays beside the new one until the next such change."""
        self.store.close()
        self._origin = None
        self._path.replace(self._path.with_name(f"{self._path.name}.before"))
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.fleet = Fleet(self._choria_region)
        # Nothing of the new archive was read yet: what it tells of the past is no news, and opens no incident.
        self._looked = Sourcing(), time.monotonic()

    async def _read(self, client: DirectClient) -> None:
        look = asyncio.create_task(self._look_on(client))
        try:
            subjects = () if self._choria_region else FOLDED_SUBJECTS
            async with batches_of(
                client, self._api, self._stream, CONNECT_DEADLINE, self._reading, subjects
            ) as batches:
                batches.most_bytes = BATCH_BYTES
                ahead = None
                try:
                    while not look.done():
                        asked, ahead = ahead or self._ask(batches, self.fleet.sequence + 1), None
                        messages, wrong = await asked.answer
                        if messages is not None and wrong != NOTHING_LEFT:
                            # It comes while this batch is folded and committed.
                            ahead = self._ask(batches, int(messages.sequences[-1]) + 1)
                        await self._take_batch(client, asked.at, messages, wrong)
                finally:
                    if ahead is not None:
                        await cancel_all([ahead.answer])
            await look
        finally:
            look.cancel()
            await asyncio.gather(look, return_exceptions=True)

    def _ask(self, batches: StreamConsumer | DirectGets, sequence: int) -> _Asked:
        return _Asked(self.sourcing.now, asyncio.create_task(batches.fetch(sequence, 1 << 40)))

    async def _take_batch(self, client: DirectClient, asked_at: int, messages: Messages | None, wrong: str) -> None:
        if messages is not None:
            await self._take(messages)
        if wrong == NOTHING_LEFT:
            if not await self._has_more(client):
                self.wrong = ""
                said, looked_at = self._looked
                self._looked = msgspec.structs.replace(said, caught_up_at=max(said.caught_up_at, asked_at)), looked_at
            await asyncio.sleep(IDLE)
        elif messages is None:
            self._say_wrong(wrong)
            await asyncio.sleep(PAUSES[0])

    async def _has_more(self, client: DirectClient) -> bool:
        """Ask the leader whether it holds more than a mirror that answered a direct get in its place."""
        if self._reading == "consumer" or self._looked[0].archive_sequence <= self.fleet.sequence:
            return False
        return await next_left(client, self._api, self._stream, self.fleet.sequence + 1) is not None

    async def _take(self, messages: Messages) -> None:
        """Fold a batch and commit it. Quarantine each record that raises an exception there, and fold all others.

        A failed batch is taken again in halves: how messages are cut into batches changes nothing.
        """
        refused, crowded = dict(self.fleet.refused), dict(self.fleet.site_blocks.refused)
        try:
            changes, spent = await self._commit(messages)
        except (sqlite3.Error, OSError, MemoryError):
            raise
        except Exception:
            if messages.subjects == [_NO_SUBJECT]:
                raise
            logger.exception("the live state could not take %d messages, and takes them again", len(messages.subjects))
            # What is half changed is shown to nobody, and opens no incident.
            origin, self.fleet, self._looked = self._origin, Fleet(self._choria_region), (Sourcing(), time.monotonic())
            assert origin is not None
            await self._load(origin)
            self.fleet.refused, self.fleet.site_blocks.refused = refused, crowded
            await self._take_parts(messages)
            return
        self._on_changes(changes)
        self._report_crowded()
        if spent > TURN:
            await asyncio.sleep(min(REST * spent, LONGEST_REST))

    async def _take_parts(self, messages: Messages) -> None:
        """Fold each half of a batch, or count a single message as quarantined."""
        count = len(messages.subjects)
        if count > 1:
            await self._take(messages.part(0, count // 2))
            await self._take(messages.part(count // 2, count))
            return
        logger.error("message %d of %s is quarantined: please report this", messages.sequences[0], self._stream)
        await self._take(messages._replace(subjects=[_NO_SUBJECT]))
        refused = self.fleet.refused
        refused[QuarantineReason.NOT_JUDGED] = refused.get(QuarantineReason.NOT_JUDGED, 0) + 1

    async def _commit(self, messages: Messages) -> tuple[Changes, float]:
        """Fold a batch and commit it; return its changes, and the seconds that ``rebuild_outdated`` took."""
        columns = messages.sequences.tolist(), messages.subjects, messages.archived_at.tolist(), messages.payloads
        archived = zip(*columns, strict=True)
        changes, fleet, origin = Changes(), self.fleet, self._origin
        assert origin is not None
        await _in_turns(fleet.take(archived, changes))
        spent = await _in_turns(fleet.rebuild_outdated(changes))

        def commit() -> None:
            with self.store.transaction() as database:
                self.store.write(database, origin, fleet, changes)

        await asyncio.to_thread(commit)
        return changes, spent

    async def _look_on(self, client: DirectClient) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            hub_time = self.fleet.known_through
            try:
                info = await self._checked(client, await self._info(client))
            except RequestFailed as error:
                self._say_wrong(str(error))
                continue
            self._look(info, hub_time)

    async def _info(self, client: DirectClient) -> _ArchiveInfo:
        subject = f"{self._api}.STREAM.INFO.{self._stream}"
        return await request_json(client, subject, None, _ArchiveInfo, deadline=CONNECT_DEADLINE)

    def _look(self, info: _ArchiveInfo, hub_time: int) -> None:
        """Note what the hub says of the archive, of which ``hub_time`` had been read when it was asked."""
        said, before = self._looked[0], self.sourcing.now
        now = info.ts or hub_time
        behind = hub_time - now if now <= hub_time - SMALLEST_STEP else 0
        # A clock that is behind does not tell how much time has passed since.
        now = max(now, self.fleet.known_through, before if behind else 0)
        caught_up_at = min(said.caught_up_at, now)
        sources = {region: _source(each) for each in info.sources for region in _regions_of(each)}
        self._looked = (
            Sourcing(info.state.last_seq, now, caught_up_at, sources, behind),
            time.monotonic(),
        )


async def _in_turns(steps: Iterator[None]) -> float:
    """Run all steps, yield to the event loop after each ``TURN``, and return the seconds that the steps took."""
    spent, begun_at = 0.0, time.monotonic()
    for _ in steps:
        turn = time.monotonic() - begun_at
        if turn > TURN:
            await asyncio.sleep(0)
            spent, begun_at = spent + turn, time.monotonic()
    return spent + time.monotonic() - begun_at


async def next_left(client: DirectClient, api: str, stream: str, sequence: int) -> int | None:
    """Ask the leader, whom no mirror answers for, which message comes first from ``sequence`` on; None: none.

    Raise RequestFailed, ApiError.
    """
    wanted = {"seq": sequence, "next_by_subj": ">"}
    found = await get_message(client, stream, wanted, api=api, deadline=CONNECT_DEADLINE)
    return None if found is None else found.seq


def _source(found: _Source) -> Source:
    error = str(found.error.get("description", found.error)) if found.error else ""
    return Source(lag=found.lag, silent_us=-1 if found.active < 0 else found.active // 1_000, error=error)


def _regions_of(source: _Source) -> set[str]:
    """Say which regions' words a source brings: by what it takes, else by the domain that it is in."""
    taken = [source.filter_subject, *(each.src for each in source.subject_transforms)]
    tokens = [subject.split(".") for subject in taken]
    named = {each[1] for each in tokens if len(each) > 2 and each[0] == ROOT and each[1] not in ("*", ">")}
    domain = domain_of(source.external.api)
    return named or ({domain} if domain else set())
