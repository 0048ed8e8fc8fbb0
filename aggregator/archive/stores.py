"""Order of the stores that have spoken for one block, and the end of each one's knowledge of senders.

An agent's store learns senders from their registrations. A store that begins empty (its predecessor was lost, damaged,
or left behind on another host) does not know a sender that died before: it will never call that sender stale.

Rules:

1. All incarnations of one store name it in their watermarks: by the server's time at which it began with the block, or,
   where an older agent wrote them, by the instant since which it replaced a lost one; 0: by neither. An incarnation
   without watermarks belongs to the store that began last before the incarnation's epoch, else to one before all.
2. Stores follow each other by the end of their coverage, however late their records reach the hub: the last one is
   that of the agent that still reads the stream, also where an operator returned to it. Incarnations without a name
   are of different stores if another store's lie between them; one that ``contests.py`` believes after another begins
   a store, and one of which nothing counts has none.
3. A sender is known to a store if that store, or a later one, has announced it. All others become unknown where the
   coverage of the earlier stores ends: ``Succession.ends``. That is not later than the first watermark that shows that
   an older copy of a store was restored; without any coverage, it is where the next store begins.

Pure: the live fleet and the tables call it.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import NamedTuple

from msgspec import UNSET

from aggregator.archive.contests import Contest, silences, silent_throughout
from shared.identifiers import Incarnation, InvalidIdentifier
from shared.instants import LATEST
from shared.wire import Watermark


class StoreSpan(NamedTuple):
    """One incarnation of a block; instants in microseconds.

    ``begun_at`` is the hub's time of its first record, ``last_through`` the believed end of its last watermark (0: it
    has none), ``put_back_from`` that of the first one since an older copy of the store was restored (0: none was).
    """

    incarnation: str
    store: int
    begun_at: int
    last_through: int
    put_back_from: int = 0


class Succession(NamedTuple):
    """``ranks``: the place of each incarnation's store, from 0; ``ends[n]``: the end of stores 0 to ``n``."""

    ranks: dict[str, int]
    ends: tuple[int, ...]

    @property
    def latest(self) -> tuple[str, ...]:
        """The incarnations of the last store; none where there is one store only."""
        last = len(self.ends)
        return tuple(name for name, rank in self.ranks.items() if rank == last) if last else ()


def store_of(said: Watermark) -> int:
    """Return the store that a watermark names; 0: none."""
    began = 0 if said.store_began_us is UNSET else said.store_began_us
    return max(began or said.rebuilt_at_us, 0)


def succession(lives: Iterable[StoreSpan], found: Collection[Contest] = ()) -> Succession:
    """Return the order of the stores of one block's ``lives``; ``found`` are the contests of that block."""
    ignored = {incarnation for _, incarnation in silent_throughout(found)}
    cut_at = {each.incarnation: each.since for each in sorted(silences(found), reverse=True)}
    winners = {each.later for each in found if each.silence.since and each.silence.incarnation not in ignored}
    believed = [life for life in lives if life.incarnation not in ignored]
    ends_at = {life.incarnation: min(life.last_through, cut_at.get(life.incarnation, LATEST)) for life in believed}
    believed.sort(key=lambda life: (ends_at[life.incarnation], life.begun_at, life.incarnation))
    marked = [life for life in believed if life.last_through]
    first: dict[int, str] = {}
    of_first: dict[str, list[StoreSpan]] = {}
    last = ""
    for life in marked:
        returns_unnamed = not life.store and first.get(0) != last
        if life.store not in first or life.incarnation in winners or returns_unnamed:
            first[life.store] = life.incarnation
        last = first[life.store]
        of_first[last] = of_first.pop(last, [])
        of_first[last].append(life)
    unnamed: list[StoreSpan] = []
    names = sorted(first)
    for life in believed:
        if not life.last_through:
            place = bisect_right(names, _epoch_of(life.incarnation))
            (of_first[first[names[place - 1]]] if place else unnamed).append(life)
    stores = [unnamed, *of_first.values()] if unnamed else [*of_first.values()]
    ranks = {life.incarnation: rank for rank, store in enumerate(stores) for life in store}
    ends: list[int] = []
    for store, following in pairwise(stores):
        restored_at = min((life.put_back_from for life in store if life.put_back_from), default=LATEST)
        covered = [min(ends_at[life.incarnation], restored_at) for life in store]
        begin = min(life.begun_at for life in following)
        ends.append(max([*covered, *ends[-1:]]) or min(following[0].store or begin, begin))
    return Succession(ranks, tuple(ends))


def _epoch_of(incarnation: str) -> int:
    try:
        return Incarnation.parse(incarnation).epoch_at
    except InvalidIdentifier:
        return 0
