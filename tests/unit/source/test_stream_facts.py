"""What a stream's STREAM.INFO says of its silence."""

from typing import Any

import msgspec
import pytest

from edge_agent.core.stream_past import StreamTakes
from edge_agent.source.stream_facts import HEARD_WITHIN, StreamInfo
from shared.decoding import Decoder

ORIGIN = {"name": "ORIGIN", "active": 400_000_000, "lag": 0}


def info(*, config: dict[str, Any] | None = None, state: dict[str, Any] | None = None, **others: Any) -> StreamInfo:
    """Give what a server says of a stream that has room and copies from nobody, less what differs."""
    says = {
        "config": {"retention": "limits", "discard": "old", "max_msgs": -1, "max_bytes": -1} | (config or {}),
        "state": {
            "messages": 10,
            "bytes": 5_000,
            "first_seq": 1,
            "last_seq": 10,
            "first_ts": "2026-01-01T00:00:00.000002Z",
        }
        | (state or {}),
        "created": "2026-01-01T00:00:00Z",
        "ts": "2026-01-01T00:01:00Z",
    }
    return Decoder(StreamInfo, "a stream")(msgspec.json.encode(says | others))


def test_a_stream_with_room_leaves_no_doubt() -> None:
    facts = info(config={"max_msgs": 10}).facts
    assert (facts.storage_fault, facts.unheard_for, facts.first_stored_at - facts.created_at) == ("", 0, 2)


@pytest.mark.parametrize(
    ("config", "storage_fault"),
    [
        ({"sealed": True}, "is sealed"),
        ({"discard": "new", "max_msgs": 10}, "is full and refuses what is new"),
        ({"discard": "new", "max_bytes": 5_400}, "is full and refuses what is new"),
        ({"discard": "new", "max_bytes": 50_000}, ""),
        ({"discard": "new", "max_msgs": 11}, ""),
    ],
)
def test_a_stream_that_may_refuse_a_registration_is_doubted(config: dict[str, Any], storage_fault: str) -> None:
    assert info(config=config).facts.storage_fault == storage_fault


@pytest.mark.parametrize(
    ("cluster", "leader", "is_leaderless"),
    [
        ({}, "", False),
        ({"cluster": {"leader": "n1"}}, "", False),
        ({"cluster": {"leader": "n1", "replicas": None}}, "", False),
        ({"cluster": {"leader": "n1", "replicas": [{"name": "n2", "current": True, "active": 1}]}}, "n1", False),
        ({"cluster": {"replicas": [{"name": "n1"}, {"name": "n2"}]}}, "", True),
    ],
)
def test_a_stream_that_several_servers_hold_has_a_leader_or_should(
    cluster: dict[str, Any], leader: str, is_leaderless: bool
) -> None:
    says = info(**cluster)
    assert (says.facts.leader, says.cluster.is_leaderless) == (leader, is_leaderless)


UNHEARD = "does not hear most of the servers that hold it"


@pytest.mark.parametrize(
    ("active", "unheard_for", "storage_fault"),
    [
        ((400_000_000, 900_000_000), 400_000, ""),
        ((9_000_000_000, 8_000_000_000), 8_000_000, ""),
        ((900_000_000, 0), 900_000, ""),
        ((0, 0), 0, UNHEARD),
        ((HEARD_WITHIN + 1_000, 0), HEARD_WITHIN // 1_000 + 1, UNHEARD),
        ((1_000, 2_000, 3_000, 4_000), 2, ""),
        ((1_000, 0, 0, 0), 0, UNHEARD),
    ],
)
def test_silence_proves_nothing_from_when_the_leader_heard_most_of_the_others_last(
    active: tuple[int, ...], unheard_for: int, storage_fault: str
) -> None:
    replicas = [{"name": f"n{number}", "active": each} for number, each in enumerate(active, 2)]
    facts = info(cluster={"leader": "n1", "replicas": replicas}).facts
    assert (facts.unheard_for, facts.storage_fault) == (unheard_for, storage_fault)


@pytest.mark.parametrize("discard", ["new", "old"])
def test_a_stream_that_refuses_by_subject_does_so_where_it_discards_what_is_new(discard: str) -> None:
    facts = info(config={"discard": discard, "discard_new_per_subject": True, "max_msgs_per_subject": 5}).facts
    assert (facts.refuses_by_subject, facts.storage_fault) == (discard == "new", "")


@pytest.mark.parametrize(
    ("active", "lag", "storage_fault"),
    [
        (0, 0, ""),
        (HEARD_WITHIN, 0, ""),
        (HEARD_WITHIN + 1, 0, "does not hear ORIGIN, which it copies from"),
        (-1, 0, "does not hear ORIGIN, which it copies from"),
        (0, 3, "is behind ORIGIN, which it copies from"),
    ],
)
def test_a_stream_that_lacks_what_it_copies_from_is_doubted(active: int, lag: int, storage_fault: str) -> None:
    origin = {"name": "ORIGIN", "active": active, "lag": lag}
    assert (
        info(mirror=origin).facts.storage_fault == info(sources=[ORIGIN, origin]).facts.storage_fault == storage_fault
    )


def test_the_time_since_an_origin_was_heard_proves_nothing() -> None:
    assert info(sources=[ORIGIN, ORIGIN | {"active": 2_000_000_000}]).facts.unheard_for == 2_000_000


def test_an_empty_stream_has_no_first_message() -> None:
    assert info(state={"messages": 0, "first_ts": "0001-01-01T00:00:00Z"}).facts.first_stored_at == 0


def test_a_stream_with_interest_retention_awaits_its_consumers() -> None:
    assert info(config={"retention": "interest"}).facts.awaits_consumers


def test_what_a_stream_takes_is_read_from_its_configuration() -> None:
    config = {"subjects": ["a.>"], "max_msg_size": 100}
    facts, transformed = info(config=config).facts, info(config=config | {"subject_transform": {"src": ">"}}).facts
    assert (facts.takes, facts.mean_size) == (StreamTakes(("a.>",), 100), 500)
    permitting = info(config=config | {"allow_atomic": True, "allow_rollup_hdrs": True, "allow_direct": True}).facts
    assert permitting.takes.permits == ("allow_rollup_hdrs", "allow_atomic")
    assert facts.takes.lost_in(transformed.takes) == "copies or renames messages otherwise than before"


@pytest.mark.parametrize(("max_bytes", "publish_error"), [(5_600, ""), (5_499, "is full and refuses what is new")])
def test_a_stream_refuses_where_a_message_as_they_are_finds_no_room(max_bytes: int, publish_error: str) -> None:
    state = {"messages": 100, "bytes": 5_450}
    assert info(config={"discard": "new", "max_bytes": max_bytes}, state=state).facts.publish_error == publish_error
