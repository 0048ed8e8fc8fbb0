"""Read what reports do not say: what waits for a copy, each site's last watermark, and whether advisories are missing.

A watermark leaves its site only when every advisory before it has left, and a source keeps its origin's order: an
ordinal that the last watermark counts and the archive lacks is lost, or let go of by the archive itself.
"""

from collections.abc import Iterable

import msgspec
from nats.aio.client import Client

from aggregator.topology.desired.model import HUB, Place, StreamKey
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import hub_place
from aggregator.topology.observed.connections import Connections
from aggregator.topology.observed.messages import count_by_subject, get_message, read_messages, see_message
from aggregator.topology.observed.state import Found, FoundStream
from aggregator.topology.report.contradictions import EVERY_WATERMARK, Rivals, read_voices, rivals
from aggregator.topology.report.missing_advisories import OrdinalFaults, ordinal_faults
from aggregator.topology.report.tables import CopyKey, ReplicationRow, Report
from shared import wire
from shared.decoding import WireError
from shared.identifiers import BlockId
from shared.instants import MINUTE, parse_instant
from shared.policy import EVERY_REVISION, STREAM, Scope, ScopedRevision, read_scoped_revision
from shared.subjects import parse_subject

_LATELY = MINUTE


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


class Block(msgspec.Struct, frozen=True):
    """What the last watermark of a stream block says, and which advisories that it counts are not in the archive.

    ``policy_waits_since`` is when the first revision that it has not taken was given, 0 where it has all. ``rivals``
    are those who speak for it against each other; ``twice`` is an ordinal that two different advisories have.
    """

    region: str
    site: str
    block: str
    observed_through: int
    missing: tuple[tuple[int, int], ...] = ()
    policy_waits_since: int = 0
    rivals: Rivals | None = None
    twice: int = 0

    @property
    def name(self) -> str:
        return f"{self.site}, block {self.block}"


class Evidence(msgspec.Struct, frozen=True):
    """All of it; ``now`` is the hub's own clock."""

    waiting: dict[CopyKey, Waiting] = {}
    blocks: tuple[Block, ...] = ()
    now: int = 0
    archive_read: bool = False


async def gather(
    topology: TopologySettings, found: Found, shown: Report, opened: Connections, recently: int
) -> Evidence:
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
        return Evidence(waiting)
    now, words = await last_watermarks(client, archive)
    voices = await read_voices(client, archive, now - _LATELY)
    faults = await ordinal_faults(client, archive, found.streams[archive], words, now - recently)
    said = await _policy_revisions(client, archive[0], found) if topology.policy is not None else []
    blocks = []
    for block, watermark_of in sorted(words.items()):
        through, waits_since = watermark_of.observed_through_us, _policy_waits_since(said, block, watermark_of)
        contradicting = rivals(voices.get(block, ()))
        missing, twice = faults.get(block, OrdinalFaults())
        blocks.append(Block(block.region, block.site, block.block, through, missing, waits_since, contradicting, twice))
    return Evidence(waiting, tuple(blocks), now, archive_read=True)


async def _policy_revisions(client: Client, hub: Place, found: Found) -> list[ScopedRevision]:
    if (hub, STREAM) not in found.streams:
        return []
    messages = [each async for each in read_messages(client, (hub, STREAM), EVERY_REVISION)]
    return [said for each in messages if (said := read_scoped_revision(*each)) is not None]


def _policy_waits_since(said: Iterable[ScopedRevision], block: BlockId, watermark: wire.Watermark) -> int:
    own = Scope(block.region, block.site, block.block)
    revisions = [revision for scope, revision in said if scope.covers(own)]
    return min((each.given_at_us for each in revisions if each.revision > watermark.policy_revision), default=0)


async def last_watermarks(client: Client, archive: StreamKey) -> tuple[int, dict[BlockId, wire.Watermark]]:
    """Give the hub's clock, and the last watermark of each block that ever spoke; raise RequestFailed, ApiError."""
    now, subjects = await count_by_subject(client, archive, EVERY_WATERMARK)
    words = {}
    for subject in subjects:
        watermark = await _watermark(client, archive, subject)
        if watermark is not None:
            words[watermark[0]] = watermark[1]
    return now, words


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
        age=max(0, parse_instant(origin.ts) - min(oldest)),
        max_age=origin.config.get("max_age", 0) // 1000,
        first_sequence=origin.state.first_seq,
        share=min(1.0, (row.behind or 0) / max(1, origin.state.messages)),
        fullness=max(
            (held / limit if (limit := origin.config.get(name, -1)) > 0 else 0.0 for held, name in limits), default=0.0
        ),
    )


async def _watermark(client: Client, archive: StreamKey, subject: str) -> tuple[BlockId, wire.Watermark] | None:
    """Read a block's last watermark; None where there is none, or it is none."""
    message = await get_message(client, archive, {"last_by_subj": subject})
    said = parse_subject(subject)
    if message is None or said is None:
        return None
    try:
        return said.block_id, wire.decode_watermark(message.data)
    except WireError:
        return None
