"""Selection of log lines from a part's reports: the first of a fault at once, repetitions as one summary.

The rules, for each part (a link, a stream's reading):

1. The start of a fault (a report with a reason) is a line at once, and so is its end, with how long it lasted.
2. For ``FIRST_QUIET`` from there, repetitions are counted: the same reason again, or an end and a new start of the
   fault. Another reason that was not logged in this fault is a line at once.
3. After that time, a fault that lasts, or came again, is one line with the count, and the next quiet time is twice as
   long, up to ``LONGEST_QUIET``. Otherwise everything is forgotten, and the next fault is logged at once.

Pure: instants are arguments, in microseconds.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from edge_agent.core.decisions import BlindCause, Counters
from edge_agent.observability.conditions import Condition
from shared.backoff import Backoff
from shared.instants import HOUR, MINUTE, format_duration

FIRST_QUIET = MINUTE
LONGEST_QUIET = HOUR
REASONS_LOGGED = 8


class LogLine(msgspec.Struct, frozen=True):
    """One line about a part; how often it was repeated without a line since the last one, and how long it lasted.

    ``condition`` names the condition that the part is in, or has just left.
    """

    phase: str
    text: str
    is_fault: bool
    repeated: int = 0
    lasted: int = 0
    condition: str = ""


class FaultLog:
    """Reports of one part, and those that were logged."""

    def __init__(self, part: str, again: str = "again ") -> None:
        self._part = part
        self._again = again
        self._condition = self._named = ""
        self._phase = ""
        self._reason = ""
        self._began_at = 0
        self._is_logged = False
        self._logged_reasons: set[str] = set()
        self._repeated = 0
        self._quiets = Backoff(FIRST_QUIET, LONGEST_QUIET)
        self._quiet = self._quiet_until = 0

    def report(self, at: int, phase: str, reason: str, condition: str = "") -> Iterator[LogLine]:
        """Apply a report and its condition; yield the lines that are due now."""
        yield from self.pass_time(at)
        was_fault = bool(self._reason)
        # The end of a fault, or of a start, is logged under the condition that it had.
        named, self._named = condition or self._named, condition
        self._condition = named
        self._phase, before = phase, self._reason
        self._reason = reason
        if reason and not was_fault:
            self._began_at, self._logged_reasons = at, set()
            yield from self._begin(at)
        elif reason:
            yield from self._go_on(reason, before)
        elif was_fault:
            yield from self._end(at)
        else:
            yield LogLine(phase, f"{self._part}: {phase}", is_fault=False, condition=named)

    def pass_time(self, at: int) -> Iterator[LogLine]:
        if not self._quiet or at < self._quiet_until:
            return
        if not self._reason and not self._repeated:
            self._quiets.reset()
            self._quiet = 0
            return
        repeated, self._repeated = self._repeated, 0
        times = f", {repeated:,} more times in {format_duration(self._quiet)}" if repeated else ""
        self._be_quiet(at)
        if self._reason:
            self._is_logged = True
            lasted = at - self._began_at
            text = f"{self._part}: still {self._phase} after {format_duration(lasted)}{times}: {self._reason}"
            yield LogLine(self._phase, text, True, repeated, lasted, self._condition)
        else:
            text = f"{self._part}: {self._phase} now, but went wrong again{times}"
            yield LogLine(self._phase, text, True, repeated, condition=self._condition)

    def _begin(self, at: int) -> Iterator[LogLine]:
        self._is_logged = not self._quiet
        if not self._is_logged:
            self._repeated += 1
            return
        self._be_quiet(at)
        yield self._fault()

    def _go_on(self, reason: str, before: str) -> Iterator[LogLine]:
        is_new = self._is_logged and reason not in self._logged_reasons and len(self._logged_reasons) < REASONS_LOGGED
        if is_new:
            yield self._fault()
        elif reason != before or self._is_logged:
            self._repeated += 1

    def _end(self, at: int) -> Iterator[LogLine]:
        if self._is_logged:
            lasted = at - self._began_at
            text = f"{self._part}: {self._phase} {self._again}after {format_duration(lasted)}"
            yield LogLine(self._phase, text, False, self._repeated, lasted, self._condition)
            self._repeated = 0

    def _fault(self) -> LogLine:
        self._logged_reasons.add(self._reason)
        text = f"{self._part}: {self._phase}: {self._reason}"
        return LogLine(self._phase, text, is_fault=True, condition=self._condition)

    def _be_quiet(self, at: int) -> None:
        self._quiet = int(self._quiets.next())
        self._quiet_until = at + self._quiet


class ConditionLog:
    """Conditions that are not a part's phase, and since when they hold; each start and each end is one line.

    The text of a lasting condition (how much, how long ago) may change at each judgement, which is no new fault.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Condition] = {}
        self._logs: dict[tuple[str, str], FaultLog] = {}

    def take(self, at: int, found: Sequence[Condition]) -> Iterator[tuple[Condition, LogLine]]:
        """Apply all conditions that hold now; yield the lines that are due for them and for those that have ended."""
        holding = {(each.name, each.subject): each for each in reversed(found)}
        for key in [key for key in self._held if key not in holding]:
            ended = self._held.pop(key)
            yield from ((ended, line) for line in self._logs[key].report(at, f"{ended.name} over", ""))
        for key, each in holding.items():
            if key not in self._held:
                self._held[key] = each if each.since else msgspec.structs.replace(each, since=at)
                log = self._logs.setdefault(key, FaultLog(each.subject, again=""))
                yield from ((each, line) for line in log.report(at, each.name, each.what, each.name))
            else:
                yield from ((each, line) for line in self._logs[key].pass_time(at))

    def with_start(self, condition: Condition) -> Condition:
        """Return a condition with its start, if it does not contain one itself."""
        held = self._held.get((condition.name, condition.subject))
        if condition.since or held is None:
            return condition
        return msgspec.structs.replace(condition, since=held.since)


WATCHED = ("dropped", "set_apart", "rejected", "blind", "clamped")
SAID_WHEN_IT_BEGINS = {"blind": set(BlindCause) - {BlindCause.UNPROVEN, BlindCause.GAP}}
"""Of these a condition, or a line of its own, tells with the cause, before they are counted."""


class CountLine(msgspec.Struct, frozen=True):
    """One line: the counts of a block since the last line, by cause."""

    block: str
    what: str
    text: str


class _LoggedCounts(msgspec.Struct):
    counts: dict[str, int]
    quiets: Backoff = msgspec.field(default_factory=lambda: Backoff(FIRST_QUIET, LONGEST_QUIET))
    quiet_until: int = 0


class CountLog:
    """The counts of each block when it was last logged. Counts at the start were logged by an earlier run."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], _LoggedCounts] = {}
        self._known: set[str] = set()

    def take(self, at: int, counters: Mapping[str, Counters]) -> Iterator[CountLine]:
        """Compare with the logged counts; yield the lines that are due."""
        for block, counted in counters.items():
            for what in WATCHED:
                counts = counted.get(what, {})
                if block not in self._known:
                    self._logged[block, what] = _LoggedCounts(dict(counts))
                elif at >= self._logged[block, what].quiet_until:
                    yield from self._compare(at, block, what, counts)
            self._known.add(block)

    def _compare(self, at: int, block: str, what: str, counts: Mapping[str, int]) -> Iterator[CountLine]:
        logged = self._logged[block, what]
        unsaid = counts.keys() - SAID_WHEN_IT_BEGINS.get(what, set())
        more = {cause: counts[cause] - logged.counts.get(cause, 0) for cause in sorted(unsaid)}
        said = ", ".join(f"{_cause_text(what, cause)} {count:,}" for cause, count in more.items() if count > 0)
        if not said:
            logged.quiets.reset()
            return
        logged.counts = dict(counts)
        logged.quiet_until = at + int(logged.quiets.next())
        yield CountLine(block, what, f"stream {block}: {what}: {said}; in all {sum(counts.values()):,}")


def _cause_text(what: str, cause: str) -> str:
    return f"{cause} ({BlindCause(cause).meaning})" if what == "blind" and cause in set(BlindCause) else cause
