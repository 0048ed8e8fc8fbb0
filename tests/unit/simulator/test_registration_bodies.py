"""Simulated registrations look like Choria's, have the size that was asked for, and come out the same every time."""

import base64
import gzip
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from edge_agent.simulator.bodies import LARGEST, SMALLEST, RegistrationBodies, SizeRange
from shared.instants import parse_instant

SENDERS = [f"dub1-r{rack}-n{place}.example.net" for rack in range(1, 6) for place in range(1, 5)]
AT = parse_instant("2026-01-31T00:00:00.75Z")


def inventory(body: bytes) -> dict[str, Any]:
    message = msgspec.json.decode(msgspec.json.decode(body)["data"])
    assert message["protocol"] == "choria:registration:inventorycontent:1"
    if "zcontent" in message:
        content: dict[str, Any] = msgspec.json.decode(gzip.decompress(base64.b64decode(message["zcontent"])))
    else:
        content = message["content"]
    return content


@pytest.mark.parametrize("compress", [False, True])
def test_body_is_chorias_envelope_around_an_inventory(compress: bool) -> None:
    body = RegistrationBodies(SizeRange(5_000, 25_000), compress=compress).body(SENDERS[0], 7, AT)
    envelope = msgspec.json.decode(body)
    assert envelope.keys() == {"protocol", "data", "sender", "time", "requestid"}
    assert envelope["protocol"] == "choria:adapters:choria_streams:output:1"
    assert envelope["sender"] == SENDERS[0]
    assert envelope["time"] == "2026-01-31T00:00:00Z"
    assert len(envelope["requestid"]) == 32
    content = inventory(body)
    assert content.keys() == {"agents", "classes", "collectives", "facts", "status"}
    assert content["facts"]["fqdn"] == content["status"]["identity"] == SENDERS[0]
    assert len(content["facts"]["packages"]) > 20


def test_body_is_the_same_for_the_same_seed_sender_number_and_instant() -> None:
    sizes = SizeRange(5_000, 25_000)
    body = RegistrationBodies(sizes, seed=3).body(SENDERS[1], 500, AT)
    another = RegistrationBodies(sizes, seed=3)
    for number in (499, 500, 7):
        another.body(SENDERS[1], number, AT)
    assert another.body(SENDERS[1], 500, AT) == body
    assert RegistrationBodies(sizes, seed=4).body(SENDERS[1], 500, AT) != body
    assert another.body(SENDERS[2], 500, AT) != body
    assert another.body(SENDERS[1], 501, AT) != body


@pytest.mark.parametrize(
    ("smallest", "largest"), [(SMALLEST, SMALLEST), (5_000, 25_000), (8_000, 8_100), (LARGEST, LARGEST)]
)
def test_every_body_lies_in_the_size_range(smallest: int, largest: int) -> None:
    bodies = RegistrationBodies(SizeRange(smallest, largest))
    sizes = {len(bodies.body(sender, number, AT)) for sender in SENDERS for number in range(0, 600, 50)}
    assert smallest <= min(sizes) <= max(sizes) <= largest


def test_size_changes_only_when_the_node_does() -> None:
    bodies = RegistrationBodies(SizeRange(5_000, 25_000))
    sizes = [len(bodies.body(SENDERS[0], number, AT + number * 300_000_000)) for number in range(960)]
    changes = sum(before != after for before, after in pairwise(sizes))
    assert 5 <= changes <= 10


def test_a_name_with_awkward_letters_survives() -> None:
    name = 'büro "100%" \\ n1'
    body = RegistrationBodies(SizeRange(5_000, 5_000)).body(name, 1, AT)
    assert msgspec.json.decode(body)["sender"] == name
    assert inventory(body)["facts"]["fqdn"] == name


@pytest.mark.parametrize(("smallest", "largest"), [(10, 5_000), (9_000, 8_000), (5_000, LARGEST + 1)])
def test_sizes_that_cannot_be_made_are_refused(smallest: int, largest: int) -> None:
    with pytest.raises(ValueError, match="sizes go from"):
        SizeRange(smallest, largest)
