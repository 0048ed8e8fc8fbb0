"""Hold Muster's figures of one sender against what the sender really did. Pure; written apart from the lakehouse.

What is promised: within the time that Muster knows, up and down are off by no more than

    the outages too short to be noticed (no stretch of theirs in known time is as long as ``stale_after``)
    + 2 x registration interval for each outage that was noticed,

since an outage is seen from the last word before it to the first word after it. And nobody is called stale while it
registers, nor while the site's stream could not store or was not seen.
"""

import msgspec

from aggregator.demo.spans import Span, common, longest, merged, total, without
from shared.truth import Truth

LATENESS = 1_000_000
"""How much later than planned a registration may be stored on a busy machine, in microseconds."""


class Interval(msgspec.Struct, frozen=True):
    """One row of ``sender_intervals``, its end cut at the end of known time. Instants in microseconds."""

    state: str
    started_at: int
    ended_at: int
    advisory_at: int

    @property
    def span(self) -> Span:
        """Give when it was so."""
        return self.started_at, self.ended_at


class Figures(msgspec.Struct, frozen=True):
    """What the tables say of one sender: its intervals, and the sums of ``sender_availability_daily``, microseconds."""

    intervals: tuple[Interval, ...]
    up: int = 0
    down: int = 0
    unknown: int = 0


class Rules(msgspec.Struct, frozen=True):
    """What the figures were made by, in microseconds: known time is ``known``, for the sender's site."""

    known: tuple[Span, ...]
    stale_after: int
    ended_at: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one sender, in microseconds.

    ``error`` is how much more downtime Muster gives it than it had, within the time that Muster knows.
    ``noticed`` and ``missed`` count the real outages that touch known time; ``hidden`` those that lie outside of it.
    What should not be is said in words: figures ``beyond`` what is promised, times it was ``accused`` wrongly, time it
    was there ``unmet``.
    """

    site: str
    sender: str
    up: int
    down: int
    unknown: int
    true_down: int
    error: int
    bound: int
    noticed: int
    missed: int
    hidden: int
    beyond: tuple[str, ...]
    accused: tuple[str, ...]
    unmet: tuple[str, ...]

    @property
    def observed(self) -> int:
        """Give how much of its life is known."""
        return self.up + self.down


class _Outages(msgspec.Struct):
    noticed: int = 0
    missed: int = 0
    hidden: int = 0
    bound: int = 0


def judge(truth: Truth, site: str, sender: str, says: Figures, rules: Rules) -> Verdict:
    """Compare one sender. ``says`` is without intervals where the tables do not know it."""
    known = rules.known
    lives = merged(each.span for each in says.intervals if each.state in ("up", "down"))
    observed = common(known, lives)
    really_up = truth.up_spans(site, sender, truth.header.started_at_us, rules.ended_at)
    true_up = total(common(really_up, observed))
    true_down = total(observed) - true_up
    outages = _outages(truth, site, sender, says, observed, rules)
    error = says.down - true_down
    beyond = []
    if says.up + says.down != total(observed):
        beyond.append(
            f"its days account for {_seconds(says.up + says.down)} of known time,"
            f" its intervals for {_seconds(total(observed))}"
        )
    if abs(error) > outages.bound:
        beyond.append(
            f"Muster says down for {_seconds(says.down)}, the truth is {_seconds(true_down)}:"
            f" more than {_seconds(outages.bound)} apart"
        )
    return Verdict(
        site=site,
        sender=sender,
        up=says.up,
        down=says.down,
        unknown=says.unknown,
        true_down=true_down,
        error=error,
        bound=outages.bound,
        noticed=outages.noticed,
        missed=outages.missed,
        hidden=outages.hidden,
        beyond=tuple(beyond),
        accused=tuple(_false_accusations(truth, says, really_up, rules)),
        unmet=tuple(_unmet(truth, says, without(common(really_up, known), lives))),
    )


def _outages(truth: Truth, site: str, sender: str, says: Figures, observed: list[Span], rules: Rules) -> _Outages:
    """Sort the real outages of a sender's life into those noticed, those missed, and those that nobody could see."""
    found = _Outages()
    downs = [each.span for each in says.intervals if each.state == "down"]
    life = [(truth.intervals(site, sender)[0].up_from_us, rules.ended_at)] if truth.intervals(site, sender) else []
    for outage in common(truth.down_spans(site, sender, truth.header.started_at_us, rules.ended_at), life):
        in_known_time = common([outage], observed)
        if not in_known_time:
            found.hidden += 1
        elif common([outage], downs):
            found.noticed += 1
            found.bound += 2 * truth.header.registration_interval
        else:
            found.missed += 1
            if longest(in_known_time) < rules.stale_after:
                found.bound += total(in_known_time)
    return found


def _false_accusations(truth: Truth, says: Figures, really_up: list[Span], rules: Rules) -> list[str]:
    """Find the times that the sender was called stale although it was registering, or nobody could know."""
    header, problems = truth.header, []
    for each in says.intervals:
        if each.state != "down":
            continue
        silence = [(each.advisory_at - rules.stale_after, each.advisory_at)]
        if longest(common(silence, really_up)) > header.registration_interval + header.jitter + LATENESS:
            problems.append(f"called stale {_since(truth, each.advisory_at)} while it was registering")
        if without(silence, rules.known):
            problems.append(f"called stale {_since(truth, each.advisory_at)} by an observer that had been blind")
    return problems


def _unmet(truth: Truth, says: Figures, unmet: list[Span]) -> list[str]:
    """See that each life began within one registration interval of the truth's, as far as anybody watched."""
    header = truth.header
    if longest(unmet) <= header.registration_interval + header.jitter + LATENESS:
        return []
    return [f"up for {_seconds(longest(unmet))} of known time and " + ("given up" if says.intervals else "never met")]


def _seconds(duration: int) -> str:
    return f"{duration / 1e6:.2f} s"


def _since(truth: Truth, at: int) -> str:
    return f"{_seconds(at - truth.header.started_at_us)} after the start"
