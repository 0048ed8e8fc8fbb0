"""Read an instant as other systems write it: Unix time, ISO 8601, or a pattern of strptime. Pure."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shared.instants import DAY, SECOND, parse_instant

EARLIEST = parse_instant("1970-01-01T00:00:00Z") + DAY
LATEST = parse_instant("2200-01-01T00:00:00Z")
"""What lies outside is a mistake of units, or stands for nothing: many systems write 0 for never."""

ReadTime = Callable[[str], int]
_PER_UNIT = {"ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_reader(time: str, zone: str) -> ReadTime:
    """Give what reads an instant as microseconds, and raises ValueError; raise ValueError for a wrong option."""
    try:
        where = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"there is no time zone {zone!r}; write for example Europe/Dublin") from error
    if "%" in time:
        return lambda text: _microseconds(datetime.strptime(text.strip(), time), where)  # noqa: DTZ007 - zone below
    if time in _PER_UNIT:
        factor = _PER_UNIT[time]
        return lambda text: _number(text, factor)
    if time != "auto":
        raise ValueError(f"times are auto, ms, us, ns or a pattern such as %d.%m.%Y %H:%M, not {time!r}")

    def unix_seconds_or_iso(text: str) -> int:
        if text.isascii() and text.isdigit():
            return int(text) * SECOND
        try:
            return _number(text, Decimal(SECOND))
        except ValueError:
            return _microseconds(datetime.fromisoformat(text.strip()), where)

    return unix_seconds_or_iso


def _number(text: str, factor: Decimal) -> int:
    try:
        return int((Decimal(text.strip()) * factor).to_integral_value())
    except (InvalidOperation, OverflowError) as error:
        raise ValueError(f"not a number: {text!r}") from error


def _microseconds(moment: datetime, where: ZoneInfo) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=where)
    return (aware - _EPOCH) // timedelta(microseconds=1)
