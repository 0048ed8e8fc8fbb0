"""List for each block the advisories that its last watermark counts and the archive lacks, with little reading.

And those that contradict each other, of what is read: two of one life under one ordinal.
"""

import asyncio
from typing import NamedTuple

from nats.aio.client import Client

from aggregator.topology.model import StreamKey
from aggregator.topology.observed.messages import get_message
from aggregator.topology.observed.state import FoundStream
from aggregator.topology.report.held_ordinals import held_ordinals
from aggregator.topology.report.ordinals import (
    Life,
    Ranges,
    RecentOrdinals,
    advisories_of,
    advisory_in,
    count_advisories,
    is_whole,
    looks_whole,
    missing_of_all,
    read_lately,
)
from shared import wire
from shared.identifiers import BlockId

_READ_WHOLE = 5_000
"""So many advisories of all blocks are read in about a second: then nothing rests on counting."""

_AT_ONCE = 16


class OrdinalFaults(NamedTuple):
    """The ranges of ordinals that are missing, and the first one that two different advisories have; 0: none has."""

    missing: Ranges = ()
    twice: int = 0


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
    held = await count_advisories(client, archive)
    is_all_read = sum(held.values()) <= read_whole
    lately = await read_lately(client, archive, None if is_all_read else since)
    # Counted again: what has come meanwhile may be read and not counted otherwise, and hide what is older.
    held = {} if is_all_read else await count_advisories(client, archive)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def faults(block: BlockId, watermark: wire.Watermark) -> OrdinalFaults:
        older = held.get(block, 0) - lately.counts.get(block, 0)
        async with turns:
            missing = await _missing(client, archive, stream, (block, watermark), older, lately)
        return OrdinalFaults(missing, lately.twice.get((block, watermark.incarnation), 0))

    found = await asyncio.gather(*(faults(*each) for each in counting.items()))
    return dict(zip(counting, found, strict=True))


async def _missing(
    client: Client,
    archive: StreamKey,
    stream: FoundStream,
    word: tuple[BlockId, wire.Watermark],
    older: int,
    lately: RecentOrdinals,
) -> Ranges:
    block, watermark = word
    issued, life = watermark.advisory_ordinal, (block, watermark.incarnation)
    seen = lately.ordinals.get(life, set())
    if older <= 0:
        return missing_of_all(seen, issued, stream)
    oldest: int | None = 1
    if not is_whole(stream):
        oldest = await _oldest(client, archive, life)
    if oldest is not None and looks_whole(seen, issued, older, oldest):
        return ()
    return missing_of_all(seen | await held_ordinals(client, archive, life), issued, stream)


async def _oldest(client: Client, archive: StreamKey, life: Life) -> int | None:
    """Give the ordinal of a block's first advisory that is still there; None where that is of another life."""
    block, incarnation = life
    message = await get_message(client, archive, {"seq": 1, "next_by_subj": advisories_of(block)})
    advisory = advisory_in(message.data) if message is not None else None
    return advisory.ordinal if advisory is not None and advisory.incarnation == incarnation else None
