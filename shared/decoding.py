"""Decoders of bytes that another program wrote.

One record must not stop a program that reads millions of them, so a decoder returns a value or raises WireError,
whatever the bytes are. msgspec alone does not promise that: nesting raises RecursionError, and a text that is not UTF-8
raises UnicodeDecodeError. ``tests/architecture/test_decoders.py`` finds decoders that are not of this class.

How deep a JSON value may be nested does not depend on the depth of the stack where it is decoded. Until Python 3.12
each level of the value takes one level of the stack; from then on every value is read that decodes without a larger
limit. Two agents that read the same registration at different depths of their stacks would otherwise decide
differently; a member of a pair would then stand by in vain.
"""

import contextlib
import re
import sys
from abc import ABC
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar, overload

import msgspec

from shared.identifiers import LARGEST_NUMBER
from shared.instants import parse_instant

T = TypeVar("T")
Body = TypeVar("Body", bound=bytes | str)
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
"""A count or sequence that another program wrote. A larger one would not fit into a column or an array."""
Nanoseconds = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
"""A duration that a server reports; -1 where there is none."""


if TYPE_CHECKING:
    ReportedInstant: TypeAlias = int
else:

    class ReportedInstant(ABC):  # noqa: B024 - the name of a kind of int, which it has no part of
        """An instant that a server reports in RFC 3339, decoded as microseconds: a plain int.

        A reply with text that is no instant raises WireError where it is decoded, so that no later step can fail on it.
        """

    # msgspec takes an int for a value of it: a subclass of int could not be encoded again.
    ReportedInstant.register(int)


class WireError(ValueError):
    """Bytes are not the record they were taken for."""


class Decoder(Generic[T]):
    """A decoder of values of ``model``, from JSON or by another of msgspec's modules (``codec``).

    ``what`` names such a value in errors, with its article.
    """

    @overload
    def __init__(self: "Decoder[T]", model: type[T], what: str, codec: Any = ...) -> None: ...

    @overload
    def __init__(self: "Decoder[Any]", model: Any, what: str, codec: Any = ...) -> None: ...

    def __init__(self, model: Any, what: str, codec: Any = msgspec.json) -> None:
        self._decode = codec.Decoder(model, dec_hook=_decode_value).decode
        self._what = what

    def __call__(self, body: bytes | str) -> T:
        """Return the value that ``body`` encodes; raise WireError if it encodes none."""
        try:
            try:
                return self._decode(body)  # type: ignore[no-any-return]
            except RecursionError:
                return decode_deep(self._decode, body)  # type: ignore[no-any-return]
        except Exception as error:
            raise WireError(f"not {self._what}: {error}") from error


def _decode_value(kind: type, value: Any) -> Any:
    """Return the value of a type that msgspec does not know; msgspec checks its type."""
    return parse_instant(str(value)) if kind is ReportedInstant else value


NESTED_LIMIT = 1_000
"""Levels beyond which nothing is read: more than any registration has, and not too many for the stack."""

# Possessive, and with an optional end: a text without an end would be searched once for each of its quotes.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
# sub() makes two objects for each text that it takes out: 32 MB for a body of 750 kB at once.
_PIECE = re.compile(rb'(?:[^"]++|%b){1,1024}+' % _TEXT.pattern, re.DOTALL)
_STEPS = dict.fromkeys(b"[{", 1) | dict.fromkeys(b"]}", -1)
_NO_BRACKETS = bytes(set(range(256)) - set(_STEPS))


def decode_deep(decode: Callable[[Body], T], body: Body) -> T:
    """Decode; raise the errors of ``decode``, and DecodeError for a value nested deeper than NESTED_LIMIT."""
    try:
        return decode(body)
    except RecursionError:
        # Counted only now: it takes longer than decoding.
        if _is_too_deep(body.encode() if isinstance(body, str) else body):
            raise msgspec.DecodeError(f"nested deeper than {NESTED_LIMIT} levels") from None
    with _deeper_stack():
        return decode(body)


def _is_too_deep(text: bytes) -> bool:
    """Return True if a JSON text is nested deeper than NESTED_LIMIT."""
    level = 0
    for piece in _PIECE.finditer(text):
        brackets = _TEXT.sub(b"", piece[0]).translate(None, _NO_BRACKETS)
        if any(map(NESTED_LIMIT.__lt__, accumulate(map(_STEPS.__getitem__, brackets), initial=level))):
            return True
        level += sum(map(_STEPS.__getitem__, brackets))
    return False


def encode_deep(value: Any) -> bytes:
    """Encode a value of decode_deep(), in the same way whatever the order of its keys."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except RecursionError:
        with _deeper_stack():
            return msgspec.json.encode(value, order="deterministic")


@contextlib.contextmanager
def _deeper_stack() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 2 * NESTED_LIMIT)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
