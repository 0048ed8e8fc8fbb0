"""Hold Muster's figures of one sender against what the sender really did. Pure; written apart from the lakehouse.

What is promised: within the time that Muster knows, up and down are off by no more than

    the outages too short to be noticed (no stretch of theirs in known time is as long as ``stale_after``)
    + 2 x registration interval for each outage that was noticed,

since an outage is seen from the last word before it to the first word after it. And nobody is called stale while it
registers, nor while the site's stream could not store or was not seen.

Declared maintenance counts neither as up nor as down, so it is left out of known time. Whether a sender was called
stale rightly is judged there, too.

Judged is the truth's own time. What the tables know beyond it, as where the agent goes on after its fleet has ended,
counts for nothing; a silence that reaches across an edge of it may be off by the time between two words.
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
        return self.started_at, self.ended_at


class Figures(msgspec.Struct, frozen=True):
    """What the tables say of one sender: its intervals, and the sums of ``sender_availability_daily``, microseconds.

    ``maintenance`` is the time that was declared for it, or for its block, site or region.
    """

    intervals: tuple[Interval, ...]
    up: int = 0
    down: int = 0
    unknown: int = 0
    maintenance: tuple[Span, ...] = ()


class Rules(msgspec.Struct, frozen=True):
    """What the figures were made by, in microseconds: known time is ``known``, for the sender's site.

    ``ended_at`` is the end of known time or of the truth, whichever comes first.
    """

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
    def wrong(self) -> tuple[str, ...]:
        return (*self.beyond, *self.accused, *self.unmet)

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
    period = _period(truth, rules)
    known = common(rules.known, period)
    lives = merged(each.span for each in says.intervals if each.state in ("up", "down"))
    outside = without(rules.known, merged(says.maintenance))
    accounted, observed = common(outside, lives), common(common(outside, period), lives)
    really_up = truth.up_spans(site, sender, truth.header.started_at_us, rules.ended_at)
    true_up = total(common(really_up, observed))
    true_down = total(observed) - true_up
    outages = _outages(truth, site, sender, says, observed, rules)
    up, down = (
        said - total(without(common(outside, _spans(says, state)), period))
        for state, said in (("up", says.up), ("down", says.down))
    )
    error = down - true_down
    bound = outages.bound + _cut_silences(truth, says, really_up, rules)
    beyond = []
    if says.up + says.down != total(accounted):
        beyond.append(
            f"its days account for {_seconds(says.up + says.down)} of known time,"
            f" its intervals for {_seconds(total(accounted))}"
        )
    if abs(error) > bound:
        beyond.append(
            f"Muster says down for {_seconds(down)}, the truth is {_seconds(true_down)}:"
            f" more than {_seconds(bound)} apart"
        )
    return Verdict(
        site=site,
        sender=sender,
        up=up,
        down=down,
        unknown=says.unknown,
        true_down=true_down,
        error=error,
        bound=bound,
        noticed=outages.noticed,
        missed=outages.missed,
        hidden=outages.hidden,
        beyond=tuple(beyond),
        accused=tuple(_false_accusations(truth, says, really_up, known, rules)),
        unmet=tuple(_unmet(truth, says, without(common(really_up, known), lives))),
    )


def _outages(truth: Truth, site: str, sender: str, says: Figures, observed: list[Span], rules: Rules) -> _Outages:
    """Sort the real outages of a sender's life into those noticed, those missed, and those that nobody could see."""
    found = _Outages()
    downs = [each.span for each in says.intervals if each.state == "down"]
    life = [(truth.intervals(site, sender)[0].up_from_us, rules.ended_at)] if truth.intervals(site, sender) else []
    for outage in common(truth.down_spans(site, sender, truth.header.started_at_us, rules.ended_at), life):
        in_known_time = common([outage], observed)
        of_outage = [each for each in downs if common([outage], [each])]
        # From the last word before it to the first word after it: that may reach into known time where it does not.
        if not common([outage, *of_outage], observed):
            found.hidden += 1
        elif of_outage:
            found.noticed += 1
            found.bound += 2 * truth.header.registration_interval
        else:
            found.missed += 1
            if longest(in_known_time) < rules.stale_after:
                found.bound += total(in_known_time)
    return found


def _cut_silences(truth: Truth, says: Figures, really_up: list[Span], rules: Rules) -> int:
    """Allow for silences that reach across an edge of the truth's time.

    Whoever registered until the truth ended had its last word somewhat before, and counts as down from there on where
    its silence is noticed later. One that was silent when the truth began counts as down until its first word.
    """
    downs = [each for each in says.intervals if each.state == "down"]
    ((began_at, ended_at),) = _period(truth, rules)
    was_up_last = bool(really_up) and really_up[-1][1] == ended_at
    at_first = any(each.started_at < began_at < each.ended_at for each in downs)
    at_last = was_up_last and any(each.started_at < ended_at < each.advisory_at for each in downs)
    return _longest_silence(truth) * (at_first + at_last)


def _false_accusations(
    truth: Truth, says: Figures, really_up: list[Span], known: list[Span], rules: Rules
) -> list[str]:
    """Find the times that the sender was called stale although it was registering, or nobody could know."""
    problems = []
    for each in says.intervals:
        if each.state != "down":
            continue
        silence = common([(each.advisory_at - rules.stale_after, each.advisory_at)], _period(truth, rules))
        if longest(common(silence, really_up)) > _longest_silence(truth):
            problems.append(f"called stale {_since(truth, each.advisory_at)} while it was registering")
        if without(silence, known):
            problems.append(f"called stale {_since(truth, each.advisory_at)} by an observer that had been blind")
    return problems


def _unmet(truth: Truth, says: Figures, unmet: list[Span]) -> list[str]:
    """See that each life began within one registration interval of the truth's, as far as anybody watched."""
    if longest(unmet) <= _longest_silence(truth):
        return []
    return [f"up for {_seconds(longest(unmet))} of known time and " + ("given up" if says.intervals else "never met")]


def _period(truth: Truth, rules: Rules) -> list[Span]:
    return [(truth.header.started_at_us, rules.ended_at)]


def _longest_silence(truth: Truth) -> int:
    """Give the longest that may pass between two words of a sender that is up."""
    return truth.header.registration_interval + truth.header.jitter + LATENESS


def _spans(says: Figures, state: str) -> list[Span]:
    return merged(each.span for each in says.intervals if each.state == state)


def _seconds(duration: int) -> str:
    return f"{duration / 1e6:.2f} s"


def _since(truth: Truth, at: int) -> str:
    return f"{_seconds(at - truth.header.started_at_us)} after the start"
