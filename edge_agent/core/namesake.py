"""Tell another agent that publishes under our names and lives from what agents before this one have left. Pure.

An agent is seen by the last watermark below its names. The rules:

1. What this run has made is ours, and so is what the other member of our pair has.
2. So is what says no more than our store had read when this run began: its rows still leave, under the names of runs
   before this one.
3. Any other run is alive once ``GROWN`` later watermarks of it have come, one after the other, since it was first seen.
   What died may be the last word for ever, or come late, all at once: it does not grow from look to look.
4. Of two runs the one that began earlier goes on. Both know that from the names of the runs, and agree.
5. Who withdraws before another agent of the same site takes over where that one falls silent for long. Before another
   site's he does not: that one's link may be cut, and nobody here knows its senders.
"""

from enum import StrEnum

import msgspec

from shared.identifiers import BlockId, Incarnation, InvalidIdentifier, SourcePosition
from shared.instants import LATEST
from shared.wire import Watermark

GROWN = 2
_DIGITS = 12
_VERSION = "7"


class NamePhase(StrEnum):
    """Whose the agent's names are, as people are told."""

    OURS = "ours"
    CONTESTED = "contested"
    TAKEN = "taken"
    UNWATCHED = "not watched"


def boot_id(at: int, random: bytes) -> str:
    """Name a run that begins at ``at``, in microseconds, as a UUID of version 7 (RFC 9562); ``random``: 10 bytes.

    >>> boot_id(1_700_000_000_000_000, bytes(10))
    '018bcfe5680070008000000000000000'
    """
    drawn = random.hex()
    return f"{at // 1000:012x}{_VERSION}{drawn[:3]}8{drawn[3:18]}"


def began_at(name: str) -> int | None:
    """Give when the run of a name began, in microseconds by its own clock; None where it does not say.

    >>> began_at(boot_id(1_700_000_000_000_000, bytes(10)))
    1700000000000000
    """
    try:
        at = int(name[:_DIGITS], 16)
    except ValueError:
        return None
    is_named_so = len(name) == 32 and name[_DIGITS] == _VERSION and at * 1000 <= LATEST
    return at * 1000 if is_named_so else None


class Namesake(msgspec.Struct, frozen=True):
    """Another run that publishes as one of our blocks; ``agent`` is its agent's own name.

    It reads a stream that was created at an instant, in microseconds.
    """

    agent: str
    boot_id: str
    block_id: BlockId
    stream: str
    created_at: int

    def reads(self, position: SourcePosition) -> bool:
        """Tell whether it reads the stream that a position is in: then it is an agent of the same site."""
        return (self.stream, self.created_at) == (position.stream, position.incarnation.created_at)

    def came_before(self, own_boot_id: str) -> bool | None:
        """Tell whether it began before the run of that name; None where that cannot be told."""
        theirs, ours = began_at(self.boot_id), began_at(own_boot_id)
        return None if theirs is None or ours is None else (theirs, self.boot_id) < (ours, own_boot_id)


class _LastSighting(msgspec.Struct):
    namesake: Namesake
    through: int
    grown: int
    at: float


class Sightings:
    """What has been seen of others below one block's names.

    ``read_through`` is how far our store had observed when this run began, ``friends`` are names of agents that may
    publish under ours.
    """

    def __init__(self, own_boot_id: str, read_through: int, friends: frozenset[str] = frozenset()) -> None:
        self._own_boot_id = own_boot_id
        self._read_through = read_through
        self._friends = friends
        self._seen: dict[str, _LastSighting] = {}

    def see(self, at: float, watermark: Watermark) -> None:
        """Take the last watermark that there is at ``at``, in seconds."""
        through, run = watermark.observed_through_us, watermark.boot_id
        if run == self._own_boot_id or watermark.agent in self._friends or through <= self._read_through:
            return
        seen = self._seen.get(run)
        if seen is None:
            self._seen = {**self._seen, run: _LastSighting(_namesake(watermark), through, 0, at)}
        elif through > seen.through:
            seen.through, seen.grown, seen.at = through, seen.grown + 1, at

    def undecided(self) -> list[Namesake]:
        """Give those of whom it is not known yet whether they live."""
        return [seen.namesake for seen in self._seen.values() if seen.grown < GROWN]

    @property
    def grown_at(self) -> float:
        """Give when somebody was last seen to have said more than before, in seconds."""
        return max((seen.at for seen in self._seen.values() if seen.grown), default=float("-inf"))

    def living(self, at: float, within: float) -> Namesake | None:
        """Give who lives: has grown, and did so less than ``within`` seconds ago; others are forgotten after that."""
        self._seen = {run: seen for run, seen in self._seen.items() if at - seen.at <= within}
        alive = [seen.namesake for seen in self._seen.values() if seen.grown >= GROWN]
        return min(alive, key=lambda each: each.boot_id, default=None)


def _namesake(watermark: Watermark) -> Namesake:
    block_id = BlockId(watermark.region, watermark.site, watermark.block)
    try:
        created_at = Incarnation.parse(watermark.incarnation).created_at
    except InvalidIdentifier:
        created_at = 0
    return Namesake(watermark.agent, watermark.boot_id, block_id, watermark.stream, created_at)
