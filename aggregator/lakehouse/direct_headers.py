"""Read the headers of Direct Get replies without nats-py's parser, which takes half of the time of a whole read.

The server writes five headers of its own behind the publisher's, in one order. Only what stands last is believed, so a
forged header has no effect, and a message that looks like the end of a batch is still a message.
Source: nats-server 2.15 ``getDirectRequest``, and ADR-31.
"""

import re
from typing import Any, NamedTuple

from nats.aio.client import Client

from shared.wire import ORIGIN_HEADER, REASON_HEADER, SOURCE_HEADER

_SERVERS = re.compile(
    rb"Nats-Stream: ([^\r\n]*)\r\nNats-Subject: ([^\r\n]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r\n]*)"
    rb"\r\nNats-Num-Pending: \d+\r\nNats-Last-Sequence: (\d+)\r\n\r\n\Z"
)
_LONGEST = 4_400
"""Bytes in which the server's headers fit: the longest subject, and the rest."""
_OURS = (ORIGIN_HEADER, SOURCE_HEADER, REASON_HEADER)


class DirectHeaders(NamedTuple):
    """What the server says of a message, as it was written, and all headers as they came.

    ``stream`` is the one that answered; ``before`` is the sequence of the message before it in the batch, first 0.
    """

    stream: bytes
    subject: bytes
    sequence: bytes
    archived_at: bytes
    before: bytes
    raw: bytes


class OurHeaders(NamedTuple):
    """The headers that Muster's agents write; None where there is none."""

    origin: str | None
    source: str | None
    reason: str | None


_NONE = OurHeaders(None, None, None)


def recognize(raw: bytes) -> DirectHeaders | None:
    r"""Read the server's headers; None for anything that is not a message, such as the end of a batch.

    >>> recognize(
    ...     b"NATS/1.0\r\nNats-Stream: A\r\nNats-Subject: a.b\r\nNats-Sequence: 7\r\n"
    ...     b"Nats-Time-Stamp: 2026-01-31T00:00:00Z\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 6\r\n\r\n"
    ... )[:5]
    (b'A', b'a.b', b'7', b'2026-01-31T00:00:00Z', b'6')
    """
    match = _SERVERS.search(raw, max(0, len(raw) - _LONGEST))
    if match is None:
        return None
    stream, subject, sequence, archived_at, before = match.groups()
    return DirectHeaders(stream, subject, sequence, archived_at, before, raw)


def keep_direct_headers(client: Client) -> None:
    """Have ``client`` hand on the headers of Direct Get's messages as DirectHeaders, all others as ever."""
    parse = client._process_headers  # noqa: SLF001 - nats-py is pinned, and offers no other way

    async def process(raw: bytes) -> Any:
        return (recognize(raw) if raw else None) or await parse(raw)

    client._process_headers = process  # type: ignore[method-assign, assignment]  # noqa: SLF001


def our_headers(headers: DirectHeaders) -> OurHeaders:
    """Read the headers that Muster's agents write."""
    if b"Muster-" not in headers.raw and SOURCE_HEADER.encode() not in headers.raw:
        return _NONE
    parsed = Client._parse_header_lines(headers.raw)  # noqa: SLF001 - as above
    return OurHeaders(*(parsed.get(name) for name in _OURS))
