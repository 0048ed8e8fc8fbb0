"""However a registration is broken outside the name in it, its sender is heard; nothing that anybody sends raises."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.core.intake import Intake, SenderByPath
from edge_agent.core.observation import Observation, Rejected, SourceMessage
from edge_agent.core.payload import TOLERATED_LIMIT, DigestRule
from shared import tolerant_json
from shared.wire import SENDER_LIMIT

NAME = "web1.example.net"
SENDER = f'"sender":"{NAME}"'.encode()
INTAKE = Intake(SenderByPath("sender"), "urgent", DigestRule(("*",), ("time", "data.time")))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
facts = st.dictionaries(texts.filter(lambda key: key not in ("sender", "urgent")), values, max_size=5)

# What stands as a fact's value where JSON has none.
ODD_VALUES = [
    b"NaN", b"Infinity", b"-Infinity", b"nan", b"None", b"undefined", b"True", b"007", b"+1", b".5", b"1.", b"0x1F",
    b"-", b"1_000", b"12:30", b"word", b"ObjectId(7)", b"1e999", b"9" * 5_000, b"'single'", b'"\\ud800"', b'"\\udce9x"',
    b'"\\x41"', b'"C:\\Web"', b'"\\u12"', b'"a\tb"', b'"a\nb"', b'"\0"', b'"\x1f"', b'"caf\xe9"', b'"\xed\xa0\x80"',
    b'"\xff\xfe"', b'"\xf0\x9f"', b'"it\\\'s"', b"[1,2,]", b"[,]", b'{"x":1,}', b"[1 2]", b'{"x" 1}', b'{"x":}', b"",
    b"[" * 2_000 + b"]" * 2_000, b'{"a":' * 1_500 + b"1" + b"}" * 1_500, b'say "hi"', b'"say "hi" now"', b"[}", b"{]",
]  # fmt: skip
BEFORE = [b"", b"\xef\xbb\xbf", b"\0", b"garbage ", b")]}',\n", b"[info] ", b"\xff"]
BEHIND = [b"\0", b"\n\0\0", b"garbage", b'{"sender":"another"}', b"}", b"]", b",", b'"', b"\xff", b"{"]


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Give a registration that is broken in some way, and nowhere within the name or what says that it is the name."""
    members = [msgspec.json.encode(key) + b":" + json.dumps(value).encode() for key, value in draw(facts).items()]
    odd = draw(st.lists(st.sampled_from(ODD_VALUES), max_size=2))
    members += [f'"odd{number}":'.encode() + value for number, value in enumerate(odd)]
    members.insert(draw(st.integers(0, len(members))), SENDER)
    body = draw(st.sampled_from([b",", b" , ", b",\n"])).join(members)
    end = draw(st.sampled_from([b"}", b",}", b" }", b""]))
    return draw(st.sampled_from(BEFORE)) + b"{" + body + end + (draw(st.sampled_from(BEHIND)) if end else b",")


def read(payload: bytes) -> object:
    return INTAKE.read(SourceMessage("registration", payload, None, 1, 1))


@given(broken())
def test_sender_of_a_registration_broken_elsewhere_is_heard(payload: bytes) -> None:
    taken = read(payload)
    assert isinstance(taken, Observation), payload
    assert taken.sender_id == NAME
    assert taken.digest != 0


@given(facts, st.data())
def test_sender_before_the_place_where_a_body_was_cut_is_heard(rest: dict[str, Any], data: st.DataObject) -> None:
    payload = b"{" + SENDER + b"," + msgspec.json.encode(rest)[1:]
    cut = data.draw(st.integers(len(SENDER) + 2, len(payload)))
    taken = read(payload[:cut])
    assert isinstance(taken, Observation)
    assert taken.sender_id == NAME


@given(facts, st.integers(1, len(NAME)))
def test_name_that_was_cut_is_nobodys(rest: dict[str, Any], missing: int) -> None:
    payload = msgspec.json.encode(rest)[:-1] + (b"," if rest else b"") + SENDER[: -missing - 1]
    assert not isinstance(read(payload), Observation)


@given(values)
@example({"a": "\\ud800 \\\\ \\n", "b": '"', "": [[], {}, [{}]]})
@example({"big": 10**40, "small": 5e-324, "zero": -0.0})
def test_what_is_json_has_the_value_that_the_strict_decoder_gives(value: Any) -> None:
    for body in (
        msgspec.json.encode([value]),
        json.dumps({"": value}, indent=1).encode(),
        json.dumps([[value]]).encode(),
    ):
        found = tolerant_json.decode(body)
        strict = msgspec.json.decode(body)
        assert repr(found.value) == repr(strict)
        assert found.deviation is None


@given(values)
def test_both_ways_of_reading_give_the_same_value(value: Any) -> None:
    """A trailing comma takes the slow way; what stands before it has the value that it has on the quick one."""
    body = msgspec.json.encode({"a": value})
    assert repr(tolerant_json.decode(body[:-1] + b",}").value) == repr(msgspec.json.decode(body))


@given(st.binary(max_size=200) | st.text("{}[]\",:\\'ud8=> n1\n\0é", max_size=60).map(str.encode))
@example(b'{"sender":"a\\')
@example(b"{'\\")
def test_nothing_that_anybody_sends_raises(payload: bytes) -> None:
    for body in (payload, b'{"data":' + msgspec.json.encode(payload.decode("latin-1")) + b"}"):
        taken = read(body)
        if isinstance(taken, Observation):
            assert taken.sender_id.encode()


@given(st.integers(0, 5_000), st.sampled_from([b"", b"-", b"0.", b"1e", b"1e-", b"+", b"0"]), st.booleans())
@example(400, b"", False)
@example(4_300, b"", False)
@example(4_301, b"", True)
@example(309, b"1e", False)
def test_no_number_in_a_senders_place_raises(digits: int, before: bytes, is_broken: bool) -> None:
    taken = read(b'{"sender":' + before + b"9" * digits + (b",}" if is_broken else b"}"))
    if isinstance(taken, Observation):
        assert taken.sender_id
        assert len(taken.sender_id) <= SENDER_LIMIT


@given(broken(), st.integers(0, 300))
def test_what_lies_behind_the_limit_is_as_if_the_body_had_been_cut(payload: bytes, limit: int) -> None:
    """Whoever is named before it is heard; a name that it cuts is nobody's."""
    try:
        value = tolerant_json.decode(payload, limit or 1).value
    except msgspec.DecodeError:
        return
    if isinstance(value, dict):
        assert value.get("sender") in (None, NAME, "another")


@pytest.mark.parametrize("rest", [b"[1,2,]", b"[" * 10, b'{"a":' * 10, b"[]" * 10], ids=repr)
def test_sender_is_heard_before_the_limit_and_not_behind_it(rest: bytes) -> None:
    def body(blanks: int) -> bytes:
        return b'{"other":[1,2,],' + b" " * blanks + SENDER + b',"rest":' + rest * (TOLERATED_LIMIT // len(rest))

    before = TOLERATED_LIMIT - len(SENDER) - 20
    heard, unheard = read(body(before)), read(body(before + 30))
    assert isinstance(heard, Observation)
    assert heard.sender_id == NAME
    assert isinstance(unheard, Rejected)


def test_what_the_standard_library_reads_is_read_to_its_end() -> None:
    taken = read(b'{"load":NaN,"pad":"' + b"x" * (4 * TOLERATED_LIMIT) + b'",' + SENDER + b"}")
    assert isinstance(taken, Observation)
    assert taken.sender_id == NAME


def test_escapes_beyond_those_that_are_mended_stay_as_they_are_written() -> None:
    for escape in (r"\x", r"\ud800"):
        text = escape * (tolerant_json.MENDED_LIMIT + 1)
        assert tolerant_json.decode(f'{{"a":"{text}","sender":"{NAME}"}}').value == {"a": text, "sender": NAME}


@given(
    st.binary(max_size=40) | st.lists(st.sampled_from([b"\xc3\xa9", b"\xe9", b"\xf0\x9f", b"a", b"\x80"])).map(b"".join)
)
def test_bytes_that_are_not_utf8_are_latin1_one_by_one(written: bytes) -> None:
    text, rest = "", written
    while rest:
        for size in (1, 2, 3, 4):
            with contextlib.suppress(UnicodeDecodeError):
                text += rest[:size].decode()
                break
        else:
            size = 1
            text += rest[:1].decode("latin-1")
        rest = rest[size:]
    assert tolerant_json.text_of(written) == text


HOSTILE = {
    "quotes": b'{"a":' + b'"' * 500_000,
    "quotes escaped": b'{"a":' + b'"\\' * 250_000,
    "numbers": b"[" + b"1," * 250_000,
    "arrays": b"[" * 500_000,
    "objects": b'{"a":' * 100_000,
    "objects without keys": b"{" * 500_000,
    "documents": b"[]" * 250_000,
    "single quotes": b"{" + b"'a," * 150_000,
    "single quotes escaped": b"{" + b"'\\," * 120_000,
    "words": b"{" + b"a " * 250_000,
    "a word": b"{" + b"a" * 500_000,
    "blanks": b'{"a"' + b" " * 500_000 + b"x",
    "escapes": b'{"a":"' + b"\\u" * 250_000 + b'"}',
    "backslashes": b'{"a":"' + b"\\" * 500_000,
    "wrong brackets": b'{"a":' + b"[1,2}" * 100_000,
    "wrong bytes": b'{"a":"' + b"\xff" * 500_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_takes_time_in_proportion_to_the_size(name: str) -> None:
    """Half a megabyte takes a second; what took the square of that would take hours."""
    tolerant_json.decode(HOSTILE[name])
    for payload in (HOSTILE[name], b'{"data":' + msgspec.json.encode(HOSTILE[name].decode("latin-1")) + b"}"):
        read(payload)
