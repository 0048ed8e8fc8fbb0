"""Decoders of bytes that another program wrote.

One record must not stop a program that reads millions of them, so a decoder returns a value or raises WireError,
whatever the bytes are. msgspec alone does not promise that: nesting raises RecursionError, and a text that is not UTF-8
raises UnicodeDecodeError. ``tests/architecture/test_decoders.py`` finds decoders that are not of this class.
"""

from typing import Any, Generic, TypeVar, overload

import msgspec

from shared.deep_json import decode_deep

T = TypeVar("T")


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
        self._decode = codec.Decoder(model).decode
        self._what = what

    def __call__(self, body: bytes | str) -> T:
        """Return the value that ``body`` encodes; raise WireError if it encodes none."""
        try:
            return decode_deep(self._decode, body)  # type: ignore[no-any-return]
        except Exception as error:
            raise WireError(f"not {self._what}: {error}") from error
