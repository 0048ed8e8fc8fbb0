"""Read from a certificate until when it is valid, without a library for the rest of it.

Source: RFC 5280, section 4.1, in DER (X.690): behind the version, where there is one, stand the serial number, the
algorithm, the issuer, and then the two instants of the validity.
"""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from shared.instants import DAY, SECOND

EXPIRES_SOON = 14 * DAY
_VERSION, _UTC_TIME, _GENERAL_TIME = 0xA0, 0x17, 0x18


class NotACertificate(ValueError):
    """These bytes are no certificate."""


def valid_until(der: bytes) -> int:
    """Give the instant at which a certificate expires, in microseconds; raise NotACertificate."""
    try:
        signed = next(_parts(next(_parts(der))[1]))[1]
        parts = [part for part in _parts(signed) if part[0] != _VERSION]
        _, (tag, text) = _parts(parts[3][1])
        return _instant(tag, text.decode("ascii"))
    except (IndexError, ValueError, StopIteration) as error:
        raise NotACertificate("not a certificate in DER") from error


def certificates_in(path: Path) -> list[bytes]:
    """Give a file's certificates, in DER; the first is the owner's. Raise OSError, or NotACertificate where none is."""
    text = path.read_text(encoding="utf-8", errors="replace")
    bodies = [each.partition(ssl.PEM_FOOTER)[0] for each in text.split(ssl.PEM_HEADER)[1:]]
    try:
        found = [ssl.PEM_cert_to_DER_cert(f"{ssl.PEM_HEADER}{body}{ssl.PEM_FOOTER}") for body in bodies]
    except ValueError as error:
        raise NotACertificate(f"{path} is damaged") from error
    if not found:
        raise NotACertificate(f"{path} holds no certificate in PEM")
    return found


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Give the tag and the content of each value that stands in ``data``."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            length = size & 0x7F
            size, at = int.from_bytes(data[at : at + length], "big"), at + length
        if at + size > len(data):
            raise NotACertificate("it is cut off")
        yield tag, data[at : at + size]
        at += size


def _instant(tag: int, text: str) -> int:
    if tag == _UTC_TIME:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERAL_TIME:
        raise NotACertificate("its validity is no instant")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()) * SECOND
