"""Decoders of bytes that another program wrote.

One record must not stop a program that reads millions of them, so a decoder returns a value or raises WireError,
whatever the bytes are. msgspec alone does not promise that: nesting raises RecursionError, and a text that is not UTF-8
raises UnicodeDecodeError. ``tests/architecture/test_decoders.py`` finds decoders that are not of this class.
"""

from abc import ABC
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar, overload

import msgspec

from shared.deep_json import decode_deep
from shared.identifiers import LARGEST_NUMBER
from shared.instants import parse_instant

T = TypeVar("T")
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
