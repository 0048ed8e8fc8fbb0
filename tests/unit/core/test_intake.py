"""A registration is read as it is: who sent it, whether it is urgent, what it says; nothing in it is an error."""

import hashlib

import msgspec
import pytest

from edge_agent.core.intake import (
    Intake,
    SenderByHeader,
    SenderByPath,
    SenderBySubject,
    SenderBySubjectToken,
    SenderRule,
)
from edge_agent.core.observation import (
    IntakeResult,
    Observation,
    ProbeSighting,
    ProofCause,
    Rejected,
    RejectReason,
    SourceMessage,
)
from edge_agent.core.payload import DigestRule, content_digest
from shared.wire import SENDER_LIMIT

SUBJECT = "choria.node_metadata.n1"
DEEP = b"[" * 100_000 + b"]" * 100_000
EVERYTHING = DigestRule(("*",))


def message(payload: bytes = b"{}", *, headers: dict[str, str] | None = None, subject: str = SUBJECT) -> SourceMessage:
    return SourceMessage(subject, payload, headers, sequence=17, stored_at=1_769_817_600_000_000)


def read(rule: SenderRule, payload: bytes = b"{}", headers: dict[str, str] | None = None) -> IntakeResult:
    return Intake(rule).read(message(payload, headers=headers))


def is_forced(force_path: str, payload: bytes) -> bool:
    taken = Intake(SenderByPath("sender"), force_path).read(message(payload))
    assert isinstance(taken, Observation)
    return taken.forced


# Who sent it


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("sender", b'{"sender":"n1"}'),
        ("sender", b'{"other":[{"sender":"n2"}],"sender":"n1","last":null}'),
        ("facts.host.name", b'{"facts":{"host":{"name":"n1"}}}'),
        ("data.sender", rb'{"data":"{\"sender\":\"n1\"}"}'),
        ("data.facts.name", rb'{"data":"{\"facts\":\"{\\\"name\\\":\\\"n1\\\"}\"}"}'),
        ("sender", b'{"sender":"\\u006e\\u0031"}'),
    ],
)
def test_sender_is_the_text_at_a_json_path(path: str, payload: bytes) -> None:
    assert read(SenderByPath(path), payload) == Observation("n1", message(payload))


@pytest.mark.parametrize("payload", [b"not JSON at all", b"", b"\xff\xfe", DEEP])
@pytest.mark.parametrize(
    ("rule", "sender_id"),
    [(SenderByHeader("X-Sender"), "n1.example.net"), (SenderBySubjectToken(3), "n1"), (SenderBySubject(), SUBJECT)],
)
def test_sender_outside_the_body_needs_no_body(rule: SenderRule, sender_id: str, payload: bytes) -> None:
    headers = {"X-Sender": "n1.example.net"}
    assert read(rule, payload, headers) == Observation(sender_id, message(payload, headers=headers))


@pytest.mark.parametrize(
    ("rule", "inspect_field"),
    [
        (SenderByPath("facts.name"), "facts.name"),
        (SenderByHeader("X-Sender"), "X-Sender"),
        (SenderBySubjectToken(3), "subject_token_3"),
        (SenderBySubject(), "subject"),
    ],
)
def test_advisories_name_what_identifies_the_sender(rule: SenderRule, inspect_field: str) -> None:
    assert rule.inspect_field == inspect_field


def test_sender_may_have_any_letters_and_the_longest_name_that_fits() -> None:
    name = "ü\n😀." + "n" * (SENDER_LIMIT - 4)
    payload = msgspec.json.encode({"sender": name})
    assert read(SenderByPath("sender"), payload) == Observation(name, message(payload))


# Who did not


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"n1",
        b'["n1"]',
        b'"n1"',
        b"null",
        b'{"sender":"n1',
        b'{"sender":12',
        b'{"sender',
        b"{not JSON}",
        b'{"other":NaN}',
        DEEP,
    ],
    ids=lambda payload: repr(payload[:24]),
)
def test_body_that_is_not_a_json_object_is_rejected(payload: bytes) -> None:
    assert read(SenderByPath("sender"), payload) == Rejected(message(payload), RejectReason.NOT_AN_OBJECT)


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("sender", b"{}"),
        ("sender", b'{"Sender":"n1"}'),
        ("sender", b'{"sender":null}'),
        ("sender", b'{"sender":""}'),
        ("facts.name", b'{"facts":{}}'),
        ("facts.name", b'{"facts":["name"]}'),
        ("facts.name", b'{"facts":"name"}'),
        ("facts.name", b'{"facts":"{not JSON"}'),
        ("facts.name", rb'{"facts":"[\"name\"]"}'),
        ("facts.name", b'{"facts.name":"n1"}'),
        ("data.sender", b'{"data":"' + DEEP + b'"}'),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_path_where_nothing_stands_gives_no_sender(path: str, payload: bytes) -> None:
    assert read(SenderByPath(path), payload) == Rejected(message(payload), RejectReason.NO_SENDER)


@pytest.mark.parametrize("value", [b"true", b"false", b"{}", b"[]", b'["n1"]', b"NaN", b"-Infinity", b"1e999", DEEP])
def test_sender_that_is_not_text_is_rejected(value: bytes) -> None:
    payload = b'{"sender":' + value + b"}"
    assert read(SenderByPath("sender"), payload) == Rejected(message(payload), RejectReason.SENDER_NOT_TEXT)


@pytest.mark.parametrize("name", ["n" * (SENDER_LIMIT + 1), "n1\0", "\0"], ids=["too long", "ends in NUL", "NUL"])
def test_sender_that_no_record_can_carry_is_rejected(name: str) -> None:
    payload = msgspec.json.encode({"sender": name})
    assert read(SenderByPath("sender"), payload) == Rejected(message(payload), RejectReason.SENDER_NOT_USABLE)


@pytest.mark.parametrize("headers", [None, {}, {"x-sender": "n1"}, {"X-Sender": ""}])
def test_message_without_the_header_has_no_sender(headers: dict[str, str] | None) -> None:
    assert read(SenderByHeader("X-Sender"), headers=headers) == Rejected(
        message(headers=headers), RejectReason.NO_SENDER
    )


def test_subject_without_the_token_has_no_sender() -> None:
    assert read(SenderBySubjectToken(4)) == Rejected(message(), RejectReason.NO_SENDER)


@pytest.mark.parametrize("rule", [SenderByHeader("X-Sender"), SenderBySubject(), SenderBySubjectToken(1)])
@pytest.mark.parametrize("name", ["\ud83d", "caf\udce9"])
def test_name_with_half_a_letter_is_rejected(rule: SenderRule, name: str) -> None:
    sent = message(headers={"X-Sender": name}, subject=name)
    assert Intake(rule).read(sent) == Rejected(sent, RejectReason.SENDER_NOT_USABLE)


# What an agent stored to see that the stream stores


@pytest.mark.parametrize(
    "rule", [SenderByPath("sender"), SenderByHeader("X-Sender"), SenderBySubject(), SenderBySubjectToken(1)]
)
@pytest.mark.parametrize(
    ("origin", "cause"), [("eu-west.dub1.nodes", ProofCause.OWN), ("eu-west.dub1.other", ProofCause.OTHERS)]
)
def test_probe_is_nobodys_registration_whatever_it_says(rule: SenderRule, origin: str, cause: ProofCause) -> None:
    probe = message(b'{"sender":"n1"}', headers={"Muster-Probe": origin, "X-Sender": "n1"})
    assert Intake(rule, probe_origin="eu-west.dub1.nodes").read(probe) == ProbeSighting(probe, cause)


def test_heartbeat_is_nobodys_registration_whoever_sends_it() -> None:
    heartbeat = message(b'{"sender":"n1"}', headers={"Choria-SR-Originator": "n1", "Choria-SR-Subject": "a.b"})
    assert Intake(SenderByPath("sender")).read(heartbeat) == ProbeSighting(heartbeat, ProofCause.HEARTBEAT)


@pytest.mark.parametrize(
    "headers", [{"Nats-Marker-Reason": "MaxAge"}, {"KV-Operation": "DEL"}, {"KV-Operation": "purge"}]
)
@pytest.mark.parametrize("rule", [SenderByPath("sender"), SenderBySubject()])
def test_what_stands_for_a_deleted_message_is_no_sign_of_its_sender(rule: SenderRule, headers: dict[str, str]) -> None:
    marker = message(b"", headers=headers)
    assert Intake(rule).read(marker) == ProbeSighting(marker, ProofCause.DELETE_MARKER)


@pytest.mark.parametrize("operation", ["PUT", "put", ""])
def test_a_value_put_into_a_key_value_store_is_a_registration(operation: str) -> None:
    put = message(b'{"sender":"n1"}', headers={"KV-Operation": operation})
    assert Intake(SenderByPath("sender")).read(put) == Observation("n1", put)


# Whether it is urgent


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("urgent", b'{"sender":"n1","urgent":true}'),
        ("meta.urgent", b'{"sender":"n1","meta":{"urgent":true}}'),
        ("data.urgent", rb'{"sender":"n1","data":"{\"urgent\":true}"}'),
    ],
)
def test_value_true_forces(path: str, payload: bytes) -> None:
    assert is_forced(path, payload)


@pytest.mark.parametrize("value", [b"false", b"null", b"1", b'"true"', b'"yes"', b"{}", b"[true]"])
def test_mere_presence_does_not_force(value: bytes) -> None:
    assert not is_forced("urgent", b'{"sender":"n1","urgent":' + value + b"}")


def test_sender_and_force_may_share_their_first_key() -> None:
    payload = b'{"meta":{"name":"n1","urgent":true}}'
    taken = Intake(SenderByPath("meta.name"), "meta.urgent").read(message(payload))
    assert taken == Observation("n1", message(payload), forced=True)


@pytest.mark.parametrize(("payload", "forced"), [(b'{"urgent":true}', True), (b"not JSON", False), (DEEP, False)])
def test_body_that_cannot_be_read_forces_nothing_and_rejects_nobody(payload: bytes, forced: bool) -> None:
    taken = Intake(SenderBySubjectToken(3), "urgent").read(message(payload))
    assert taken == Observation("n1", message(payload), forced=forced)


# What it says


def digest_of(canonical: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "big")


@pytest.mark.parametrize(
    ("rule", "payload", "canonical"),
    [
        (EVERYTHING, b'{"b": 1, "a": {"d": 2, "c": 3}}', b'{"a":{"c":3,"d":2},"b":1}'),
        (EVERYTHING, b'{"n":123456789012345678901234567890}', b'{"n":123456789012345678901234567890}'),
        (EVERYTHING, b"[1, 2]", b"[1,2]"),
        (DigestRule(("*",), ("time",)), b'{"time":5,"a":1}', b'{"a":1}'),
        (DigestRule(("*",), ("a.time", "b")), b'{"a":{"time":5,"x":1},"b":{"c":2}}', b'{"a":{"x":1}}'),
        (DigestRule(("*",), ("absent", "a.absent")), b'{"a":{"x":1}}', b'{"a":{"x":1}}'),
        (DigestRule(("*",), ("data.time",)), rb'{"data":"{\"time\":5,\"a\":1}","p":2}', b'{"data":{"a":1},"p":2}'),
        (DigestRule(("a",)), b'{"a":1,"b":2}', b"[1]"),
        (DigestRule(("b", "a.c")), b'{"a":{"c":3,"d":4},"b":2}', b"[2,3]"),
        (DigestRule(("a", "absent")), b'{"a":1}', b"[1,null]"),
        (DigestRule(("data.a",)), rb'{"data":"{\"a\":1,\"time\":5}"}', b"[1]"),
        (DigestRule(("a",), ("a.time", "b.time")), b'{"a":{"x":1,"time":5},"b":{"time":6}}', b'[{"x":1}]'),
        (DigestRule(("a",), ("b", "ab")), b'{"a":{"b":1,"ab":2},"b":3,"ab":4}', b'[{"ab":2,"b":1}]'),
        (DigestRule(("data",), ("data.time",)), rb'{"data":"{\"a\":1,\"time\":5}"}', b'[{"a":1}]'),
    ],
)
def test_digest_is_of_the_chosen_content_in_one_order(rule: DigestRule, payload: bytes, canonical: bytes) -> None:
    assert content_digest(payload, rule) == digest_of(canonical)


def test_digest_is_golden() -> None:
    """It is kept in the store: another digest for the same content would forward every sender once more."""
    assert content_digest(b'{"a":1}', EVERYTHING) == 0x1F8C00645B7DF6CE


@pytest.mark.parametrize(
    ("rule", "one", "other"),
    [
        (EVERYTHING, b'{"a":1}', b'{"a":2}'),
        (EVERYTHING, b'{"a":1}', b'{"a":1.0}'),
        (EVERYTHING, b'{"a":[1,2]}', b'{"a":[2,1]}'),
        (EVERYTHING, b'{"a":null}', b"{}"),
        (DigestRule(("a", "b")), b'{"a":1}', b'{"b":1}'),
        (DigestRule(("data.a",)), rb'{"data":"{\"a\":1}"}', rb'{"data":"{\"a\":2}"}'),
        (DigestRule(("data.a",)), rb'{"data":"{\"a\":1,}"}', rb'{"data":"{\"a\":2,}"}'),
        (DigestRule(("data",)), rb'{"data":"{x 1"}', rb'{"data":"{x 2"}'),
        (DigestRule(("data",)), rb'{"data":"[info] 1"}', rb'{"data":"[info] 2"}'),
        (EVERYTHING, b'{"a":"\xff"}', b'{"a":"\xfe"}'),
        (EVERYTHING, rb'{"a":"\ud800"}', rb'{"a":"\ud801"}'),
        (EVERYTHING, b'{"a":1}\0', b'{"a":2}\0'),
        (EVERYTHING, b'{"a":' + DEEP + b',"b":1}', b'{"a":' + DEEP + b',"b":2}'),
    ],
)
def test_other_content_has_another_digest(rule: DigestRule, one: bytes, other: bytes) -> None:
    assert content_digest(one, rule) != content_digest(other, rule)


@pytest.mark.parametrize(
    "payload",
    [b"", b"not JSON", b"null and void"],
)
def test_content_in_which_nothing_can_be_read_has_no_digest(payload: bytes) -> None:
    assert content_digest(payload, EVERYTHING) == 0


def test_observation_carries_the_digest_and_the_payload_as_it_was() -> None:
    payload = b'{ "sender": "n1",  "time": 5 }'
    intake = Intake(SenderByPath("sender"), digest=DigestRule(("*",), ("time",)))
    assert intake.read(message(payload)) == Observation("n1", message(payload), digest_of(b'{"sender":"n1"}'))


def test_no_digest_is_taken_where_no_path_is_chosen() -> None:
    payload = b'{"sender":"n1"}'
    assert Intake(SenderByPath("sender"), digest=DigestRule()).read(message(payload)) == Observation(
        "n1", message(payload), digest=0
    )


def test_digest_does_not_show_whether_an_ignored_path_is_there() -> None:
    rule = DigestRule(("*",), ("data.time",))
    assert content_digest(b'{"data":"{\\"a\\":1}"}', rule) == content_digest(
        b'{"data":"{\\"a\\":1,\\"time\\":5}"}', rule
    )


def test_digest_of_a_chosen_text_of_json_does_not_depend_on_the_order_of_its_keys() -> None:
    rule = DigestRule(("data",))
    assert content_digest(b'{"data":"{\\"a\\":1,\\"b\\":2}"}', rule) == content_digest(
        b'{"data":"{\\"b\\":2,\\"a\\":1}"}', rule
    )
