"""Records that no honest agent writes: each kind of record with any of its fields changed to a number or a text."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from shared.instants import HOUR, MINUTE
from shared.policy import CancelMaintenance, DeclareMaintenance, ForwardSender, RetireSender, Scope
from tests.support.lakehouse.hub import Block, Message, said

START = 1_795_600_000_000_000
NUMBERS = (
    0, -1, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, -(1 << 63), 1 << 63, -(1 << 63) - 1, 1 << 64, 1 << 200, 8 * 10**18,
)  # fmt: skip
TEXTS = ("", "\ud800", "a\0b", "x" * 1_025, "x" * 100_000, "-1.-1.-1", "1-" + "9" * 400)
DEPTHS = (990, 997, 1_000, 5_000)


def honest() -> Iterator[tuple[str, Message]]:
    """Give one record of each kind."""
    block = Block("eu-west", "dub1")
    for kind, make in (("new", block.new), ("recovered", block.recovered), ("stale", block.stale)):
        yield kind, make("web1", START)
    yield "retired", block.retired("web1", START + HOUR, START)
    yield "unheard", block.retired_unheard("web1", START, START + HOUR)
    yield "watermark", block.watermark(START, START + MINUTE, rebuilt_at=START)
    scope = Scope("eu-west", "dub1")
    yield "maintenance", said(scope, 1, START, DeclareMaintenance(START, START + HOUR, "new disk", ("web1",)))
    yield "whole", said(scope, 1, START, DeclareMaintenance(START, START + HOUR, "new disk"))
    yield "cancel", said(scope, 2, START, CancelMaintenance(1))
    yield "forward", said(scope, 3, START, ForwardSender("web1"))
    yield "retire", said(scope, 4, START, RetireSender("web1"))


def changed(record: Any, old: type, new: object) -> Iterator[Any]:
    """Give a record once for each of its fields, at any depth, that is an ``old``: that field is ``new``."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from ({**record, name: inner} for inner in changed(value, old, new))
        elif type(value) is old:
            yield {**record, name: new}


def hostile(kind: str) -> Iterator[Message]:
    """Yield the record of a kind with one field changed, or one more that is nested."""
    message = dict(honest())[kind]
    record = msgspec.json.decode(message.body)
    for number in NUMBERS:
        yield from (message._replace(body=_json(each)) for each in changed(record, int, number))
    for text in TEXTS:
        yield from (message._replace(body=_json(each)) for each in changed(record, str, text))
    for depth in DEPTHS:
        yield message._replace(body=message.body[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}")


def _json(body: Any) -> bytes:
    # An escape alone writes half a pair: msgspec would not.
    return json.dumps(body).encode()
