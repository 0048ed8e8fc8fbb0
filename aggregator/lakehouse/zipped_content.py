"""Open what senders zipped, where queries run without Java: Choria's ``zcontent`` is base64 of gzip, or of zlib."""

import base64
import zlib
from typing import Final

from aggregator.lakehouse.archive.json_repair import repaired

LIMIT: Final = 16 << 20
"""Bytes of one inventory: what would become more is no inventory, but somebody's attempt at our memory."""

_EITHER = zlib.MAX_WBITS | 32
"""Gzip or zlib, whichever it is: schemas say one, programs send the other."""


def unzipped(text: str | None) -> str | None:
    """Give the text that was zipped, None where ``text`` is none, not whole or more than ``LIMIT``.

    Where it is nearly JSON it is made JSON, as payloads are.

    >>> unzipped("H4sIAAAAAAAA")
    >>> unzipped(base64.b64encode(zlib.compress(b'{"facts": {}}')).decode())
    '{"facts": {}}'
    """
    stream = zlib.decompressobj(_EITHER)
    try:
        content = stream.decompress(base64.b64decode(text or "", validate=True), LIMIT)
        return (repaired(content) or content.decode()) if stream.eof else None
    except (ValueError, zlib.error):
        return None
