"""Name every figure of the page: what the reader fills in, and what the sections write. Pure.

Durations and instants are microseconds. ``SenderTimes`` are sums over senders ("sender time"): two senders that are
down for an hour are two hours of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from aggregator.lakehouse.page.grouping import Grouping
from aggregator.lakehouse.page.period import Grid, Period


class SenderTimes(NamedTuple):
    """Sender time by state; absent senders have none."""

    up: int = 0
    down: int = 0
    unknown: int = 0
    maintenance: int = 0

    @property
    def known(self) -> int:
        """Give what somebody watched."""
        return self.up + self.down

    @property
    def lived(self) -> int:
        """Give all of it but maintenance, which counts in no figure."""
        return self.up + self.down + self.unknown

    def plus(self, *others: "SenderTimes") -> "SenderTimes":
        return SenderTimes(*map(sum, zip(self, *others, strict=True)))


class Cell(NamedTuple):
    """What the senders of one group did in one window."""

    place: str
    name: str
    started_at: int
    times: SenderTimes


class Group(NamedTuple):
    """Senders that the page shows as one, over the whole period: by default those of a site.

    ``place`` is the region of a site, else "". ``name`` is "" for senders whose names have no part to group them by.
    ``heard_through``: until when a site of them was watched, None: never in the period.
    """

    place: str
    name: str
    sender_count: int
    times: SenderTimes
    outage_count: int
    heard_through: int | None


class BlockFigures(NamedTuple):
    """The watched time of one block in ``[started_at, ended_at)``.

    ``heard_through`` is its last watched instant, None if never in the period. ``imported``: it is another system's
    history.
    """

    started_at: int
    ended_at: int
    heard_through: int | None
    imported: bool


class Site(NamedTuple):
    """One site over the whole period."""

    region: str
    site: str
    sender_count: int
    times: SenderTimes
    outage_count: int
    blocks: Sequence[BlockFigures]

    @property
    def heard_through(self) -> int | None:
        """Give until when it was watched, None: never in the period."""
        return max((block.heard_through for block in self.blocks if block.heard_through is not None), default=None)

    @property
    def imported(self) -> bool:
        """Tell whether all that is told of it is another system's history."""
        return bool(self.blocks) and all(block.imported for block in self.blocks)

    @property
    def group(self) -> Group:
        return Group(self.region, self.site, self.sender_count, self.times, self.outage_count, self.heard_through)


class Sender(NamedTuple):
    """One sender that had an outage, over the whole period. ``noticed_count`` is of outages that were not imported."""

    region: str
    site: str
    sender_id: str
    times: SenderTimes
    outage_count: int
    noticed_count: int


class OutageRow(NamedTuple):
    """One outage that touches the period, from the last word before to the first word after, or None: still down.

    An end beyond the period counts as none: at the end of the period nobody knew. ``incident_started_at`` names the
    incident at its site that it is part of, None: of none. ``imported`` says that another system noticed it. What lies
    wholly in maintenance is no outage here.
    """

    region: str
    site: str
    sender_id: str
    started_at: int
    ended_at: int | None
    ended_by: str | None
    incident_started_at: int | None = None
    imported: bool = False

    def length(self, end: int) -> int:
        """Give how long it took, or took until ``end``."""
        return (end if self.ended_at is None else self.ended_at) - self.started_at


class Unwatched(NamedTuple):
    """A time of a block that nobody vouches for, why, and the sender time that is unknown for it."""

    region: str
    site: str
    block: str
    started_at: int
    ended_at: int
    cause: str
    unknown: int


class Figures(NamedTuple):
    """Everything that the page says, out of one state of the tables.

    ``known_through`` is where known time ends, whatever the period. ``grouping`` says what ``groups`` and ``cells`` are
    of. ``cells`` are of ``heat``, ``points`` (over all sites, by window) of ``curve``; ``hours`` are hourly cells of
    days that were not wholly up and watched, for periods whose ``heat`` is coarser. ``unknown_by_cause`` is sender
    time. ``stale_after`` gives the shortest and the longest in force; ``registration_interval`` is what the error bound
    rests on. ``assumed`` is the part of known sender time that rests on plain Choria advisories, ``imported`` the part
    that rests on another system's history. ``position`` is "" where known time is not the hub's. ``senders`` come worst
    first, ``outages`` by site and start.
    """

    grouping: Grouping
    period: Period
    known_through: int
    position: str
    heat: Grid
    curve: Grid
    cells: list[Cell]
    points: dict[int, SenderTimes]
    hours: list[Cell]
    groups: list[Group]
    sites: list[Site]
    senders: list[Sender]
    outages: list[OutageRow]
    unwatched: list[Unwatched]
    unknown_by_cause: dict[str, int]
    assumed: int
    imported: int
    stale_after: tuple[int, int] | None
    registration_interval: int

    @property
    def times(self) -> SenderTimes:
        return SenderTimes().plus(*(site.times for site in self.sites))

    @property
    def noticed_count(self) -> int:
        """Count the outages that an agent noticed by silence: those that were not imported."""
        return sum(not outage.imported for outage in self.outages)

    @property
    def all_imported(self) -> bool:
        """Tell whether everything that the page tells is another system's history."""
        return all(site.imported for site in self.sites)

    @property
    def sender_count(self) -> int:
        """Count the senders that lived in the period, however short."""
        return sum(site.sender_count for site in self.sites)

    @property
    def regions(self) -> list[str]:
        return sorted({site.region for site in self.sites})
