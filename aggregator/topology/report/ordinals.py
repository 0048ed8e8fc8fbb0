"""Find advisories that a watermark counts and the archive does not hold: ordinals count them from 1, without holes.

Where there are few, all are read. Where there are many, what came lately is, for all blocks at once, and what is older
is only counted; where the two do not add up, the block is looked through from the archive's start (``held_ordinals``).
"""

import msgspec
from nats.aio.client import Client

from aggregator.topology.model import StreamKey
from aggregator.topology.observed.connections import REQUEST_DEADLINE
from aggregator.topology.observed.messages import read_messages
from aggregator.topology.observed.state import FoundStream
from shared import wire
from shared.identifiers import BlockId
from shared.nats.jetstream_api import request_json
from shared.subjects import ROOT, parse_subject

EVERY_ADVISORY = f"{ROOT}.*.*.*.advisory.*"

Life = tuple[BlockId, str]
Ranges = tuple[tuple[int, int], ...]


class RecentOrdinals(msgspec.Struct, frozen=True):
    """What came lately: each life's ordinals, and how many messages each block has there, whatever they say.

    ``twice`` gives the first ordinal that two different advisories of a life have.
    """

    ordinals: dict[Life, set[int]] = {}
    counts: dict[BlockId, int] = {}
    twice: dict[Life, int] = {}


class _State(msgspec.Struct, frozen=True):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct, frozen=True):
    state: _State


def advisories_of(block: BlockId) -> str:
    """Give the subjects of a block's advisories."""
    return f"{ROOT}.{block}.advisory.*"


def advisory_in(body: bytes) -> wire.Advisory | None:
    """Read a message that should be an advisory; None where it is none."""
    try:
        advisory = wire.decode_advisory(body)
    except wire.WireError:
        return None
    return advisory if isinstance(advisory, wire.Advisory) else None


async def count_advisories(client: Client, archive: StreamKey) -> dict[BlockId, int]:
    """Count what the archive holds of each block's advisories; raise RequestFailed, ApiError."""
    place, stream = archive
    asked = {"subjects_filter": EVERY_ADVISORY}
    info = await request_json(client, f"{place.api}.STREAM.INFO.{stream}", asked, _Info, deadline=REQUEST_DEADLINE)
    counts: dict[BlockId, int] = {}
    for subject, count in (info.state.subjects or {}).items():
        said = parse_subject(subject)
        if said is not None:
            counts[said.block_id] = counts.get(said.block_id, 0) + count
    return counts


async def read_lately(client: Client, archive: StreamKey, since: int | None) -> RecentOrdinals:
    """Read the advisories of all blocks since an instant, None: all; raise RequestFailed, ApiError."""
    lately = RecentOrdinals()
    events: dict[tuple[Life, int], str] = {}
    async for message in read_messages(client, archive, EVERY_ADVISORY, since):
        said, advisory = parse_subject(message.subject), advisory_in(message.body)
        if said is not None:
            lately.counts[said.block_id] = lately.counts.get(said.block_id, 0) + 1
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
    first = 1 if is_whole(archive) else min(seen, default=issued + 1)
    return missing_ranges(seen, first, issued)


def is_whole(archive: FoundStream) -> bool:
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
