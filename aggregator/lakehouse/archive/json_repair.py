"""Write as JSON what senders wrote as nearly JSON, so that one wrong byte does not cost a node its inventory.

What is JSON is left alone, and so is what says nothing: only bodies that a strict reader refuses are read by the rules
of ``shared/tolerant_json.py``, by which agents identify senders, and written anew. That holds for a text inside a body
too, as Choria's envelope has one.
"""

import json
import math
from typing import Any, Final

import msgspec

from shared import tolerant_json

_INNER: Final = ("data", "content")
"""Where a body may have another one as a text."""
_BEFORE_JSON: Final = "\ufeff \t\r\n"


class _Layer(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()


_layers = msgspec.json.Decoder(_Layer)
_texts = msgspec.json.Decoder(str)


def repaired(body: bytes) -> str | None:
    r"""Give a body as JSON where it is not; None where it is, and where nothing can be made of it.

    What JSON has no number for becomes a text, which SQL casts back: ``NaN``, ``Infinity``.

    >>> repaired(b'{"load": NaN, "name": "caf\xe9"}')
    '{"load":"NaN","name":"café"}'
    >>> repaired(b'{"load": 1.5}')
    """
    try:
        return None if _is_strict(body) else _rewritten(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_strict(body: bytes) -> bool:
    try:
        # What is skipped is checked too, but for its encoding.
        body.isascii() or body.decode()
        layer = _layers.decode(body)
        inner = [_texts.decode(raw) for raw in map(bytes, (layer.data, layer.content)) if raw.startswith(b'"')]
    except msgspec.ValidationError:
        # JSON, and no object.
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return all(_is_strict(text.encode()) for text in inner if text.lstrip(_BEFORE_JSON).startswith("{"))


def _rewritten(body: bytes | str) -> str:
    value = tolerant_json.decode(body).value
    if isinstance(value, dict):
        for name in _INNER:
            text = value.get(name)
            if isinstance(text, str):
                value[name] = repaired(text.encode()) or text
    return json.dumps(_without_odd_numbers(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _without_odd_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_odd_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_odd_numbers(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
