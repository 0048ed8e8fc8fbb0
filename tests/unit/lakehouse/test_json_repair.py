"""What senders wrote as nearly JSON becomes JSON; what is JSON, or nothing like it, is left alone."""

import base64
import gzip
import json

import pytest

from aggregator.lakehouse.archive.json_repair import repaired
from aggregator.lakehouse.query.packed_content import unzip


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1.0e0,\n"b": "caf\xc3\xa9", "b": "\\ud83d\\ude00", "c": 123456789012345678901234567890}\r\n',
        b'{"data": "{\\"content\\": {}}", "content": "text"}',
        b'{"data": "no object {", "content": "[NaN]"}',
        b'["x"]',
        b'"text"',
        b"",
        b"\0",
        b"<n1/>",
        b"H4sIAAAA",
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_what_is_json_or_nothing_like_it_is_left_alone(body: bytes) -> None:
    assert repaired(body) is None


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": NaN, "b": -Infinity}', {"a": "NaN", "b": "-Infinity"}),
        (b'{"a": "\\udce9"}', {"a": "\\udce9"}),
        (b'{"a": "caf\xe9"}', {"a": "café"}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": 1}\0', {"a": 1}),
        (b'{"a": "x\ty"}', {"a": "x\ty"}),
        (b'{"a": "C:\\W"}', {"a": "C:\\W"}),
        (b'{"a": [1,],}', {"a": [1]}),
        (b'{"a": 1}{"a": 2}', {"a": 1}),
        (b'{"a": 1, "b": "cut of', {"a": 1}),
    ],
)
def test_body_that_a_strict_reader_refuses_says_what_it_says(body: bytes, value: object) -> None:
    text = repaired(body)
    assert text is not None
    assert json.loads(text) == value
    assert repaired(text.encode()) is None


def test_body_within_an_envelope_is_repaired_where_it_stands() -> None:
    envelope = {"data": json.dumps({"content": '{"load": NaN}'}), "other": "{NaN}"}
    inner = {"content": '{"load":"NaN"}'}
    repaired_envelope = repaired(json.dumps(envelope).encode())
    assert repaired_envelope is not None
    found = json.loads(repaired_envelope)
    assert (json.loads(found["data"]), found["other"]) == (inner, "{NaN}")


def test_what_was_zipped_is_repaired_too() -> None:
    zipped = base64.b64encode(gzip.compress(b'{"facts": {"town": "Orl\xe9ans", "load": NaN}}'))
    assert unzip(zipped.decode()).content == '{"facts":{"town":"Orléans","load":"NaN"}}'
