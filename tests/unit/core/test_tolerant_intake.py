"""Whoever can be identified is heard, by the name that is meant, however broken the rest of the body is."""

import base64
import contextlib
import gzip

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.intake import (
    Intake,
    NameForm,
    SenderByHeader,
    SenderByPath,
    SenderBySubject,
    SenderBySubjectToken,
    SenderRule,
)
from edge_agent.core.observation import IntakeResult, Observation, Rejected, RejectReason, SourceMessage
from edge_agent.core.payload import DigestRule
from edge_agent.core.replay import CommitReplay, OtherCommit
from edge_agent.core.tracker import Tracker
from shared.tolerant_json import Deviation
from tests.support.core.watched_site import POLICY, START, position

DEEP = b"[" * 100_000 + b"]" * 100_000


def message(
    payload: bytes = b"{}", *, headers: dict[str, str] | None = None, subject: str = "registration.n1"
) -> SourceMessage:
    return SourceMessage(subject, payload, headers, sequence=17, stored_at=1_769_817_600_000_000)


def read(rule: SenderRule, payload: bytes) -> IntakeResult:
    return Intake(rule).read(message(payload))


@pytest.mark.parametrize(
    ("number", "sender_id"),
    [
        (b"5", "5"),
        (b"-17", "-17"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"1.50", "1.5"),
        (b"1.0", "1"),
        (b"1e3", "1000"),
        (b"1e21", "1000000000000000000000"),
        (b"1e-7", "0.0000001"),
        (b"007", "007"),
    ],
)
def test_sender_that_is_a_number_is_its_text_as_the_peer_writes_it(number: bytes, sender_id: str) -> None:
    taken = read(SenderByPath("sender"), b'{"sender":' + number + b"}")
    assert isinstance(taken, Observation)
    assert taken.sender_id == sender_id


# Whoever can be identified is heard, however broken the rest is

BROKEN = [
    (rb'{"sender":"n1","load":NaN}', Deviation.VALUE),
    (rb'{"sender":"n1","load":-Infinity}', Deviation.VALUE),
    (rb'{"load":007,"sender":"n1"}', Deviation.VALUE),
    (rb'{"load":+1,"sender":"n1"}', Deviation.VALUE),
    (rb'{"load":1e999,"sender":"n1","x":NaN}', Deviation.VALUE),
    (rb'{"load":12:30:00,"sender":"n1"}', Deviation.VALUE),
    (rb'{"id":ObjectId("5f"),"sender":"n1"}', Deviation.VALUE),
    (rb'{"fact":"\udce9","sender":"n1"}', Deviation.ESCAPE),
    (rb'{"fact":"\ud83d and \ude00","sender":"n1"}', Deviation.ESCAPE),
    (rb'{"path":"C:\Windows","sender":"n1"}', Deviation.ESCAPE),
    (rb'{"path":"\u12","sender":"n1",}', Deviation.ESCAPE),
    (b'{"fact":"a\tb\nc","sender":"n1"}', Deviation.CONTROL_CHARACTER),
    (b'{"fact":"caf\xe9","sender":"n1","load":NaN}', Deviation.ENCODING),
    (b'{"fact":"\xed\xa0\x80","sender":"n1",}', Deviation.ENCODING),
    (b'\xef\xbb\xbf{"sender":"n1"}', Deviation.SURPLUS),
    (b'{"sender":"n1"}\0', Deviation.SURPLUS),
    (b'{"sender":"n1"}{"sender":"n1"}', Deviation.SURPLUS),
    (b'2026-01-31 INFO {"sender":"n1"}', Deviation.SURPLUS),
    (b'[warn] {"sender":"n1"}', Deviation.VALUE),
    (b'{"sender":"n1",}', Deviation.STRUCTURE),
    (b'{"list":[1,2,],"sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact":1 "sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact":,"sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact":[1,2},"sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact":{"x":1],"sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact":1],"sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact":"say "hi" now","sender":"n1"}', Deviation.STRUCTURE),
    (b'{"sender" => "n1"}', Deviation.STRUCTURE),
    (b"{'sender': 'n1', 'up': True, 'note': None}", Deviation.STRUCTURE),
    (b'{sender:"n1"}', Deviation.STRUCTURE),
    (b'{{"sender":"n1"}}', Deviation.STRUCTURE),
    (b'{"fact":1, // why\n "sender":"n1"}', Deviation.STRUCTURE),
    (b'{"sender":"n1","facts":{"os":"Deb', Deviation.TRUNCATED),
    (b'{"sender":"n1"', Deviation.TRUNCATED),
    (b'{"other":' + DEEP + b',"sender":"n1"}', Deviation.TOO_DEEP),
    (b'{"sender":"n0","sender":"n1","load":NaN}', Deviation.VALUE),
    *(
        (('{"fact":"caf\xe9 \N{SNOWMAN}","sender":"n1"}').encode(encoding), Deviation.ENCODING)
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
    ),
    ('{"sender":"n1"}'.encode("utf-16") + b"\n", Deviation.ENCODING),
    ('\ufeff{"sender":"n1"}'.encode("utf-16-be"), Deviation.ENCODING),
    (b'\xff\xfe{"sender":"n1"}', Deviation.ENCODING),
    (b'{\0"sender":"n1"}', Deviation.STRUCTURE),
    # What a scanner finds that validates nothing, as the peer's does.
    (b'{"fact":} "x","sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact":}"back\\\\",e5 "sender":"n1"}', Deviation.STRUCTURE),
    (b'{"fact"\xc3:"]","sender":"n1"}', Deviation.ENCODING),
    (b'web:"{"fact":1000{0000.0,"x":"{","sender":"n1"}', Deviation.SURPLUS),
    (b'{"sender",: "n1"}', Deviation.STRUCTURE),
    (b'{"sender":,, "n1"}', Deviation.STRUCTURE),
    (b'{"sender"}: "n1"}', Deviation.STRUCTURE),
    (b'{"sender":}"n1","other":[]}', Deviation.STRUCTURE),
    (b'{"sender"\0 "n1"}', Deviation.STRUCTURE),
    (b'{"sender"word:"n1"}', Deviation.STRUCTURE),
    (b'{"sender":#"n1"}', Deviation.VALUE),
    (b'{"sender":// "n1"}', Deviation.VALUE),
]


@pytest.mark.parametrize(("payload", "deviation"), BROKEN, ids=lambda value: repr(value[:48]))
def test_whoever_names_itself_in_what_is_not_quite_json_is_heard(payload: bytes, deviation: Deviation) -> None:
    assert read(SenderByPath("sender"), payload) == Observation("n1", message(payload), deviation=deviation)


@pytest.mark.parametrize(
    ("inner", "deviation"), [each for each in BROKEN if each[0][:1] == b"{"], ids=lambda value: repr(value[:48])
)
def test_it_is_heard_also_where_that_is_json_within_json(inner: bytes, deviation: Deviation) -> None:
    bodies = [msgspec.json.encode({"content": base64.b64encode(gzip.compress(inner)).decode()})]
    with contextlib.suppress(UnicodeDecodeError):
        bodies.append(msgspec.json.encode({"content": inner.decode()}))
    for body in bodies:
        assert read(SenderByPath("content.sender"), body) == Observation("n1", message(body), deviation=deviation)


def test_a_wrong_byte_in_a_fact_that_is_not_read_costs_nothing() -> None:
    payload = b'{"fact":"caf\xe9","sender":"n1"}'
    assert read(SenderByPath("sender"), payload) == Observation("n1", message(payload))


@pytest.mark.parametrize(
    ("written", "sender_id"),
    [
        (b"caf\xe9", "café"),
        (b"caf\xc3\xa9 \xe9", "café é"),
        (rb"caf\udce9", r"caf\udce9"),
        (rb"C:\Web", r"C:\Web"),
        (b"n\t1", "n\t1"),
    ],
)
def test_names_that_are_not_quite_text_stay_apart_and_can_be_written(written: bytes, sender_id: str) -> None:
    taken = read(SenderByPath("sender"), b'{"sender":"' + written + b'"}')
    assert isinstance(taken, Observation)
    assert taken.sender_id == sender_id
    assert taken.sender_id.encode()


def test_force_and_digest_hold_for_what_is_not_quite_json() -> None:
    def observed(rest: bytes) -> Observation:
        payload = b'{"sender":"n1","urgent":true,' + rest + b"}"
        taken = Intake(SenderByPath("sender"), "urgent", DigestRule(("*",), ("time",))).read(message(payload))
        assert isinstance(taken, Observation)
        return taken

    one = observed(b'"load":NaN,"os":"Debian","time":1')
    assert one.forced
    assert one.digest not in (0, observed(b'"load":NaN,"os":"Ubuntu","time":1').digest)
    assert one.digest == observed(b'"load":NaN,"os":"Debian","time":2').digest


# Names


@pytest.mark.parametrize(
    "written", ["Web1.Example.NET", " web1.example.net.\n", "WEB1.EXAMPLE.NET.", "web1.example.net ."]
)
def test_one_host_is_one_sender_however_its_name_is_written(written: str) -> None:
    body = msgspec.json.encode({"sender": written})
    rules: list[SenderRule] = [
        SenderByPath("sender", normalize=NameForm.HOSTNAME),
        SenderByHeader("X-Sender", normalize=NameForm.HOSTNAME),
        SenderBySubject(normalize=NameForm.HOSTNAME),
    ]
    for rule in rules:
        taken = Intake(rule).read(message(body, headers={"X-Sender": written}, subject=written))
        assert isinstance(taken, Observation)
        assert taken.sender_id == "web1.example.net"


def test_token_of_a_subject_is_normalized_too() -> None:
    taken = Intake(SenderBySubjectToken(3, normalize=NameForm.HOSTNAME)).read(message(subject="choria.nodes.WEB1.x"))
    assert isinstance(taken, Observation)
    assert taken.sender_id == "web1"


@pytest.mark.parametrize("name", [" ", ".", " . ", "\t"])
def test_name_of_which_nothing_is_left_is_no_sender(name: str) -> None:
    payload = msgspec.json.encode({"sender": name})
    rejected = Rejected(message(payload), RejectReason.NO_SENDER)
    assert read(SenderByPath("sender", normalize=NameForm.HOSTNAME), payload) == rejected


def test_names_stay_as_they_are_unless_told_otherwise() -> None:
    assert read(SenderByPath("sender"), b'{"sender":" Web1. "}') == Observation(
        " Web1. ", message(b'{"sender":" Web1. "}')
    )


# What takes long


def test_who_follows_stops_behind_every_message_that_may_take_long_to_read() -> None:
    tracker = Tracker(BlockState(position(1, 1), POLICY))
    bodies = [b'{"sender":"n1"}', b'{"sender":"n1",}', b"[" * 1_000, b"", b'{"sender":NaN,}', b'{"sender":"n1"}']
    following = CommitReplay(tracker, Intake(SenderByPath("sender")), OtherCommit(tracker.state))
    sent = [SourceMessage("s", body, None, number, START) for number, body in enumerate(bodies)]
    assert [each.sequence for each in sent for _ in following.take([each])] == [1, 2, 4]
