"""Answer what is asked of the API: from the view as of now, and from what was committed."""

import base64
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from aggregator.live.api import (
    AdvisoryPage,
    AdvisoryRow,
    Gap,
    Maintenance,
    PolicyOrder,
    SenderPage,
    SenderRow,
    SenderStory,
    SitePage,
    SiteView,
    State,
)
from aggregator.live.fold.changes import StoryEntry
from aggregator.live.fold.fleet import Fleet
from aggregator.live.fold.senders import LIVING, LOST, RETIRED, UNHEARD
from aggregator.live.fold.view import View, by_trouble, cancellations, maintenance_of, state_shown
from aggregator.live.store import StoredSender, StoreReader, Wanted
from shared.decoding import Decoder
from shared.policy import DeclareMaintenance, ForwardSender, RetireSender, Scope

STORY, GAPS = 500, 100

Limit = Annotated[int, Meta(ge=1, le=1_000)]
"""So many rows are asked for at once."""
Place = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A number that SQLite can hold."""
Name = Annotated[str, Meta(min_length=1)]
Search = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00]*$")]
"""Part of a name; SQLite looks for no text of any length, and for none beyond a NUL."""
_parts = Decoder(list[str], "the parts of a cursor")


class NotFound(Exception):
    """Nothing was told of what is asked for; the text is one line."""


class BadQuery(Exception):
    """What is asked for is not understood; the text is one line."""


class SiteQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which sites, in which order, behind which one."""

    region: str = ""
    state: State | None = None
    search: Search = ""
    sort: Literal["name", "trouble"] = "name"
    after: str = ""
    offset: Place = 0
    limit: Limit = 100


class SenderQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which senders, behind which one; ``name`` is a whole name, ``search`` any part of one.

    ``offset`` asks for a page by its place instead, those in trouble first.
    """

    region: str = ""
    site: str = ""
    block: str = ""
    state: State | None = None
    search: Search = ""
    name: str = ""
    after: str = ""
    offset: Place | None = None
    limit: Limit = 100


class StoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which sender."""

    region: Name
    site: Name
    block: Name
    sender: Name


class AdvisoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Advisories told before an archive sequence; 0: the last ones."""

    before: Place = 0
    limit: Limit = 100


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How far back to look."""

    hours: Annotated[float, Meta(gt=0, le=24 * 7)] = 6


def sites(view: View, query: SiteQuery) -> SitePage:
    """List sites; raise BadQuery."""
    search = query.search.lower()
    found = [
        site
        for site in view.sites
        if query.region in ("", site.region)
        and (query.state is None or site.state is query.state)
        and search in f"{site.region}.{site.site}".lower()
    ]
    found.sort(key=by_trouble if query.sort == "trouble" else _by_name)
    begin = _behind(found, query) if query.after else query.offset
    page = found[begin : begin + query.limit]
    has_more = begin + len(page) < len(found)
    return SitePage(tuple(page), _cursor(page[-1].region, page[-1].site) if has_more else "", len(found))


def _by_name(site: SiteView) -> tuple[int, int, str, str]:
    return 0, 0, site.region, site.site


def _behind(found: list[SiteView], query: SiteQuery) -> int:
    if not query.after:
        return 0
    region, site = _parse_cursor(query.after, 2)
    for place, each in enumerate(found, start=1):
        if (each.region, each.site) == (region, site):
            return place
    # It has another state by now: its name still has a place in the order of names.
    return sum((each.region, each.site) <= (region, site) for each in found) if query.sort == "name" else 0


def senders(view: View, reader: StoreReader, query: SenderQuery) -> SenderPage:
    """List senders by region, site, block and name; raise BadQuery. May be called in another thread."""
    if query.offset is not None:
        return _senders_by_place(view, reader, query, query.offset)
    limit = query.limit
    after = _parse_cursor(query.after, 4) if query.after else ["", "", "", ""]
    found: list[SenderRow] = []
    for number in _blocks(view, query, after):
        block = view.fleet.blocks[number]
        name = after[3] if [block.region, block.site, block.block] == after[:3] else ""
        for wanted in _wanted(view, number, query):
            while len(found) <= limit:
                count = limit + 1 - len(found)
                stored = reader.senders(number, wanted, name, count)
                rows = (sender_row(view, each) for each in stored)
                found += [row for row in rows if query.state is None or row.state is query.state]
                if len(stored) < count:
                    break
                name = stored[-1].name
        if len(found) > limit:
            break
    page = found[:limit]
    last = page[-1] if page and len(found) > limit else None
    return SenderPage(tuple(page), _cursor(last.region, last.site, last.block, last.sender) if last else "")


def _senders_by_place(view: View, reader: StoreReader, query: SenderQuery, offset: int) -> SenderPage:
    """List senders from a place on: by state, those in trouble first, then by region, site, block and name."""
    limit, total, found = query.limit, 0, list[SenderRow]()
    numbers = list(_blocks(view, query, ["", "", ""]))
    for shown in State if query.state is None else (query.state,):
        for number in numbers:
            wanted = _shown_so(view, number, shown, query)
            count = _count(view, reader, number, wanted)
            if len(found) < limit and offset < total + count:
                begin = max(0, offset - total)
                stored = reader.senders(number, wanted, "", limit - len(found), begin)
                found += [sender_row(view, each) for each in stored]
            total += count
    return SenderPage(tuple(found), "", total)


def _shown_so(view: View, number: int, shown: State, query: SenderQuery) -> Wanted:
    names = frozenset((query.name,)) if query.name else None
    planned = frozenset(view.planned_senders(number)) if view.maintenance(number) is None else frozenset[str]()
    if shown is State.MAINTENANCE and planned:
        names = planned if names is None else names & planned
        planned = frozenset()
    elif shown is State.RETIRED:
        planned = frozenset()
    return Wanted(view.stored_states(number, shown), query.search, names, planned)


def _count(view: View, reader: StoreReader, number: int, wanted: Wanted) -> int:
    counts = view.fleet.counts[number]
    most = sum(counts[state] for state in wanted.states)
    is_plain = not wanted.search and wanted.names is None and not wanted.others
    return most if is_plain or not most else reader.count(number, wanted)


def _blocks(view: View, query: SenderQuery, after: list[str]) -> Iterator[int]:
    if query.region and query.site:
        numbers = view.numbers_of(query.region, query.site)
    else:
        numbers = list(range(view.block_count))
    if query.name:
        numbers = [number for number in numbers if query.name in view.fleet.members[number]]
    named = sorted((_name(view.fleet, number), number) for number in numbers)
    for (region, site, block), number in named:
        if [region, site, block] < after[:3]:
            continue
        if query.region in ("", region) and query.site in ("", site) and query.block in ("", block):
            yield number


def _wanted(view: View, number: int, query: SenderQuery) -> Iterator[Wanted]:
    """Say what to look for in a block, where any of its senders may be wanted."""
    states = LIVING if query.state is None else view.stored_states(number, query.state)
    if query.state is None:
        states = frozenset(range(1, LOST + 1))
    counts = view.fleet.counts[number]
    if not any(counts[state] for state in states):
        return
    names = frozenset((query.name,)) if query.name else None
    if query.state is State.MAINTENANCE and view.maintenance(number) is None:
        planned = frozenset(view.planned_senders(number))
        names = planned if names is None else names & planned
    yield Wanted(states, query.search, names)


def sender_row(view: View, stored: StoredSender) -> SenderRow:
    """Say how a stored sender is shown now."""
    block = view.fleet.blocks[stored.block]
    state, reason = view.shown(stored.block, stored.state, stored.name)
    closing = view.closing(stored.block)
    since = stored.since if state is not State.UNKNOWN or reason is None else _unknown_since(view, stored)
    if closing is not None and stored.state != RETIRED:
        since = closing.started_at_us
    return SenderRow(
        region=block.region,
        site=block.site,
        block=block.block,
        sender=stored.name,
        state=state,
        last_state=state_shown(stored.word if stored.state in (UNHEARD, LOST) else stored.state),
        since_us=since,
        last_seen_us=stored.last_seen,
        known_until_us=block.known_until,
        reason=reason,
    )


def _unknown_since(view: View, stored: StoredSender) -> int:
    """Say since when a sender is unknown: by its own reason, or because its block is."""
    block = view.fleet.blocks[stored.block]
    if stored.state == LOST:
        return block.lost_at
    if stored.state == UNHEARD:
        return stored.since
    return max(block.known_until, stored.since)


def story(view: View, reader: StoreReader, name: tuple[str, str, str, str]) -> SenderStory:
    """Tell everything about one sender; raise NotFound. May be called in another thread."""
    region, site, block, sender = name
    number = view.fleet.number_of((region, site, block))
    is_there = number is not None and number < view.block_count
    stored = reader.sender(number, sender) if number is not None and is_there else None
    if number is None or stored is None:
        raise NotFound(f"no sender {sender!r} was heard of in {region}.{site}.{block}")
    entries = reader.story(stored.head, STORY)
    gaps = tuple(Gap(begin, end, "unobserved") for begin, end in reader.gaps(number, GAPS))
    reason = view.reason(number)
    if reason is not None:
        gaps = (Gap(view.fleet.blocks[number].known_until, 0, reason), *gaps)
    return SenderStory(
        sender=sender_row(view, stored),
        block=view.block(number),
        advisories=tuple(advisory_row(view.fleet, each, number, sender) for each in entries),
        maintenance=tuple(_declared_of(view.fleet, number, sender)),
        gaps=gaps,
        orders=tuple(_orders_of(view.fleet, number, sender)),
    )


def advisories(view: View, reader: StoreReader, query: AdvisoryQuery) -> AdvisoryPage:
    """List the last advisories of the whole fleet."""
    entries = reader.entries_before(query.before, query.limit)
    rows = tuple(advisory_row(view.fleet, each, number, sender) for each, number, sender in entries)
    return AdvisoryPage(rows, rows[-1].sequence if len(rows) == query.limit else 0)


def advisory_row(fleet: Fleet, entry: StoryEntry, number: int, sender: str) -> AdvisoryRow:
    """Say in the service's words what was told."""
    block = fleet.blocks[number]
    return AdvisoryRow(
        sequence=entry.sequence,
        region=block.region,
        site=block.site,
        block=block.block,
        sender=sender,
        kind=entry.kind,
        at_us=entry.at,
        last_seen_us=entry.last_seen,
        archived_at_us=entry.archived_at,
        event_id=entry.event_id,
        rebuilt=bool(entry.rebuilt),
        by_operator=bool(entry.by_operator),
        unheard_until_us=entry.unheard_until,
    )


def _declared_of(fleet: Fleet, number: int, sender: str) -> Iterator[Maintenance]:
    """Yield the maintenance that was ever declared for a sender, newest first, also what was cancelled."""
    scope, cancelled = _scope(fleet, number), cancellations(fleet)
    for key, each in sorted(fleet.revisions.items(), key=lambda item: -item[1].given_at):
        order = each.order
        is_meant = isinstance(order, DeclareMaintenance) and (not order.sender_ids or sender in order.sender_ids)
        if isinstance(order, DeclareMaintenance) and is_meant and each.scope.covers(scope):
            yield maintenance_of(each, order, cancelled.get(key))


def _orders_of(fleet: Fleet, number: int, sender: str) -> Iterator[PolicyOrder]:
    scope = _scope(fleet, number)
    for each in sorted(fleet.revisions.values(), key=lambda each: -each.given_at):
        order = each.order
        if isinstance(order, ForwardSender | RetireSender) and order.sender_id == sender and each.scope.covers(scope):
            kind = "retire" if isinstance(order, RetireSender) else "forward"
            yield PolicyOrder(each.revision, kind, each.given_at, each.author, str(each.scope))


def _scope(fleet: Fleet, number: int) -> Scope:
    return Scope(*_name(fleet, number))


def _name(fleet: Fleet, number: int) -> tuple[str, str, str]:
    block = fleet.blocks[number]
    return block.region, block.site, block.block


def _cursor(*parts: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).rstrip(b"=").decode()


def _parse_cursor(text: str, count: int) -> list[str]:
    try:
        parts = _parts(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError as error:
        raise BadQuery("after is not one that this service gave") from error
    if len(parts) != count:
        raise BadQuery("after is not one that this service gave")
    return parts
