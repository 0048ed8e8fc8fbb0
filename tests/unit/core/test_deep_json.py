"""Whoever reads a registration, at whatever depth of the stack, reads as much of it."""

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from edge_agent.core.intake import Intake, SenderByPath
from edge_agent.core.observation import Observation, Rejected, RejectReason, SourceMessage
from edge_agent.core.payload import TOLERATED_LIMIT, DigestRule, content_digest
from shared.decoding import NESTED_LIMIT, decode_deep, encode_deep
from shared.tolerant_json import Deviation

T = TypeVar("T")

DEPTHS = (0, 40, 500)
"""Of the stack, beyond that of a test."""

BRACKETS_IN_TEXT = b'"' + b'[{\\"' * NESTED_LIMIT + b'"'


def at_depth(depth: int, work: Callable[[], T]) -> T:
    return work() if not depth else at_depth(depth - 1, work)


def nested(levels: int, *, inside: bytes = b"") -> bytes:
    """Give JSON of so many levels, the outermost an object that names a sender."""
    return b'{"sender":"n1","x":' + b"[" * (levels - 1) + inside + b"]" * (levels - 1) + b"}"


def read(body: bytes) -> object:
    return type(Intake(SenderByPath("sender")).read(SourceMessage("s", body, None, 1, 1)))


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_registration_is_read_or_not_by_its_own_depth_alone(depth: int) -> None:
    assert at_depth(depth, lambda: read(nested(NESTED_LIMIT, inside=BRACKETS_IN_TEXT))) is Observation


@pytest.mark.parametrize("rule", [DigestRule(("*",)), DigestRule(("x",)), DigestRule(("*",), ignored=("y",))])
def test_its_digest_is_the_same_at_every_depth(rule: DigestRule) -> None:
    body = nested(NESTED_LIMIT)
    digests = {at_depth(depth, lambda: content_digest(body, rule)) for depth in DEPTHS}
    assert len(digests) == 1
    assert digests != {0}


@pytest.mark.parametrize("depth", DEPTHS)
def test_what_is_not_quite_json_is_read_or_not_by_its_own_depth_alone(depth: int) -> None:
    body = b'{"load":NaN,"pad":"' + b"x" * TOLERATED_LIMIT + b'",' + nested(NESTED_LIMIT)[1:]
    assert at_depth(depth, lambda: read(body)) is Observation


def test_who_nests_without_end_is_heard() -> None:
    message = SourceMessage("s", nested(100_000), None, 1, 1)
    heard = Observation("n1", message, deviation=Deviation.TOO_DEEP)
    assert {at_depth(depth, lambda: Intake(SenderByPath("sender")).read(message) == heard) for depth in DEPTHS} == {
        True
    }


def test_a_text_without_an_end_takes_no_time_behind_many_levels() -> None:
    """Looked through once for each of its quotes, it would take days."""
    body = b"[" * (NESTED_LIMIT + 100) + b'"' + b'\\"' * 500_000
    message = SourceMessage("s", body, None, 1, 1)
    assert Intake(SenderByPath("sender")).read(message) == Rejected(message, RejectReason.NOT_AN_OBJECT)


@pytest.mark.parametrize("level", [b'{"a":', b'["a","b","c","d",', b'["' + b'[{\\"' * 9 + b'",', b"["])
def test_counting_the_levels_of_a_body_takes_no_more_memory_than_copies_of_it(level: bytes) -> None:
    """A site's key is enough to send such bodies."""
    body = level * (1_200_000 // len(level) + NESTED_LIMIT)
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.DecodeError, match="nested deeper"):
            decode_deep(msgspec.json.decode, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)


def test_levels_are_counted_across_many_texts() -> None:
    body = b'["a","[",' * (NESTED_LIMIT - 1) + b"[" + b"]" * NESTED_LIMIT
    assert at_depth(500, lambda: encode_deep(decode_deep(msgspec.json.decode, body))) == body


def test_what_was_decoded_is_encoded_again() -> None:
    body = b"[" * NESTED_LIMIT + b"]" * NESTED_LIMIT
    assert at_depth(500, lambda: encode_deep(decode_deep(msgspec.json.decode, body))) == body
