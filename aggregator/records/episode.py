"""Fold of one sender's advisories, in order, into its intervals: up, down, or unknown, in episodes.

The order is (``occurred_at``, ``claimed_at``, rank of kind, ``event_id``): at one instant, the end of a state precedes
a beginning, but a ``retired`` at the very registration that opened its episode follows its ``new``.

Invariants:

- ``new`` opens an episode and ends an open one; a ``rebuilt`` new continues the open one. Without an open episode, any
  advisory but ``retired`` opens one: a history that begins in the middle is read from there on.
- ``new`` and ``recovered`` start up at their own instant. ``stale`` starts down at the last registration, but the first
  advisory of a sender reaches back no further than ``UNSUPPORTED``.
- ``retired`` ends the episode at its own instant, an operator's at the last registration. One with ``unheard_until`` is
  of a sender that its stream no longer accepted: the sender is unknown from its last registration (after ``stale``:
  from the instant of the retirement) until then or until its next advisory, and absent afterwards.
- ``recovered`` and ``retired`` name the registration before. Where no ``stale`` precedes them (plain Choria's need not
  come, others may be missing), a sender that was up is down from then on: inferred, not reported.
- Where several stores have spoken for the block (``archive/stores.py``), a sender with an open episode is unknown from
  the end of the earlier ones' coverage until its next advisory, unless a later store has announced it by then.
- No state starts before one that an earlier advisory reports; the intervals of an episode have no gap between them.

Pure. The tables fold all senders, sorted, in batches; the live service asks when a sender's last state began.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from aggregator.records.judge import UNSUPPORTED
from shared.identifiers import AdvisoryKind
from shared.instants import LATEST

AT_ONCE_RANK = len(AdvisoryKind)
"""The rank of a ``retired`` at the very registration that opened its episode."""


class Report(IntEnum):
    """The content of an advisory, as far as it decides about intervals."""

    STALE = AdvisoryKind.STALE.rank
    RETIRED = AdvisoryKind.RETIRED.rank
    RECOVERED = AdvisoryKind.RECOVERED.rank
    NEW = AdvisoryKind.NEW.rank
    REBUILT = 4
    UNHEARD = 5
    REMOVED = 6
    """Retired by an operator."""


REPORTED = (*AdvisoryKind, AdvisoryKind.NEW, AdvisoryKind.RETIRED, AdvisoryKind.RETIRED)
"""The kind of advisory of each report."""


class State(IntEnum):
    """The state of a sender in an interval."""

    UP = 0
    DOWN = 1
    UNKNOWN = 2


LOST_STORE = len(Report)
"""The end of an interval by the loss of the store that knew the sender; other intervals end by a report."""

# The hot loop compares plain ints, which takes half the time of members of an IntEnum.
_STALE, _RETIRED, _RECOVERED, _NEW, _REBUILT, _UNHEARD, _REMOVED = (int(each) for each in Report)
_UP, _DOWN, _UNKNOWN = (int(each) for each in State)
_STATES = dict.fromkeys(map(int, Report), _UP) | {_STALE: _DOWN, _UNHEARD: _UNKNOWN}
_UP_REPORTS = frozenset((_RECOVERED, _NEW, _REBUILT))
_RETIREMENTS = frozenset((_RETIRED, _REMOVED))
_STATED_SINCE = frozenset((_STALE, _REMOVED))
"""Reports that hold since the last registration, after whatever report."""
_CLOSED = _RETIREMENTS | {_UNHEARD}
_ENDS_OF_SILENCE = frozenset((_RECOVERED, _RETIRED))
_DATED_BACK = frozenset((_STALE, _UNHEARD))
"""Reports whose state starts at the last registration; a ``retired`` after it ends that state at its own instant."""


class Advised(NamedTuple):
    """An advisory, in its order; instants in microseconds.

    ``place`` names it, as the number of its row does. ``is_first``: it is the first of its sender. ``unheard_until`` is
    read if the report is UNHEARD. ``opened_at`` is 0 unless the advisory is that on which a going-on interval rests:
    then it is the start of that interval's episode, and ``last_seen_at`` the start of the interval. ``store_end`` is
    the end of the coverage of its store and those before it, ``LATEST`` for the last store.
    """

    place: int
    is_first: bool
    report: int
    at: int
    last_seen_at: int
    unheard_until: int = 0
    opened_at: int = 0
    store_end: int = LATEST


class Interval(NamedTuple):
    """A state of a sender in [``started_at``, ``ended_at``); ``ended_at`` and ``ended_by`` are None if it goes on.

    It rests on the advisory at ``place``; if ``is_inferred``, on the registration before that this advisory names. The
    advisory at ``opened`` opened the episode.
    """

    place: int
    opened: int
    opened_at: int
    state: int
    started_at: int
    ended_at: int | None
    ended_by: int | None
    is_inferred: bool = False


AdvisedRow = tuple[int, bool, int, int, int, int, int, int]
IntervalRow = tuple[int, int, int, int, int, int | None, int | None, bool]
"""The same as plain tuples, which the fold takes and returns: NamedTuples would double its cost."""


def began_at(report: int, at: int, last_seen_at: int, before: int | None, floor: int) -> int:
    """Return the instant at which ``report`` ends the state of the report ``before`` it and starts its own.

    ``before`` is None if there is none; ``floor`` is the start of the state before.
    """
    if report in _UP_REPORTS or (before in _DATED_BACK and report not in _STATED_SINCE):
        return max(at, floor)
    return max(last_seen_at, floor if before is not None else at - UNSUPPORTED)


class EpisodeFold:
    """The fold of one sender after the other, as it is between two advisories.

    ``place`` and ``opened`` name the advisories that the interval rests on that has not ended, and its episode.
    """

    def __init__(self) -> None:
        self.place = self.opened = 0
        self._report, self._at = _RETIRED, 0
        self._start = self._opened_at = self._until = 0
        self._store_end = LATEST

    def fold(self, advisories: Iterable[AdvisedRow]) -> list[IntervalRow]:
        """Return the intervals that the next advisories have ended."""
        found: list[IntervalRow] = []
        before, before_at, until, store_end = self._report, self._at, self._until, self._store_end
        place, opened, opened_at, start = self.place, self.opened, self._opened_at, self._start
        for next_place, is_first, report, at, last_seen_at, next_until, known_opening, next_store_end in advisories:
            if is_first:
                if before not in _RETIREMENTS:
                    going_on = place, opened, opened_at, _STATES[before], start, None, None, False
                    found += _parts(going_on, before_at, until, store_end, None)
                begin = began_at(report, at, last_seen_at, _NEW if known_opening else None, 0)
                before, store_end = _RETIRED, next_store_end
            else:
                is_silent = before in _UP_REPORTS and report in _ENDS_OF_SILENCE and before_at <= last_seen_at < at
                begin = at if is_silent else began_at(report, at, last_seen_at, before, start)
                if before not in _RETIREMENTS:
                    end, ended_by = (max(start, last_seen_at), _STALE) if is_silent else (begin, report)
                    interval = place, opened, opened_at, _STATES[before], start, end, ended_by, False
                    if before == _UNHEARD or store_end != LATEST:
                        found += _parts(interval, before_at, until, store_end, at)
                    elif start < end:
                        found.append(interval)
                    if is_silent and end < at:
                        found.append((next_place, opened, opened_at, _DOWN, end, at, report, True))
                store_end = max(store_end, next_store_end)
            if report == _NEW or before in _CLOSED:
                # A retirement, too, may be named here: no interval rests on it, and the next report opens again.
                opened, opened_at = next_place, known_opening or begin
            place, before, before_at, start, until = next_place, report, at, begin, next_until
        self._report, self._at, self._until, self._store_end = before, before_at, until, store_end
        self.place, self.opened, self._opened_at, self._start = place, opened, opened_at, start
        return found

    def end(self) -> list[IntervalRow]:
        """Return the intervals of the last sender that have not been returned, once all its advisories are folded."""
        if self._report in _RETIREMENTS:
            return []
        interval = self.place, self.opened, self._opened_at, _STATES[self._report], self._start, None, None, False
        return list(_parts(interval, self._at, self._until, self._store_end, None))


def _parts(
    interval: IntervalRow, at: int, unheard_until: int, store_end: int, heard_again_at: int | None
) -> Iterator[IntervalRow]:
    """Yield an interval as it is cut by the end of being unheard, and by the loss of the store that knew the sender."""
    place, opened, opened_at, state, start, end, ended_by, _ = interval
    if state == _UNKNOWN and (end is None or unheard_until <= end):
        end, ended_by = unheard_until, _RETIRED
    # A sender that is unknown already remains so for the cause that came first.
    if store_end != LATEST and state != _UNKNOWN:
        cut = max(store_end, at)
        if (heard_again_at is None or cut < heard_again_at) and (end is None or cut < end):
            if start < cut:
                yield place, opened, opened_at, state, start, cut, LOST_STORE, False
            state, start = _UNKNOWN, cut
    if end is None or start < end:
        yield place, opened, opened_at, state, start, end, ended_by, False
