"""The folded state as of an instant of the hub's time: current states, reasons for unknown, planned maintenance.

A block is unknown if its coverage ends more than ``unknown_after`` before the instant up to which the hub has received
the records of its region, whatever the last advisories report. A fault of the observer (the hub, a region's source)
takes precedence over a fault of the site. No sender is expected in a block that is gone: all its senders were retired,
or an operator has closed it (a maintenance without an end). Pure: the instant is an argument.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

import msgspec

from aggregator.live.api import (
    BlockView,
    Counts,
    FleetView,
    Maintenance,
    RegionView,
    SiteView,
    State,
    UnknownReason,
)
from aggregator.live.fold.changes import Outdated, Revision
from aggregator.live.fold.coverage import Block
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.senders import LIVING, LOST, RETIRED, STALE, UNHEARD, UP
from aggregator.records.judge import SKEW
from shared.instants import LATEST, format_duration
from shared.policy import CancelMaintenance, DeclareMaintenance, Scope

_SHOWN = {UP: State.UP, STALE: State.STALE, RETIRED: State.RETIRED, UNHEARD: State.UNKNOWN, LOST: State.UNKNOWN}
_OWN_REASONS = {UNHEARD: UnknownReason.UNHEARD, LOST: UnknownReason.LOST_STORE}
_BY_CONDITION = {
    "stream_not_storing": UnknownReason.NOT_STORED,
    "time_unproven": UnknownReason.NOT_STORED,
    "clock_ahead": UnknownReason.CLOCK,
    "standing_still": UnknownReason.CLOCK,
}
"""The reason for each agent condition (docs/reference/conditions.md); all other conditions mean NOT_READ."""
_TROUBLE = {state: place for place, state in enumerate(State)}


class Source(msgspec.Struct, frozen=True):
    """The archive's source of one region; ``silent_us``: time since its last contact, -1 if there was none."""

    lag: int = 0
    silent_us: int = 0
    error: str = ""


class Sourcing(msgspec.Struct, frozen=True):
    """The hub's report of the archive: its last message, the hub's time, and the source of each region.

    ``caught_up_at`` is the hub's time when the feed had last read everything. While the hub's clock is ``behind`` the
    largest stamp in the archive, ``now`` continues by the service's own clock.
    """

    archive_sequence: int = 0
    now: int = 0
    caught_up_at: int = 0
    sources: Mapping[str, Source] = {}
    behind: int = 0


SiteVersion: TypeAlias = list[tuple[int, UnknownReason | None]]
"""For each block of a site: the fleet's version of the block, and the reason why it is unknown."""


class View:
    """The state as of ``sourcing.now``. Blocks are identified by number; ``unknown_after`` is in microseconds.

    The view of a site is taken from the view ``before`` if the site has not changed since.
    """

    def __init__(self, fleet: Fleet, sourcing: Sourcing, unknown_after: int, before: "View | None" = None) -> None:
        self.fleet, self.sourcing, self.unknown_after = fleet, sourcing, unknown_after
        self.now = sourcing.now
        self.is_hub_behind = not sourcing.caught_up_at or self.now - sourcing.caught_up_at > unknown_after
        self.planned = current_maintenance(fleet, self.now)
        self._reasons = [self._reason_of(number, block) for number, block in enumerate(fleet.blocks)]
        self._sites: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, block in enumerate(fleet.blocks):
            self._sites[block.region, block.site].append(number)
        continues = before is not None and before.fleet is fleet and before.planned == self.planned
        self.seen_sites: dict[tuple[str, str], tuple[SiteVersion, SiteView]] = (
            before.seen_sites if before is not None and continues else {}
        )

    @property
    def judged_until(self) -> int:
        """The hub's time until which sites can be judged: everything up to it was read, by a clock that was right."""
        read_until = self.sourcing.caught_up_at
        return min(read_until, self.fleet.known_through) if self.sourcing.behind else read_until

    @property
    def block_count(self) -> int:
        """The number of blocks in this view; blocks with higher numbers joined the fleet later."""
        return len(self._reasons)

    def reason(self, number: int) -> UnknownReason | None:
        """Return why a block is unknown; None if it is known."""
        return self._reasons[number]

    def maintenance(self, number: int) -> Maintenance | None:
        """Return the maintenance of a whole block; of several, the one that ends last."""
        block = self.fleet.blocks[number]
        scopes = Scope(block.region), Scope(block.region, block.site), Scope(block.region, block.site, block.block)
        whole = (each for scope in scopes for each in self.planned.get(scope, ()) if not each.senders)
        return max(whole, key=lambda each: each.ended_at_us, default=None)

    def is_closed(self, region: str, site: str = "") -> bool:
        """Return True if an operator has closed a whole region or site, whether or not it ever sent a record."""
        return any(
            maintenance.ended_at_us >= LATEST and not maintenance.senders
            for scope in (Scope(region), Scope(region, site))
            for maintenance in self.planned.get(scope, ())
        )

    def closing(self, number: int) -> Maintenance | None:
        """Return the order that has closed a block; None if it is open."""
        found = self.maintenance(number)
        return found if found is not None and found.ended_at_us >= LATEST else None

    def is_gone(self, number: int) -> bool:
        """Return True if no sender is expected in a block any more."""
        stored, forgotten = self.fleet.counts[number], self.fleet.blocks[number].forgotten_count
        were_retired = (stored[RETIRED] or forgotten) and not any(stored[state] for state in LIVING)
        return bool(were_retired) or self.closing(number) is not None

    def planned_senders(self, number: int) -> dict[str, Maintenance]:
        """Return the maintenance of each sender of a block that is named in one, by the sender's name."""
        if not self.planned:
            return {}
        block = self.fleet.blocks[number]
        scopes = Scope(block.region), Scope(block.region, block.site), Scope(block.region, block.site, block.block)
        members = self.fleet.members[number]
        planned = (each for scope in scopes for each in self.planned.get(scope, ()))
        return {name: each for each in planned for name in each.senders if name in members}

    def counts(self, number: int) -> Counts:
        """Return the counts of a block's senders by the state in which they are shown."""
        stored = self.fleet.counts[number]
        living = stored[UP] + stored[STALE] + stored[UNHEARD] + stored[LOST]
        maintenance = self.maintenance(number)
        if maintenance is not None:
            if maintenance.ended_at_us >= LATEST:
                return Counts(retired=living + stored[RETIRED])
            return Counts(maintenance=living, retired=stored[RETIRED])
        planned = [self.fleet.members[number][name] for name in self.planned_senders(number)]
        states = [self.fleet.senders.state[sender] for sender in planned]
        in_maintenance = sum(state in LIVING for state in states)
        if self._reasons[number] is not None:
            return Counts(unknown=living - in_maintenance, maintenance=in_maintenance, retired=stored[RETIRED])
        return Counts(
            up=stored[UP] - states.count(UP),
            stale=stored[STALE] - states.count(STALE),
            unknown=stored[UNHEARD] + stored[LOST] - states.count(UNHEARD) - states.count(LOST),
            maintenance=in_maintenance,
            retired=stored[RETIRED],
        )

    def shown(self, number: int, state: int, name: str) -> tuple[State, UnknownReason | None]:
        """Return the state in which a sender with the stored ``state`` is shown, and why it is unknown."""
        if state == RETIRED or self.closing(number) is not None:
            return State.RETIRED, None
        if self.maintenance(number) is not None or name in self.planned_senders(number):
            return State.MAINTENANCE, None
        reason = self._reasons[number] or _OWN_REASONS.get(state)
        return (State.UNKNOWN, reason) if reason is not None else (_SHOWN[state], None)

    def stored_states(self, number: int, shown: State) -> frozenset[int]:
        """Return the stored states of the senders that are ``shown`` so, apart from maintenance that names senders."""
        if self.closing(number) is not None:
            return LIVING | {RETIRED} if shown is State.RETIRED else frozenset()
        if shown is State.RETIRED:
            return frozenset((RETIRED,))
        if self.maintenance(number) is not None:
            return LIVING if shown is State.MAINTENANCE else frozenset()
        if shown is State.MAINTENANCE:
            return LIVING if self.planned_senders(number) else frozenset()
        if self._reasons[number] is not None:
            return LIVING if shown is State.UNKNOWN else frozenset()
        return frozenset(stored for stored, state in _SHOWN.items() if state is shown)

    @cached_property
    def sites(self) -> list[SiteView]:
        """All sites, in the order of their first records."""
        return [self.site(*name) for name in self._sites]

    @property
    def site_names(self) -> list[tuple[str, str]]:
        """The region and the name of each site."""
        return list(self._sites)

    def numbers_of(self, region: str, site: str) -> list[int]:
        """Return the numbers of a site's blocks; an empty list if it never sent a record."""
        return self._sites.get((region, site), [])

    def version_of(self, region: str, site: str) -> SiteVersion:
        """Return everything on which the view of a site depends, except for current maintenance."""
        return [(self.fleet.versions[number], self._reasons[number]) for number in self.numbers_of(region, site)]

    def site(self, region: str, site: str) -> SiteView:
        """Return one site; raise KeyError if it never sent a record. Not to be called while another thread folds."""
        version = self.version_of(region, site)
        if not version:
            raise KeyError((region, site))
        shown = self.seen_sites.get((region, site))
        if shown is None or shown[0] != version:
            shown = self.seen_sites[region, site] = version, self._compute_site(region, site)
        return shown[1]

    def _compute_site(self, region: str, site: str) -> SiteView:
        numbers = self.numbers_of(region, site)
        blocks = tuple(self.block(number) for number in numbers)
        counts = Counts()
        for block in blocks:
            counts.add(block.counts)
        there = [block for block, number in zip(blocks, numbers, strict=True) if not self.is_gone(number)]
        unknown = [block for block in there if block.reason is not None and block.maintenance is None]
        in_maintenance = bool(there) and all(block.maintenance for block in there)
        state = _state_of(counts, is_unknown=bool(unknown), in_maintenance=in_maintenance) if there else State.RETIRED
        changed_at = max(self.fleet.blocks[number].changed_at for number in numbers)
        known_until = min(block.known_until_us for block in there or blocks)
        stale_sets = [self.fleet.stale[number] for number in numbers]
        since = {
            State.UNKNOWN: min((block.known_until_us for block in unknown), default=known_until),
            State.STALE: min(
                (min(map(self.fleet.senders.since.__getitem__, stale)) for stale in stale_sets if stale),
                default=changed_at,
            ),
            State.MAINTENANCE: max((each.maintenance.started_at_us for each in there if each.maintenance), default=0),
            State.RETIRED: max([changed_at, *(each.started_at_us for each in map(self.closing, numbers) if each)]),
        }
        return SiteView(
            region=region,
            site=site,
            state=state,
            counts=counts,
            reason=unknown[0].reason if unknown else None,
            since_us=since.get(state, changed_at),
            known_until_us=known_until,
            changed_at_us=changed_at,
            blocks=blocks,
        )

    def block(self, number: int) -> BlockView:
        """Return one block."""
        block = self.fleet.blocks[number]
        return BlockView(
            block=block.block,
            counts=self.counts(number),
            reason=self._reasons[number],
            observed_since_us=block.known_since,
            known_until_us=block.watched_until,
            heard_at_us=block.heard_at,
            ordinal=block.ordinal,
            missing_count=block.missing_count,
            agent=block.agent,
            boot_id=block.boot_id,
            version=block.version,
            condition=block.condition,
            conditions=block.conditions,
            maintenance=self.maintenance(number),
            is_gone=self.is_gone(number),
        )

    @cached_property
    def whole(self) -> FleetView:
        """The whole fleet."""
        regions: dict[str, list[int]] = {}
        total = Counts()
        by_region: dict[str, Counts] = {}
        unknown_sites: set[tuple[str, str]] = set()
        known_until = 0
        for number, block in enumerate(self.fleet.blocks[: self.block_count]):
            counts = self.counts(number)
            total.add(counts)
            by_region.setdefault(block.region, Counts()).add(counts)
            if self.is_gone(number):
                continue
            if self._reasons[number] is None:
                known_until = min(known_until or block.known_until, block.known_until)
            else:
                unknown_sites.add((block.region, block.site))
        for place, (region, _) in enumerate(self._sites):
            regions.setdefault(region, []).append(place)
        unknown_of = Counter(region for region, _ in unknown_sites)
        behind = {region for region in {*regions, *self.sourcing.sources} if self._is_source_behind(region)}
        return FleetView(
            counts=total,
            regions=tuple(
                RegionView(
                    region=region,
                    counts=by_region.get(region, Counts()),
                    site_count=len(regions.get(region, ())),
                    unknown_site_count=unknown_of[region],
                    source_lag=source.lag,
                    source_silent_us=source.silent_us,
                    source_error=source.error,
                    is_behind=region in behind,
                )
                for region in sorted({*regions, *self.sourcing.sources})
                for source in (self.sourcing.sources.get(region, Source()),)
            ),
            site_count=len(self._sites),
            unknown_site_count=len(unknown_sites),
            sequence=self.fleet.sequence,
            archive_sequence=self.sourcing.archive_sequence,
            now_us=self.now,
            known_until_us=known_until,
            hub_clock_behind_us=self.sourcing.behind,
            hub_clock_steps=len(self.fleet.steps) + (self.fleet.clock.step is not None),
            trust=self._trust(len(unknown_sites), behind),
        )

    def _trust(self, unknown_sites: int, behind: set[str]) -> str:
        caught_up_at = self.sourcing.caught_up_at
        if self.is_hub_behind or self.sourcing.behind:
            ago = f"was last read {format_duration(self.now - caught_up_at)} ago"
            clock = f"has a clock that is {format_duration(self.sourcing.behind)} behind what it has stored"
            why = "was not read through yet" if not caught_up_at else ago if self.is_hub_behind else clock
            return f"not to be trusted: the hub {why}"
        if behind:
            return f"nothing new comes from {', '.join(sorted(behind))}"
        count = sum(not all(map(self.is_gone, numbers)) for numbers in self._sites.values())
        if not count:
            return "no site is expected to be heard" if self._sites else "no site has been heard of"
        if unknown_sites == count:
            return "no site is current"
        if unknown_sites:
            verb = "is" if unknown_sites == 1 else "are"
            return f"{unknown_sites} of {count} sites {verb} unknown, all others are current"
        return f"all {count} sites are current" if count > 1 else "its one site is current"

    def _reason_of(self, number: int, block: Block) -> UnknownReason | None:
        if self.is_hub_behind or self.sourcing.behind:
            return UnknownReason.HUB_BEHIND if self.is_hub_behind else UnknownReason.HUB_CLOCK
        if number in self.fleet.outdated:
            is_contested = self.fleet.outdated[number] is Outdated.OTHER_AGENT_BELIEVED
            return UnknownReason.CONTESTED if is_contested else UnknownReason.LOST_STORE
        contested = UnknownReason.CONTESTED if block.known_until < block.contested_until else None
        if self._is_source_behind(block.region):
            is_late = self.now - block.watched_until > self.unknown_after
            return UnknownReason.REGION_BEHIND if is_late else contested
        # A source that is silent for less than ``unknown_after`` is not a fault. Its silence must not count against the
        # agents behind it, so blocks are measured up to the source's last contact.
        source = self.sourcing.sources.get(block.region, Source())
        heard_through = min(self.sourcing.caught_up_at, self.now - source.silent_us)
        if heard_through - block.watched_until <= self.unknown_after:
            return contested
        if block.heard_at and self.now - block.heard_at > self.unknown_after:
            return UnknownReason.AGENT_STOPPED if block.is_stopped else UnknownReason.AGENT_SILENT
        return contested or _reason_at_site(block)

    def _is_source_behind(self, region: str) -> bool:
        source = self.sourcing.sources.get(region)
        if source is None:
            return False
        return bool(source.error) or not 0 <= source.silent_us <= self.unknown_after


def _reason_at_site(block: Block) -> UnknownReason:
    if not block.heard_at:
        return UnknownReason.NEVER_VOUCHED
    if block.put_back:
        return UnknownReason.PUT_BACK
    if block.claimed_through > block.heard_at + SKEW:
        return UnknownReason.CLOCK
    if block.missing_count:
        return UnknownReason.ORDINALS_MISSING
    return _BY_CONDITION.get(block.condition, UnknownReason.NOT_READ) if block.condition else UnknownReason.AGENT_BEHIND


def current_maintenance(fleet: Fleet, now: int) -> dict[Scope, list[Maintenance]]:
    """Return the maintenance that is in force at ``now`` and was not cancelled, by scope."""
    found: dict[Scope, list[Maintenance]] = defaultdict(list)
    cancelled = cancellations(fleet)
    for key, each in fleet.revisions.items():
        order = each.order
        if (
            isinstance(order, DeclareMaintenance)
            and order.started_at_us <= now < order.ended_at_us
            and key not in cancelled
        ):
            found[each.scope].append(maintenance_of(each, order))
    return dict(found)


def cancellations(fleet: Fleet) -> dict[tuple[int, int], Revision]:
    """Return the revisions that cancel a maintenance, by the key of the one that declares it."""
    return {
        (each.stream_created_at, each.order.revision): each
        for _, each in sorted(fleet.revisions.items(), reverse=True)
        if isinstance(each.order, CancelMaintenance)
    }


def maintenance_of(declared: Revision, order: DeclareMaintenance, cancelled: Revision | None = None) -> Maintenance:
    """Return a maintenance as the API shows it; ``cancelled`` is the revision that cancels it."""
    return Maintenance(
        revision=declared.revision,
        scope=str(declared.scope),
        started_at_us=order.started_at_us,
        ended_at_us=order.ended_at_us,
        reason=order.reason,
        author=declared.author,
        senders=order.sender_ids,
        cancelled_at_us=cancelled.given_at if cancelled is not None else 0,
        cancelled_by=cancelled.author if cancelled is not None else "",
    )


def _state_of(counts: Counts, *, is_unknown: bool, in_maintenance: bool) -> State:
    if in_maintenance:
        return State.MAINTENANCE
    if counts.stale:
        return State.STALE
    if is_unknown:
        return State.UNKNOWN
    return State.UP if counts.total or not counts.retired else State.RETIRED


def state_shown(state: int) -> State:
    """Return the state of the API for a stored state."""
    return _SHOWN[state]


def by_trouble(site: SiteView) -> tuple[int, int, str, str]:
    """Return the sort key of a site: the worst state first, then the most senders that are stale or unknown."""
    return _TROUBLE[site.state], -(site.counts.stale + site.counts.unknown), site.region, site.site
