"""Access to paths in JSON, also through JSON that is nested in it as text, zipped or not.

Adapters carry a registration as JSON text inside JSON, and nodes zip it: a path continues into either. No payload
raises an error here. Malformed JSON is read as far as possible (``shared.tolerant_json``), and the deviation is added
to ``deviations``; None is added if reading found nothing or had to unzip: a list that is not empty means that reading
may have taken long.
"""

import base64
import zlib
from collections.abc import Iterable
from functools import partial, reduce
from typing import Any

import msgspec

from shared import tolerant_json
from shared.blake2 import blake2b
from shared.decoding import decode_deep, encode_deep
from shared.tolerant_json import Deviation

Deviations = list[Deviation | None]

TOLERATED_LIMIT = 256 << 10
"""Characters that are read of a body with a broken structure: a fraction of a second's work."""

# A message may be a few bytes that become gigabytes, or JSON that takes forty times its size as objects.
UNZIPPED_LIMIT = 2 << 20
_GZIP_OR_ZLIB = 47
# The first bytes of gzip, and of zlib at its levels, in base64.
_ZIPPED = ("H4", "eA", "eF", "eJ", "eN")

# RecursionError: no nesting in a registration may end the agent.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


def keys_of(path: str) -> tuple[str, ...]:
    """Return the keys of a path, which are joined by dots; none for an empty path."""
    return tuple(path.split(".")) if path else ()


def read_json(body: bytes, deviations: Deviations) -> Any:
    """Decode a whole body; raise one of UNREADABLE if nothing can be read."""
    try:
        return decode_deep(msgspec.json.decode, body)
    except UNREADABLE:
        return decode_tolerantly(body, deviations)


def decode_tolerantly(body: bytes | str, deviations: Deviations, path: tuple[str, ...] = ()) -> Any:
    """Decode a body that the strict decoder refused; raise msgspec.DecodeError if nothing can be read.

    ``path`` is that of the value for which it is read, if any.
    """
    found = tolerant_json.decode(body, TOLERATED_LIMIT, path)
    # Without a deviation it is JSON with a number that is too large.
    deviations.append(found.deviation or Deviation.VALUE)
    return found.value


def value_at(value: Any, keys: tuple[str, ...], deviations: Deviations) -> Any:
    """Return the value at a path, None if there is none."""
    for number, key in enumerate(keys):
        value = unpack(value, deviations, keys[number:])
        value = value.get(key) if isinstance(value, dict) else None
    return value


def unpack(value: Any, deviations: Deviations, path: tuple[str, ...] = ()) -> Any:
    """Decode JSON that is nested in JSON as text, zipped (Choria's ``zcontent``: base64 of gzip or zlib) or not.

    Malformed JSON counts as JSON if at least one key of an object can be read, otherwise as plain text. ``path`` is
    that of the value that is needed.
    """
    if not isinstance(value, str):
        return value
    if value[:2] in _ZIPPED:
        deviations.append(None)
    body = opened_text(value)
    if not body:
        return value
    try:
        return decode_deep(msgspec.json.decode, body)
    except UNREADABLE:
        return _opened_with_tolerance(body, deviations, path) or value


def opened_text(text: str) -> str | bytes:
    """Return the JSON that a text holds, zipped or not; "" if it holds none."""
    if text[:1] in ("{", "["):
        return text
    return _unzip(text) if text[:2] in _ZIPPED else ""


def _opened_with_tolerance(body: str | bytes, deviations: Deviations, path: tuple[str, ...]) -> dict[str, Any] | None:
    inner: Deviations = []
    try:
        found = decode_tolerantly(body, inner, path)
    except msgspec.DecodeError:
        return None
    if not (isinstance(found, dict) and found):
        deviations.append(None)
        return None
    deviations += inner
    return found


def _unzip(text: str) -> bytes:
    try:
        stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        content = stream.decompress(base64.b64decode(text, validate=True), UNZIPPED_LIMIT)
    except (ValueError, zlib.error):
        return b""
    return content if stream.eof else b""


EVERY_PATH = "*"


class DigestRule(msgspec.Struct, frozen=True):
    """The JSON paths of the content that is forwarded when it changes; ``*`` is all but the ignored ones."""

    paths: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def content_digest(payload: bytes, rule: DigestRule, deviations: Deviations | None = None) -> int:
    """Return a 64-bit BLAKE2b of the chosen content, in which the order of keys does not matter; 0 if it is unreadable.

    Paths continue into nested JSON, and malformed JSON is read as far as possible.
    """
    deviations = [] if deviations is None else deviations
    try:
        body, without = read_json(payload, deviations), partial(_without, deviations=deviations)
        if EVERY_PATH in rule.paths:
            chosen: Any = reduce(without, (keys_of(path) for path in rule.ignored), body)
        else:
            chosen = [
                reduce(
                    without, _below(path, rule.ignored), unpack(value_at(body, keys_of(path), deviations), deviations)
                )
                for path in rule.paths
            ]
        canonical = encode_deep(chosen)
    except UNREADABLE:
        return 0
    return int.from_bytes(blake2b(canonical, digest_size=8).digest(), "big")


def _below(path: str, ignored: Iterable[str]) -> list[tuple[str, ...]]:
    return [keys_of(inner.removeprefix(f"{path}.")) for inner in ignored if inner.startswith(f"{path}.")]


def _without(value: Any, keys: tuple[str, ...], deviations: Deviations) -> Any:
    """Return a copy of a JSON value without the value at a path."""
    inside = unpack(value, deviations)
    if not keys or not isinstance(inside, dict):
        return value
    if keys[0] not in inside:
        # Decoded too: the digest must not depend on whether the ignored path exists.
        return inside
    kept = {key: inner for key, inner in inside.items() if key != keys[0]}
    if len(keys) > 1:
        kept[keys[0]] = _without(inside[keys[0]], keys[1:], deviations)
    return kept
