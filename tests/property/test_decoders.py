"""Whatever bytes another program wrote, a decoder returns a value or raises WireError, however deep its caller is."""

import importlib
import inspect
import pkgutil
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import aggregator
import edge_agent
import shared
from aggregator.lakehouse.archive.json_repair import repaired
from aggregator.records.judge import AdvisorySubject, judged_advisory, judged_revision, judged_watermark
from edge_agent.delivery.region_protocol import answer_to
from edge_agent.delivery.shipment import Form
from edge_agent.pair.log import decode_entry
from shared.decoding import Decoder, ReportedInstant, WireError
from shared.identifiers import AdvisoryKind, BlockId
from shared.policy import ForwardSender, Revision, decode_revision, encode_revision, read_scoped_revision
from shared.wire import decode_advisory, decode_watermark, parse_origin_header, parse_sender_header
from tests.unit.shared.test_wire import CHORIA_ADVISORY, GOLDEN_ADVISORIES, GOLDEN_WATERMARK

BLOCK = BlockId("eu-west", "dub1", "nodes")
GOLDEN_REVISION = encode_revision(
    Revision(revision=3, stream_created_us=1, given_at_us=1_769_817_600_000_000, author="ops", order=ForwardSender("a"))
)
WHOLE = [*GOLDEN_ADVISORIES.values(), GOLDEN_WATERMARK, CHORIA_ADVISORY, GOLDEN_REVISION, b'{"stream":"A","seq":1}']
SUBJECT = AdvisorySubject(AdvisoryKind.STALE, "eu-west", "dub1", "nodes")
DEEP_STACK = 700
OF_REPLIES = ("shared.nats.", "edge_agent.source.", "aggregator.topology.observed.", "aggregator.archive.")
JUDGED_OTHERWISE: dict[str, type] = dict.fromkeys(("created", "ts", "first_ts", "last_ts", "time", "pause_until"), str)
JUDGED_OTHERWISE |= dict.fromkeys(
    (
        *("seq", "first_seq", "last_seq", "stream_seq", "consumer_seq", "messages", "bytes", "lag", "active"),
        *("num_pending", "num_waiting", "num_ack_pending", "num_deleted", "num_subjects", "inactive_threshold"),
    ),
    int,
)
"""Fields of JetStream's replies, with the types that let any value pass."""


def modules() -> Iterator[ModuleType]:
    for package in (shared, edge_agent, aggregator):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not each.name.endswith("__main__"):
                yield importlib.import_module(each.name)


MODULES = list(modules())
FUNCTIONS: list[Callable[[bytes], object]] = [decode_advisory, decode_revision, decode_entry]
"""Functions that decode; they raise WireError too."""
DECODERS: dict[str, Callable[[bytes], object]] = {
    f"{module.__name__}.{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, Decoder)
} | {each.__name__: each for each in FUNCTIONS}


def unpackable(body: bytes) -> object:
    return decode_entry(zlib.compress(body))


def header_of(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda body: read(body.decode("latin-1"))


READERS: dict[str, Callable[[bytes], object]] = DECODERS | {
    "packed entry": unpackable,
    "origin": header_of(parse_origin_header),
    "sender": header_of(parse_sender_header),
    "acknowledgement": lambda body: answer_to(1, Form.SINGLE, body),
    "scoped revision": lambda body: read_scoped_revision("muster.policy.eu-west.region", body, 3),
    "judged advisory": lambda body: judged_advisory(body, SUBJECT, 0),
    "judged Choria advisory": lambda body: judged_advisory(body, SUBJECT._replace(kind=None, site=None), 0),
    "judged watermark": lambda body: judged_watermark(body, BLOCK, 0),
    "judged revision": judged_revision,
    "repaired": repaired,
}


def outcome(read: Callable[[bytes], object], body: bytes, depth: int = 0) -> object:
    """Return what is read, or None for a WireError, by a caller that is ``depth`` calls deep."""
    if depth:
        return outcome(read, body, depth - 1)
    try:
        return read(body)
    except WireError:
        return None


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Return a whole record with one more field, or one field changed, or bytes that are none."""
    record = draw(st.sampled_from(WHOLE))
    odd = draw(
        st.sampled_from([b"9" * 5_000, b"-1", b"1e999", b'"\xff"', b'"\\ud800"', b"null", b"[", b"9223372036854775808"])
        | st.builds(lambda opening, count: opening * count, st.sampled_from([b"[", b'{"a":']), st.integers(1, 1_100))
        | st.builds(lambda count: b"[" * count + b"]" * count, st.integers(1, 1_100))
        | st.binary(max_size=20)
    )
    name = draw(st.sampled_from([b"x", *(key.encode() for key in msgspec.json.decode(record))]))
    return b'{"%b":%b,%b' % (name, odd, record[1:]) if draw(st.booleans()) else odd


def nested(depth: int, record: bytes = GOLDEN_WATERMARK) -> bytes:
    return record[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize("name", READERS)
@given(body=hostile())
@example(body=nested(997))
@example(body=nested(997, GOLDEN_ADVISORIES[AdvisoryKind.STALE]))
@example(body=nested(997, CHORIA_ADVISORY))
@example(body=nested(997, GOLDEN_REVISION))
@example(body=b"[" * 10_000)
@example(body=b'{"a":' * 10_000)
@example(body=b'{"error":{"description":"\xff"}}')
def test_decoder_returns_a_value_or_raises_wire_error(name: str, body: bytes) -> None:
    outcome(READERS[name], body)


@pytest.mark.parametrize("depth", range(900, 1_010, 5))
@pytest.mark.parametrize("decode", [decode_advisory, decode_watermark, decode_revision], ids=["a", "w", "r"])
def test_record_is_judged_the_same_whatever_the_depth_of_the_stack(decode: Callable[[bytes], Any], depth: int) -> None:
    for record in WHOLE:
        body = nested(depth, record)
        assert outcome(decode, body) == outcome(decode, body, DEEP_STACK)


def test_values_of_any_type_are_decoded_as_they_are() -> None:
    assert Decoder(dict[str, object], "fields")(b'{"a":1,"b":["c"]}') == {"a": 1, "b": ["c"]}
    read = Decoder(dict[str, ReportedInstant], "instants")
    assert msgspec.json.encode(read(b'{"a":"2026-01-31T00:00:00Z"}')) == b'{"a":1769817600000000}'
    with pytest.raises(WireError):
        read(b'{"a":"in May"}')


def test_instants_and_counts_of_replies_are_judged_where_they_are_decoded() -> None:
    """Later steps compare them, add to them and store them: an odd one would end the program there."""
    found = [
        f"{model.__module__}.{model.__name__}.{field.encode_name}"
        for module in MODULES
        if module.__name__.startswith(OF_REPLIES) or "request_json" in vars(module)
        if not module.__name__.startswith("aggregator.demo")
        for model in vars(module).values()
        if inspect.isclass(model) and issubclass(model, msgspec.Struct) and model.__module__ == module.__name__
        for field in msgspec.structs.fields(model)
        if field.type is JUDGED_OTHERWISE.get(field.encode_name)
    ]
    assert found == []


def test_every_function_that_decodes_is_tried() -> None:
    named = {
        value
        for module in MODULES
        for name, value in vars(module).items()
        if name.startswith("decode_") and inspect.isfunction(value) and value.__module__ == module.__name__
    }
    others = {"decode_deep", "decode_tolerantly"}
    assert {each.__name__ for each in named} - others == {each.__name__ for each in FUNCTIONS}
