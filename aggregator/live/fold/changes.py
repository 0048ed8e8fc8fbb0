"""Name what a fold takes and gives: the archive's messages, and what of them the store is to keep."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from aggregator.live.fold.coverage import Gap
from shared.identifiers import AdvisoryKind
from shared.policy import CancelMaintenance, DeclareMaintenance, ForwardSender, RetireSender, Scope

KINDS = tuple(AdvisoryKind)


class Archived(NamedTuple):
    """A message of the archive; ``archived_at`` is the hub's time in microseconds."""

    sequence: int
    subject: bytes
    archived_at: int
    payload: bytes


class StoryEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An advisory as the sender's story keeps it; ``previous`` is the archive sequence of the one before it.

    ``kind_rank`` stands for the kind, ``place_rank`` orders what was told of one instant.
    """

    sequence: int
    sender: int
    previous: int
    kind_rank: int
    at: int
    last_seen: int
    archived_at: int
    event_id: str
    incarnation: str
    rebuilt: bool
    by_operator: bool
    unheard_until: int
    place_rank: int

    @property
    def kind(self) -> AdvisoryKind:
        """Give its kind."""
        return KINDS[self.kind_rank]


History = Callable[[int], StoryEntry | None]
"""Gives an entry, by its archive sequence; None where it is kept no more."""


class Revision(msgspec.Struct, frozen=True):
    """A revision of the policy that says something of senders: who gave it, when, to whom, and what."""

    stream_created_at: int
    revision: int
    scope: Scope
    given_at: int
    author: str
    order: DeclareMaintenance | CancelMaintenance | ForwardSender | RetireSender


class Changes:
    """What a fold has changed, for the store and for whoever watches.

    Who was forgotten is named by number and by the last advisory stored; the number may be another's by now.
    """

    def __init__(self) -> None:
        self.senders: set[int] = set()
        self.blocks: set[int] = set()
        self.entries: list[StoryEntry] = []
        self.gaps: list[Gap] = []
        self.revisions: list[Revision] = []
        self.forgotten: list[tuple[int, int]] = []
        self.message_count = 0
