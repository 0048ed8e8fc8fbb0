"""Digest what a registration says, so that a change shows that its size cannot show; what is ignored never does."""

import hashlib
from collections.abc import Iterable
from functools import partial, reduce
from typing import Any

import msgspec

from edge_agent.core.json_path import UNREADABLE, Met, keys_of, opened, read_json, value_at
from shared.deep_json import encoded

EVERY_PATH = "*"


class DigestRule(msgspec.Struct, frozen=True):
    """Which JSON paths make up the content whose change is worth forwarding; ``*`` is all but the ignored ones."""

    paths: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def content_digest(payload: bytes, rule: DigestRule, met: Met | None = None) -> int:
    """Give a 64-bit BLAKE2b of the chosen content, whatever the order of its keys; 0 where there is nothing to be read.

    Paths go on into JSON that stands as text inside JSON, and what is not quite JSON is read as far as that goes, as
    ``edge_agent.core.json_path`` says.
    """
    met = [] if met is None else met
    try:
        body, without = read_json(payload, met), partial(_without, met=met)
        if EVERY_PATH in rule.paths:
            chosen: Any = reduce(without, (keys_of(path) for path in rule.ignored), body)
        else:
            chosen = [
                reduce(without, _below(path, rule.ignored), opened(value_at(body, keys_of(path), met), met))
                for path in rule.paths
            ]
        canonical = encoded(chosen)
    except UNREADABLE:
        return 0
    return int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "big")


def _below(path: str, ignored: Iterable[str]) -> list[tuple[str, ...]]:
    return [keys_of(inner.removeprefix(f"{path}.")) for inner in ignored if inner.startswith(f"{path}.")]


def _without(value: Any, keys: tuple[str, ...], met: Met) -> Any:
    """Copy a JSON value, less what stands at a path."""
    inside = opened(value, met)
    if not keys or not isinstance(inside, dict):
        return value
    if keys[0] not in inside:
        # Opened all the same: whether the ignored path is there must not show in the digest.
        return inside
    kept = {key: inner for key, inner in inside.items() if key != keys[0]}
    if len(keys) > 1:
        kept[keys[0]] = _without(inside[keys[0]], keys[1:], met)
    return kept
