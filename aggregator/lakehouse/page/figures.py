"""Name every figure of the page: what the reader fills in, and what the sections write. Pure.

Durations and instants are microseconds. ``SenderTimes`` are sums over senders ("sender time"): two senders that are
down for an hour are two hours of it.
"""

from operator import add
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

    def plus(self, other: "SenderTimes") -> "SenderTimes":
        """Add up."""
        return SenderTimes(*map(add, self, other))


class Cell(NamedTuple):
    """What the senders of one group did in one window."""

    place: str
    name: str
    started_at: int
    times: SenderTimes


class Group(NamedTuple):
    """Senders that the page shows as one, over the whole period: by default those of a site.

    ``place`` is the region of a site, else "". ``name`` is "" for senders whose names have no part to group them by.
    ``heard_through`` is of ``Site``.
    """

    place: str
    name: str
    sender_count: int
    times: SenderTimes
    outage_count: int
    heard_through: int | None


class Site(NamedTuple):
    """One site over the whole period. ``heard_through``: until when it was watched, None: never in the period."""

    region: str
    site: str
    sender_count: int
    times: SenderTimes
    outage_count: int
    heard_through: int | None


class Sender(NamedTuple):
    """One sender that had an outage, over the whole period."""

    region: str
    site: str
    sender_id: str
    times: SenderTimes
    outage_count: int


class Outage(NamedTuple):
    """One outage that touches the period, from the last word before to the first word after, or None: still down.

    An end beyond the period counts as none: at the end of the period nobody knew. ``incident_started_at`` names the
    incident at its site that it is part of, None: of none. What lies wholly in maintenance is no outage here.
    """

    region: str
    site: str
    sender_id: str
    started_at: int
    ended_at: int | None
    ended_by: str | None
    incident_started_at: int | None = None


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
    rests on. ``assumed`` is the part of known sender time that rests on plain Choria advisories. ``senders`` come worst
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
    outages: list[Outage]
    unwatched: list[Unwatched]
    unknown_by_cause: dict[str, int]
    assumed: int
    stale_after: tuple[int, int] | None
    registration_interval: int

    @property
    def times(self) -> SenderTimes:
        """Add up all sites."""
        total = SenderTimes()
        for site in self.sites:
            total = total.plus(site.times)
        return total

    @property
    def sender_count(self) -> int:
        """Count the senders that lived in the period, however short."""
        return sum(site.sender_count for site in self.sites)

    @property
    def regions(self) -> list[str]:
        """Name the regions."""
        return sorted({site.region for site in self.sites})
