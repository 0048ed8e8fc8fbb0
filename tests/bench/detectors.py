"""Judge failure detectors by the figures of Chen, Toueg and Aguilera, and be the detectors that others use.

Nothing here reads a clock: what an observer heard, and when it looked at its clock, is told. All instants and durations
are microseconds; those of arrivals are the observer's own clock's.

Sources: Chen, Toueg, Aguilera, "On the Quality of Service of Failure Detectors", IEEE ToC 51 (2002): detection time,
mistake recurrence time, mistake duration, query accuracy probability. Hayashibara, Defago, Yared, Katayama, "The phi
Accrual Failure Detector", SRDS 2004. Kubernetes, "Nodes", section "Rate limits on eviction".
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from shared.instants import SECOND

Span = tuple[int, int]

PHI_THRESHOLD = 8.0
PHI_WINDOW = 1_000
UNHEALTHY_ZONE = 0.55
TRANSIT = SECOND // 10
"""How long a registration may be under way: who registered no longer ago is not accused wrongly."""


class Heard(NamedTuple):
    """What an observer did at an instant: it heard a sender, or looked at its clock (``LOOKED``), or ``BEGAN``."""

    at: int
    what: str


LOOKED, BEGAN = "-", "+"


class Suspicion(NamedTuple):
    """A sender was held to be down from ``started_at`` on, which was said at ``said_at``, in all of ``spans``."""

    started_at: int
    said_at: int
    spans: Sequence[Span]


Suspicions = Mapping[str, Sequence[Suspicion]]


class Detector(Protocol):
    """Decide by what was heard when who is down."""

    def hear(self, sender_id: str, at: int) -> None:
        """Take a registration that has just arrived."""

    def silent(self, at: int) -> Iterable[str]:
        """Name those that are down at ``at``; of those that were and are not heard again nothing is asked."""

    def begin(self, at: int) -> bool:
        """Start anew at ``at``; tell whether it forgets whom it accused."""


class FixedTimeout:
    """Whoever was not heard for ``timeout`` is down; what was heard is kept in a file, as the peer does."""

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._last: dict[str, int] = {}

    def hear(self, sender_id: str, at: int) -> None:
        self._last[sender_id] = at

    def silent(self, at: int) -> list[str]:
        return [sender_id for sender_id, last in self._last.items() if at - last > self._timeout]

    def begin(self, _at: int) -> bool:
        return False


class ZoneRule:
    """A fixed time-out that accuses nobody (more) while 55 % of the zone are over it; a start gives all their time."""

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._last: dict[str, int] = {}

    def hear(self, sender_id: str, at: int) -> None:
        self._last[sender_id] = at

    def silent(self, at: int) -> list[str]:
        late = [sender_id for sender_id, last in self._last.items() if at - last > self._timeout]
        return late if len(late) < UNHEALTHY_ZONE * len(self._last) else []

    def begin(self, at: int) -> bool:
        self._last = dict.fromkeys(self._last, at)
        return True


class _Intervals:
    """The last intervals between one sender's arrivals, and their sums."""

    def __init__(self, at: int, estimates: Iterable[float]) -> None:
        self.last = at
        self._kept = deque(estimates, PHI_WINDOW)

    def add(self, interval: float) -> None:
        self._kept.append(interval)

    def moments(self) -> tuple[float, float]:
        count = len(self._kept)
        mean = sum(self._kept) / count
        return mean, math.sqrt(sum((each - mean) ** 2 for each in self._kept) / count)


class PhiAccrual:
    """Whoever is silent for longer than is likely, by its own last intervals, is down: phi above 8.

    The threshold, the window of 1,000 intervals, the least deviation (a tenth of ``interval``) and the estimate that a
    window begins with are those of Akka, whose heartbeats come every second, in proportion. So is ``pause``, three
    intervals there, which the paper does not have. What comes back from being down adds no interval.
    """

    def __init__(self, interval: int, pause: int = 0) -> None:
        self._interval, self._pause = interval, pause
        self._kept: dict[str, _Intervals] = {}
        self._deadlines: dict[str, float] = {}
        self._reach = _deviations_at(PHI_THRESHOLD)

    def hear(self, sender_id: str, at: int) -> None:
        kept = self._kept.get(sender_id)
        if kept is None:
            kept = self._kept[sender_id] = _Intervals(at, (0.75 * self._interval, 1.25 * self._interval))
        elif at <= self._deadlines[sender_id]:
            kept.add(at - kept.last)
        kept.last = at
        mean, deviation = kept.moments()
        self._deadlines[sender_id] = at + mean + self._pause + self._reach * max(deviation, self._interval / 10)

    def silent(self, at: int) -> list[str]:
        return [sender_id for sender_id, deadline in self._deadlines.items() if at > deadline]

    def begin(self, _at: int) -> bool:
        self._kept.clear()
        self._deadlines.clear()
        return True


def phi(deviations: float) -> float:
    """Give the suspicion of a silence that is so many standard deviations longer than the mean.

    >>> round(phi(5.6), 2)
    7.97
    """
    return -math.log10(0.5 * math.erfc(deviations / math.sqrt(2)))


def _deviations_at(threshold: float) -> float:
    """Give the deviations at which phi reaches a threshold: it rises with them, so that a deadline can be told."""
    low, high = 0.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if phi(middle) < threshold else (low, middle)
    return high


def suspicions(detector: Detector, log: Iterable[Heard], ended_at: int) -> Suspicions:
    """Give whom a detector accuses by an observer's log: whenever it looks, until they are heard again."""
    accused: dict[str, int] = {}
    found: dict[str, list[Suspicion]] = defaultdict(list)

    def withdraw(sender_id: str, at: int) -> None:
        since = accused.pop(sender_id, None)
        if since is not None:
            found[sender_id].append(Suspicion(since, since, [(since, at)]))

    for at, what in log:
        if what == LOOKED:
            for sender_id in detector.silent(at):
                accused.setdefault(sender_id, at)
        elif what == BEGAN:
            if detector.begin(at):
                for sender_id in list(accused):
                    withdraw(sender_id, at)
        else:
            detector.hear(what, at)
            withdraw(what, at)
    for sender_id in list(accused):
        withdraw(sender_id, ended_at)
    return found


class Outage(NamedTuple):
    """A sender registered last at ``last_at``, and next at ``next_at``."""

    sender_id: str
    last_at: int
    next_at: int


class Truth:
    """Who registered when. A sender is up for ``longest_silence`` behind each registration, whoever stores it."""

    def __init__(self, registered: Mapping[str, Sequence[int]], longest_silence: int, ended_at: int) -> None:
        self.registered = registered
        self.ended_at = ended_at
        self.up: dict[str, list[Span]] = {}
        self.outages: list[Outage] = []
        for sender_id, instants in registered.items():
            spans = self.up[sender_id] = []
            up_from = instants[0]
            for at, next_at in zip(instants, [*instants[1:], ended_at], strict=True):
                if next_at - at > longest_silence:
                    self.outages.append(Outage(sender_id, at, next_at))
                    spans.append((up_from, at + longest_silence))
                    up_from = next_at
            if up_from < ended_at:
                spans.append((up_from, ended_at))

    def up_span(self, sender_id: str, at: int) -> Span | None:
        """Give the time in which a sender is up around an instant, None where it is not."""
        spans = self.up.get(sender_id, [])
        place = bisect_right(spans, (at, at)) - 1
        return spans[place] if place >= 0 and at < spans[place][1] else None


class Mistake(NamedTuple):
    """A sender was accused while it was up."""

    sender_id: str
    started_at: int
    ended_at: int


class Figures(NamedTuple):
    """What a detector is worth. ``delays`` are those of the outages that it noticed, from the last registration on."""

    mistakes: Sequence[Mistake]
    up_time: int
    wrong_time: int
    delays: Mapping[Outage, int]

    @property
    def query_accuracy(self) -> float:
        """Give P_A: the share of the senders' time up in which they were not held to be down."""
        return 1 - self.wrong_time / self.up_time if self.up_time else 1.0

    @property
    def mistake_duration(self) -> float | None:
        """Give T_M, the mean; None without a mistake."""
        count = len(self.mistakes)
        return sum(each.ended_at - each.started_at for each in self.mistakes) / count if count else None

    @property
    def mistake_recurrence(self) -> float | None:
        """Give T_MR: the time up of one sender that goes with one mistake; None without a mistake."""
        return self.up_time / len(self.mistakes) if self.mistakes else None


def judge(truth: Truth, found: Suspicions, least_outage: int) -> Figures:
    """Compare what a detector said with the truth; outages shorter than ``least_outage`` need not be noticed."""
    mistakes: list[Mistake] = []
    wrong_time = 0
    for sender_id, of_sender in found.items():
        for suspicion in of_sender:
            wrong_time += sum(length(within(span, truth.up.get(sender_id, []))) for span in suspicion.spans)
            up = truth.up_span(sender_id, suspicion.started_at)
            if up is not None and suspicion.started_at - up[0] > TRANSIT:
                ended_at = max((end for _, end in suspicion.spans), default=suspicion.started_at)
                mistakes.append(Mistake(sender_id, suspicion.started_at, min(ended_at, up[1])))
    delays: dict[Outage, int] = {}
    for outage in truth.outages:
        of_sender = found.get(outage.sender_id, ())
        if outage.next_at - outage.last_at < least_outage:
            continue
        place = bisect_left(of_sender, outage.last_at, key=lambda each: each.started_at)
        if place < len(of_sender) and of_sender[place].started_at < outage.next_at:
            delays[outage] = of_sender[place].said_at - outage.last_at
        elif place and any(end > outage.last_at for _, end in of_sender[place - 1].spans):
            # It was accused by mistake, and then rightly.
            delays[outage] = 0
    up_time = sum(map(length, truth.up.values()))
    return Figures(sorted(mistakes, key=lambda each: each.started_at), up_time, wrong_time, delays)


class StreamClock:
    """What the clock of the stream's server showed: ``set_at`` and how far it was ahead from then on, in order."""

    def __init__(self, began_at: int) -> None:
        self._steps: list[tuple[int, int]] = [(began_at, 0)]

    def step(self, at: int, ahead: int) -> None:
        """Note that it was set at an instant."""
        self._steps.append((at, ahead))

    def latest(self, shown: int, known_at: int) -> int:
        """Give when it showed an instant that was known at ``known_at``: of the times that fit, the last one."""
        return max((at for at in self._showing(shown) if at <= known_at), default=self._passed(shown))

    def earliest(self, shown: int, since: int) -> int:
        """Give when it first showed an instant at ``since`` or later."""
        return min((at for at in self._showing(shown) if at >= since), default=self._passed(shown))

    def _showing(self, shown: int) -> list[int]:
        ends = [*(at for at, _ in self._steps[1:]), 1 << 62]
        return [
            shown - ahead
            for (began_at, ahead), ended_at in zip(self._steps, ends, strict=True)
            if began_at <= shown - ahead <= ended_at
        ]

    def _passed(self, shown: int) -> int:
        """Give when it was set past an instant that it never showed."""
        return next((at for at, ahead in self._steps if at + ahead >= shown), shown)


def within(span: Span, spans: Sequence[Span]) -> list[Span]:
    """Give the parts of a span that lie in others, which are in order."""
    cut = [(max(span[0], begin), min(span[1], end)) for begin, end in spans]
    return [(begin, end) for begin, end in cut if begin < end]


def length(spans: Iterable[Span]) -> int:
    """Add up how long spans last."""
    return sum(end - begin for begin, end in spans)
