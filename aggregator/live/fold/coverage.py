"""Say how far a stream block is known: which of its watermarks vouch, given the ordinals that have arrived. Pure.

Rules, those of the tables (``lakehouse/derive/coverage/watermark_coverage.py``). A watermark vouches for the time
since the one before it, or since the end of its blind span, where every advisory that its store has issued so far is
held: ordinals count them from 1, without holes, in each life (an incarnation of a block). Of a store's first life
only what follows the first ordinal that is held counts. As long as one is missing, no later watermark of that store
vouches; one that arrives late makes all of them vouch that waited for it. A count that falls, or an ordinal that two
advisories have, is of an older copy of a store that was put back: none of that store vouches from there on. Counts are
compared in the order of the instants that a life's watermarks claim: the hub's time may be one for many of them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import pairwise, repeat
from typing import NamedTuple

import msgspec

from aggregator.archive import contests
from aggregator.archive.hub_clock import ClockStep, without_steps
from aggregator.archive.stores import StoreSpan, succession
from shared.identifiers import BlockId

MOST_LIVES = 128
"""So many incarnations of a block are known, the last ones: each restart of a stream in memory is another."""
_KEPT = 32
_MOST_RUNS = 1_000
"""So many runs of a life's ordinals are known, the first and the last ones: of more, nothing would vouch anyway."""
_MOST_WAITING = 64
"""So many marks of a life wait, each by itself, for an advisory that may never come; of more, the oldest are joined."""
_MOST_WAITING_OF_ALL = 256
"""The same limit for all lives of a block together. Each life may have two, however many wait in the others."""


class Mark(msgspec.Struct, array_like=True, gc=False):
    """One watermark, or several that say the same: ``since``, ``through`` (microseconds), ``reached``: an ordinal.

    ``first`` is the instant of the first of several, 0: that of the only one.
    """

    since: int
    through: int
    reached: int
    first: int = 0

    @property
    def begun_at(self) -> int:
        """Give the instant of the first of several."""
        return self.first or self.through


class Life(msgspec.Struct, gc=False):
    """What is known of one incarnation of a block.

    ``held`` are the runs [first, last] of ordinals that have arrived; ``waiting`` are the marks that do not vouch yet,
    in time; ``last`` is the last mark of all. ``put_back_from`` (0: none) is when its count fell, or when it counted
    ``doubled``, an ordinal that two advisories have. ``begun_at`` is the hub's time of the first that it told,
    ``claimed_through`` what its marks claimed, as the site said it. ``sequence`` is the
    archive's of the first.
    """

    incarnation: str
    begun_at: int
    held: list[list[int]] = []
    store: int = 0
    since: int = 0
    first_through: int = 0
    claimed_through: int = 0
    first_archived_at: int = 0
    last_archived_at: int = 0
    last: Mark | None = None
    waiting: list[Mark] = []
    put_back_from: int = 0
    doubled: int = 0
    sequence: int = 0
    vouched: list[Mark] = []

    def vouch(self, mark: Mark) -> bool:
        """Note that a mark vouches; tell whether for any time: whoever has seen from an instant on has seen none yet.

        The last ones are kept: it may turn out that they counted a doubled ordinal.
        """
        if mark.since == mark.through:
            return False
        last = self.vouched[-1] if self.vouched else None
        if last is not None and last.reached == mark.reached and mark.since <= last.through:
            last.through = mark.through
            return True
        self.vouched.append(Mark(mark.since, mark.through, mark.reached, mark.begun_at))
        del self.vouched[:-_KEPT]
        return True

    def hold(self, ordinal: int) -> bool:
        """Note that an ordinal has arrived; tell whether it had not."""
        runs = self.held
        if runs and runs[-1][1] + 1 == ordinal:
            runs[-1][1] = ordinal
            return True
        place = bisect_right(runs, ordinal, key=lambda run: run[0])
        if place and ordinal <= runs[place - 1][1]:
            return False
        joins_before = place > 0 and runs[place - 1][1] + 1 == ordinal
        joins_after = place < len(runs) and runs[place][0] - 1 == ordinal
        if joins_before and joins_after:
            runs[place - 1][1] = runs.pop(place)[1]
        elif joins_before:
            runs[place - 1][1] = ordinal
        elif joins_after:
            runs[place][0] = ordinal
        else:
            runs.insert(place, [ordinal, ordinal])
            if len(runs) > _MOST_RUNS:
                # The first run says from where on ordinals count; those of the next one are lacking from now on.
                del runs[1]
        return True

    def is_told_twice(self, ordinal: int) -> None:
        """Note that two advisories have an ordinal: of the marks that count it none vouches."""
        self.doubled = min(self.doubled or ordinal, ordinal)
        # One that vouches for no time is not kept with those that do, and may be the last.
        for mark in (*self.waiting, *self.vouched, *([self.last] if self.last else ())):
            self._put_back_where_doubled(mark)

    def is_doubled(self, reached: int) -> bool:
        """Tell whether two advisories are known to have an ordinal up to ``reached``."""
        return 0 < self.doubled <= reached

    def _put_back_where_doubled(self, mark: Mark) -> None:
        if self.is_doubled(mark.reached):
            self.put_back_from = min(self.put_back_from or mark.begun_at, mark.begun_at)

    def missing(self, reached: int, *, is_first: bool) -> int:
        """Count the ordinals up to ``reached`` that count and are not held; ``is_first``: of its store's first life."""
        runs = self.held
        first = (runs[0][0] if runs else 0) if is_first else 1
        if not first:
            return reached
        if first > reached:
            return 0
        if is_first and runs[0][1] >= reached:
            return 0
        held = sum(min(last, reached) - begin + 1 for begin, last in runs if begin <= reached)
        return reached - first + 1 - held

    def is_before_all(self, reached: int, *, is_first: bool) -> bool:
        """Tell whether a mark counts only what was issued before the first ordinal that is held: it cannot vouch."""
        return is_first and reached > 0 and bool(self.held) and self.held[0][0] > reached

    def lacks(self, reached: int, *, is_first: bool) -> bool:
        """Return True if an ordinal that counts is missing up to ``reached``; ``is_first``: see ``missing``."""
        if not self.held:
            return reached > 0
        first, last = self.held[0]
        return first <= reached > last if is_first else reached > 0 and (first > 1 or last < reached)

    def add(self, mark: Mark, claimed: int, most: int) -> None:
        """Add the next watermark, of which up to ``most`` wait; one that is not later than the last covers no time.

        ``claimed`` is the instant that it claims. Of those that the hub stored at one instant of its time, the last one
        counts the advisories.
        """
        last, is_newest = self.last, claimed > self.claimed_through
        self.claimed_through = max(self.claimed_through, claimed)
        if last is not None and is_newest and mark.reached < last.reached and not self.put_back_from:
            self.put_back_from = mark.through
        if last is not None and mark.through <= last.through:
            if mark.through == last.through and mark.reached > last.reached:
                self._replace_last(mark, is_newest=is_newest)
            return
        self._put_back_where_doubled(mark)
        before = last.through if last is not None else 0
        self.first_through = self.first_through or mark.through
        self.last = mark
        joined = self.waiting[-1] if self.waiting else None
        if joined is not None and joined.reached == mark.reached and mark.since <= joined.through:
            joined.first, joined.through = joined.begun_at, mark.through
        else:
            self.waiting.append(Mark(max(mark.since, before), mark.through, mark.reached))
            while len(self.waiting) > most:
                self._join_two()

    def _join_two(self) -> None:
        """Let the oldest two marks that lack the same ordinals wait as one; where no two do, the oldest two.

        Those vouch when the later one does, and for its time alone where the earlier one might never have vouched.
        """
        pairs = enumerate(pairwise(self.waiting))
        place = next((place for place, (mark, later) in pairs if self._lack_the_same(mark, later)), 0)
        mark, later = self.waiting[place : place + 2]
        if later.since <= mark.through and self.held and self.held[0][0] <= mark.reached:
            later.since = mark.since
        later.first = mark.begun_at
        del self.waiting[place]

    def _lack_the_same(self, mark: Mark, later: Mark) -> bool:
        """Tell whether one mark vouches whenever the other does, without a time between them that neither has seen."""
        place = bisect_right(self.held, mark.reached + 1, key=lambda run: run[0])
        is_held = place > 0 and self.held[0][0] <= mark.reached and later.reached <= self.held[place - 1][1]
        return is_held and later.since <= mark.through

    def _replace_last(self, mark: Mark, *, is_newest: bool) -> None:
        self.last = mark
        self._put_back_where_doubled(mark)
        if not is_newest and self.waiting and self.waiting[-1].through == mark.through:
            self.waiting[-1].reached = mark.reached
            self._put_back_where_doubled(self.waiting[-1])


class Gap(NamedTuple):
    """A time of which nothing was known of a block."""

    block: int
    started_at: int
    ended_at: int


class Block(msgspec.Struct, gc=False):
    """What is known of one stream block, but for its senders. Instants in microseconds.

    ``known_since`` to ``known_until`` is vouched for without a gap. ``heard_at`` is the hub's time of the last
    watermark, and ``claimed_through`` what the last one claimed, as the site said it. Where several stores have spoken,
    ``latest_store`` names the incarnations of the last one, of which no record precedes the archive's message
    ``latest_since``, and the coverage of the others ended at ``lost_at`` (``archive/stores.py``). Two agents spoke at
    once in ``contested_from`` to ``contested_until``; of ``silent`` incarnations nothing counts that they said since.
    ``was_contested`` is True from the first time that two agents spoke at once. So many retired senders were forgotten
    as ``forgotten_count``. ``condition`` is what the agent last said to keep time from passing, "": nothing;
    ``conditions`` names all that it last was in, ``alone_since`` is since when, by the hub's time, it has been one of a
    pair whose other is gone, 0: it is not; ``stopped_boot_id`` names the run that was told to stop.
    """

    region: str
    site: str
    block: str
    lives: dict[str, Life] = {}
    known_since: int = 0
    known_until: int = 0
    heard_at: int = 0
    claimed_through: int = 0
    ordinal: int = 0
    lost_at: int = 0
    latest_store: tuple[str, ...] = ()
    latest_since: int = 0
    changed_at: int = 0
    agent: str = ""
    boot_id: str = ""
    stopped_boot_id: str = ""
    condition: str = ""
    conditions: tuple[str, ...] = ()
    alone_since: int = 0
    version: str = ""
    stale_after: int = 0
    blind_after: int = 0
    put_back: bool = False
    contested_from: int = 0
    contested_until: int = 0
    silent: dict[str, int] = {}
    was_contested: bool = False
    forgotten_count: int = 0

    @property
    def block_id(self) -> BlockId:
        """Name it."""
        return BlockId(self.region, self.site, self.block)

    def begin_life(self, incarnation: str, archived_at: int, sequence: int) -> Life:
        """Add an incarnation; its first record is the archive's message ``sequence``."""
        if len(self.lives) >= MOST_LIVES:
            del self.lives[min(self.lives.values(), key=self._rank_of_life).incarnation]
        found = self.lives[incarnation] = Life(incarnation, archived_at, sequence=sequence)
        return found

    def follow_stores(self, found: list[contests.Contest]) -> list[str]:
        """Order the stores; return the incarnations of the store that was the last. ``found`` are the contests."""
        order = succession(
            (
                StoreSpan(
                    each.incarnation,
                    each.store,
                    each.begun_at,
                    each.last.through if each.last else 0,
                    each.put_back_from,
                )
                for each in self.lives.values()
            ),
            found,
        )
        before = [name for name in self.latest_store if name in self.lives]
        begun_at = min((self.lives[name].sequence for name in order.latest), default=0)
        others = (each.sequence for name, each in self.lives.items() if name not in order.latest)
        # Its first incarnations may be evicted.
        since = max((sequence for sequence in others if sequence < begun_at), default=0) + 1
        self.latest_since = min(since, self.latest_since) if set(before) & set(order.latest) else since
        self.lost_at, self.latest_store = max(order.ends, default=0), order.latest
        return before

    def is_of_latest_store(self, incarnation: str, sequence: int) -> bool:
        """Return True if the archive's message ``sequence``, of an incarnation, is the last store's.

        Of the incarnations that are evicted, those of earlier stores are the last, and spoke before the last store.
        """
        if not self.latest_store or incarnation in self.latest_store:
            return True
        return sequence >= self.latest_since and incarnation != "" and incarnation not in self.lives

    def _rank_of_life(self, life: Life) -> tuple[bool, int]:
        """Return the place of a life in the order of eviction: lives that show which records not to believe are last.

        So are those of stores before the last one, and the only one of that; all others go by their end.
        """
        is_latest = not self.latest_store or (life.incarnation in self.latest_store and len(self.latest_store) > 1)
        return not is_latest or bool(life.put_back_from) or life.incarnation in self.silent, life.last_archived_at

    def add(self, life: Life, mark: Mark, claimed: int) -> None:
        """Add the next watermark of one of its incarnations, which claims an instant of its own."""
        room = _MOST_WAITING
        if len(self.lives) > 1:
            others = sum(len(each.waiting) for each in self.lives.values() if each is not life)
            room = min(room, max(2, _MOST_WAITING_OF_ALL - others))
        life.add(mark, claimed, room)

    @property
    def watched_until(self) -> int:
        """Give ``known_until``; where whole watermarks have vouched for no time yet, the instant that they are of."""
        lives = list(self.lives.values())
        whole = (life.last.through for life in lives if life.last and not (life.waiting or life.put_back_from))
        return self.known_until or max(whole, default=0)

    @property
    def newest(self) -> Life | None:
        """Give the life of the last watermark."""
        # Whoever asks may do so in another thread.
        heard = [life for life in list(self.lives.values()) if life.last is not None]
        # Where the hub's clock is behind, its time of all that comes is the same.
        return max(heard, key=lambda life: (life.last_archived_at, life.claimed_through), default=None)

    def was_put_back(self, store: int) -> bool:
        """Tell whether an older copy of a store is known to have taken its place."""
        return any(life.put_back_from for life in self.lives.values() if life.store == store)

    @property
    def is_stopped(self) -> bool:
        """Tell whether its agent said that it was told to stop, and none has spoken since."""
        return bool(self.boot_id) and self.stopped_boot_id == self.boot_id

    @property
    def missing_count(self) -> int:
        """Count the advisories that its last watermark counts and the archive has not got."""
        life = self.newest
        if life is None or life.last is None:
            return 0
        begun = [each for each in list(self.lives.values()) if each.first_through and each.store == life.store]
        is_first = life is min(begun, key=lambda each: each.first_through)
        return life.missing(life.last.reached, is_first=is_first)


def contests_of(block: Block) -> list[contests.Contest]:
    """Find where two agents spoke for a block at once."""
    key = block.region, block.site, block.block
    return contests.contests(
        contests.IncarnationSpan(
            key, life.incarnation, min(life.since, life.begun_at), life.first_through, life.last.through,
            life.first_archived_at, life.last_archived_at,
        )
        for life in block.lives.values()
        if life.last is not None
    )  # fmt: skip


def known_until(block: Block, steps: Sequence[ClockStep]) -> int:
    """Say until when the marks of any store vouch that do not count what was put back; 0: none does.

    Nothing is known of the time under ``steps`` of the hub's clock.
    """
    put_back: dict[int, int] = {}
    for life in block.lives.values():
        if life.put_back_from:
            put_back[life.store] = min(put_back.get(life.store, life.put_back_from), life.put_back_from)
    return max(
        (
            through
            for life in block.lives.values()
            for mark in life.vouched
            if mark.begun_at < put_back.get(life.store, 1 << 62)
            for _, through in without_steps(steps, mark.since, mark.through)
        ),
        default=0,
    )


def reopen(lives: list[Life], at: int) -> None:
    """Let the marks wait again that vouched for ``at`` or later: one of another life has come late, and may lack some.

    Of marks that were kept as one, from before ``at`` to after it, the first goes on vouching, the others wait as one.
    """
    for life in lives:
        kept = [mark for mark in life.vouched if mark.through < at]
        reopened = life.vouched[len(kept) :]
        mark = reopened[0] if reopened else None
        if mark is not None and mark.since < mark.begun_at < at:
            kept.append(Mark(mark.since, mark.begun_at, mark.reached, mark.begun_at))
            reopened[0] = Mark(mark.begun_at, mark.through, mark.reached, mark.begun_at)
        life.waiting = sorted([*reopened, *life.waiting], key=_in_time)
        life.vouched = kept


def settle(lives: list[Life]) -> Iterator[Mark]:
    """Yield the spans that the waiting marks of one store's ``lives`` confirm now, in order, and remove these marks."""
    begun = [life for life in lives if life.first_through]
    if not begun:
        return
    first = min(begun, key=lambda life: life.first_through)
    if len(begun) == 1 and not first.put_back_from:
        yield from _settled_alone(first)
        return
    put_back_from = min((life.put_back_from for life in begun if life.put_back_from), default=0)
    taken = {life.incarnation: 0 for life in begun}
    kept: dict[str, list[Mark]] = {life.incarnation: [] for life in begun}
    waiting = (zip(life.waiting, repeat(life)) for life in begun)
    counts = merge(*map(_counts_of, begun), key=lambda each: each[0])
    following = next(counts, None)
    lacking = set[str]()
    for mark, life in merge(*waiting, key=lambda each: _in_time(each[0])):
        while following is not None and following[0] <= mark.through:
            _, reached, other = following
            change = lacking.add if other.lacks(reached, is_first=other is first) else lacking.discard
            change(other.incarnation)
            following = next(counts, None)
        is_put_back = 0 < put_back_from <= mark.begun_at
        lacks = not is_put_back and (
            life.lacks(mark.reached, is_first=life is first) or len(lacking - {life.incarnation}) > 0
        )
        if lacks and not put_back_from:
            # Counts only grow, but for a store that was put back: what one mark lacks, all later ones do.
            break
        taken[life.incarnation] += 1
        if is_put_back:
            continue
        if not lacks and not life.is_before_all(mark.reached, is_first=life is first):
            kept = {incarnation: [] for incarnation in kept}
            if life.vouch(mark):
                yield mark
        else:
            kept[life.incarnation].append(mark)
    for life in begun:
        life.waiting[: taken[life.incarnation]] = kept[life.incarnation]


def _in_time(mark: Mark) -> tuple[int, int]:
    return mark.through, mark.reached


def _settled_alone(life: Life) -> Iterator[Mark]:
    whole = 0
    for number, mark in enumerate(life.waiting, start=1):
        if life.lacks(mark.reached, is_first=True):
            # Counts only grow: what one mark lacks, all later ones do.
            break
        if not life.is_before_all(mark.reached, is_first=True):
            whole = number
            if life.vouch(mark):
                yield mark
    if whole:
        del life.waiting[:whole]


def _counts_of(life: Life) -> Iterator[tuple[int, int, Life]]:
    """Yield (instant, count, ``life``) of each waiting mark and of the last one, in order of time."""
    for mark in life.waiting:
        yield mark.begun_at, mark.reached, life
    if life.last is not None:
        yield life.last.through, life.last.reached, life
