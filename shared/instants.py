"""Count time one way: instants and durations are integer microseconds, instants since the Unix epoch in UTC.

Only reading and printing; no clock is read here.
"""

import re
from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

LONGEST = 36_525 * DAY
"""A hundred years: beyond, sums of instants and durations leave the calendar."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"us": 1, "ms": 1_000, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d{2}:\d{2})")


class InvalidInstant(ValueError):
    """A text is neither a duration nor an instant as we write them."""


def parse_duration(text: str) -> int:
    """Read ``"90s"``, ``"12m"``, ``"1h30m"``, ``"0.5s"`` as microseconds, a hundred years at most.

    Raise InvalidInstant for anything else.

    >>> parse_duration("1h30m") // MINUTE
    90
    """
    compact = text.replace(" ", "")
    parts = _DURATION_PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise InvalidInstant(f"not a duration: {text!r}, write for example 90s, 12m, 1h30m or 7d")
    durations = [float(number) * _UNITS[unit] for number, unit in parts]
    # A number of hundreds of digits is infinite.
    if sum(durations) > LONGEST:
        raise InvalidInstant(f"longer than a hundred years: {text!r}")
    return sum(map(round, durations))


def format_duration(duration: int) -> str:
    """Write a duration as people say it, its two largest units at most.

    >>> format_duration(3_725 * SECOND)
    '1h 2m'
    >>> format_duration(1_500_000)
    '1.5s'
    """
    if duration < 0:
        return "-" + format_duration(-duration)
    if duration < MINUTE:
        return f"{duration / SECOND:.3g}s" if duration >= SECOND or duration == 0 else f"{duration / 1000:.3g}ms"
    parts: list[str] = []
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        count, duration = divmod(duration, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def format_seconds(duration: int) -> str:
    """Write a duration to the second.

    >>> format_seconds(3_725_600_000), format_seconds(1_700_000), format_seconds(300_000)
    ('1h 2m', '1s', '0s')
    """
    return format_duration(duration // SECOND * SECOND)


def parse_instant(text: str) -> int:
    """Read RFC 3339, with up to nanoseconds (cut to microseconds); raise InvalidInstant for anything else.

    >>> parse_instant("2026-01-31T00:00:00.123456789Z")
    1769817600123456
    """
    match = _RFC3339.fullmatch(text.strip())
    if match is None:
        raise InvalidInstant(f"not an instant: {text!r}, write RFC 3339, for example 2026-01-31T00:00:00Z")
    date, clock, fraction, zone = match.groups()
    try:
        whole = datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone in 'Zz' else zone}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInstant(f"not an instant: {text!r}, {error}") from error
    return (whole - _EPOCH) // timedelta(seconds=1) * SECOND + int((fraction or "0").ljust(6, "0")[:6])


EARLIEST, LATEST = parse_instant("2000-01-01T00:00:00Z"), parse_instant("2200-01-01T00:00:00Z")
"""What a record says of times before the one or after the other is not believed."""


def format_instant(at: int) -> str:
    """Write an instant as RFC 3339 in UTC with microseconds, without the fraction where it is zero.

    >>> format_instant(1769817600000000)
    '2026-01-31T00:00:00Z'
    """
    return (_EPOCH + timedelta(microseconds=at)).isoformat().replace("+00:00", "Z")
