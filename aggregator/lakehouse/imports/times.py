"""Parse instants and lengths as other systems write them: Unix time, ISO 8601, a pattern of strptime. Pure."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping, Unit
from shared.instants import DAY, HOUR, MINUTE, SECOND, format_instant, parse_instant

EARLIEST = parse_instant("1970-01-01T00:00:00Z") + DAY
"""An earlier instant is a mistake of units, or no instant: many systems write 0 for never."""

NOTHING_BUT_ZERO = frozenset({"", "-", "\\n", "null", "none", "nan", "nat", "na", "n/a", "now", "ongoing"})
"""The texts, in lower case, that systems write if a row has no end yet."""
NOTHING = NOTHING_BUT_ZERO | {"0"}
"""The same for instants that count from 1970."""

ReadTime = Callable[[str], int]


class AmbiguousTime(ValueError):
    """A local time that names two instants, or none, because clocks were changed.

    ``earlier`` and ``later`` are its instants with the offset of each side, in microseconds.
    """

    def __init__(self, moment: datetime, earlier: int, later: int) -> None:
        self.earlier, self.later = earlier, later
        super().__init__(
            f"clocks were changed at {moment}: it is {format_instant(earlier)} or {format_instant(later)}; write its"
            " offset"
        )


_PER_UNIT: dict[str, Decimal] = {
    "ns": Decimal("0.001"),
    "us": Decimal(1),
    "ms": Decimal(1_000),
    "s": Decimal(SECOND),
    "m": Decimal(MINUTE),
    "h": Decimal(HOUR),
    "d": Decimal(DAY),
}
_LARGEST = 30
"""Larger powers of ten are no instants, and to compute them takes too long."""
_OF_INSTANTS = ("s", "ms", "us", "ns")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = re.compile(
    r"(?:(?P<days>\d+)(?: days?,?)? )?(?P<hours>\d+):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d(?:\.\d+)?)"
)
_NAMED_UTC = re.compile(r"\s*(?:UTC|GMT)$")
_UTC_BY_NAME = re.compile(r"\b(?:UTC|GMT)\b", re.IGNORECASE)
_DIRECTIVE = re.compile(r"%(.)")
_FEWEST_SECONDS = 100_000_000
"""Unix seconds have as many, and nine digits, from March 1973 on. A smaller number is a year, a month or a day."""


def latest(now: int) -> int:
    """Return the last instant that can have been observed ``now``: a day ahead, because clocks and zones differ.

    A later one is a mistake of units, or no instant: many systems write 2099-12-31 for not yet.
    """
    return now + DAY


def time_reader(time: str, zone: str, epoch: int | None = None) -> ReadTime:
    """Return a parser of instants that returns microseconds or raises ValueError; raise ValueError for a bad option.

    Numbers count from ``epoch``, in microseconds of Unix time. If it is None, they count from 1970, and auto refuses
    small ones.
    """
    try:
        where = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"there is no time zone {zone!r}; write for example Europe/Dublin") from error
    if "%" in time:
        return _pattern_reader(time, where)
    if time in _OF_INSTANTS:
        factor = _PER_UNIT[time]
        return lambda text: (epoch or 0) + _number(text, factor)
    if time != "auto":
        raise ValueError(f"times are auto, s, ms, us, ns or a pattern such as %d.%m.%Y %H:%M, not {time!r}")

    def unix_seconds_or_iso(text: str) -> int:
        try:
            plain = text.isascii() and text.isdigit()
            since = int(text) * SECOND if plain else _number(text, Decimal(SECOND))
        except ValueError:
            return _microseconds(datetime.fromisoformat(_NAMED_UTC.sub("+00:00", text.strip())), where)
        if epoch is None and abs(since) < _FEWEST_SECONDS * SECOND:
            raise ValueError("plain numbers are Unix seconds, with nine digits or more")
        return (epoch or 0) + since

    return unix_seconds_or_iso


def length_reader(unit: Unit) -> ReadTime:
    """Return a parser of lengths that returns microseconds or raises ValueError: a number of ``unit``, or a clock.

    >>> length_reader("m")("1.5"), length_reader("m")("1 day, 0:00:05")
    (90000000, 86405000000)
    """
    factor = _PER_UNIT[unit]

    def number_or_clock(text: str) -> int:
        clock = _CLOCK.fullmatch(text.strip()) if ":" in text else None
        if clock is None:
            return _number(text, factor)
        parts = (Decimal(clock[name] or 0) * _PER_UNIT[name[0]] for name in ("days", "hours", "minutes", "seconds"))
        return int(sum(parts, Decimal(0)).to_integral_value())

    return number_or_clock


def _pattern_reader(pattern: str, where: ZoneInfo) -> ReadTime:
    """Return a parser for a pattern of strptime; its %Z takes only UTC and GMT, for Python ignores the zone's name."""
    directives = _DIRECTIVE.findall(pattern)
    # An offset next to the name decides.
    by_name = "Z" in directives and "z" not in directives
    if by_name:
        pattern = _DIRECTIVE.sub(lambda each: "%z" if each[1] == "Z" else each[0], pattern)

    def in_pattern(text: str) -> int:
        plain = _UTC_BY_NAME.sub("+0000", text.strip()) if by_name else text.strip()
        return _microseconds(datetime.strptime(plain, pattern), where)  # noqa: DTZ007 - the zone is put to it

    return in_pattern


def _number(text: str, factor: Decimal) -> int:
    try:
        number = Decimal(text.strip())
        if not number.is_finite() or number.adjusted() > _LARGEST:
            raise ValueError(f"not an instant or a length: {text!r}")
        return int((number * factor).to_integral_value())
    except ArithmeticError as error:
        raise ValueError(f"not a number: {text!r}") from error


def _microseconds(moment: datetime, where: ZoneInfo) -> int:
    if moment.tzinfo:
        return (moment - _EPOCH) // timedelta(microseconds=1)
    first, second = ((moment.replace(tzinfo=where, fold=fold) - _EPOCH) // timedelta(microseconds=1) for fold in (0, 1))
    if first != second:
        raise AmbiguousTime(moment, min(first, second), max(first, second))
    return first


def parse_option(name: str, text: str | None, zone: str) -> int | None:
    """Return the instant of the option ``name`` in microseconds; raise ImportRefused."""
    if text is None:
        return None
    try:
        return time_reader("auto", zone)(text)
    except ValueError as error:
        raise ImportRefused(f"--{name} {text}: {error}; write for example 2005-12-31T23:59:59Z") from error


def parse_epoch(text: str | None, zone: str) -> int | None:
    """Return the option ``epoch`` in microseconds, None without one; raise ImportRefused. 0 is 1970."""
    return 0 if text is not None and text.strip() == "0" else parse_option("epoch", text, zone)


def parse_watch(since: str | None, until: str | None, zone: str, now: int) -> tuple[int | None, int | None]:
    """Return both in microseconds; raise ImportRefused for a likely mistake. ``now`` is in microseconds."""
    begins, ends = (_plausible(name, text, zone, now) for name, text in (("since", since), ("until", until)))
    if begins is not None and ends is not None and begins >= ends:
        raise ImportRefused(
            f"--since {since} is {format_instant(begins)}, and not before --until {until}, {format_instant(ends)}"
        )
    return begins, ends


def describe_watch(mapping: Mapping) -> str:
    """Return one line on the state of senders between and around their rows."""
    holds = (
        "a row holds until its sender's next" if mapping.tells_changes else f"between rows senders are {mapping.gaps}"
    )
    begins = "each sender's first row" if mapping.since is None else format_instant(mapping.since)
    if mapping.until is not None:
        return f"{holds}; watched from {begins} to {format_instant(mapping.until)}"
    lacking = ", whose state then has no length: --until says when the source ceased to watch"
    return f"{holds}; watched from {begins} to its last{lacking if mapping.tells_changes else ''}"


def _plausible(name: str, text: str | None, zone: str, now: int) -> int | None:
    at = parse_option(name, text, zone)
    if text is None or at is None:
        return None
    if not EARLIEST <= at <= latest(now):
        when = "lies before 1970-01-02" if at < EARLIEST else "is still to come"
        raise ImportRefused(f"--{name} {text} {when}: numbers are Unix seconds, whatever --time says; else ISO 8601")
    return at
