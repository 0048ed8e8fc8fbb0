"""Open what registration plugins pack: base64, of the file itself or of it zipped; or say why it cannot be opened."""

import base64
import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from aggregator.lakehouse.archive.json_repair import repaired

LIMIT: Final = 16 << 20
"""Bytes of one inventory: what would become more is no inventory, but somebody's attempt at our memory."""

_EITHER = zlib.MAX_WBITS | 32
"""Gzip or zlib, whichever it is: schemas say one, programs send the other."""


class Opened(NamedTuple):
    """The text, or else why there is none."""

    content: str | None
    reason: str | None


def unzip(text: str | None) -> Opened:
    """Open base64 of what was zipped.

    >>> unzip("H4sIAAAAAAAA")
    Opened(content=None, reason='not_whole')
    >>> unzip(base64.b64encode(zlib.compress(b'{"facts": {}}')).decode())
    Opened(content='{"facts": {}}', reason=None)
    """
    data = _bytes_of(text)
    if data is None:
        return Opened(None, "not_base64")
    stream = zlib.decompressobj(_EITHER)
    try:
        content = stream.decompress(data, LIMIT)
    except zlib.error:
        return Opened(None, "not_zipped")
    if not stream.eof:
        return Opened(None, "too_large" if stream.unconsumed_tail else "not_whole")
    return _text_of(content)


def decode(text: str | None) -> Opened:
    r"""Open base64 of a file; lines may be broken, as MIME does.

    >>> decode("eyJmYWN0cyI6\nIHt9fQ==")
    Opened(content='{"facts": {}}', reason=None)
    """
    data = _bytes_of(text)
    return Opened(None, "not_base64") if data is None else _text_of(data)


def _bytes_of(text: str | None) -> bytes | None:
    try:
        return base64.b64decode("".join((text or "").split()), validate=True)
    except ValueError:
        return None


def _text_of(content: bytes) -> Opened:
    """Read text; where it is nearly JSON it is made JSON, as payloads are."""
    try:
        return Opened(repaired(content) or content.decode(), None)
    except UnicodeDecodeError:
        return Opened(None, "not_text")


FUNCTIONS: Mapping[str, Callable[[str | None], str | None]] = {
    "unzipped": lambda text: unzip(text).content,
    "not_unzipped": lambda text: unzip(text).reason,
    "decoded": lambda text: decode(text).content,
    "not_decoded": lambda text: decode(text).reason,
}
"""What the views call, by the names that they call it by."""
