"""Input and output of a fold: the archive's messages, and the changes that the store keeps."""

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum, auto
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from aggregator.live.fold.coverage import Gap
from aggregator.live.fold.senders import RETIRED, STALE, UNHEARD, UP
from aggregator.records.episode import AT_ONCE_RANK, Report, began_at
from aggregator.records.judge import AdvisoryBody, PlainAdvisory
from shared.identifiers import AdvisoryKind
from shared.policy import CancelMaintenance, DeclareMaintenance, ForwardSender, RetireSender, Scope

KINDS = tuple(AdvisoryKind)
RANKS = {kind: rank for rank, kind in enumerate(KINDS)}
NEW_RANK, RETIRED_RANK = RANKS[AdvisoryKind.NEW], RANKS[AdvisoryKind.RETIRED]
_WORDS = tuple({AdvisoryKind.STALE: STALE, AdvisoryKind.RETIRED: RETIRED}.get(kind, UP) for kind in KINDS)
_REPORTS = {UP: Report.NEW, STALE: Report.STALE, RETIRED: Report.RETIRED, UNHEARD: Report.UNHEARD}


class Outdated(IntEnum):
    """A change of a block by which the states of its senders are out of date."""

    MORE_ANNOUNCED = auto()
    STORE_REPLACED = auto()
    OTHER_AGENT_BELIEVED = auto()

    @classmethod
    def of_stores(cls, before: Collection[str], after: Collection[str]) -> "Outdated | None":
        """Return the change of the incarnations of the last store; None if they are the same."""
        if set(before) == set(after):
            return None
        return cls.MORE_ANNOUNCED if before and set(before) <= set(after) else cls.STORE_REPLACED

    @property
    def concerns_all(self) -> bool:
        """True if the state of each sender is to be computed again, not only of the lost ones."""
        return self is not Outdated.MORE_ANNOUNCED


class Archived(NamedTuple):
    """A message of the archive; ``archived_at`` is the hub's time in microseconds."""

    sequence: int
    subject: bytes
    archived_at: int
    payload: bytes


class StoryEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An advisory in a sender's story; ``previous`` is the archive sequence of the sender's advisory before it.

    ``kind_rank`` is the index of the kind in ``KINDS``; ``place_rank`` orders advisories of one instant.
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
        """The kind of the advisory."""
        return KINDS[self.kind_rank]

    def counts(self, silent: Mapping[str, int]) -> bool:
        """Return True unless another agent is believed; ``silent``: by incarnation, since when it is not."""
        return self.incarnation not in silent or self.at < silent[self.incarnation]

    @property
    def reported_state(self) -> int:
        """The state of a sender that it reports."""
        return UNHEARD if self.unheard_until and self.kind_rank == RETIRED_RANK else _WORDS[self.kind_rank]

    @property
    def report(self) -> int:
        """The ``Report`` that it is."""
        if self.kind_rank == RETIRED_RANK:
            return Report.REMOVED if self.by_operator else Report.UNHEARD if self.unheard_until else Report.RETIRED
        return Report.REBUILT if self.rebuilt and self.kind_rank == NEW_RANK else self.kind_rank

    def since(self, word_before: int, floor: int) -> int:
        """Return when the reported state began, after the reported state ``word_before``, and not before ``floor``."""
        report = self.report
        if report == Report.RETIRED:
            return self.at
        return began_at(report, self.at, self.last_seen, _REPORTS.get(word_before), floor)


def unheard_until(said: AdvisoryBody, lead: int) -> int:
    """Return until when a retired sender is unheard, moved back by ``lead``; 0 if it was heard to the end."""
    until = said.unheard_until_us if said.kind is AdvisoryKind.RETIRED else None
    if until is UNSET or until is None or said.by_operator is True:
        return 0
    return until - lead


def place_rank(said: AdvisoryBody, last_seen: int, at: int) -> int:
    """Return the rank of an advisory among those of one instant: by claimed instant, then by kind."""
    rank = RANKS[said.kind]
    if rank == RETIRED_RANK and last_seen == at and not isinstance(said, PlainAdvisory):
        rank = AT_ONCE_RANK if said.sequence == said.opening_sequence else rank
    return rank + (said.at_us - at) * (AT_ONCE_RANK + 1)


History = Callable[[int], StoryEntry | None]
"""Returns an entry by its archive sequence; None if it is no longer stored."""


class Revision(msgspec.Struct, frozen=True):
    """A revision of the policy that concerns senders: its scope, instant, author and order."""

    stream_created_at: int
    revision: int
    scope: Scope
    given_at: int
    author: str
    order: DeclareMaintenance | CancelMaintenance | ForwardSender | RetireSender


class Changes:
    """The changes that a fold has made, for the store and for subscribers.

    ``forgotten`` has the number and the last stored advisory of each removed sender; the number may be in use again.
    """

    def __init__(self) -> None:
        self.senders: set[int] = set()
        self.blocks: set[int] = set()
        self.entries: list[StoryEntry] = []
        self.gaps: list[Gap] = []
        self.revisions: list[Revision] = []
        self.forgotten: list[tuple[int, int]] = []
        self.message_count = 0
