"""Golden bytes of every record on the wire: a change that breaks a reader breaks a test first."""

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from shared.decoding import WireError
from shared.identifiers import AdvisoryKind, BlockId, Incarnation
from shared.wire import (
    Advisory,
    ChoriaAdvisory,
    Watermark,
    decode_advisory,
    decode_watermark,
    encode,
    origin_header,
    parse_origin_header,
    parse_sender_header,
    sender_header,
    source_header,
)
from tests.support.core.advisories import advisory_of

BLOCK = BlockId("eu-west", "dub1", "nodes")
INCARNATION = Incarnation(created_at=1_769_817_600_000_000, epoch_ms=1_769_817_700_123)
SEEN_AT = 1_769_817_725_999_999
AT = 1_769_818_445_999_999

GOLDEN_ADVISORIES: dict[AdvisoryKind, bytes] = {
    AdvisoryKind.STALE: (
        b'{"protocol":"io.choria.sr.v2.age_advisory","event_id":"552454398591bba617b67b0a3d77e425",'
        b'"inspect_field":"sender","value":"n1.example.net","age":720,"seen":1769817725,"replicator":"dub1",'
        b'"timestamp":1769818445,"event":"timeout","kind":"stale","region":"eu-west","site":"dub1",'
        b'"block":"nodes","at_us":1769818445999999,"last_seen_us":1769817725999999,"stream":"REGISTRATION",'
        b'"incarnation":"1769817600000000-1769817700123","sequence":4711,"opening_sequence":17,"ordinal":1,'
        b'"rebuilt":false}'
    ),
    AdvisoryKind.RETIRED: (
        b'{"protocol":"io.choria.sr.v2.age_advisory","event_id":"c1eae96bf1478a3c87e9683b44c0d419",'
        b'"inspect_field":"sender","value":"n1.example.net","age":720,"seen":1769817725,"replicator":"dub1",'
        b'"timestamp":1769818445,"event":"expire","kind":"retired","region":"eu-west","site":"dub1",'
        b'"block":"nodes","at_us":1769818445999999,"last_seen_us":1769817725999999,"stream":"REGISTRATION",'
        b'"incarnation":"1769817600000000-1769817700123","sequence":4711,"opening_sequence":17,"ordinal":2,'
        b'"rebuilt":false}'
    ),
    AdvisoryKind.RECOVERED: (
        b'{"protocol":"io.choria.sr.v2.age_advisory","event_id":"296864910370a86c6aaffcde8cad5e19",'
        b'"inspect_field":"sender","value":"n1.example.net","age":720,"seen":1769817725,"replicator":"dub1",'
        b'"timestamp":1769818445,"event":"recover","kind":"recovered","region":"eu-west","site":"dub1",'
        b'"block":"nodes","at_us":1769818445999999,"last_seen_us":1769817725999999,"stream":"REGISTRATION",'
        b'"incarnation":"1769817600000000-1769817700123","sequence":4711,"opening_sequence":17,"ordinal":3,'
        b'"rebuilt":false}'
    ),
    AdvisoryKind.NEW: (
        b'{"protocol":"io.choria.sr.v2.age_advisory","event_id":"3ed4ddcb6ddaf0e141455cfd0cbba20c",'
        b'"inspect_field":"sender","value":"n1.example.net","age":-1,"seen":1769818445,"replicator":"dub1",'
        b'"timestamp":1769818445,"event":"new","kind":"new","region":"eu-west","site":"dub1","block":"nodes",'
        b'"at_us":1769818445999999,"last_seen_us":1769818445999999,"stream":"REGISTRATION",'
        b'"incarnation":"1769817600000000-1769817700123","sequence":17,"opening_sequence":17,"ordinal":4,'
        b'"rebuilt":false}'
    ),
}

GOLDEN_WATERMARK = (
    b'{"protocol":"muster:watermark:1","region":"eu-west","site":"dub1","block":"nodes","agent":"dub1-a",'
    b'"observed_since_us":1769817700000000,"observed_through_us":1769818445999999,"stream":"REGISTRATION",'
    b'"incarnation":"1769817600000000-1769817700123","sequence":4711,"advisory_ordinal":4,'
    b'"senders":{"heard":598,"stale":2},"outbox":{"advisories":1,"registrations":20},'
    b'"counters":{"rejected":{"not_json":3},"compacted":{"newer_sample":12}},"stale_after":720000000,'
    b'"retire_after":86400000000,"blind_after":180000000,"policy_revision":0,"version":"0.1.0",'
    b'"boot_id":"6f1c0f0e","rebuilt_at_us":0}'
)

CHORIA_ADVISORY = (
    b'{"protocol":"io.choria.sr.v2.age_advisory","event_id":"26QSY17sb9aJL6UPPG6MLOVjIrE","inspect_field":"sender",'
    b'"age":3600.123456789,"seen":1647351430,"replicator":"US-EAST","timestamp":1647355030,"event":"timeout",'
    b'"value":"some.host.example.net"}'
)


@pytest.fixture
def age_advisory_schema() -> dict[str, object]:
    """What consumers of ``io.choria.sr.v2.age_advisory`` may count on, as its published JSON schema says it."""
    text = {"type": "string", "minLength": 1}
    return {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "required": [
            "protocol",
            "event_id",
            "inspect_field",
            "value",
            "age",
            "seen",
            "replicator",
            "timestamp",
            "event",
        ],
        "properties": {
            "protocol": {"type": "string", "enum": ["io.choria.sr.v2.age_advisory"]},
            "event_id": {"type": "string"},
            "inspect_field": text,
            "value": text,
            "age": {"type": "integer"},
            "seen": {"type": "integer"},
            "replicator": {"type": "string"},
            "timestamp": {"type": "integer"},
            "event": {"type": "string", "enum": ["timeout", "recover", "expire", "new"]},
        },
    }


def advisory(kind: AdvisoryKind) -> Advisory:
    """Build one advisory of each kind; a new one is seen at the instant it speaks of."""
    return advisory_of(
        BLOCK,
        kind,
        sender_id="n1.example.net",
        inspect_field="sender",
        at=AT,
        last_seen_at=AT if kind is AdvisoryKind.NEW else SEEN_AT,
        stream="REGISTRATION",
        incarnation=INCARNATION,
        sequence=17 if kind is AdvisoryKind.NEW else 4711,
        opening=(INCARNATION, 17),
        ordinal=list(AdvisoryKind).index(kind) + 1,
    )


def test_retirement_of_a_sender_that_its_stream_ceased_to_hear_is_golden() -> None:
    unheard = msgspec.structs.replace(advisory(AdvisoryKind.RETIRED), unheard_until_us=SEEN_AT + 86_400_000_000)
    golden = GOLDEN_ADVISORIES[AdvisoryKind.RETIRED][:-1] + b',"unheard_until_us":1769904125999999}'
    assert encode(unheard) == golden
    assert decode_advisory(golden) == unheard
    known = decode_advisory(GOLDEN_ADVISORIES[AdvisoryKind.RETIRED])
    assert isinstance(known, Advisory)
    assert known.unheard_until_us is msgspec.UNSET


def watermark() -> Watermark:
    return Watermark(
        region="eu-west",
        site="dub1",
        block="nodes",
        agent="dub1-a",
        observed_since_us=1_769_817_700_000_000,
        observed_through_us=AT,
        stream="REGISTRATION",
        incarnation=str(INCARNATION),
        sequence=4711,
        advisory_ordinal=4,
        senders={"heard": 598, "stale": 2},
        outbox={"advisories": 1, "registrations": 20},
        counters={"rejected": {"not_json": 3}, "compacted": {"newer_sample": 12}},
        stale_after=720_000_000,
        retire_after=86_400_000_000,
        blind_after=180_000_000,
        policy_revision=0,
        version="0.1.0",
        boot_id="6f1c0f0e",
        rebuilt_at_us=0,
    )


@pytest.mark.parametrize("kind", AdvisoryKind)
def test_advisory_is_golden(kind: AdvisoryKind) -> None:
    assert encode(advisory(kind)) == GOLDEN_ADVISORIES[kind]


@pytest.mark.parametrize("kind", AdvisoryKind)
def test_golden_advisory_reads_back_whole(kind: AdvisoryKind) -> None:
    assert decode_advisory(GOLDEN_ADVISORIES[kind]) == advisory(kind)


@pytest.mark.parametrize("kind", AdvisoryKind)
def test_advisory_is_a_valid_choria_age_advisory(kind: AdvisoryKind, age_advisory_schema: dict[str, object]) -> None:
    jsonschema.validate(msgspec.json.decode(encode(advisory(kind))), age_advisory_schema)


def test_schema_refuses_a_float_age(age_advisory_schema: dict[str, object]) -> None:
    body = msgspec.json.decode(encode(advisory(AdvisoryKind.STALE)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body | {"age": 720.5}, age_advisory_schema)


def test_rebuilt_advisory_is_golden() -> None:
    rebuilt = msgspec.structs.replace(advisory(AdvisoryKind.NEW), rebuilt=True)
    golden = GOLDEN_ADVISORIES[AdvisoryKind.NEW].replace(b'"rebuilt":false', b'"rebuilt":true')
    assert encode(rebuilt) == golden
    assert decode_advisory(golden) == rebuilt


def test_age_of_a_new_sender_is_minus_one() -> None:
    assert advisory(AdvisoryKind.NEW).age == -1
    assert advisory(AdvisoryKind.STALE).age == 720


def test_unknown_fields_of_a_later_version_are_passed_over() -> None:
    for golden, decode in (
        (GOLDEN_ADVISORIES[AdvisoryKind.STALE], decode_advisory),
        (GOLDEN_WATERMARK, decode_watermark),
    ):
        later = golden[:-1] + b',"added_later":{"a":[1]}}'
        assert decode(later) == decode(golden)


def test_plain_choria_advisory_with_a_float_age_is_read() -> None:
    assert decode_advisory(CHORIA_ADVISORY) == ChoriaAdvisory(
        protocol="io.choria.sr.v2.age_advisory",
        event_id="26QSY17sb9aJL6UPPG6MLOVjIrE",
        inspect_field="sender",
        value="some.host.example.net",
        age=3600.123456789,
        seen=1647351430,
        replicator="US-EAST",
        timestamp=1647355030,
        event="timeout",
    )


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b"new", AdvisoryKind.NEW),
        (b"timeout", AdvisoryKind.STALE),
        (b"recover", AdvisoryKind.RECOVERED),
        (b"expire", AdvisoryKind.RETIRED),
    ],
)
def test_chorias_words_are_translated(event: bytes, kind: AdvisoryKind) -> None:
    plain = decode_advisory(CHORIA_ADVISORY.replace(b"timeout", event))
    assert plain.kind is kind


def test_our_advisory_with_a_broken_field_is_not_taken_for_a_plain_one() -> None:
    broken = GOLDEN_ADVISORIES[AdvisoryKind.STALE].replace(b'"ordinal":1', b'"ordinal":"one"')
    with pytest.raises(WireError, match=r"not an advisory: .*\$\.ordinal"):
        decode_advisory(broken)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff\xfe", CHORIA_ADVISORY[:-1], CHORIA_ADVISORY.replace(b"v2", b"v1")]
)
def test_what_is_not_an_advisory_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="not an advisory"):
        decode_advisory(body)


def test_watermark_is_golden_and_reads_back() -> None:
    assert encode(watermark()) == GOLDEN_WATERMARK
    assert decode_watermark(GOLDEN_WATERMARK) == watermark()
    again = msgspec.structs.replace(watermark(), condition="stream_not_storing")
    golden = GOLDEN_WATERMARK[:-1] + b',"condition":"stream_not_storing"}'
    assert encode(again) == golden
    assert decode_watermark(golden) == again
    alone = msgspec.structs.replace(watermark(), conditions=("pair_alone", "probe_not_stored"))
    golden = GOLDEN_WATERMARK[:-1] + b',"conditions":["pair_alone","probe_not_stored"]}'
    assert encode(alone) == golden
    assert decode_watermark(golden) == alone


@pytest.mark.parametrize("body", [b"", b"{}", GOLDEN_WATERMARK.replace(b"watermark:1", b"watermark:9")])
def test_what_is_not_a_watermark_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="not a watermark"):
        decode_watermark(body)


def test_origin_header_is_golden_and_reads_back() -> None:
    header = "eu-west.dub1.nodes.1769817600000000-1769817700123.4711"
    assert origin_header(BLOCK, INCARNATION, 4711) == header
    assert parse_origin_header(header) == (BLOCK, INCARNATION, 4711)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "eu-west.dub1.nodes.5-6",
        "eu-west.dub1.nodes.5-6.x",
        "a.b.c.5.6",
        "a.b.c.5-6.7.8",
        "a.b.c.5-6.1_0",
        "a.b.c.5-6.+7",
        "a.b.c.5-6.५",
        f"a.b.c.5-6.{10**18}",
        f"a.b.c.{10**18}-6.7",
        "a.b.c.5-6." + "9" * 5_000,
        "a.b.c." + "9" * 5_000 + "-6.7",
    ],
)
def test_what_is_not_an_origin_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="not an origin"):
        parse_origin_header(text)


def test_source_header_is_chorias_format_in_milliseconds() -> None:
    assert source_header("REGISTRATION", 4711, "dub1", "dub1-a", AT) == "REGISTRATION 4711 dub1 dub1-a 1769818445999"


@pytest.mark.parametrize(
    ("sender_id", "text"),
    [
        ("n1.example.net", "n1.example.net"),
        ("a b+c:d/~", "a b+c:d/~"),
        (" ", "%20"),
        ("  a ", "%20%20a%20"),
        ("100%", "100%25"),
        ("%41", "%2541"),
        ("a\r\nNats-Rollup: all", "a%0D%0ANats-Rollup: all"),
        ("\ttab\x7f", "%09tab%7F"),
        ("büro\u00a0\U0001f600", "b%C3%BCro%C2%A0%F0%9F%98%80"),
    ],
)
def test_sender_header_is_golden(sender_id: str, text: str) -> None:
    assert sender_header(sender_id) == text
    assert parse_sender_header(text) == sender_id


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_sender_comes_back_from_a_header_as_a_client_reads_it(sender_id: str) -> None:
    line = f"Muster-Sender: {sender_header(sender_id)}\r\n".encode()
    found = Client._parse_header_lines(line)
    assert {name: parse_sender_header(text) for name, text in found.items()} == {"Muster-Sender": sender_id}


@pytest.mark.parametrize(("text", "sender_id"), [("%", "%"), ("a%zz", "a%zz"), ("%4", "%4"), ("%ff", "\ufffd")])
def test_sender_header_that_no_agent_wrote_is_read_as_far_as_it_can_be(text: str, sender_id: str) -> None:
    assert parse_sender_header(text) == sender_id
