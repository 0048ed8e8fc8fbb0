"""Say what the members of a pair do, for people."""

from enum import StrEnum

import msgspec

from shared.instants import SECOND

MISSED_AFTER = 10 * SECOND
"""After how long a silence the other member is missed, in microseconds."""


class PairPhase(StrEnum):
    """What a member does."""

    STARTING = "starting"
    LEADING = "leading"
    STANDING_BY = "standing by"
    CATCHING_UP = "catching up"
    WAITING = "waiting"
    COPYING = "copying"
    HANDING_OVER = "handing over"
    UNREACHABLE = "log unreachable"


class PairStatus(msgspec.Struct, frozen=True):
    """One member's view of the pair; instants are its own clock's, microseconds, 0 where there was none yet.

    ``other_phase`` is what the other was last heard to do. ``takeovers`` counts those by this run of the agent.
    """

    member: str
    other: str
    phase: str
    since: int = 0
    other_phase: str = ""
    other_heard_at: int = 0
    takeovers: int = 0
