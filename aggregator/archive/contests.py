"""Find where two agents spoke for one block and did not know of each other, and say whose words hold afterwards.

Rules. An incarnation of a block is what one store, or a pair's, knows of one past of its stream: where another follows,
it has ended. Two that overlap, in the time that their watermarks vouch for and in the archive's, are of two agents
without a pair, or of two sites of one name. While both speak, and until one has been silent for ``QUIET``,
nothing is known: what one calls down, the other may not have.

Afterwards whoever goes on is believed: of the other, nothing counts that it said while both spoke. While neither has
ended, it is the one that began earlier. Where it is the one that began later, it does not know what the other did:
whoever it has not told of since it began is unknown until it does.

Pure: the live fleet and the tables believe the same agent.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shared.instants import MINUTE

QUIET = 10 * MINUTE
"""An agent that is silent for as long, of the time that the other vouches for meanwhile, is taken to have ended."""

BlockKey = tuple[str, str, str]


class IncarnationSpan(NamedTuple):
    """One incarnation of a block; instants in microseconds: the first ``since`` of its watermarks, and so on."""

    block: BlockKey
    incarnation: str
    since: int
    first_through: int
    last_through: int
    first_archived_at: int
    last_archived_at: int

    def overlaps(self, other: "IncarnationSpan") -> bool:
        """Tell whether neither follows the other."""
        in_time = self.first_through < other.last_through and other.first_through < self.last_through
        is_archived_before = self.last_archived_at <= other.first_archived_at
        is_archived_after = other.last_archived_at <= self.first_archived_at
        return in_time and not is_archived_before and not is_archived_after


class Silence(NamedTuple):
    """Nothing that an incarnation says of ``since`` or later counts; 0: nothing at all. Instants in microseconds."""

    block: BlockKey
    incarnation: str
    since: int


class Contest(NamedTuple):
    """Two incarnations of one block, and when both spoke; instants in microseconds."""

    block: BlockKey
    earlier: str
    later: str
    started_at: int
    ended_at: int
    silence: Silence


def contests(lives: Iterable[IncarnationSpan]) -> list[Contest]:
    """Find the contests among incarnations of any blocks, in a fixed order.

    Each is compared with two of those that began earlier: that which had gone on for longest, and that which is
    believed. So a site that makes up thousands costs no more than it has sent.
    """
    of_block: dict[BlockKey, list[IncarnationSpan]] = defaultdict(list)
    for life in lives:
        of_block[life.block].append(life)
    return [contest for block in sorted(of_block) for contest in _of_block(of_block[block])]


def _of_block(lives: Iterable[IncarnationSpan]) -> Iterator[Contest]:
    furthest: IncarnationSpan | None = None
    believed: IncarnationSpan | None = None
    for life in sorted(lives, key=lambda life: (life.first_through, life.incarnation)):
        others = [other for other in dict.fromkeys((furthest, believed)) if other is not None]
        found = [_contest(other, life) for other in others if other.overlaps(life)]
        yield from found
        if not any(contest.silence.incarnation == life.incarnation for contest in found):
            believed = life
        if furthest is None or life.last_through > furthest.last_through:
            furthest = life


def _contest(earlier: IncarnationSpan, later: IncarnationSpan) -> Contest:
    ended_at = min(earlier.last_through, later.last_through) + QUIET
    silence = Silence(earlier.block, later.incarnation, 0)
    if later.last_through > ended_at:
        silence = Silence(earlier.block, earlier.incarnation, later.since)
    return Contest(earlier.block, earlier.incarnation, later.incarnation, later.first_through, ended_at, silence)


def silences(found: Iterable[Contest]) -> set[Silence]:
    """Give what does not count, each once."""
    return {contest.silence for contest in found}


def silent_throughout(found: Iterable[Contest]) -> set[tuple[BlockKey, str]]:
    """Name the incarnations of which nothing counts."""
    return {(silence.block, silence.incarnation) for silence in silences(found) if not silence.since}
