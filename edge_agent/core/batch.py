"""Open message bodies that hold registrations of several senders.

1. A body of the form LINES is a sequence of JSON values, usually one for each line (Vector, osquery, Fluent Bit's
   ``json_lines``); one of the form ARRAY is a single value. Every value is opened by the rules below.
2. An object that names its sender is a registration.
3. Of an array, each object is a registration and each array is opened in turn. An array of two, of which only the
   second is an object, is that object: Fluent Bit writes ``[timestamp, record]``, or ``[[timestamp, {}], record]``.
4. Where the path to the sender leads through an array, or through a text that is a sequence, each registration in it
   stands at that path's beginning, alone. Of an object that names no sender, other arrays are opened too, such as
   Telegraf's ``metrics``.
5. What is not quite JSON is read as far as ``shared.tolerant_json`` reads it.

A registration is the bytes of its own JSON: ``edge_agent.core.intake`` reads it as it reads a message.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from edge_agent.core.payload import TOLERATED_LIMIT, UNREADABLE, opened_text
from shared import tolerant_json
from shared.decoding import decode_deep, encode_deep
from shared.tolerant_json import Deviation

DEPTH = 8
"""Levels of arrays, and of keys on the way to one, that are opened."""

_SEPARATORS = " \t\r\n,;|\x1e\0\ufeff"
_OPENING = ("{", "[")
_SCANS = 4
"""How many times the length of a broken sequence may be scanned for its values, in all."""

_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_any_value = json.JSONDecoder().raw_decode


def values_of(body: bytes) -> tuple[list[bytes], Deviation | None]:
    r"""Return the JSON values of a sequence, and how it deviates from one.

    >>> values_of(b'{"a":1}\n{"a":2} [3]')
    ([b'{"a":1}', b'{"a":2}', b'[3]'], None)
    >>> values_of(b'{"a":1}\n{"a":\n{"a":3}')[0]
    [b'{"a":1}', b'{"a":', b'{"a":3}']
    """
    try:
        return [bytes(value) for value in decode_deep(_lines, body)], None
    except UNREADABLE:
        text, deviation = tolerant_json.text_and_deviation(body)
        values = [value.encode("utf-8", "surrogatepass") for value in _values_found(text)]
        return values, deviation or Deviation.SURPLUS


def _values_found(text: str) -> Iterator[str]:
    """Yield the values of a sequence that is not quite JSON: where one cannot be decoded, its line."""
    at, left = 0, _SCANS * len(text)
    while at < len(text):
        if text[at] in _SEPARATORS:
            at += 1
            continue
        line_end = text.find("\n", at) % (len(text) + 1)
        end = line_end
        if text[at] in _OPENING and left > 0:
            try:
                _, end = _any_value(text, at)
                left -= end - at
            except ValueError as error:
                # The decoder has read that far, and a text reaches no further than its line.
                reached = error.pos if isinstance(error, json.JSONDecodeError) else line_end
                # The error has counted the lines before it.
                left -= text.find("\n", reached) % (len(text) + 1) - at + at // 16
            except RecursionError:
                left -= TOLERATED_LIMIT
        yield text[at:end]
        at = end


def registrations_of(
    value: bytes, path: tuple[str, ...], *, is_named: bool = False
) -> tuple[list[bytes], Deviation | None]:
    r"""Return the registrations in the arrays of one JSON value, each of which has its sender at ``path``.

    ``is_named``: the value is an object that names a sender.

    >>> registrations_of(b'[[1.5, {"host": "a"}], [1.5, {"host": "b"}]]', ("host",))
    ([b'{"host": "a"}', b'{"host": "b"}'], None)
    >>> registrations_of(b'{"metrics": [{"host": "a"}, {"host": "b"}]}', ("metrics", "host"))[0]
    [b'{"metrics":{"host": "a"}}', b'{"metrics":{"host": "b"}}']
    """
    try:
        return _in_value(value, path, DEPTH, is_named=is_named), None
    except UNREADABLE:
        pass
    try:
        found = tolerant_json.decode(value, TOLERATED_LIMIT)
        return _in_value(encode_deep(found.value), path, DEPTH, is_named=is_named), found.deviation or Deviation.VALUE
    except UNREADABLE:
        return [], None


def _in_value(value: bytes, path: tuple[str, ...], depth: int, *, is_named: bool = False) -> list[bytes]:
    value = value.strip()
    if not depth or value[:1] not in (b"[", b"{", b'"'):
        return []
    if value[:1] == b"[":
        return _in_array(decode_deep(_array, value), path, depth - 1)
    if value[:1] == b'"':
        return _in_text(_text(value), path, depth - 1)
    fields = decode_deep(_fields, value)
    if (
        path
        and path[0] in fields
        and (inside := _in_value(bytes(fields[path[0]]), path[1:], depth - 1, is_named=is_named))
    ):
        key = msgspec.json.encode(path[0])
        return [b"{%b:%b}" % (key, each) for each in inside]
    if is_named:
        return []
    arrays = [array for field in fields.values() if (array := bytes(field))[:1] == b"["]
    return [each for array in arrays for each in _in_value(array, path, depth - 1)]


def _in_array(elements: list[msgspec.Raw], path: tuple[str, ...], depth: int) -> list[bytes]:
    values = [bytes(element) for element in elements]
    are_objects = [value[:1] == b"{" for value in values]
    if are_objects == [False, True]:
        return values[1:]
    found: list[bytes] = []
    for value, is_object in zip(values, are_objects, strict=True):
        if is_object:
            found.append(value)
        elif value[:1] == b"[":
            found += _in_value(value, path, depth)
    return found


def _in_text(text: str, path: tuple[str, ...], depth: int) -> list[bytes]:
    """Return the registrations in JSON that is nested in JSON as text: a value, or a sequence."""
    opened: Any = opened_text(text)
    if not opened:
        return []
    values, _ = values_of(opened.encode("utf-8", "surrogatepass") if isinstance(opened, str) else opened)
    if len(values) == 1:
        return _in_value(values[0], path, depth)
    return [each for value in values for each in ([value] if value[:1] == b"{" else _in_value(value, path, depth))]
