"""Find the blocks for which two agents speak that know nothing of each other, in what the archive took last.

Only the last minute is looked at: a watermark comes every 10 s. What came before shows in ordinals that two advisories
have (missing_advisories.py), for as long as these are read; behind that, it is the tables' to know.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from aggregator.records.judge import judged_watermark
from aggregator.topology.desired.model import StreamKey
from aggregator.topology.observed.messages import read_messages
from shared.command_line.tables import shown_name
from shared.identifiers import BlockId
from shared.subjects import ROOT, parse_subject
from shared.wire import Watermark

EVERY_WATERMARK = f"{ROOT}.*.*.*.watermark"


class WatermarkClaim(msgspec.Struct, frozen=True):
    """One watermark: who made it, of which past of the stream, and how many advisories it counts by when."""

    agent: str
    boot_id: str
    incarnation: str
    observed_through_us: int
    advisory_ordinal: int

    def __str__(self) -> str:
        return f"{shown_name(self.agent)} (boot {shown_name(self.boot_id)})"


class Rivals(NamedTuple):
    """Two runs of agents that contradict each other; ``is_copy``: of two copies of one store."""

    one: WatermarkClaim
    other: WatermarkClaim
    is_copy: bool


async def read_voices(client: Client, archive: StreamKey, since: int) -> dict[BlockId, list[WatermarkClaim]]:
    """Read the watermarks of all blocks since an instant, as they came; raise RequestFailed, ApiError."""
    voices: dict[BlockId, list[WatermarkClaim]] = {}
    async for message in read_messages(client, archive, EVERY_WATERMARK, since):
        said = parse_subject(message.subject)
        watermark = judged_watermark(message.body, said.block_id, 0) if said is not None else None
        if said is not None and isinstance(watermark, Watermark):
            values = (getattr(watermark, name) for name in WatermarkClaim.__struct_fields__)
            voices.setdefault(said.block_id, []).append(WatermarkClaim(*values))
    return voices


def rivals(voices: Sequence[WatermarkClaim]) -> Rivals | None:
    """Find who contradicts whom in a block's watermarks, as they came; None: nobody.

    An incarnation that another follows has ended, by the stream's time or in the archive. In one, no later watermark
    counts fewer advisories. Both hold of a pair, whose members may take turns, and of what a copy takes once more.
    """
    lives: dict[str, list[tuple[int, WatermarkClaim]]] = {}
    for place, voice in enumerate(voices):
        lives.setdefault(voice.incarnation, []).append((place, voice))
    furthest: list[tuple[int, WatermarkClaim]] = []
    for life in sorted(lives.values(), key=lambda life: min(map(_through, life))):
        if furthest and not _follows(life, furthest):
            return Rivals(furthest[-1][1], life[-1][1], is_copy=False)
        furthest = max(furthest, life, key=lambda each: max(map(_through, each), default=0))
    by_time = sorted(voices, key=lambda voice: (voice.incarnation, voice.observed_through_us, voice.advisory_ordinal))
    for before, after in pairwise(by_time):
        if before.incarnation == after.incarnation and after.advisory_ordinal < before.advisory_ordinal:
            return Rivals(before, after, is_copy=True)
    return None


def _follows(life: list[tuple[int, WatermarkClaim]], other: list[tuple[int, WatermarkClaim]]) -> bool:
    is_later = min(map(_through, life)) >= max(map(_through, other))
    return is_later or life[0][0] > other[-1][0] or other[0][0] > life[-1][0]


def _through(placed: tuple[int, WatermarkClaim]) -> int:
    return placed[1].observed_through_us
