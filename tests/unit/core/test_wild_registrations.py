"""Registrations are read as Choria's programs publish them: adapters' envelopes, zipped contents, lifecycle events.

The samples are written by hand after the sources of go-choria: its adapters, registration plugins and lifecycle.
"""

import base64
import gzip
import json
import zlib
from collections.abc import Callable

import pytest

from edge_agent.core.intake import (
    GoodbyeRule,
    Intake,
    SenderByHeader,
    SenderByPath,
    SenderBySubjectToken,
    SenderRule,
)
from edge_agent.core.observation import (
    Batch,
    BatchForm,
    Observation,
    ProbeSighting,
    ProofCause,
    Rejected,
    RejectReason,
    SourceMessage,
)
from edge_agent.core.payload import UNZIPPED_LIMIT, DigestRule, content_digest

NODE = "web1.example.net"
PROTOCOLS = [f"choria:adapters:{adapter}:output:1" for adapter in ("choria_streams", "jetstream", "natsstream")]
STORED_AT = 1_769_817_600_000_000
INVENTORY = {
    "agents": [{"name": "rpcutil", "version": "0.28.0"}],
    "classes": ["roles::web"],
    "facts": {"os": {"name": "Debian"}, "uptime": 5},
    "status": {"identity": NODE, "uptime": 5},
    "collectives": ["mcollective"],
    "build_info": {"version": "0.28.0", "sha": "abcdef"},
    "machines": [],
}


def message(body: object, *, sequence: int = 1, subject: str = f"choria.node_metadata.{NODE}") -> SourceMessage:
    return SourceMessage(subject, json.dumps(body).encode(), None, sequence, STORED_AT + sequence)


def inventory(
    content: object = INVENTORY, zip_with: Callable[[bytes], bytes] | None = gzip.compress
) -> dict[str, object]:
    """Give what the inventory_content plugin publishes: zipped, or as JSON where compression is off."""
    protocol = {"protocol": "choria:registration:inventorycontent:1"}
    if zip_with is None:
        return {**protocol, "content": content}
    return {**protocol, "zcontent": base64.b64encode(zip_with(json.dumps(content).encode())).decode()}


def file_content(mtime: int = 1_769_817_000, *, updated: bool = False) -> dict[str, object]:
    """Give what the file_content plugin publishes; uncompressed content is base64 too."""
    return {
        "mtime": mtime,
        "file": "/etc/choria/facts.json",
        "updated": updated,
        "protocol": "choria:registration:filecontent:1",
        "content": base64.b64encode(b'{"os":"Debian"}').decode(),
    }


def adapted(
    data: object, protocol: str = PROTOCOLS[0], time: object = "2026-01-31T00:00:00Z", **more: object
) -> object:
    """Give what a broker's adapter publishes of it: ``data`` is JSON as text."""
    return {"protocol": protocol, "data": json.dumps(data), "sender": NODE, "time": time, **more}


def event(kind: str, **data: object) -> dict[str, object]:
    """Give a lifecycle event in CloudEvents 1.0."""
    identity, at = "01e72410-d734-4611-9485-8c6a2dd2579b", 1_535_106_973
    protocol = f"io.choria.lifecycle.v1.{kind}"
    return {
        "id": identity,
        "source": "io.choria.lifecycle",
        "specversion": "1.0",
        "subject": NODE,
        "time": "2018-08-24T10:36:13Z",
        "type": protocol,
        "data": {
            "protocol": protocol,
            "id": identity,
            "identity": NODE,
            "component": "server",
            "timestamp": at,
            "version": "0.28.0",
            **data,
        },
    }


def sender_of(body: object, rule: SenderRule, force_path: str = "") -> str:
    sent = message(body)
    taken = Intake(rule, force_path).read(sent)
    assert isinstance(taken, Observation)
    assert taken.message is sent, "the message goes on as it is"
    return taken.sender_id


# Adapters' envelopes


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("time", ["2026-01-31T00:00:00.123456789Z", 1_769_817_600, None])
@pytest.mark.parametrize("more", [{"requestid": "6b1e2e5f"}, {"requestid": ""}, {}])
def test_envelope_names_its_sender_whatever_else_it_holds(protocol: str, time: object, more: dict[str, object]) -> None:
    assert sender_of(adapted(inventory(), protocol, time, **more), SenderByPath("sender")) == NODE


@pytest.mark.parametrize("data", [inventory(), inventory(zip_with=None), file_content(), "plain text", "", [1], None])
def test_envelope_is_read_whatever_it_carries(data: object) -> None:
    assert sender_of(adapted(data), SenderByPath("sender")) == NODE


def test_sender_may_stand_in_the_text_that_the_envelope_carries() -> None:
    assert sender_of(adapted(inventory(zip_with=None)), SenderByPath("data.content.status.identity")) == NODE


def test_sender_may_stand_in_the_subject_that_an_adapter_publishes_on() -> None:
    body = adapted(inventory())
    sent = message(body, subject="choria.stream.adapter.web1")
    assert Intake(SenderBySubjectToken(4)).read(sent) == Observation("web1", sent)


def test_envelope_without_a_sender_is_rejected() -> None:
    sent = message({"protocol": PROTOCOLS[0], "data": "{}", "time": "2026-01-31T00:00:00Z", "requestid": ""})
    assert Intake(SenderByPath("sender")).read(sent) == Rejected(sent, RejectReason.NO_SENDER)
    assert Intake(SenderByHeader("sender")).read(sent) == Rejected(sent, RejectReason.NO_SENDER)


def test_file_content_that_was_updated_is_forwarded_at_once() -> None:
    intake = Intake(SenderByPath("sender"), "data.updated")
    for updated in (False, True):
        taken = intake.read(message(adapted(file_content(updated=updated))))
        assert isinstance(taken, Observation)
        assert taken.forced is updated


# Contents, zipped or not


@pytest.mark.parametrize(
    "zip_with", [gzip.compress, zlib.compress, lambda data: zlib.compress(data, 9)], ids=["gzip", "zlib", "zlib 9"]
)
def test_path_leads_into_zipped_content(zip_with: Callable[[bytes], bytes]) -> None:
    zipped = adapted(inventory(zip_with=zip_with))
    assert sender_of(zipped, SenderByPath("data.zcontent.status.identity")) == NODE


@pytest.mark.parametrize("zip_with", [gzip.compress, zlib.compress, None], ids=["gzip", "zlib", "as JSON"])
def test_digest_covers_what_changes_and_leaves_out_what_always_does(
    zip_with: Callable[[bytes], bytes] | None,
) -> None:
    where = "data.content" if zip_with is None else "data.zcontent"
    rule = DigestRule((where,), (f"{where}.facts.uptime", f"{where}.status"))

    def digest(uptime: int, release: str) -> int:
        facts = {"os": {"name": release}, "uptime": uptime}
        body = adapted(inventory({**INVENTORY, "facts": facts, "status": {"uptime": uptime}}, zip_with), time=uptime)
        return content_digest(message(body).payload, rule)

    assert digest(5, "Debian") == digest(305, "Debian") != 0
    assert digest(5, "Debian") != digest(5, "Ubuntu")


@pytest.mark.parametrize(
    "zcontent",
    [
        base64.b64encode(gzip.compress(b'{"status":{"identity":"x"}}')[:-9]).decode(),
        base64.b64encode(gzip.compress(b"not JSON")).decode(),
        base64.b64encode(b"\x1f\x8b no gzip").decode(),
        "H4sI not base64",
        base64.b64encode(gzip.compress(b'{"pad":"' + b" " * UNZIPPED_LIMIT + b'"}')).decode(),
    ],
    ids=["cut off", "not JSON", "no gzip", "no base64", "too large"],
)
def test_zipped_content_that_cannot_be_read_has_nothing_in_it(zcontent: str) -> None:
    sent = message(adapted({"zcontent": zcontent}))
    assert Intake(SenderByPath("data.zcontent.status.identity")).read(sent) == Rejected(sent, RejectReason.NO_SENDER)
    assert Intake(SenderByPath("sender")).read(sent) == Observation(NODE, sent)


# Lifecycle events and plain JSON


@pytest.mark.parametrize("kind", ["startup", "shutdown", "provisioned", "alive", "upgraded"])
@pytest.mark.parametrize("path", ["subject", "data.identity"])
def test_lifecycle_event_names_its_node(kind: str, path: str) -> None:
    assert sender_of(event(kind), SenderByPath(path)) == NODE


GOODBYE = GoodbyeRule("type", ("io.choria.lifecycle.v1.shutdown", "io.choria.lifecycle.v1.provisioned"))


@pytest.mark.parametrize("kind", ["shutdown", "provisioned"])
def test_lifecycle_event_that_ends_a_node_is_no_sighting_of_it(kind: str) -> None:
    sent = message(event(kind))
    assert Intake(SenderByPath("data.identity"), goodbye=GOODBYE).read(sent) == ProbeSighting(sent, ProofCause.GOODBYE)


@pytest.mark.parametrize("kind", ["startup", "alive"])
def test_other_lifecycle_events_are_sightings(kind: str) -> None:
    sent = message(event(kind))
    assert Intake(SenderByPath("data.identity"), goodbye=GOODBYE).read(sent) == Observation(NODE, sent)


def test_goodbyes_in_a_batch_are_counted_and_their_senders_not_heard() -> None:
    events = [event("alive"), event("shutdown", identity="n2"), event("alive", identity="n3")]
    sent = SourceMessage("choria.lifecycle", json.dumps(events).encode(), None, 1, STORED_AT)
    result = Intake(SenderByPath("data.identity", BatchForm.ARRAY), goodbye=GOODBYE).read(sent)
    assert isinstance(result, Batch)
    assert ([each.sender_id for each in result.observations], result.goodbyes) == ([NODE, "n3"], 1)


def test_alive_events_that_never_change_their_id_and_time_are_sightings_each() -> None:
    """A process repeats both for as long as it lives: neither tells one event from another, nor when it was sent."""
    intake = Intake(SenderByPath("data.identity"), digest=DigestRule(("*",)))
    taken = [intake.read(message(event("alive"), sequence=number)) for number in (1, 2, 3)]
    sightings = [each for each in taken if isinstance(each, Observation)]
    assert [each.message.sequence for each in sightings] == [1, 2, 3]
    assert [each.message.stored_at for each in sightings] == [STORED_AT + 1, STORED_AT + 2, STORED_AT + 3]
    assert len({each.digest for each in sightings}) == 1


def test_older_lifecycle_event_without_an_envelope_names_its_node() -> None:
    body = {"protocol": "choria:lifecycle:alive:1", "id": "01e72410", "identity": NODE, "timestamp": 1_535_106_973}
    assert sender_of(body, SenderByPath("identity")) == NODE


def test_plain_json_names_its_sender() -> None:
    assert sender_of({"sender": NODE, "anything": [None, 1.5, {"else": True}]}, SenderByPath("sender")) == NODE
