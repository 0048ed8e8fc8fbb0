"""List for each block the advisories that its last watermark counts and the archive lacks, with little reading.

Ordinals count a life's advisories from 1, without holes. Where there are few advisories, all are read. Where there are
many, what came lately is, for all blocks at once, and what is older is only counted; where the two do not add up, the
block is looked through from the archive's start.

Of a stretch between two advisories of one life it is enough to know both and how many lie between. Where that does not
fit, as around a hole, or where some came twice, or another life began, the stretch is halved, until it is short enough
to be read. Only as many that came twice in one stretch as are lacking there would hide that.

Named, too, are those that contradict each other, of what is read: two of one life under one ordinal.
"""

import asyncio
from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from aggregator.topology.desired.model import StreamKey
from aggregator.topology.observed.messages import (
    count_by_subject,
    count_messages,
    get_message,
    read_messages,
    read_some,
)
from aggregator.topology.observed.state import FoundStream
from shared import wire
from shared.decoding import WireError
from shared.identifiers import BlockId
from shared.nats.stream_messages import StoredMessage
from shared.subjects import ROOT, parse_subject

Life = tuple[BlockId, str]
Ranges = tuple[tuple[int, int], ...]

EVERY_ADVISORY = f"{ROOT}.*.*.*.advisory.*"
_READ_WHOLE = 5_000
"""So many advisories of all blocks are read in about a second: then nothing rests on counting."""
_READ_AT_ONCE = 500
_AT_ONCE = 16


class OrdinalFaults(NamedTuple):
    """The ranges of ordinals that are missing, and the first one that two different advisories have; 0: none has.

    ``refused_count`` counts the messages on an advisory's subject that cannot be read as one.
    """

    missing: Ranges = ()
    twice: int = 0
    refused_count: int = 0


class _RecentOrdinals(msgspec.Struct, frozen=True):
    """What came lately: each life's ordinals, and how many messages each block has there, whatever they say.

    ``twice`` gives the first ordinal that two different advisories of a life have, ``refused`` how many messages of a
    block cannot be read.
    """

    ordinals: dict[Life, set[int]] = {}
    counts: dict[BlockId, int] = {}
    twice: dict[Life, int] = {}
    refused: dict[BlockId, int] = {}


class _Mark(NamedTuple):
    """A sequence of the archive: how many are there or behind, and the life and ordinal of the first of them."""

    position: int
    left: int
    incarnation: str
    ordinal: int


async def ordinal_faults(
    client: Client,
    archive: StreamKey,
    stream: FoundStream,
    words: dict[BlockId, wire.Watermark],
    since: int,
    read_whole: int = _READ_WHOLE,
) -> dict[BlockId, OrdinalFaults]:
    """Give those of each block. Raise RequestFailed, ApiError.

    Where the archive holds more advisories than ``read_whole``, only what came since an instant is read. What the
    archive let go of itself is not missing, nor is anything of a life before the last watermark's.
    """
    counting = {block: each for block, each in words.items() if each.advisory_ordinal}
    if not counting:
        return {}
    held = await _count_advisories(client, archive)
    is_all_read = sum(held.values()) <= read_whole
    lately = await _read_lately(client, archive, None if is_all_read else since)
    # Counted again: what has come meanwhile may be read and not counted otherwise, and hide what is older.
    held = {} if is_all_read else await _count_advisories(client, archive)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def faults(block: BlockId, watermark: wire.Watermark) -> OrdinalFaults:
        older = held.get(block, 0) - lately.counts.get(block, 0)
        async with turns:
            missing = await _missing(client, archive, stream, (block, watermark), older, lately)
        twice = lately.twice.get((block, watermark.incarnation), 0)
        return OrdinalFaults(missing, twice, lately.refused.get(block, 0))

    found = await asyncio.gather(*(faults(*each) for each in counting.items()))
    return dict(zip(counting, found, strict=True))


async def _missing(
    client: Client,
    archive: StreamKey,
    stream: FoundStream,
    word: tuple[BlockId, wire.Watermark],
    older: int,
    lately: _RecentOrdinals,
) -> Ranges:
    block, watermark = word
    issued, life = watermark.advisory_ordinal, (block, watermark.incarnation)
    seen = lately.ordinals.get(life, set())
    if older <= 0:
        return missing_of_all(seen, issued, stream)
    oldest: int | None = 1
    if not _is_whole(stream):
        oldest = await _oldest(client, archive, life)
    if oldest is not None and looks_whole(seen, issued, older, oldest):
        return ()
    return missing_of_all(seen | await held_ordinals(client, archive, life), issued, stream)


async def _oldest(client: Client, archive: StreamKey, life: Life) -> int | None:
    """Give the ordinal of a block's first advisory that is still there; None where that is of another life."""
    block, incarnation = life
    message = await get_message(client, archive, {"seq": 1, "next_by_subj": advisories_of(block)})
    advisory = _advisory_in(message.data) if message is not None else None
    return advisory.ordinal if advisory is not None and advisory.incarnation == incarnation else None


async def _count_advisories(client: Client, archive: StreamKey) -> dict[BlockId, int]:
    counts: dict[BlockId, int] = {}
    for subject, count in (await count_by_subject(client, archive, EVERY_ADVISORY))[1].items():
        said = parse_subject(subject)
        if said is not None:
            counts[said.block_id] = counts.get(said.block_id, 0) + count
    return counts


async def _read_lately(client: Client, archive: StreamKey, since: int | None) -> _RecentOrdinals:
    """Read the advisories of all blocks since an instant, None: all; raise RequestFailed, ApiError."""
    lately = _RecentOrdinals()
    events: dict[tuple[Life, int], str] = {}
    async for message in read_messages(client, archive, EVERY_ADVISORY, since):
        said, advisory = parse_subject(message.subject), _advisory_in(message.body)
        if said is not None:
            lately.counts[said.block_id] = lately.counts.get(said.block_id, 0) + 1
        if said is not None and advisory is None:
            lately.refused[said.block_id] = lately.refused.get(said.block_id, 0) + 1
        if said is not None and advisory is not None:
            life = said.block_id, advisory.incarnation
            lately.ordinals.setdefault(life, set()).add(advisory.ordinal)
            if events.setdefault((life, advisory.ordinal), advisory.event_id) != advisory.event_id:
                lately.twice[life] = min(advisory.ordinal, lately.twice.get(life, advisory.ordinal))
    return lately


def looks_whole(seen: set[int], issued: int, older: int, oldest: int = 1) -> bool:
    """Tell whether what came lately has no hole up to the last one issued, and what is older is as many as lack then.

    ``older`` counts that, and ``oldest`` is the first ordinal that the archive has not let go of itself.
    """
    first = min(seen, default=issued + 1)
    return older == max(0, first - oldest) and not missing_ranges(seen, first, issued)


def missing_of_all(seen: set[int], issued: int, archive: FoundStream) -> Ranges:
    """List the ranges that are missing among all that the archive holds; what it let go of itself is not missing."""
    first = 1 if _is_whole(archive) else min(seen, default=issued + 1)
    return missing_ranges(seen, first, issued)


def _is_whole(archive: FoundStream) -> bool:
    """Tell whether an archive has let go of nothing yet."""
    return archive.state.first_seq <= 1


def missing_ranges(seen: set[int], first: int, last: int) -> Ranges:
    """List the ranges between ``first`` and ``last``, both included, of which nothing was seen."""
    ranges = []
    expected = first
    for ordinal in sorted(each for each in seen if first <= each <= last):
        if ordinal > expected:
            ranges.append((expected, ordinal - 1))
        expected = ordinal + 1
    if expected <= last:
        ranges.append((expected, last))
    return tuple(ranges)


async def held_ordinals(client: Client, archive: StreamKey, life: Life, read_at_once: int = _READ_AT_ONCE) -> set[int]:
    """Give the ordinals of one life of a block that the archive holds; raise RequestFailed, ApiError."""
    block, incarnation = life
    subject = advisories_of(block)
    last = await get_message(client, archive, {"last_by_subj": subject})
    if last is None:
        return set()
    end = _mark(last, last.seq + 1, await count_messages(client, archive, subject, last.seq + 1))
    held: set[int] = set()
    stretches = [(await _found_mark(client, archive, subject, 1), end._replace(ordinal=end.ordinal + 1))]
    while stretches:
        low, high = stretches.pop()
        count = low.left - high.left
        is_one_life = low.incarnation and low.incarnation == high.incarnation
        if count > 0 and is_one_life and high.ordinal - low.ordinal == count:
            held.update(range(low.ordinal, high.ordinal) if low.incarnation == incarnation else ())
        elif 0 < count <= read_at_once or (count > 0 and high.position - low.position <= 1):
            async for message in read_some(client, archive, subject, low.position, count):
                advisory = _advisory_in(message.body)
                if advisory is not None and advisory.incarnation == incarnation:
                    held.add(advisory.ordinal)
        elif count > 0:
            middle = await _found_mark(client, archive, subject, (low.position + high.position) // 2)
            stretches += [(low, middle), (middle, high)]
    return held


async def _found_mark(client: Client, archive: StreamKey, subject: str, position: int) -> _Mark:
    left = await count_messages(client, archive, subject, position)
    return _mark(await get_message(client, archive, {"seq": position, "next_by_subj": subject}), position, left)


def _mark(message: StoredMessage | None, position: int, left: int) -> _Mark:
    advisory = _advisory_in(message.data) if message is not None else None
    return _Mark(position, left, advisory.incarnation if advisory else "", advisory.ordinal if advisory else 0)


def advisories_of(block: BlockId) -> str:
    return f"{ROOT}.{block}.advisory.*"


def _advisory_in(body: bytes) -> wire.Advisory | None:
    """Read a message that should be an advisory; None where it is none."""
    try:
        advisory = wire.decode_advisory(body)
    except WireError:
        return None
    return advisory if isinstance(advisory, wire.Advisory) else None
