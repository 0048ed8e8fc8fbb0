"""Find advisories that a watermark counts and the archive does not hold: ordinals count them from 1, without holes.

First only what came lately is read, for all blocks at once; a block that looks as if it had a hole there is read from
the archive's start, since what arrived late or twice may stand anywhere.
"""

from collections.abc import Iterable

from nats.aio.client import Client

from aggregator.topology.found import FoundStream, StreamKey
from aggregator.topology.reading import read_messages
from shared import wire
from shared.identifiers import BlockId
from shared.subjects import ROOT, parse_subject

EVERY_ADVISORY = f"{ROOT}.*.*.*.advisory.*"

Life = tuple[BlockId, str]
Ordinals = dict[Life, set[int]]


def advisories_of(block: BlockId) -> str:
    """Give the subjects of a block's advisories."""
    return f"{ROOT}.{block}.advisory.*"


async def read_ordinals(client: Client, archive: StreamKey, subject: str, since: int | None) -> Ordinals:
    """Read the ordinals of the advisories on ``subject`` since an instant, or of all; raise RequestFailed, ApiError."""
    found: Ordinals = {}
    async for message in read_messages(client, archive, subject, since):
        _note(message.subject, message.body, found)
    return found


def _note(subject: str, body: bytes, found: Ordinals) -> None:
    said = parse_subject(subject)
    try:
        advisory = wire.decode_advisory(body)
    except wire.WireError:
        return
    if said is not None and isinstance(advisory, wire.Advisory):
        found.setdefault((said.block_id, advisory.incarnation), set()).add(advisory.ordinal)


def looks_whole(seen: Iterable[int], issued: int) -> bool:
    """Tell whether what came lately has no hole up to the last one issued."""
    ordinals = set(seen)
    return bool(ordinals) and not missing_ranges(ordinals, min(ordinals), issued)


def missing_of_all(seen: set[int], issued: int, archive: FoundStream) -> tuple[tuple[int, int], ...]:
    """List the ranges that are missing among all that the archive holds; what it let go of itself is not missing."""
    is_whole = archive.state.first_seq <= 1
    first = 1 if is_whole else min(seen, default=issued + 1)
    return missing_ranges(seen, first, issued)


def missing_ranges(seen: set[int], first: int, last: int) -> tuple[tuple[int, int], ...]:
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
