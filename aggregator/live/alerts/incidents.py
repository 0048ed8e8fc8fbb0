"""Rules that open, change and close incidents: one for each cause and place, however many senders it has. Pure.

Places are a site, a region or the hub. There are three causes: ``stale`` (expected senders are silent, although an
agent observed their stream), ``unknown`` (no agent could observe it) and ``alone`` (one of a site's pair of agents is
missing, so that none would take over). The table of transitions:

| incident | what is true now                                  | it becomes                                   |
| -------- | ------------------------------------------------- | -------------------------------------------- |
| none     | the condition, for ``open_after`` of covered time | open, since its senders were last heard      |
| none     | the condition, in maintenance                     | none: its time begins when maintenance ends  |
| none     | a wider place has the same cause, or its incident | none: the region or the hub has the incident |
| open     | a wider place has an incident of the same cause   | open, ``within`` that one, until it closes   |
| open     | the condition                                     | open, with its numbers brought up to date    |
| open     | not the condition, for ``close_after``            | closed, since that became true               |
| open     | one of its blocks is unknown (``stale``), no      | open: missing observation resolves nothing   |
|          | agent is heard (``alone``), the hub is behind, or |                                              |
|          | the site is missing from the view                 |                                              |
| open     | maintenance                                       | open: only creation is suppressed            |
| any      | no sender is expected there any more: all are     | none; closed after ``close_after``, with the |
|          | retired, or an operator has closed the place      | outcome ``retired``                          |

Each block of a site is known or unknown on its own: ``stale`` is judged by the blocks that are known, ``unknown`` by
the others, and a site counts as lost to its region when all its blocks are unknown.

Time comes from the records: for ``stale`` it is the site's covered time, which does not pass while the site is not
observed; for the others it is the hub's. Counts that rise and fall within ``close_after`` are one incident.

An open incident has grown when, for ``close_after``, it has had twice as many senders as were reported last, or all.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import ceil
from typing import Final, NamedTuple, Protocol

import msgspec

from shared.blake2 import blake2b
from shared.instants import MINUTE, SECOND

OF_THE_HUB: Final = ("hub_behind", "hub_clock")
"""The reasons that hold for all sites at once."""
REGION_BEHIND: Final = "region_behind"
CATCHING_UP: Final = "agent_behind"
SILENT: Final = (REGION_BEHIND, "agent_silent", "agent_stopped")
"""The reasons of sites that are silent."""
MOST_NODES: Final = 100
"""The number of nodes that an incident lists; of further ones it has only the count."""


class IncidentCause(StrEnum):
    """The cause of an incident."""

    __hash__ = str.__hash__

    STALE = "stale"
    UNKNOWN = "unknown"
    ALONE = "alone"


class IncidentOutcome(StrEnum):
    """How an incident ended: its nodes recovered, or the missing ones are no longer expected."""

    __hash__ = str.__hash__

    RECOVERED = "recovered"
    RETIRED = "retired"


class IncidentRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds for opening and closing incidents; durations in microseconds, shares between 0 and 1.

    A site gets the cause ``stale`` when at least ``least_share`` of its senders, and at least ``least_senders``, are
    stale; it loses the cause when fewer than half as many are. A region has the cause ``unknown`` when at least
    ``least_sites`` and half of its sites are silent, until fewer are unknown for any reason. Growth alone ends nothing:
    a site that grew has the cause until fewer than half of the incident's senders are stale, a region until fewer sites
    have it than at its worst.
    """

    open_after: int = 30 * SECOND
    unknown_after: int = MINUTE
    close_after: int = 3 * MINUTE
    least_share: float = 0.05
    least_senders: int = 1
    least_sites: int = 2


class SiteFacts(Protocol):
    """The facts by which a site is judged. Instants are microseconds; counts exclude retired senders.

    Facts of stale senders concern the blocks that are known, or all blocks if none is.
    """

    @property
    def region(self) -> str:
        """Its region."""

    @property
    def site(self) -> str:
        """Its name."""

    @property
    def expected_count(self) -> int:
        """The count of all its senders, in known and unknown blocks."""

    @property
    def known_count(self) -> int:
        """The count of its senders in known blocks."""

    @property
    def unknown_count(self) -> int:
        """The count of its senders in the blocks that ``unknown`` concerns."""

    @property
    def stale_count(self) -> int:
        """The count of stale senders, in maintenance or not."""

    @property
    def planned_count(self) -> int:
        """The count of stale senders that are in maintenance."""

    @property
    def retired_count(self) -> int:
        """The count of all retired senders."""

    @property
    def observed_since_us(self) -> int:
        """Since when its known blocks have been observed without a gap."""

    @property
    def known_until_us(self) -> int:
        """Until when all its known blocks are covered."""

    @property
    def unknown(self) -> str | None:
        """Why a block is unknown, preferably one that is not in maintenance; None if all are known."""

    @property
    def unknown_since_us(self) -> int:
        """Until when all of those blocks were known or in maintenance."""

    @property
    def unknown_maintained(self) -> bool:
        """Whether all of those blocks are in maintenance."""

    @property
    def lost_since_us(self) -> int | None:
        """Until when the last of its blocks was known or in maintenance; None if one is known."""

    @property
    def is_heard(self) -> bool:
        """Whether any of its agents was heard lately, whether or not its watermarks extend coverage."""

    @property
    def alone_since_us(self) -> int:
        """Since when one agent of a pair has been heard alone; 0 if none is."""

    @property
    def lone_agents(self) -> tuple[str, ...]:
        """The names of the agents that are heard alone."""

    @property
    def gone(self) -> bool:
        """Whether no sender is expected there any more."""

    @property
    def maintained(self) -> bool:
        """Whether the whole site is in maintenance now."""

    @property
    def maintained_until_us(self) -> int:
        """When its last maintenance ended, or 0."""

    def stale_at(self, rank: int) -> int:
        """Return since when ``rank`` of the senders that are stale now have been stale under observation."""

    def silent_at(self, rank: int) -> int:
        """Return the instant by which ``rank`` of the senders that are stale now had been heard for the last time."""

    def stale_senders(self, most: int) -> list[str]:
        """Return the names of up to ``most`` stale senders, in the order in which they became stale."""

    @property
    def stale_blocks(self) -> tuple[str, ...]:
        """The names of the blocks that have stale senders."""

    def stale_among(self, senders: Sequence[str], blocks: Sequence[str]) -> int:
        """Return how many of ``senders`` are stale in one of ``blocks``; if that is empty, in any block."""

    def sees(self, blocks: Sequence[str]) -> bool:
        """Return True if each of ``blocks`` is known; if that is empty, each block that has stale senders."""


class HubTimes(NamedTuple):
    """The hub's time, the instant up to which its sites can be judged, and since when the service has kept up with it.

    A service that has just begun to read may still receive records of a site that seems unknown: an unknown site counts
    from ``read_since_us``.
    """

    now_us: int
    read_until_us: int
    read_since_us: int


class IncidentKey(msgspec.Struct, frozen=True, order=True):
    """The place and cause of an incident: a region's key has no site, the hub's neither site nor region."""

    region: str
    site: str
    cause: IncidentCause


_HUB: Final = IncidentKey("", "", IncidentCause.UNKNOWN)


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one place with one cause, from its beginning to its end.

    ``node_count`` of ``expected_count`` senders (sites if the place is a region or the hub; agents of a pair) have it
    now, ``most_count`` had it at its worst; ``nodes`` has the names of up to MOST_NODES that had it at any time.
    ``blocks`` are the blocks of stale senders; incidents of older releases have none. ``growth_count`` is how often it
    has grown, ``told_count`` the count of nodes reported then or at its beginning (0 in incidents of older releases),
    and ``larger_since_us`` since when it has been large enough to have grown again. ``reason`` is why an unknown place
    is unknown. ``clear_since_us``: since when the condition does not hold. ``within`` is the id of the open wider
    incident that includes this one.
    """

    incident_id: str
    region: str
    site: str
    cause: IncidentCause
    reason: str
    started_at_us: int
    known_until_us: int
    node_count: int
    expected_count: int
    most_count: int
    nodes: tuple[str, ...]
    retired_before: int = 0
    clear_since_us: int | None = None
    ended_at_us: int | None = None
    outcome: IncidentOutcome | None = None
    within: str = ""
    blocks: tuple[str, ...] = ()
    growth_count: int = 0
    told_count: int = 0
    larger_since_us: int | None = None

    @property
    def key(self) -> IncidentKey:
        """The place and cause of the incident."""
        return IncidentKey(self.region, self.site, self.cause)

    @property
    def summary(self) -> str:
        """The place and the extent of the incident, without its times.

        ``eu-west.dub1: 214 of 230 stale``
        """
        place = ".".join(filter(None, (self.region, self.site))) or "the hub"
        count = self.node_count if self.clear_since_us is None else self.most_count
        if self.cause is IncidentCause.ALONE:
            return f"{place}: only one agent of its pair is ready"
        if self.cause is IncidentCause.STALE:
            return f"{place}: {count:,} of {self.expected_count:,} stale"
        nodes = f"{'sender' if self.site else 'site'}{'s' * (self.expected_count != 1)}"
        # Only one block of a site may be unknown.
        is_whole = self.site and count >= self.expected_count
        some = "" if is_whole else f", {count:,} of {self.expected_count:,} {nodes}"
        return f"{place}: unknown ({self.reason.replace('_', ' ')}{some})"


class IncidentPage(msgspec.Struct, frozen=True):
    """Incidents, open ones first, each latest first; ``before`` is the key of the next page, 0 on the last one."""

    incidents: tuple[Incident, ...]
    before: int


class SiteObservation(msgspec.Struct, frozen=True):
    """The state of one place and cause at an instant of its own clock.

    ``since_us``: since when the condition has held and time counts towards opening; None if it does not hold or must
    not open an incident. ``clear``: it certainly does not hold. ``watched_us``: since when the place has been observed.
    ``planned_count`` of ``node_count`` are in maintenance.
    """

    key: IncidentKey
    now_us: int
    since_us: int | None
    started_at_us: int
    opens_after: int
    clear: bool
    watched_us: int
    node_count: int
    expected_count: int
    nodes: tuple[str, ...]
    blocks: tuple[str, ...] = ()
    reason: str = ""
    planned_count: int = 0
    retired_count: int = 0
    gone: bool = False

    @property
    def unplanned_count(self) -> int:
        """The count of nodes that have it and are not in maintenance."""
        return self.node_count - self.planned_count


def judge(
    sites: Iterable[SiteFacts],
    open_incidents: Mapping[IncidentKey, Incident],
    hub: HubTimes,
    rules: IncidentRules,
    is_closed: Callable[[str, str], bool] = lambda _region, _site: False,
) -> list[Incident]:
    """Return the incidents that opened, changed or closed.

    Incidents of places that are not in ``sites`` do not change, unless an operator has closed the place (``is_closed``:
    region, site).
    """
    changed: dict[IncidentKey, Incident] = {}
    for seen in _observations(list(sites), open_incidents, hub, rules, is_closed):
        incident = open_incidents.get(seen.key)
        after = _opened(seen) if incident is None else _continued(incident, seen, rules.close_after)
        if after is not None and after != incident:
            changed[seen.key] = after
    going_on = {key: each for key, each in {**open_incidents, **changed}.items() if each.ended_at_us is None}
    for key, incident in going_on.items():
        wider = next((going_on[each].incident_id for each in _wider_keys(key) if each in going_on), "")
        if incident.within != wider:
            changed[key] = msgspec.structs.replace(incident, within=wider)
    return list(changed.values())


def _wider_keys(key: IncidentKey) -> list[IncidentKey]:
    """Return the keys of the incidents that would include the one of ``key``, the widest place first."""
    if key.cause is not IncidentCause.UNKNOWN:
        return []
    return [each for each in (_HUB, IncidentKey(key.region, "", IncidentCause.UNKNOWN)) if each < key]


def incident_id(key: IncidentKey, started_at_us: int) -> str:
    """Return the id: 128-bit BLAKE2b, hex; derived, so that a rebuilt state repeats no alert."""
    named = msgspec.json.encode([key.region, key.site, key.cause, started_at_us])
    return blake2b(named, digest_size=16).hexdigest()


def _opened(seen: SiteObservation) -> Incident | None:
    if seen.since_us is None or seen.now_us - seen.since_us < seen.opens_after:
        return None
    return Incident(
        incident_id=incident_id(seen.key, seen.started_at_us),
        region=seen.key.region,
        site=seen.key.site,
        cause=seen.key.cause,
        reason=seen.reason,
        started_at_us=seen.started_at_us,
        known_until_us=seen.now_us,
        node_count=seen.node_count,
        expected_count=seen.expected_count,
        most_count=seen.node_count,
        nodes=seen.nodes,
        blocks=seen.blocks,
        retired_before=seen.retired_count,
        told_count=seen.node_count,
    )


def _continued(incident: Incident, seen: SiteObservation, close_after: int) -> Incident:
    # A block that has become known again may be covered less far than the others.
    now_us = max(seen.now_us, incident.known_until_us)
    clear_since = None
    if seen.clear:
        # A blind span does not count as time without the condition.
        clear_since = max(now_us if incident.clear_since_us is None else incident.clear_since_us, seen.watched_us)
    ended = clear_since is not None and now_us - clear_since >= close_after
    nodes = incident.nodes
    if len(nodes) < MOST_NODES and not set(seen.nodes) <= set(nodes):
        nodes = tuple(dict.fromkeys((*nodes, *seen.nodes)))[:MOST_NODES]
    # In a site that grew, stale senders below the limit may have been stale all along.
    most_count = seen.node_count if seen.nodes or seen.key.cause is not IncidentCause.STALE else 0
    # Most of the missing senders were retired, not heard again.
    is_given_up = seen.gone or 2 * (seen.retired_count - incident.retired_before) > incident.most_count
    told_count = incident.told_count or incident.most_count
    larger_since = None
    if seen.since_us is not None and _is_larger(seen, told_count):
        larger_since = max(now_us if incident.larger_since_us is None else incident.larger_since_us, seen.watched_us)
    has_grown = larger_since is not None and now_us - larger_since >= close_after
    return msgspec.structs.replace(
        incident,
        reason=incident.reason if seen.clear else _cause(incident.reason, seen.reason),
        known_until_us=now_us,
        node_count=seen.node_count,
        # The worst count is reported with the count that was expected then: some may be retired by now.
        expected_count=max(incident.expected_count, incident.most_count) if seen.clear else seen.expected_count,
        most_count=max(incident.most_count, most_count),
        nodes=nodes,
        blocks=tuple(dict.fromkeys((*incident.blocks, *seen.blocks))),
        growth_count=incident.growth_count + has_grown,
        told_count=seen.node_count if has_grown else told_count,
        larger_since_us=None if has_grown else larger_since,
        clear_since_us=clear_since,
        ended_at_us=clear_since if ended else None,
        outcome=None if not ended else IncidentOutcome.RETIRED if is_given_up else IncidentOutcome.RECOVERED,
    )


def _is_larger(seen: SiteObservation, told_count: int) -> bool:
    """Return True if many more nodes have the condition than were reported, those in maintenance aside."""
    enough = min(2 * told_count, seen.expected_count - seen.planned_count)
    return seen.unplanned_count >= max(enough, told_count + 1)


def _cause(reason: str, reason_now: str) -> str:
    """Return why a place is unknown; while it recovers, that is the reason before."""
    # A site that recovers catches up first, and agents of a region are silent until its stream is read.
    is_coming_back = reason_now == CATCHING_UP or (reason == REGION_BEHIND and reason_now in SILENT)
    return reason if is_coming_back or not reason_now else reason_now


def _observations(
    sites: list[SiteFacts],
    open_incidents: Mapping[IncidentKey, Incident],
    hub: HubTimes,
    rules: IncidentRules,
    is_closed: Callable[[str, str], bool],
) -> Iterator[SiteObservation]:
    behind = [site for site in sites if site.unknown in OF_THE_HUB]
    began = hub.read_until_us if behind else None
    yield _wider(_HUB, sites, behind, began, hub._replace(read_since_us=0), rules)
    if behind:
        # The hub cannot judge sites whose records it has not read.
        return
    regions: dict[str, list[SiteFacts]] = defaultdict(list)
    for site in sites:
        regions[site.region].append(site)
    for region, all_members in regions.items():
        members = [site for site in all_members if not site.gone]
        key = IncidentKey(region, "", IncidentCause.UNKNOWN)
        was = open_incidents.get(key)
        # An unknown site that is not silent has a cause of its own; in a region that was lost, it is recovering.
        unknown = [site for site in members if site.lost_since_us is not None]
        lost = [site for site in unknown if site.unknown in SILENT or was is not None]
        began = _lost_region_since(members, lost, was, rules)
        seen = msgspec.structs.replace(_wider(key, members, lost, began, hub, rules), gone=not members)
        if _HUB in open_incidents:
            seen = msgspec.structs.replace(seen, since_us=None)
        there = {site.site for site in all_members}
        # A site that is missing from the view has not recovered.
        is_whole = was is None or all(node in there or is_closed(region, node) for node in was.nodes)
        yield seen if is_whole else msgspec.structs.replace(seen, clear=False)
        wider = began is not None or (was is not None and is_whole) or _HUB in open_incidents
        for site in all_members:
            # A site is never to blame for its region's delay, also while some of its blocks are not late yet.
            yield _unknown_site(site, wider or site.unknown == REGION_BEHIND, hub, rules)
            stale = open_incidents.get(IncidentKey(region, site.site, IncidentCause.STALE))
            if site.gone or _is_watched(site, stale):
                yield _stale_site(site, stale, hub, rules)
            if site.is_heard or site.gone:
                yield _lone_agent(site, hub, rules)
    seen_places = {(site.region, name) for site in sites for name in ("", site.site)}
    for key in open_incidents:
        if (key.region, key.site) not in seen_places and is_closed(key.region, key.site):
            yield _gone(key, hub)


def _gone(key: IncidentKey, hub: HubTimes) -> SiteObservation:
    """Return the observation of a place where no senders are expected any more."""
    return SiteObservation(key, hub.now_us, None, hub.now_us, 0, True, 0, 0, 0, (), gone=True)


def _lost_region_since(
    members: list[SiteFacts], lost: list[SiteFacts], incident: Incident | None, rules: IncidentRules
) -> int | None:
    """Return since when a region is unknown: the hub lacks it, or half of its sites and ``least_sites`` are lost."""
    behind = [site.lost_since_us or 0 for site in lost if site.unknown == REGION_BEHIND]
    if behind:
        return sorted(behind)[len(behind) // 2]
    limit, least = ceil(len(members) / 2), rules.least_sites
    if incident is not None:
        # A region with a single site is lost as long as that site is.
        least = min(least, max(len(members), 1))
        # A region that grew is lost until fewer of its sites are; after it was cut off, only silent sites count.
        limit = limit if incident.reason == REGION_BEHIND else min(limit, incident.most_count)
    limit = max(least, limit)
    return sorted(site.lost_since_us or 0 for site in lost)[limit - 1] if len(lost) >= limit else None


def _wider(
    key: IncidentKey,
    sites: list[SiteFacts],
    lost: list[SiteFacts],
    began: int | None,
    hub: HubTimes,
    rules: IncidentRules,
) -> SiteObservation:
    """Return the observation of a region or the hub; ``began``: since when it has the cause, None if it does not."""
    started_at = hub.now_us if began is None else began
    opens = began is not None and not all(site.maintained for site in lost)
    return SiteObservation(
        key,
        hub.now_us,
        max(started_at, hub.read_since_us, *(site.maintained_until_us for site in lost)) if opens else None,
        started_at,
        rules.unknown_after,
        clear=began is None,
        watched_us=hub.read_since_us,
        node_count=len(lost),
        expected_count=len(sites),
        nodes=tuple(site.site for site in lost[:MOST_NODES]),
        reason=_commonest(lost),
        planned_count=sum(site.maintained for site in lost),
    )


def _unknown_site(site: SiteFacts, wider: bool, hub: HubTimes, rules: IncidentRules) -> SiteObservation:
    is_unknown = site.unknown is not None and not site.gone
    counts = is_unknown and not wider and not site.unknown_maintained
    return SiteObservation(
        IncidentKey(site.region, site.site, IncidentCause.UNKNOWN),
        hub.now_us,
        max(site.unknown_since_us, hub.read_since_us) if counts else None,
        site.unknown_since_us,
        rules.unknown_after,
        clear=not is_unknown,
        watched_us=0 if site.gone else site.observed_since_us,
        node_count=site.unknown_count if is_unknown else 0,
        expected_count=site.expected_count,
        nodes=(),
        reason=site.unknown or "",
        gone=site.gone,
    )


def _is_watched(site: SiteFacts, incident: Incident | None) -> bool:
    """Return True if stale senders are observable: those of the incident, if there is one."""
    if site.lost_since_us is not None:
        return False
    return incident is None or site.sees(incident.blocks)


def _stale_site(site: SiteFacts, incident: Incident | None, hub: HubTimes, rules: IncidentRules) -> SiteObservation:
    """Return the observation of a site's stale senders. Those in maintenance open no incident, but keep one open."""
    if site.gone:
        return _gone(IncidentKey(site.region, site.site, IncidentCause.STALE), hub)
    limit = max(rules.least_senders, ceil(rules.least_share * site.known_count), 1)
    unplanned = site.stale_count - site.planned_count
    opens = unplanned >= limit and not site.maintained
    started_at = site.silent_at(limit) if opens else site.known_until_us
    return SiteObservation(
        IncidentKey(site.region, site.site, IncidentCause.STALE),
        site.known_until_us,
        max(site.stale_at(limit), site.maintained_until_us) if opens else None,
        max(started_at, site.maintained_until_us),
        rules.open_after,
        clear=site.stale_count == 0 or (2 * site.stale_count < limit and _is_back(site, incident)),
        watched_us=site.observed_since_us,
        node_count=site.stale_count,
        expected_count=site.known_count,
        nodes=tuple(site.stale_senders(MOST_NODES)) if site.stale_count >= limit else (),
        blocks=site.stale_blocks if site.stale_count >= limit else (),
        planned_count=site.planned_count,
        retired_count=site.retired_count,
    )


def _is_back(site: SiteFacts, incident: Incident | None) -> bool:
    """Return True if half of an incident's senders have recovered: the limit may have grown with the site."""
    if incident is None or 2 * site.stale_count < incident.most_count:
        return True
    return 2 * site.stale_among(incident.nodes, incident.blocks) < len(incident.nodes)


def _lone_agent(site: SiteFacts, hub: HubTimes, rules: IncidentRules) -> SiteObservation:
    """Return the observation of a pair of agents. Only the agent that is alone knows that another is expected."""
    key, since = IncidentKey(site.region, site.site, IncidentCause.ALONE), site.alone_since_us
    if site.gone:
        return _gone(key, hub)
    opens = since and not site.maintained
    started_at = max(since, site.maintained_until_us)
    return SiteObservation(
        key,
        hub.now_us,
        max(started_at, hub.read_since_us) if opens else None,
        started_at,
        rules.unknown_after,
        clear=not since,
        watched_us=site.observed_since_us,
        node_count=1 if since else 0,
        expected_count=2,
        nodes=site.lone_agents,
    )


def _commonest(sites: list[SiteFacts]) -> str:
    reasons = Counter(site.unknown for site in sites if site.unknown is not None)
    return min(reasons, key=lambda reason: (-reasons[reason], reason)) if reasons else ""
