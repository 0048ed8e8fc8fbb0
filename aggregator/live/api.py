"""Define what the live service answers: the state of senders, sites, regions and the fleet, and why it is unknown.

Instants end in ``_us``: microseconds since the Unix epoch, UTC, in the sites' own event time unless said otherwise;
0 stands for none. ``now_us`` is the hub's own time, never that of the machine that serves.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from shared.identifiers import AdvisoryKind
from shared.instants import LATEST


class State(StrEnum):
    """What a sender is, as shown. The order of the members is that of trouble: the worst first."""

    STALE = "stale"
    UNKNOWN = "unknown"
    MAINTENANCE = "maintenance"
    UP = "up"
    RETIRED = "retired"


class UnknownReason(StrEnum):
    """Why a block's senders, or one of them, are unknown now; where several hold, what stands first is said."""

    HUB_BEHIND = "hub_behind"
    """This service has not read yet what the hub's archive holds, or cannot reach the hub."""
    HUB_CLOCK = "hub_clock"
    """The hub's clock was set back: it is behind the time at which the archive stored messages before."""
    REGION_BEHIND = "region_behind"
    """The hub's archive does not get what the region's stream holds: its source is late, broken or not there."""
    CONTESTED = "contested"
    """Two agents speak for the block and do not know of each other."""
    PUT_BACK = "put_back"
    """An older copy of the agent's store was put back: it counts again what it had counted before."""
    ORDINALS_MISSING = "ordinals_missing"
    """Advisories that the agent counted have not arrived: its watermarks vouch for nothing until they do."""
    CLOCK = "clock"
    """The site's stream claims times that the hub has not reached yet."""
    NOT_STORED = "not_stored"
    """The agent says that its stream does not store what it is sent, or that nothing proves that it does."""
    NOT_READ = "not_read"
    """The agent says that it cannot read its stream: the site's server or the link to it is down, or it has no room."""
    AGENT_BEHIND = "agent_behind"
    """Watermarks arrive, but speak of the past: the agent catches up."""
    AGENT_SILENT = "agent_silent"
    """No word comes: the agent or its link to the region is down; of a pair, or an older agent, perhaps its stream."""
    AGENT_STOPPED = "agent_stopped"
    """No word comes since the agent was told to stop: it is being upgraded, or its host restarted."""
    NEVER_VOUCHED = "never_vouched"
    """Advisories came, but no watermark that vouches for the block: plain Choria's, or an agent that just began."""
    LOST_STORE = "lost_store"
    """Of one sender: its agent lost its store and has not heard of it since."""
    UNHEARD = "unheard"
    """Of one sender: its stream had ceased to take what it publishes."""


class Counts(msgspec.Struct):
    """How many senders are shown in which state. ``retired`` are not part of ``total``."""

    up: int = 0
    stale: int = 0
    unknown: int = 0
    maintenance: int = 0
    retired: int = 0

    @property
    def total(self) -> int:
        """Count those that live, or may."""
        return self.up + self.stale + self.unknown + self.maintenance

    def add(self, other: "Counts") -> None:
        """Add another's."""
        self.up += other.up
        self.stale += other.stale
        self.unknown += other.unknown
        self.maintenance += other.maintenance
        self.retired += other.retired


class Maintenance(msgspec.Struct, frozen=True):
    """A declared maintenance of a region, site or block, or of ``senders`` (none: of all).

    It ends at ``cancelled_at_us``, if ``cancelled_by`` took it back before (0 and "": nobody did).
    """

    revision: int
    scope: str
    started_at_us: int
    ended_at_us: int
    reason: str
    author: str
    senders: tuple[str, ...] = ()
    cancelled_at_us: int = 0
    cancelled_by: str = ""


class BlockView(msgspec.Struct, frozen=True, kw_only=True):
    """One stream block: how far it is known, and why no further.

    ``known_until_us``: until then its senders' states are vouched for; ``observed_since_us``: without a gap since then.
    ``heard_at_us`` is the hub's time of its last watermark. ``ordinal`` is the last advisory that a watermark counted.
    ``condition`` is what the agent says to keep it from knowing more, as ``muster-agent status`` calls it;
    ``conditions`` are all that it last was in.
    ``is_gone``: nobody is expected in it any more, for all its senders were retired or ``maintenance`` does not end.
    """

    block: str
    counts: Counts
    reason: UnknownReason | None
    observed_since_us: int
    known_until_us: int
    heard_at_us: int
    ordinal: int
    missing_count: int
    agent: str
    boot_id: str
    version: str
    condition: str = ""
    conditions: tuple[str, ...] = ()
    maintenance: Maintenance | None = None
    is_gone: bool = False


class SiteView(msgspec.Struct, frozen=True, kw_only=True):
    """One site. ``state`` is its worst block's; ``changed_at_us`` is the newest change of any of its senders.

    ``since_us``: of an unknown site its ``known_until_us``; of one with stale senders the first instant since which any
    of them has been stale; else when it last changed.
    """

    region: str
    site: str
    state: State
    counts: Counts
    reason: UnknownReason | None
    since_us: int
    known_until_us: int
    changed_at_us: int
    blocks: tuple[BlockView, ...]


class RegionView(msgspec.Struct, frozen=True, kw_only=True):
    """One region, and how the hub's archive gets what it says.

    ``source_lag`` messages are still to be copied; the source was last heard ``source_silent_us`` ago (-1: never).
    """

    region: str
    counts: Counts
    site_count: int
    unknown_site_count: int
    source_lag: int = 0
    source_silent_us: int = 0
    source_error: str = ""
    is_behind: bool = False


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole. ``trust`` says in one line how far it can be believed.

    ``sequence`` is the archive's last message that is in it, ``archive_sequence`` the last one there is;
    ``known_until_us`` is the earliest of the blocks that are known now, 0 where none is. The hub's clock is
    ``hub_clock_behind_us`` behind what the archive holds, and was set back ``hub_clock_steps`` times.
    """

    counts: Counts
    regions: tuple[RegionView, ...]
    site_count: int
    unknown_site_count: int
    sequence: int
    archive_sequence: int
    now_us: int
    known_until_us: int
    hub_clock_behind_us: int = 0
    hub_clock_steps: int = 0
    trust: str


class SenderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sender in a list. ``last_state`` is what its last advisory said, also where it is unknown now.

    ``last_seen_us``: the last time that it was heard before that advisory. Of one that is up, the hub hears no later.
    """

    region: str
    site: str
    block: str
    sender: str
    state: State
    last_state: State
    since_us: int
    last_seen_us: int
    known_until_us: int
    reason: UnknownReason | None = None


class AdvisoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One advisory; ``sequence`` is its place in the archive, ``archived_at_us`` the hub's time of it."""

    sequence: int
    region: str
    site: str
    block: str
    sender: str
    kind: AdvisoryKind
    at_us: int
    last_seen_us: int
    archived_at_us: int
    event_id: str
    rebuilt: bool = False
    by_operator: bool = False
    unheard_until_us: int = 0


class SenderStory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one sender: advisories newest first, and what was said of it by operators."""

    sender: SenderRow
    block: BlockView
    advisories: tuple[AdvisoryRow, ...]
    maintenance: tuple[Maintenance, ...]
    gaps: tuple["Gap", ...]
    orders: tuple["PolicyOrder", ...]


class SenderFacts(msgspec.Struct, frozen=True):
    """The last sample of a sender's registrations that the hub's archive holds.

    ``sequence`` and ``archived_at_us`` are its place there and the hub's time of it, ``reason`` why it was taken.
    ``text`` is its body of ``size`` bytes, as far as it is given, as somebody else wrote it.
    """

    sequence: int
    archived_at_us: int
    reason: str
    size: int
    text: str


class Gap(msgspec.Struct, frozen=True):
    """A time of which nothing is known of a block's senders; ``ended_at_us`` 0: it goes on."""

    started_at_us: int
    ended_at_us: int
    reason: str


class PolicyOrder(msgspec.Struct, frozen=True):
    """What an operator ordered of a sender."""

    revision: int
    kind: str
    given_at_us: int
    author: str
    text: str


class HistoryPoint(msgspec.Struct, frozen=True):
    """The fleet's counts at one instant of the hub's time."""

    at_us: int
    counts: Counts


class SitePage(msgspec.Struct, frozen=True):
    """Some sites; ``after`` asks for the next ones, "" where there are none."""

    sites: tuple[SiteView, ...]
    after: str
    total: int


class SenderPage(msgspec.Struct, frozen=True):
    """Some senders; ``after`` asks for the next ones, "" where there are none. By place there is a ``total`` too."""

    senders: tuple[SenderRow, ...]
    after: str
    total: int | None = None


class AdvisoryPage(msgspec.Struct, frozen=True):
    """Some advisories, the newest first; ``before`` asks for older ones, 0 where there are none."""

    advisories: tuple[AdvisoryRow, ...]
    before: int


class OperationKind(StrEnum):
    """What an operator may order from the page or the command line."""

    MAINTENANCE = "maintenance"
    CANCEL = "cancel"
    RETIRE = "retire"
    FORWARD = "forward"


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order: for a region, a site or a block (``site`` and ``block`` may be ""), or for ``senders`` there.

    ``maintenance`` needs an instant to start and one to end, and why; ``cancel`` the revision to take back; ``retire``
    and ``forward`` a block and one or more senders, all of them heard of there unless ``force`` is given. ``author`` is
    who orders it.
    """

    kind: OperationKind
    author: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    why: Annotated[str, msgspec.Meta(max_length=2_000)] = ""
    region: str = ""
    site: str = ""
    block: str = ""
    senders: Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)] = ()
    started_at_us: Annotated[int, msgspec.Meta(ge=0, le=LATEST)] = 0
    ended_at_us: Annotated[int, msgspec.Meta(ge=0, le=LATEST)] = 0
    revision: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    force: bool = False


class OperationDone(msgspec.Struct, frozen=True):
    """The revisions of the policy that an order became; ``warning`` names senders of it that nobody has heard of."""

    revisions: tuple[int, ...]
    text: str
    warning: str = ""
