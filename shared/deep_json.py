"""Decode and encode JSON as deep as it is, however deep the stack already is where that is done.

Each level takes one of Python's, until Python 3.12; from then on what decodes without more room is read. Two agents
that read the same registration at different depths of their stacks would otherwise judge it differently; a member of a
pair then stands by in vain.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Body = TypeVar("Body", bound=bytes | str)

NESTED_LIMIT = 1_000
"""Levels beyond which nothing is read: more than any registration has, and not too many for the stack."""

# Never gives back what it has matched, nor wants an end: a text without one would be looked through for every quote.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_STEPS = dict.fromkeys(b"[{", 1) | dict.fromkeys(b"]}", -1)
_NO_BRACKETS = bytes(set(range(256)) - set(_STEPS))


def decode_deep(decode: Callable[[Body], T], body: Body) -> T:
    """Decode; raise what ``decode`` raises, and DecodeError for what is nested deeper than NESTED_LIMIT."""
    try:
        return decode(body)
    except RecursionError:
        # Counted only now: it takes longer than decoding.
        if _is_too_deep(body.encode() if isinstance(body, str) else body):
            raise msgspec.DecodeError(f"nested deeper than {NESTED_LIMIT} levels") from None
    with _room():
        return decode(body)


def encode_deep(value: Any) -> bytes:
    """Encode what decode_deep() gave, in the same way whatever the order of its keys."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except RecursionError:
        with _room():
            return msgspec.json.encode(value, order="deterministic")


@contextlib.contextmanager
def _room() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 2 * NESTED_LIMIT)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _is_too_deep(body: bytes) -> bool:
    brackets = _TEXT.sub(b"", body).translate(None, _NO_BRACKETS)
    return any(map(NESTED_LIMIT.__lt__, accumulate(map(_STEPS.__getitem__, brackets))))
