"""Follow a path into JSON, also where adapters and nodes have put JSON into it as text, zipped or not.

Adapters carry a registration as JSON text inside JSON, and nodes zip it: a path goes on into either. Nothing that
anybody registers is an error here, whatever it opens to.
"""

import base64
import zlib
from typing import Any

import msgspec

from edge_agent.core.deep_json import decoded

# Whoever registers may send a few bytes that become gigabytes, and JSON that takes forty times more as objects.
UNZIPPED_LIMIT = 2 << 20
_GZIP_OR_ZLIB = 47
# In base64, what gzip begins with, and zlib at its levels.
_ZIPPED = ("H4", "eA", "eF", "eJ", "eN")

# Nobody who registers may end the agent, by however deep a nesting.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


def keys_of(path: str) -> tuple[str, ...]:
    """Split a path, which joins keys by dots; none for an empty one."""
    return tuple(path.split(".")) if path else ()


def value_at(value: Any, keys: tuple[str, ...]) -> Any:
    """Give what stands at a path, None where nothing does."""
    for key in keys:
        value = opened(value)
        value = value.get(key) if isinstance(value, dict) else None
    return value


def opened(value: Any) -> Any:
    """Open JSON that stands as text inside JSON, zipped (Choria's ``zcontent``: base64 of gzip or zlib) or not."""
    if not isinstance(value, str):
        return value
    body: str | bytes = value if value[:1] in ("{", "[") else _unzipped(value) if value[:2] in _ZIPPED else ""
    try:
        return decoded(msgspec.json.decode, body) if body else value
    except UNREADABLE:
        return value


def _unzipped(text: str) -> bytes:
    try:
        stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        content = stream.decompress(base64.b64decode(text, validate=True), UNZIPPED_LIMIT)
    except (ValueError, zlib.error):
        return b""
    return content if stream.eof else b""
