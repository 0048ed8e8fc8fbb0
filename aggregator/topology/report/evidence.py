"""Read what reports do not say: what waits for a copy, each site's last watermark, and whether advisories are missing.

A watermark leaves its site only when every advisory before it has left, and a source keeps its origin's order: an
ordinal that the last watermark counts and the archive lacks is lost, or let go of by the archive itself.
"""

import asyncio
import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from aggregator.records.judge import (
    REACH,
    AdvisoryBody,
    AdvisorySubject,
    QuarantineReason,
    judged_advisory,
    judged_watermark,
    named_by,
)
from aggregator.topology.desired.model import HUB, Place, StreamKey
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import hub_place
from aggregator.topology.observed.connections import Connections
from aggregator.topology.observed.messages import (
    count_by_subject,
    get_message,
    read_messages,
    see_message,
)
from aggregator.topology.observed.state import Found, FoundStream
from aggregator.topology.report.contradictions import EVERY_WATERMARK, Rivals, read_voices, rivals
from aggregator.topology.report.missing_advisories import EVERY_ADVISORY, OrdinalFaults, advisories_of, ordinal_faults
from aggregator.topology.report.tables import CopyKey, ReplicationRow, StreamReport
from shared import wire
from shared.identifiers import BlockId
from shared.instants import EARLIEST, MINUTE
from shared.nats.stream_messages import StoredMessage
from shared.policy import EVERY_REVISION, STREAM, Scope, ScopedRevision, read_scoped_revision
from shared.subjects import BLOCKS_PER_SITE, parse_subject, watermark_subject

_LATELY = MINUTE
_AT_ONCE = 16
_MOST_INVALID = 16
"""Quarantined records of a block that are read past: a site's key could make ``check`` read them without end."""


class Waiting(msgspec.Struct, frozen=True):
    """What an origin holds that a copy lacks: for how long the oldest has waited, and how near its end it is.

    Durations in microseconds, ``max_age`` 0 for ever. ``share``: how much of all that is held it is; ``fullness``: how
    near the origin is to its limits of bytes and messages, where it lets go of the oldest at these.
    """

    age: int
    max_age: int
    first_sequence: int
    share: float
    fullness: float


class BlockEvidence(msgspec.Struct, frozen=True):
    """The last watermark of a stream block, and the advisories that it counts and the archive lacks.

    ``policy_waits_since`` is when the first revision that it has not taken was given, 0 where it has all. ``rivals``
    are those who speak for it against each other; ``twice`` is an ordinal that two different advisories have.
    ``refused_count`` counts its advisories lately that cannot be read.
    """

    region: str
    site: str
    block: str
    observed_through: int
    missing: tuple[tuple[int, int], ...] = ()
    policy_waits_since: int = 0
    rivals: Rivals | None = None
    twice: int = 0
    refused_count: int = 0

    @property
    def name(self) -> str:
        return f"{self.site}, block {self.block}"


class HubFacts(msgspec.Struct, frozen=True):
    """All of it; ``now`` is the hub's own clock.

    ``unreadable`` names the blocks whose last watermark cannot be read, ``crowded`` counts the blocks of each site that
    has more than count; of these, the first ones in the archive are read.
    """

    waiting: dict[CopyKey, Waiting] = {}
    blocks: tuple[BlockEvidence, ...] = ()
    now: int = 0
    archive_read: bool = False
    unreadable: tuple[BlockId, ...] = ()
    crowded: dict[tuple[str, str], int] = {}


async def gather(
    topology: TopologySettings, found: Found, shown: StreamReport, opened: Connections, recently: int
) -> HubFacts:
    """Ask for all of it; what does not answer is left out, the report says so. Raise RequestFailed, ApiError.

    ``recently``: of how many microseconds advisories are read; older ones are counted.
    """
    waiting = {}
    for row in shown.replication:
        for (place, name), origin in found.streams.items():
            client = opened.get(place.connection)
            if (str(place), name) == (row.source_place, row.source) and row.behind and isinstance(client, Client):
                lacking = await _waiting(client, (place, name), origin, row)
                if lacking is not None:
                    waiting[row.key] = lacking
    archive = hub_place(topology), topology.archive.name
    client = opened[HUB]
    if not topology.regions or archive not in found.streams or not isinstance(client, Client):
        return HubFacts(waiting)
    now, words, unreadable, crowded = await last_watermarks(client, archive, topology.blocks_per_site)
    voices = await read_voices(client, archive, now - _LATELY)
    faults = await ordinal_faults(client, archive, found.streams[archive], words, now - recently)
    said = await _policy_revisions(client, archive[0], found) if topology.policy is not None else []
    blocks = []
    for block, watermark_of in sorted(words.items()):
        through, waits_since = watermark_of.observed_through_us, _policy_waits_since(said, block, watermark_of)
        contradicting = rivals(voices.get(block, ()))
        missing, twice, refused = faults.get(block, OrdinalFaults())
        blocks.append(
            BlockEvidence(
                block.region, block.site, block.block, through, missing, waits_since, contradicting, twice, refused
            )
        )
    return HubFacts(waiting, tuple(blocks), now, archive_read=True, unreadable=unreadable, crowded=crowded)


async def _policy_revisions(client: Client, hub: Place, found: Found) -> list[ScopedRevision]:
    if (hub, STREAM) not in found.streams:
        return []
    messages = [each async for each in read_messages(client, (hub, STREAM), EVERY_REVISION)]
    return [said for each in messages if (said := read_scoped_revision(*each)) is not None]


def _policy_waits_since(said: Iterable[ScopedRevision], block: BlockId, watermark: wire.Watermark) -> int:
    own = Scope(block.region, block.site, block.block)
    revisions = [revision for scope, revision in said if scope.covers(own)]
    return min((each.given_at_us for each in revisions if each.revision > watermark.policy_revision), default=0)


class LastWatermarks(NamedTuple):
    """The hub's clock, the last watermark of each block, and what ``HubFacts`` has of the same names."""

    now: int
    words: dict[BlockId, wire.Watermark]
    unreadable: tuple[BlockId, ...]
    crowded: dict[tuple[str, str], int]


async def last_watermarks(client: Client, archive: StreamKey, most: int = BLOCKS_PER_SITE) -> LastWatermarks:
    """Read the last watermark of each block that ever had one, of ``most`` blocks of a site.

    Raise RequestFailed, ApiError.
    """
    now, watermarks = await count_by_subject(client, archive, EVERY_WATERMARK)
    _, advisories = await count_by_subject(client, archive, EVERY_ADVISORY)
    counting, crowded = await _of_sites(client, archive, [*watermarks, *advisories], most)
    chosen = [block for block in counting if watermark_subject(block) in watermarks]
    found = {block: await _watermark(client, archive, block) for block in chosen}
    words = {block: watermark for block, watermark in found.items() if watermark is not None}
    return LastWatermarks(now, words, tuple(block for block in chosen if block not in words), crowded)


async def _of_sites(
    client: Client, archive: StreamKey, subjects: Iterable[str], most: int
) -> tuple[list[BlockId], dict[tuple[str, str], int]]:
    """Return the first ``most`` blocks of each site, and how many each site has that has more.

    The order is that of the archive, as ``SiteBlocks`` has it.
    """
    of_site: dict[tuple[str, str], set[BlockId]] = {}
    for said in filter(None, map(parse_subject, subjects)):
        of_site.setdefault((said.block_id.region, said.block_id.site), set()).add(said.block_id)
    chosen, crowded, turns = list[BlockId](), dict[tuple[str, str], int](), asyncio.Semaphore(_AT_ONCE)
    for site, blocks in of_site.items():
        if len(blocks) > most:
            firsts = await asyncio.gather(*(_first_record(client, archive, block, turns) for block in blocks))
            if (count := sum(map(math.isfinite, firsts))) > most:
                crowded[site] = count
            chosen += [block for _, block in sorted(zip(firsts, blocks, strict=True))[:most]]
        else:
            chosen += blocks
    return sorted(chosen), crowded


async def _first_record(client: Client, archive: StreamKey, block: BlockId, turns: asyncio.Semaphore) -> float:
    """Return the sequence of a block's first advisory or watermark that is not quarantined.

    It is infinity if there is none among its first ``_MOST_INVALID`` of each.
    """
    firsts = [math.inf]
    async with turns:
        for subject in (advisories_of(block), watermark_subject(block)):
            asked: dict[str, object] = {"seq": 1, "next_by_subj": subject}
            for _ in range(_MOST_INVALID):
                message = await get_message(client, archive, asked)
                if message is None:
                    break
                if _is_valid(message):
                    firsts.append(message.seq)
                    break
                asked["seq"] = message.seq + 1
    return min(firsts)


def _is_valid(message: StoredMessage) -> bool:
    """Return True if readers of the archive do not quarantine an advisory or a watermark."""
    named, earliest = named_by(message.subject.encode(), ""), max(EARLIEST, message.time - REACH)
    judged: AdvisoryBody | wire.Watermark | QuarantineReason = QuarantineReason.UNKNOWN_SUBJECT
    if isinstance(named, AdvisorySubject):
        judged = judged_advisory(message.data, named, earliest)
    elif isinstance(named, BlockId):
        judged = judged_watermark(message.data, named, earliest)
    return not isinstance(judged, QuarantineReason)


async def _waiting(client: Client, key: StreamKey, origin: FoundStream, row: ReplicationRow) -> Waiting | None:
    """Find the oldest message that the copy lacks; None where there is none after all.

    Where nobody says what was taken, as many are lacking as were pending when the origin was last heard of.
    """
    taken = row.taken if row.taken is not None else max(0, (row.origin_last or 0) - (row.behind or 0))
    oldest = []
    for subject in row.takes or (">",):
        message = await see_message(client, key, origin.config, subject, taken + 1)
        if message is not None:
            oldest.append(message.stored_at)
    if not oldest:
        return None
    # One that refuses what is new lets go of nothing for the sake of that.
    is_let_go = origin.config.get("discard") != "new"
    limits = ((origin.state.bytes, "max_bytes"), (origin.state.messages, "max_msgs")) if is_let_go else ()
    return Waiting(
        age=max(0, origin.ts - min(oldest)),
        max_age=origin.config.get("max_age", 0) // 1000,
        first_sequence=origin.state.first_seq,
        share=min(1.0, (row.behind or 0) / max(1, origin.state.messages)),
        fullness=max(
            (held / limit if (limit := origin.config.get(name, -1)) > 0 else 0.0 for held, name in limits), default=0.0
        ),
    )


async def _watermark(client: Client, archive: StreamKey, block: BlockId) -> wire.Watermark | None:
    """Return a block's last watermark; None if it cannot be read."""
    message = await get_message(client, archive, {"last_by_subj": watermark_subject(block)})
    watermark = None if message is None else judged_watermark(message.data, block, 0)
    return watermark if isinstance(watermark, wire.Watermark) else None
