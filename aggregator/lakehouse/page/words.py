"""Write figures as people read them. Shares are cut, not rounded: 100 % means all of it, and 0 % none. Pure."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from markupsafe import Markup

from aggregator.lakehouse.page.period import Period
from shared.instants import DAY, HOUR, MINUTE, SECOND, format_duration, format_instant

NOTHING: Final = "\N{EN DASH}"
CAUSES: Final = {
    "unobserved": "nobody was watching (an agent, its server or the link to it was down, or its word is still to come)",
    "advisories_missing": "reports of the site's agent are still missing at the hub",
    "contested": "two agents that know nothing of each other spoke for a site at once",
    "hub_clock": "the hub's clock was set back",
    "put_back": "an older copy of an agent's store was put back, and its reports contradict each other",
    "unwatched": "the imported history says that its source did not watch then",
    "import_gap": "the imported history does not say what they were",
    "lost": "an operator gave up archived messages as lost",
    "lost_store": "an agent lost its store, or another took its place, and has not heard these senders since",
    "unheard": "their site's stream no longer listens where these senders published",
}
"""Why time is unknown, by the tables' words for it."""
_MOST_LISTED: Final = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def percent(part: int, whole: int) -> str:
    """Write a share, cut to two digits; nothing of nothing is a dash.

    >>> percent(99_999, 100_000), percent(1, 1), percent(1, 10**9), percent(0, 5)
    ('99.99 %', '100 %', '<0.01 %', '0 %')
    """
    if whole == 0:
        return NOTHING
    if part in (0, whole):
        return "100 %" if part else "0 %"
    cut = part * 10_000 // whole
    return f"{cut / 100:.2f} %" if cut else "<0.01 %"


def rest(part: int, whole: int) -> str:
    """Write the rest of the whole, so that it and ``percent(part, whole)`` add up to 100.

    >>> rest(99_999, 100_000), rest(2, 3), rest(1, 1)
    ('0.01 %', '33.34 %', '0 %')
    """
    if part in (0, whole):
        return percent(whole - part, whole)
    return f"{(10_000 - part * 10_000 // whole) / 100:.2f} %"


def figure(part: int, whole: int) -> str:
    """Write a share in at most four characters, without its sign.

    >>> [figure(part, 1000) for part in (1000, 999, 990, 989, 57, 3, 0)]
    ['100', '99.9', '99.0', '98', '5', '<1', '0']
    """
    if part == whole:
        return "100"
    tenths = part * 1000 // whole
    if tenths >= 990:
        return f"{tenths / 10:.1f}"
    return str(tenths // 10) if tenths >= 10 or part == 0 else "<1"


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return the sort key of a name: numbers in it count as numbers.

    >>> sorted(["20", "19", "2", "rack10", "rack9", "a"], key=natural)
    ['2', '19', '20', 'a', 'rack9', 'rack10']
    """
    parts = re.findall(r"([0-9]+)|([^0-9]+)", text)
    return tuple((0, int(number), "") if number else (1, 0, other) for number, other in parts)


def count(number: int, noun: str) -> str:
    """Write a number and the noun that it counts.

    >>> count(1, "sender"), count(1200, "sender")
    ('1 sender', '1,200 senders')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: list[str]) -> str:
    """Name eight at most, and how many more there are.

    >>> listed(["a", "b", "c"]), listed([*"abcdefghij"])
    ('a, b and c', 'a, b, c, d, e, f, g, h and 2 more')
    """
    shown = names if len(names) <= _MOST_LISTED else [*names[:_MOST_LISTED], f"{len(names) - _MOST_LISTED:,} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else ""


def duration(length: int) -> str:
    """Write a duration; sums over senders may run to many years.

    >>> duration(90 * SECOND), duration(400 * DAY), duration(365_250 * DAY)
    ('1m 30s', '400d', '1,000.0 years')
    """
    return format_duration(length) if length < 1000 * DAY else f"{length / (365.25 * DAY):,.1f} years"


def step_name(step: int) -> str:
    """Write the length of a window out, without "one".

    >>> step_name(HOUR), step_name(5 * SECOND), step_name(6 * HOUR)
    ('hour', '5 seconds', '6 hours')
    """
    for unit, name in ((7 * DAY, "week"), (DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"), (SECOND, "second")):
        if step % unit == 0:
            return name if step == unit else f"{step // unit} {name}s"
    return duration(step)


class Clock(NamedTuple):
    """Write instants (UTC) as short as the period allows."""

    period: Period

    def instant(self, at: int) -> str:
        """Write an instant: without its date where the period has only one, to the second where it is short."""
        when = _EPOCH + timedelta(microseconds=at)
        seconds = ":%S" if self.period.length <= 2 * DAY else ""
        date = (
            ""
            if self._one_day and at // DAY == self.period.started_at // DAY
            else f"{when.day} {when:%b} "
            if self._one_year
            else f"{when:%Y-%m-%d} "
        )
        return date + when.strftime("%H:%M" + seconds)

    def time(self, at: int) -> Markup:
        """Write an instant as an element that holds it exactly."""
        return Markup('<time datetime="{}">{}</time>').format(format_instant(at), self.instant(at))

    def tick(self, at: int, step: int) -> str:
        """Label a window of ``step`` that begins at ``at``: where days follow each other, midnight has its date.

        >>> [Clock(Period(0, length * DAY)).tick(0, DAY) for length in (30, 400)]
        ['1 Jan', '1970-01-01']
        """
        when = _EPOCH + timedelta(microseconds=at)
        if step >= DAY or (at % DAY == 0 and not self._one_day):
            return f"{when.day} {when:%b}" if self._one_year else f"{when:%Y-%m-%d}"
        return when.strftime("%H:%M" if step % (60 * SECOND) == 0 else "%H:%M:%S")

    def whole(self) -> str:
        """Write the period.

        >>> Clock(Period(0, 90 * SECOND)).whole()
        '1 January 1970, 00:00:00 to 00:01:30 UTC'
        """
        begin, end = (_EPOCH + timedelta(microseconds=at) for at in self.period)
        form = "%H:%M:%S" if self.period.length < HOUR else "%H:%M"
        first, last = f"{begin.day} {begin:%B %Y}", f"{end.day} {end:%B %Y}"
        if first == last:
            return f"{first}, {begin:{form}} to {end:{form}} UTC"
        return f"{first}, {begin:{form}} to {last}, {end:{form}} UTC"

    @property
    def _one_day(self) -> bool:
        return self.period.started_at // DAY == (self.period.ended_at - 1) // DAY

    @property
    def _one_year(self) -> bool:
        begin, end = (_EPOCH + timedelta(microseconds=at) for at in self.period)
        return begin.year == end.year or self.period.length < 300 * DAY
