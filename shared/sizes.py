"""Count bytes one way: read and print sizes. ``kB`` is 1,000 bytes, ``KiB`` 1,024."""

import re

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power
_LARGEST = (1 << 63) - 1
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


class InvalidSize(ValueError):
    """A text is not a number of bytes as we write them."""


def parse_size(text: str) -> int:
    """Read ``"2GiB"``, ``"500 MB"`` or ``"1024"`` as bytes, in 63 bits; raise InvalidSize for anything else.

    >>> parse_size("1.5KiB")
    1536
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidSize(f"not a size: {text!r}, write for example 1024, 500MB or 2GiB")
    size = float(match[1]) * factor
    if size > _LARGEST:
        raise InvalidSize(f"larger than 8 EiB: {text!r}")
    return round(size)


def format_size(size: int) -> str:
    """Write a number of bytes for people, in units of 1,024.

    >>> format_size(3_500_000)
    '3.34 MiB'
    >>> format_size(2 * 1024**3)
    '2 GiB'
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}"
        value /= 1024
    return f"{value:.2f} TiB"
