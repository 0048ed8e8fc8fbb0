"""Draw the history of a small fleet, with all that goes wrong, and account for it one instant after another.

The account shares no line with the job's: each sender's life is a list of strokes, of which the last one before an
instant counts, and times are summed over the pieces between all instants at which anything changes.
"""

import hashlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from shared.identifiers import AdvisoryKind
from shared.instants import DAY, HOUR, MINUTE

STALE_AFTER = 12 * MINUTE
QUIET = 10 * MINUTE
"""For how long the silence of one of two agents must last before the other is believed."""
Row = dict[str, Any]
NEW, STALE, RECOVERED, RETIRED = AdvisoryKind.NEW, AdvisoryKind.STALE, AdvisoryKind.RECOVERED, AdvisoryKind.RETIRED


class ScopedRevision(NamedTuple):
    """One advisory; ``ordinal`` None: a plain Choria advisory; ``archived_at`` 0: when it says that it was.

    ``claimed_at`` is what it said, where ``at`` is what counts. The hub's clock was behind when one ``is_under_step``
    was stored.
    """

    sender_id: str
    kind: AdvisoryKind
    at: int
    last_seen_at: int
    rebuilt: bool
    incarnation: int
    ordinal: int | None
    event_id: str
    by_operator: bool
    unheard_until: int | None = None
    opened_at: int = 0
    archived_at: int = 0
    claimed_at: int = 0
    is_under_step: bool = False


class Mark(NamedTuple):
    """One watermark; ``archived_at`` 0: when it says that it was; ``claimed`` is what it said, where that is moved.

    ``store`` 0: the agent reports none.
    """

    incarnation: int
    since: int
    through: int
    ordinal: int
    rebuilt_at: int
    archived_at: int = 0
    claimed: int = 0
    is_under_step: bool = False
    store: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Its place among the watermarks of its store."""
        return self.through, self.claimed


class Stores(NamedTuple):
    """The place of each incarnation's store, and for each store but the last the end of coverage up to it."""

    places: dict[int, int]
    ends: list[int]


class BlockHistory(NamedTuple):
    """What the hub holds of one block."""

    site: str
    block: str
    said: list[ScopedRevision]
    marks: list[Mark]


class Window(NamedTuple):
    """Declared maintenance; "" and no ``sender_ids`` stand for all."""

    region: str
    site: str
    block: str
    sender_ids: tuple[str, ...]
    started_at: int
    ended_at: int

    def is_of(self, history: BlockHistory, sender_id: str) -> bool:
        """Tell whether it is a sender's."""
        block_is_meant = self.site in ("", history.site) and self.block in ("", history.block)
        return block_is_meant and (not self.sender_ids or sender_id in self.sender_ids)


class Times(NamedTuple):
    """Microseconds in a window, and the outages that touch it outside maintenance."""

    up: int
    down: int
    unknown: int
    maintenance: int
    absent: int
    outages: int


def draw_block(
    draw: random.Random, site: str, block: str, start: int, end: int, *, reads_again: float = 0.3
) -> BlockHistory:
    """Draw one block's history in ``[start, end)``.

    ``reads_again`` is the chance of another agent to come after all others, and to read what the stream still holds.
    """
    plain = draw.random() < 0.2
    # The stream's past changes; with a lost store, senders are forgotten too.
    past_at = draw.randrange(start + HOUR, end) if draw.random() < 0.5 and not plain else 0
    lost_at = past_at if draw.random() < 0.7 else 0
    said: list[ScopedRevision] = []
    for number in range(draw.randrange(1, 6)):
        said.extend(_sender_history(draw, f"{block}-{number}", start, end, lost_at))
    said.sort(key=lambda each: (each.at, each.kind.rank, each.event_id))
    if plain:
        return BlockHistory(site, block, [each for each in said if draw.random() > 0.1], [])
    numbered = []
    issued: dict[int, int] = defaultdict(int)
    for each in said:
        incarnation = 2 if past_at and each.at >= past_at else 1
        issued[incarnation] += 1
        numbered.append(each._replace(incarnation=incarnation, ordinal=issued[incarnation]))
    marks = list(_marks(draw, numbered, start, end, past_at))
    if not lost_at:
        marks = [each._replace(rebuilt_at=0) for each in marks]
    if draw.random() < 0.5:
        # A store that began empty on another host does not know that it replaces one.
        first = draw.choice((start, 0))
        names = {1: first, 2: lost_at or first}
        marks = [each._replace(rebuilt_at=0, store=names[each.incarnation]) for each in marks]
        numbered = [each._replace(rebuilt=False) for each in numbered]
    missing = draw.choice((0, 0, 0.01, 0.05))
    if draw.random() < 0.15:
        numbered, marks = _put_back(draw, numbered, marks)
    if draw.random() < 0.3:
        others, theirs = _of_another_agent(draw, block, start, end)
        if draw.random() < reads_again:
            others, theirs = _after(start, end + 2 * DAY, others, theirs)
        numbered, marks = numbered + others, marks + theirs
    history = BlockHistory(site, block, [each for each in numbered if draw.random() >= missing], marks)
    return (
        _clocked(history, draw.choice((draw.randrange(1, HOUR), draw.randrange(1, 4 * HOUR))))
        if draw.random() < 0.3
        else history
    )


def _clocked(history: BlockHistory, ahead: int) -> BlockHistory:
    """Have all be said by a clock that is ahead of the hub's."""
    said = [each._replace(archived_at=(each.archived_at or each.at) - ahead) for each in history.said]
    marks = [each._replace(archived_at=(each.archived_at or each.through) - ahead) for each in history.marks]
    return history._replace(said=said, marks=marks)


def believed(history: BlockHistory) -> BlockHistory:
    """Say what counts of what a site's clock says: nothing happened after the hub stored what tells of it.

    All instants of a record move by as much, where that is no more than agents follow a clock.
    """
    said = []
    for each in history.said:
        ahead = max(each.at - (each.archived_at or each.at), 0)
        lead = ahead if ahead <= HOUR and not each.is_under_step else 0
        last_seen_at = min(each.last_seen_at - lead, each.at - ahead)
        opened_at = last_seen_at if each.opened_at == each.last_seen_at else -1
        until = None if each.unheard_until is None else each.unheard_until - lead
        moved = each._replace(at=each.at - ahead, last_seen_at=last_seen_at, opened_at=opened_at, unheard_until=until)
        said.append(moved._replace(claimed_at=each.at))
    marks = []
    for mark in history.marks:
        # Nor does a watermark reach further than a later one of its incarnation.
        beyond = [
            each.archived_at or each.through
            for each in history.marks
            if each.incarnation == mark.incarnation and each.through >= mark.through
        ]
        through = min(mark.through, *beyond)
        ahead = mark.through - through
        lead = ahead if ahead <= HOUR and not mark.is_under_step else 0
        marks.append(mark._replace(since=min(mark.since - lead, through), through=through, claimed=mark.through))
    return history._replace(said=said, marks=marks)


def _begun_at(history: BlockHistory, incarnation: int) -> int:
    """Say when the hub stored the first that an incarnation told."""
    told = [each.archived_at or each.at for each in history.said if each.incarnation == incarnation]
    told += [each.archived_at or each.through for each in history.marks if each.incarnation == incarnation]
    return min(told)


def _put_back(
    draw: random.Random, said: list[ScopedRevision], marks: list[Mark]
) -> tuple[list[ScopedRevision], list[Mark]]:
    """Have an older copy of the store be put back in the first incarnation: from then on it counts as it did before."""
    at = draw.choice(said or [None]).at if said else 0  # type: ignore[union-attr]
    lower = draw.randrange(1, 4)

    def recounted(ordinal: int) -> int:
        return max(ordinal - lower, 0)

    again = [
        each._replace(ordinal=recounted(each.ordinal or 0))
        if each.incarnation == 1 and each.at >= at and (each.ordinal or 0) > lower
        else each
        for each in said
    ]
    fallen = [
        each._replace(ordinal=recounted(each.ordinal)) if each.incarnation == 1 and each.through >= at else each
        for each in marks
    ]
    return again, fallen


def _of_another_agent(draw: random.Random, block: str, start: int, end: int) -> tuple[list[ScopedRevision], list[Mark]]:
    """Draw what an agent says that knows nothing of the other, for a while or until the end, in a life of its own."""
    began = draw.randrange(start, end)
    ended = draw.choice((end + 2 * DAY, began + draw.randrange(HOUR, 2 * DAY)))
    said: list[ScopedRevision] = []
    for number in range(draw.randrange(1, 6)):
        said.extend(_sender_history(draw, f"{block}-{number}", began, min(ended, end), 0))
    said.sort(key=lambda each: (each.at, each.kind.rank, each.event_id))
    own = [
        each._replace(incarnation=3, ordinal=ordinal, event_id=f"{each.event_id[1:]}x")
        for ordinal, each in enumerate(said, start=1)
    ]
    marks, through = [], began
    is_late = draw.random() < 0.2
    while (through := through + draw.randrange(1, 8 * HOUR)) < ended:
        issued = sum(each.at <= through for each in own)
        marks.append(Mark(3, began, through, issued, 0, through + (10 * DAY if is_late else 0)))
    return own, marks


def _after(
    start: int, end: int, said: list[ScopedRevision], marks: list[Mark]
) -> tuple[list[ScopedRevision], list[Mark]]:
    """Move the records to soon after ``end``, from an agent on another host with an empty store."""
    later = [each._replace(archived_at=end + (each.at - start) // 1_000) for each in said]
    return later, [each._replace(archived_at=end + (each.through - start) // 1_000, store=end) for each in marks]


def _sender_history(
    draw: random.Random, sender_id: str, start: int, end: int, lost_at: int
) -> Iterator[ScopedRevision]:
    """Walk through a sender's states; ``lost_at``: when the agent forgot everybody, 0 for never."""
    at, state, seen_at, forgotten = start + draw.randrange(0, 30 * HOUR), "absent", 0, False
    opened_at = 0
    while at < end:
        if lost_at and not forgotten and at >= lost_at:
            forgotten = True
            if state != "absent":
                # Heard again after the loss, or never.
                at = max(at, lost_at) + draw.randrange(0, 3 * HOUR)
                if draw.random() < 0.3 or at >= end:
                    return
                state = "up"
                opened_at = at
                yield _said(sender_id, NEW, at, at, rebuilt=True)._replace(opened_at=at)
                at += draw.randrange(1, 20 * HOUR)
                continue
        kind, seen_at, state, until = _turn(draw, state, at, seen_at)
        by_operator = kind is RETIRED and until is None and draw.random() < 0.5
        opened_at = at if kind is NEW else opened_at
        said = _said(sender_id, kind, at, seen_at)._replace(opened_at=opened_at)
        yield said._replace(by_operator=by_operator, unheard_until=until)
        if kind is NEW and draw.random() < 0.05:
            # An operator's word, at the instant through which its stream was observed.
            yield _said(sender_id, RETIRED, at, at)._replace(opened_at=at, by_operator=True)
            state = "absent"
        at += draw.choice((draw.randrange(1, HOUR), draw.randrange(1, 40 * HOUR), HOUR - at % HOUR, DAY - at % DAY))


def _turn(draw: random.Random, state: str, at: int, seen_at: int) -> tuple[AdvisoryKind, int, str, int | None]:
    """Draw what is said next of a sender: the kind, when it was last seen, its state, and until when it is unheard."""
    if state in ("absent", "unheard"):
        is_retired_now = state == "unheard" and draw.random() < 0.2
        return (RETIRED, seen_at, "absent", None) if is_retired_now else (NEW, at, "up", None)
    if state == "up":
        silent_since = at - draw.randrange(STALE_AFTER, 3 * STALE_AFTER)
        if draw.random() < 0.15:
            length = draw.choice((draw.randrange(0, HOUR), draw.randrange(0, 60 * HOUR), 10 * DAY))
            return RETIRED, silent_since, "unheard", silent_since + length
        if draw.random() < 0.9:
            return STALE, silent_since, "down", None
        return RETIRED, at - draw.randrange(0, STALE_AFTER), "absent", None
    if draw.random() < 0.1:
        return RETIRED, seen_at, "unheard", at + draw.randrange(0, 60 * HOUR)
    return (RECOVERED, seen_at, "up", None) if draw.random() < 0.8 else (RETIRED, seen_at, "absent", None)


def _said(sender_id: str, kind: AdvisoryKind, at: int, seen_at: int, *, rebuilt: bool = False) -> ScopedRevision:
    # Derived, as an agent does: what is drawn may come twice.
    event_id = hashlib.blake2b(f"{sender_id} {kind} {at}".encode(), digest_size=16).hexdigest()
    return ScopedRevision(sender_id, kind, at, seen_at, rebuilt, 1, None, event_id, by_operator=False)


def _marks(draw: random.Random, said: list[ScopedRevision], start: int, end: int, past_at: int) -> Iterator[Mark]:
    through, since, incarnation = start + draw.randrange(0, 2 * HOUR), start, 1
    while through < end + 2 * DAY:
        if past_at and incarnation == 1 and through >= past_at:
            incarnation, since, through = 2, past_at, max(through, past_at)
        issued = sum(each.at <= through and each.incarnation == incarnation for each in said)
        yield Mark(incarnation, since, through, issued, past_at if incarnation == 2 else 0)
        step = draw.randrange(1, 8 * HOUR)
        if draw.random() < 0.1:
            blind = draw.randrange(1, step + 1)
            # Whoever speaks at the end of being blind vouches for no time yet.
            since = through + (step if blind % 4 == 0 else blind)
        through += step


def account(
    history: BlockHistory,
    losses: Iterable[tuple[int, int]],
    known_through: int,
    unit: int,
    windows: Iterable[Window] = (),
) -> dict[tuple[str, int], Times]:
    """Give the times of each (sender, window start) in which the sender lived."""
    history = believed(history)
    known = known_spans(history, list(losses))
    counting, stores = _counting(history)
    summed: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    outages: dict[tuple[str, int], set[int]] = defaultdict(set)
    for sender_id in {each.sender_id for each in counting}:
        strokes = list(_strokes([each for each in counting if each.sender_id == sender_id], stores))
        edges = {at for at, _ in strokes} | {at for span in known for at in span[:2]} | {known_through}
        first = min((at for at, _ in strokes), default=known_through)
        edges |= set(range(first // unit * unit, known_through, unit))
        planned = [each for each in windows if each.is_of(history, sender_id)]
        edges |= {at for each in planned for at in (each.started_at, each.ended_at)}
        points = sorted(at for at in edges if first <= at <= known_through)
        for begin, until in pairwise(points):
            state, number = next(((what, n) for n, (at, what) in reversed(list(enumerate(strokes))) if at <= begin))
            if state == "absent":
                continue
            window = sender_id, begin // unit * unit
            if any(each.started_at <= begin < each.ended_at for each in planned):
                summed[window][3] += until - begin
                continue
            observed = state != "unknown" and is_known(known, begin)
            summed[window][("up", "down").index(state) if observed else 2] += until - begin
            if state == "down":
                outages[window].add(number)
    return {
        window: Times(
            up=up,
            down=down,
            unknown=unknown,
            maintenance=maintenance,
            absent=min(window[1] + unit, known_through) - window[1] - up - down - unknown - maintenance,
            outages=len(outages.get(window, ())),
        )
        for window, (up, down, unknown, maintenance) in summed.items()
    }


def _strokes(said: list[ScopedRevision], stores: Stores) -> Iterator[tuple[int, str]]:
    """Paint a life: each stroke holds from its instant on, over everything painted before."""
    said = sorted(said, key=lambda each: (each.at, each.claimed_at, _rank(each), each.event_id))
    begun, before, before_at, place = 0, "", 0, 0
    for each, following in zip(said, [*said[1:], None], strict=True):
        word = "unheard" if each.unheard_until is not None else str(each.kind)
        is_late = word in (RETIRED, "unheard") and before in (STALE, "unheard") and not each.by_operator
        dates_back = word in (STALE, RETIRED, "unheard") and not is_late
        is_silence_told = word in (RECOVERED, RETIRED) and before in (NEW, RECOVERED) and not each.by_operator
        if is_silence_told and before_at <= each.last_seen_at < each.at:
            begun = max(begun, each.last_seen_at)
            yield begun, "down"
            dates_back = False
        begun = max(begun, each.last_seen_at if dates_back else each.at)
        if each.unheard_until is not None:
            yield begun, "unknown"
            yield max(begun, each.unheard_until), "absent"
        elif each.kind is RETIRED:
            if before not in ("", RETIRED):
                yield begun, "absent"
        else:
            yield begun, "down" if each.kind is STALE else "up"
        place = max(place, stores.places.get(each.incarnation, 0))
        if each.kind is not RETIRED and place < len(stores.ends):
            lost_at = max(stores.ends[place], each.at)
            if following is None or lost_at < following.at:
                yield lost_at, "unknown"
        before, before_at = word, each.at


def _rank(said: ScopedRevision) -> int:
    """Order what was said at one instant; who is retired at the sighting that made it new was new before that."""
    is_of_one_sighting = said.kind is RETIRED and said.ordinal is not None and said.opened_at == said.last_seen_at
    return len(AdvisoryKind) if is_of_one_sighting and said.at == said.last_seen_at else said.kind.rank


class Dispute(NamedTuple):
    """When two incarnations of a block spoke at once, and which of them does not count, from when on."""

    started_at: int
    ended_at: int
    silent: int
    silent_from: int
    later: int


def disputes(history: BlockHistory) -> list[Dispute]:
    """Compare every two incarnations."""
    of_life: dict[int, list[Mark]] = defaultdict(list)
    for mark in history.marks:
        of_life[mark.incarnation].append(mark)
    found = []
    for one, other in itertools.combinations(sorted(of_life), 2):
        both = sorted((min(mark.through for mark in of_life[life]), f"1-{life}", life) for life in (one, other))
        (_, _, earlier), (begun, _, later) = both
        firsts, lasts = ([edge(mark.through for mark in of_life[life]) for life in (one, other)] for edge in (min, max))
        overlap = firsts[0] < lasts[1] and firsts[1] < lasts[0]
        arrived = [[mark.archived_at or mark.through for mark in of_life[life]] for life in (one, other)]
        followed = max(arrived[0]) <= min(arrived[1]) or max(arrived[1]) <= min(arrived[0])
        if not overlap or followed:
            continue
        ended = min(lasts) + QUIET
        outlasted = max(mark.through for mark in of_life[later]) > ended
        since = min(_begun_at(history, later), *(mark.since for mark in of_life[later]))
        found.append(Dispute(begun, ended, *((earlier, since) if outlasted else (later, 0)), later))
    return found


def _counting(history: BlockHistory) -> tuple[list[ScopedRevision], Stores]:
    """Return the advisories that count, and the stores that spoke one after the other."""
    found = disputes(history)
    counting = [
        said
        for said in history.said
        if said.ordinal is None
        or not any(each.silent == said.incarnation and said.at >= each.silent_from for each in found)
    ]
    return counting, _stores(history, found)


def _stores(history: BlockHistory, found: list[Dispute]) -> Stores:
    silent = {each.silent for each in found if not each.silent_from}
    taken_over = {each.later for each in found if each.silent_from and each.silent not in silent}
    ends: dict[int, int] = {}
    for mark in history.marks:
        if mark.incarnation not in silent:
            until = min((each.silent_from for each in found if each.silent == mark.incarnation), default=mark.through)
            ends[mark.incarnation] = max(ends.get(mark.incarnation, 0), min(mark.through, until))
    in_order = sorted(ends, key=lambda life: (ends[life], _begun_at(history, life), f"1-{life}"))
    for restored in _doubtful(history):
        for life in {mark.incarnation for mark in history.marks if _name(mark) == _name(restored)} & ends.keys():
            ends[life] = min(ends[life], restored.through)
    names = {mark.incarnation: _name(mark) for mark in history.marks}
    last: dict[int, list[int]] = {}
    order: list[list[int]] = []
    for life in in_order:
        returns_unnamed = not names[life] and last.get(0) is not (order[-1] if order else None)
        if names[life] not in last or life in taken_over or returns_unnamed:
            last[names[life]] = []
        store = last[names[life]]
        order = [*(each for each in order if each is not store), store]
        store.append(life)
    early = {each.incarnation for each in history.said if each.ordinal is not None} - ends.keys() - silent
    if 0 in last:
        last[0].extend(early)
    elif early:
        order = [[*early], *order]
    places = {life: place for place, store in enumerate(order) for life in store}
    covered: list[int] = []
    for place in range(len(order) - 1):
        end = max([*(ends.get(life, 0) for life in places if places[life] == place), *covered])
        following = [life for life in places if places[life] == place + 1]
        begun = min(_begun_at(history, life) for life in following)
        name = max(names.get(life, 0) for life in following)
        covered.append(end or min(name or begun, begun))
    return Stores(places, covered)


def _name(mark: Mark) -> int:
    """Return the name of a watermark's store."""
    return mark.store or mark.rebuilt_at


def _doubtful(history: BlockHistory) -> set[Mark]:
    """Return the watermarks that show that an older copy of a store was restored."""
    count: dict[tuple[int, int], int] = defaultdict(int)
    for each in history.said:
        if each.ordinal is not None:
            count[each.incarnation, each.ordinal] += 1
    twice: dict[int, list[int]] = defaultdict(list)
    for (incarnation, ordinal), copies in count.items():
        if copies > 1:
            twice[incarnation].append(ordinal)
    return {
        mark
        for mark in history.marks
        if mark.ordinal >= min(twice[mark.incarnation], default=mark.ordinal + 1)
        or any(
            other.incarnation == mark.incarnation and other.claimed < mark.claimed and other.ordinal > mark.ordinal
            for other in history.marks
        )
    }


def known_spans(history: BlockHistory, losses: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """Give spans, known (True) or given up (False)."""
    spans = [(begin, end, False) for begin, end in losses]
    plain = [each.at for each in history.said if each.ordinal is None]
    if plain:
        spans.append((min(plain), max(plain), True))
    spans += [(each.started_at, each.ended_at, False) for each in disputes(history)]
    held: dict[int, set[int]] = defaultdict(set)
    for each in history.said:
        if each.ordinal is not None:
            held[each.incarnation].add(each.ordinal)
    doubtful = _doubtful(history)
    for incarnation in {mark.incarnation for mark in history.marks}:
        until = 0
        of_life = [mark for mark in history.marks if mark.incarnation == incarnation]
        for mark in sorted(of_life, key=lambda each: (each.place, each.ordinal, each.since)):
            of_store = [each for each in history.marks if _name(each) == _name(mark)]
            began_at = min(each.through for each in of_store)
            first_lives = {each.incarnation for each in of_store if each.through == began_at}
            issued: dict[int, int] = defaultdict(int)
            for other in of_store:
                if other.place <= mark.place:
                    issued[other.incarnation] = max(issued[other.incarnation], other.ordinal)
            is_doubtful = any(
                _name(storage_fault) == _name(mark)
                and any(later.through <= mark.through for later in of_store if _is_at_or_after(later, storage_fault))
                for storage_fault in doubtful
            )
            own = issued.pop(incarnation)
            is_whole = _is_whole(held[incarnation], own, incarnation in first_lives) and all(
                _is_whole(held[life], reached, life in first_lives, may_be_older=True)
                for life, reached in issued.items()
            )
            if is_whole and not is_doubtful:
                spans.append((max(mark.since, until), mark.through, True))
            until = mark.through
    return spans


def _is_at_or_after(mark: Mark, storage_fault: Mark) -> bool:
    return mark.incarnation == storage_fault.incarnation and mark.through >= storage_fault.through


def _is_whole(held: set[int], reached: int, is_first_life: bool, may_be_older: bool = False) -> bool:
    """Tell whether the hub holds what a life has issued: of a store's first one from the first that it holds.

    One whose words all come after those that were counted lacks nothing, but vouches for none of its own time then.
    """
    first = min(held, default=reached) if is_first_life else 1
    if not reached or (may_be_older and first > reached):
        return True
    return first <= reached and set(range(first, reached + 1)) <= held


def is_known(spans: list[tuple[int, int, bool]], at: int) -> bool:
    """Tell whether an instant is known."""
    here = [known for begin, end, known in spans if begin <= at < end]
    return bool(here) and all(here)
