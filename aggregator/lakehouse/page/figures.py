"""Name every figure of the page: the reader fills them in, the sections write them. Pure.

Durations and instants are microseconds. ``SenderTimes`` are sums over senders ("sender time"): two senders that are
down for an hour are two hours of it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from aggregator.lakehouse.page.grouping import Grouping
from aggregator.lakehouse.page.period import Grid, Period

ENDINGS: Final[dict[str | None, str]] = {
    "recovered": "came back",
    "new": "came back as a new sender",
    "rebuilt": "was there when a lost store was rebuilt",
    "retired": "never came back: forgotten",
    "lost_store": "unknown: its agent lost its store",
    "unheard": "unknown: its stream no longer listens where it publishes",
    "stale": "fell silent again",
    "import_gap": "unknown: what was imported has a gap here",
    "import_end": "down to the end of what was imported",
}


class SenderTimes(NamedTuple):
    """Sender time by state; absent senders have none."""

    up: int = 0
    down: int = 0
    unknown: int = 0
    maintenance: int = 0

    @property
    def known(self) -> int:
        """The watched time."""
        return self.up + self.down

    @property
    def lived(self) -> int:
        """All of it but maintenance, which counts in no figure."""
        return self.up + self.down + self.unknown

    @property
    def share(self) -> int:
        """Availability in hundredths of a per cent, -1 where nothing is known."""
        return self.up * 10_000 // self.known if self.known else -1

    @property
    def is_eventful(self) -> bool:
        """True if a sender was anything but up."""
        return self.up < self.lived or self.maintenance > 0

    def plus(self, *others: "SenderTimes") -> "SenderTimes":
        return SenderTimes(*map(sum, zip(self, *others, strict=True)))


class Cell(NamedTuple):
    """The sender time of one group in one window."""

    place: str
    name: str
    started_at: int
    times: SenderTimes


class Group(NamedTuple):
    """Senders that the page shows as one, over the whole period: by default those of a site.

    ``place`` is the region of a site, else "". ``name`` is "" for senders whose names have no part to group them by.
    ``heard_through`` is the last watched instant of its sites, None if there is none in the period.
    """

    place: str
    name: str
    sender_count: int
    times: SenderTimes
    outage_count: int
    heard_through: int | None

    @property
    def title(self) -> str:
        return self.name or "other names"


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
        """The last watched instant, None if there is none in the period."""
        return max((block.heard_through for block in self.blocks if block.heard_through is not None), default=None)

    @property
    def ended_at(self) -> int:
        """The end of its last block; a time in which the source of an import did not watch belongs to it."""
        return max(block.ended_at for block in self.blocks)

    @property
    def imported(self) -> bool:
        """True if all of it is another system's history."""
        return bool(self.blocks) and all(block.imported for block in self.blocks)

    @property
    def group(self) -> Group:
        return Group(self.region, self.site, self.sender_count, self.times, self.outage_count, self.heard_through)

    def absences(self, period: Period) -> list[Period]:
        """Return the spans of the period before its first block, between its blocks and after the last."""
        found, at = [], period.started_at
        for block in sorted(self.blocks, key=lambda block: block.started_at):
            if block.started_at > at:
                found.append(Period(at, block.started_at))
            at = max(at, block.ended_at)
        return [*found, Period(at, period.ended_at)] if at < period.ended_at else found


class Sender(NamedTuple):
    """One sender that had an outage, over the whole period. ``noticed_count`` is of outages that were not imported."""

    region: str
    site: str
    sender_id: str
    times: SenderTimes
    outage_count: int
    noticed_count: int


class OutageRow(NamedTuple):
    """One outage that touches the period: the silence of a sender; ``ended_at`` is None while it is down.

    An end beyond the period counts as none: at the end of the period it was not known. ``incident_started_at`` names
    the incident at its site that it is part of, None: of none. ``imported``: another system noticed it. An outage
    wholly in maintenance is none here.
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
        """Return the duration, up to ``end`` if it goes on."""
        return (end if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        return "still down at the end" if self.ended_at is None else ENDINGS.get(self.ended_by, self.ended_by or "")


class Unwatched(NamedTuple):
    """A time of a block that is not covered, its cause, and the sender time that is unknown for it."""

    region: str
    site: str
    block: str
    started_at: int
    ended_at: int
    cause: str
    unknown: int

    @property
    def length(self) -> int:
        return self.ended_at - self.started_at


class PageFigures(NamedTuple):
    """Everything that the page shows, out of one state of the tables.

    ``known_through`` is where known time ends, whatever the period. ``groups`` and ``cells`` are of ``grouping``.
    ``cells`` are of ``heat``, ``points`` (over all sites, by window) of ``curve``; ``hours`` are hourly cells of
    days that were not wholly up and watched, for periods whose ``heat`` is coarser. ``unknown_by_cause`` is sender
    time. ``stale_after`` is the shortest and the longest in force; the error bound rests on
    ``registration_interval``. ``assumed`` is the part of known sender time that rests on plain Choria advisories,
    ``imported`` the part that rests on another system's history. ``position`` is "" where known time is not the hub's.
    ``senders`` come worst first, ``outages`` by site and start.
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
        """The number of outages that an agent noticed by silence: those that were not imported."""
        return sum(not outage.imported for outage in self.outages)

    @property
    def bound(self) -> int:
        """By how much the known time may be up instead of down, or down instead of up."""
        return min(2 * self.registration_interval * self.noticed_count, self.times.known)

    @property
    def all_imported(self) -> bool:
        """True if everything is another system's history."""
        return all(site.imported for site in self.sites)

    @property
    def sender_count(self) -> int:
        """The number of senders that lived in the period, however short."""
        return sum(site.sender_count for site in self.sites)

    @property
    def regions(self) -> list[str]:
        return sorted({site.region for site in self.sites})

    @property
    def has_imports(self) -> bool:
        return any(block.imported for site in self.sites for block in site.blocks)

    @property
    def has_absences(self) -> bool:
        return any(site.absences(self.period) for site in self.sites)

    @property
    def ranked_senders(self) -> list[Sender]:
        """The senders with at least half of their time known."""
        return [sender for sender in self.senders if 2 * sender.times.known >= sender.times.lived]

    @property
    def silent_sites(self) -> list[Site]:
        """The sites that were not watched any more at the end."""
        # Between two watermarks a site is silent for a moment: that is no news.
        until = self.period.ended_at - (self.stale_after[0] if self.stale_after else 0)
        return [site for site in self.sites if not site.imported and (site.heard_through or 0) < until]
