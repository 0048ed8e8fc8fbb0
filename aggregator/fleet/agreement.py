"""Compare what the live service and the tables say of every sender, at one message of the hub's archive.

The archive is folded once more up to where the tables stand, and that is compared with them; then on to where the
running service stands, and its state must be the same to the last field. Both together: what is shown live, and what is
published, are two readings of one archive.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from aggregator.archive.consumer import NOTHING_LEFT
from aggregator.archive.reader import PAUSES, ReadFailed, StreamReader, batches_of
from aggregator.config import AggregatorSettings
from aggregator.lakehouse.archive.reading_plan import Refused
from aggregator.lakehouse.archive.restored import check_past
from aggregator.lakehouse.query.engine import Tables
from aggregator.lakehouse.tables.imports import BLOCK_PREFIX
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.live.feed import FOLDED_SUBJECTS, next_left
from aggregator.live.fold.changes import Archived, Changes
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.senders import LOST, RETIRED, STALE, UNHEARD, UP
from aggregator.live.store import ArchiveId, LiveStore, stored_position
from shared.instants import format_instant
from shared.nats.connection import api_prefix, connect

DEADLINE = 20.0
SHOWN = 10
"""So many differences are told with both stories."""
_STATES = {UP: "up", STALE: "down", RETIRED: "absent", UNHEARD: "unknown", LOST: "unknown"}


class CannotCompare(Exception):
    """There is nothing to compare, or no common place; the text is one line, with what to do."""


class SenderKey(NamedTuple):
    """A sender of a block."""

    region: str
    site: str
    block: str
    sender: str


class Seen(NamedTuple):
    """What is said of a sender: ``state`` as the tables call it; ``since`` and ``known_until`` in microseconds.

    ``since`` is 0 of who is absent or unknown.
    """

    state: str
    since: int
    known_until: int


class Difference(NamedTuple):
    """What both sides say of a sender; None: nothing. The stories are lines."""

    key: SenderKey
    live: Seen | None
    tables: Seen | None
    live_story: list[str]
    tables_story: list[str]


class Agreement(NamedTuple):
    """How many senders both sides agree on, and so on, at ``sequence`` of the archive.

    ``service_sequence`` is where the service stood, 0: there was none; ``is_service_same``: its state is what the
    archive gives.
    """

    sequence: int
    agree: int
    contradict: int
    only_live: int
    only_tables: int
    differences: list[Difference]
    service_sequence: int
    is_service_same: bool

    @property
    def is_whole(self) -> bool:
        return not (self.contradict or self.only_live or self.only_tables) and self.is_service_same

    def __str__(self) -> str:
        return (
            f"agree {self.agree}, contradict {self.contradict}, only live {self.only_live}, only tables"
            f" {self.only_tables}"
        )


async def compare(settings: AggregatorSettings, tables: Tables, progress: Callable[[str], None]) -> Agreement:
    """Compare; raise CannotCompare, ConnectFailed, RequestFailed, ApiError, TablesUnreadable."""
    position = _position(tables)
    origin = ArchiveId(position.stream, position.created_at, settings.lakehouse.choria_region)
    await _require_archive(settings, position, progress)
    with tempfile.TemporaryDirectory(prefix="muster-verify-") as directory:
        store = LiveStore(Path(directory) / "verify.db")
        try:
            fleet = Fleet(origin.choria_region, store.entry)
            fleet.site_blocks.most = settings.blocks_per_site
            progress(f"fold {position.stream} through {position.sequence:,}")
            await _fold(settings, origin, (fleet, store), position.sequence)
            progress("compare with the tables")
            found = _compared(fleet, tables, position)
            running, sequence = await _running(settings, origin, (fleet, store), progress)
        finally:
            store.close()
    return found._replace(service_sequence=sequence, is_service_same=running)


async def _require_archive(
    settings: AggregatorSettings, position: HubPosition, progress: Callable[[str], None]
) -> None:
    """Raise CannotCompare where the archive is not the one that the tables were made of, or ends before them."""
    async with StreamReader(settings.hub, deadline=DEADLINE) as reader:
        try:
            state = await reader.state(position.stream, PAUSES)
            await check_past(reader, [position])
        except (ReadFailed, Refused) as error:
            raise CannotCompare(str(error)) from error
    wrong = ""
    if state.created_at != position.created_at:
        wrong = "is another"
    elif state.last_sequence < position.sequence:
        wrong = f"ends at {state.last_sequence:,}, before the tables ({position.sequence:,})"
    if wrong:
        raise CannotCompare(f"{position.stream} {wrong}: it was restored or made anew; rollup says what to do")
    if state.first_kept > 1:
        progress(f"{position.stream} holds nothing before {state.first_kept:,}: what was told only there differs")


async def _fold(settings: AggregatorSettings, origin: ArchiveId, into: tuple[Fleet, LiveStore], through: int) -> None:
    fleet, store = into
    async for archived in _read(settings, origin, fleet.sequence + 1, through):
        changes = fleet.fold(archived, Changes())
        with store.transaction() as database:
            store.write(database, origin, fleet, changes)


async def _read(
    settings: AggregatorSettings, origin: ArchiveId, first: int, last: int
) -> AsyncIterator[list[Archived]]:
    """Give the messages ``first`` to ``last`` that matter; raise CannotCompare where reading fails."""
    subjects = () if origin.choria_region else FOLDED_SUBJECTS
    client, api = await connect(settings.hub, name="muster-verify", deadline=DEADLINE), api_prefix(settings.hub.domain)
    reading = settings.lakehouse.reading
    async with client, batches_of(client, api, origin.stream, DEADLINE, reading, subjects) as batches:
        following, pauses = first, list(PAUSES)
        while following <= last:
            messages, wrong = await batches.fetch(following, 1 << 40)
            if messages is not None:
                columns = messages.sequences.tolist(), messages.archived_at.tolist()
                archived = list(map(Archived, columns[0], messages.subjects, columns[1], messages.payloads))
                following = archived[-1].sequence + 1
                yield [each for each in archived if each.sequence <= last]
                pauses = list(PAUSES)
            elif wrong == NOTHING_LEFT:
                # Of direct gets a mirror may have answered that lags behind.
                left = await next_left(client, api, origin.stream, following) if reading == "direct" else None
                if left is None or left > last:
                    return
                if not pauses:
                    raise CannotCompare(f"{origin.stream}: who answers holds nothing from {left:,} on: try again later")
                await asyncio.sleep(pauses.pop(0))
            else:
                raise CannotCompare(f"{origin.stream} cannot be read: {wrong}")


def _position(tables: Tables) -> HubPosition:
    rows = tables.rows(
        "SELECT stream, epoch_us(stream_created_at), sequence, epoch_us(known_through) FROM positions"
        " WHERE table_name IN ('sender_intervals', 'site_coverage')"
    )
    if len(set(rows)) != 1 or not rows[0][0]:
        raise CannotCompare("the tables hold nothing of a hub yet, or not to one place: run muster-aggregator rollup")
    return HubPosition(*rows[0])


def _compared(fleet: Fleet, tables: Tables, position: HubPosition) -> Agreement:
    live, published, long_gone = dict(_said_live(fleet)), dict[SenderKey, Seen](), set[SenderKey]()
    for key, seen, ended_at in _said_by_tables(tables, position):
        published[key] = seen
        if ended_at < position.known_through - fleet.kept:
            long_gone.add(key)
    unsaid = {
        number
        for number, block in enumerate(fleet.blocks)
        if not block.heard_at or block.known_until < block.contested_until
    }
    agree, contradict, only_live, only_tables = 0, 0, 0, 0
    differences: list[Difference] = []
    for key in sorted({*live, *published}):
        ours, theirs = live.get(key), published.get(key)
        if ours is not None and theirs is not None and fleet.number_of(key[:3]) in unsaid:
            # Of plain Choria's blocks the tables assume what they know; of two agents' they say what was known before.
            # The service says of both that it does not know.
            ours = ours._replace(known_until=theirs.known_until)
        sender = _sender(fleet, key)
        # Of lives that ended as they began the tables have no time.
        is_absent = theirs is None and ours is not None and ours.state == "absent"
        never_lived = is_absent and sender is not None and not fleet.has_lived(sender)
        was_forgotten = ours is None and key in long_gone and _has_forgotten(fleet, key)
        if ours == theirs or never_lived or was_forgotten:
            agree += 1
            continue
        only_live += theirs is None
        only_tables += ours is None
        contradict += ours is not None and theirs is not None
        if len(differences) < SHOWN:
            stories = list(_live_story(fleet, sender)), list(_tables_story(tables, key))
            differences.append(Difference(key, ours, theirs, *stories))
    return Agreement(position.sequence, agree, contradict, only_live, only_tables, differences, 0, True)


def _said_live(fleet: Fleet) -> Iterator[tuple[SenderKey, Seen]]:
    senders = fleet.senders
    for sender, name in enumerate(senders.names):
        number = senders.block[sender]
        block, state = fleet.blocks[number], _STATES.get(senders.state[sender])
        if state is None:
            # Nothing counts of what was told of it.
            continue
        since = senders.since[sender] if state in ("up", "down") else 0
        yield SenderKey(block.region, block.site, block.block, name), Seen(state, since, block.known_until)


def _said_by_tables(tables: Tables, position: HubPosition) -> Iterator[tuple[SenderKey, Seen, int]]:
    """Give what the tables say of each sender, and when its last life or knowledge of it ended (microseconds)."""
    coverage = {
        tuple(row[:3]): row[3]
        for row in tables.rows(
            "SELECT region, site, block, max(epoch_us(ended_at)) FILTER (WHERE known) FROM site_coverage"
            " WHERE NOT starts_with(block, ?) GROUP BY ALL",
            [BLOCK_PREFIX],
        )
    }
    rows = tables.rows(
        "SELECT region, site, block, sender_id, arg_max(state, started_at), epoch_us(max(started_at)),"
        " epoch_us(arg_max(coalesce(ended_at, TIMESTAMPTZ '2200-01-01T00:00:00Z'), started_at))"
        " FROM sender_intervals WHERE NOT starts_with(block, ?) AND epoch_us(started_at) <= ? GROUP BY ALL",
        [BLOCK_PREFIX, position.known_through],
    )
    for region, site, block, sender, state, started_at, ended_at in rows:
        goes_on = ended_at > position.known_through
        since = started_at if goes_on and state != "unknown" else 0
        known_until = coverage.get((region, site, block)) or 0
        seen = Seen(state if goes_on else "absent", since, known_until)
        yield SenderKey(region, site, block, sender), seen, ended_at


def _has_forgotten(fleet: Fleet, key: SenderKey) -> bool:
    number = fleet.number_of(key[:3])
    return number is not None and fleet.blocks[number].forgotten_count > 0


def _live_story(fleet: Fleet, sender: int | None) -> Iterator[str]:
    for entry in islice(fleet.story(sender), SHOWN) if sender is not None else ():
        seen = format_instant(entry.last_seen)
        yield f"{format_instant(entry.at)} {entry.kind}, last seen {seen}, message {entry.sequence}"


def _sender(fleet: Fleet, key: SenderKey) -> int | None:
    block = fleet.number_of(key[:3])
    return fleet.members[block].get(key.sender) if block is not None else None


def _tables_story(tables: Tables, key: SenderKey) -> Iterator[str]:
    rows = tables.rows(
        "SELECT epoch_us(started_at), epoch_us(ended_at), state, ended_by FROM sender_intervals WHERE region = ? AND"
        " site = ? AND block = ? AND sender_id = ? ORDER BY started_at DESC LIMIT ?",
        [*key, SHOWN],
    )
    for started_at, ended_at, state, ended_by in rows:
        end = f"{format_instant(ended_at)}, ended by {ended_by}" if ended_at is not None else "now"
        yield f"{format_instant(started_at)} to {end}: {state}"


async def _running(
    settings: AggregatorSettings, origin: ArchiveId, into: tuple[Fleet, LiveStore], progress: Callable[[str], None]
) -> tuple[bool, int]:
    """Fold on to where the service stands, and tell whether it stands there with the same state, and where."""
    path = settings.live_path
    if not path.exists() or stored_position(path, origin) is None:
        return True, 0
    with _copied(path) as copy:
        stored = copy.load(origin)
        assert stored is not None
        fleet, _ = into
        if stored.sequence < fleet.sequence:
            raise CannotCompare(
                f"the live service stands at {stored.sequence:,}, behind the tables ({fleet.sequence:,}): start it,"
                " wait until it has caught up, and try again"
            )
        progress(f"compare with the live service at {stored.sequence:,}")
        await _fold(settings, origin, into, stored.sequence)
        return _state(stored) == _state(fleet), stored.sequence


@contextmanager
def _copied(path: Path) -> Iterator[LiveStore]:
    """Copy the service's file as of one transaction: it goes on writing."""
    with tempfile.TemporaryDirectory(prefix="muster-verify-") as directory:
        copy = LiveStore.copy_of(path, Path(directory) / "copy.db")
        try:
            yield copy
        finally:
            copy.close()


def _state(fleet: Fleet) -> object:
    blocks = [msgspec.to_builtins(block) for block in fleet.blocks]
    return fleet.sequence, blocks, fleet.senders.records(fleet.senders.numbers), fleet.revisions
