"""Of a stream in a cluster, its leader is asked whether all was delivered, where its last sequence does not show it."""

import msgspec
import pytest

from edge_agent.core.stream_past import StreamFacts
from edge_agent.source.port import SourceUnavailable
from edge_agent.source.reader import Completeness

ALONE = StreamFacts(created_at=1, first_sequence=1, last_sequence=9, server_at=2)
IN_CLUSTER = msgspec.structs.replace(ALONE, leader="n1")
INCOMPLETE = "is not complete on n2, which delivers it"
SUBJECT = "$JS.API.STREAM.MSG.GET.REGISTRATION"
DENIED = f'nats: permissions violation for publish to "{SUBJECT.lower()}"'


class Leader:
    """Holds messages that pass the filter, counts how often it is asked; ``denies`` whoever asks, or is silent."""

    message_subject = SUBJECT

    def __init__(self, *sequences: int, is_silent: bool = False) -> None:
        self.sequences, self.is_silent = sequences, is_silent
        self.asked = 0
        self.denies: Completeness | None = None

    async def next_behind(self, sequence: int) -> int | None:
        self.asked += 1
        if self.denies is not None:
            assert self.denies.takes_denial(DENIED)
        if self.is_silent or self.denies is not None:
            raise SourceUnavailable("no answer within 5 s")
        return next((each for each in self.sequences if each > sequence), None)


async def test_a_server_alone_delivers_all_that_it_stores() -> None:
    leader = Leader(9)
    assert await Completeness(leader).storage_fault(ALONE, "n2", 3) == ""
    assert not leader.asked


async def test_what_was_delivered_up_to_the_last_sequence_is_all() -> None:
    leader = Leader(9)
    assert await Completeness(leader).storage_fault(IN_CLUSTER, "n2", 9) == ""
    assert not leader.asked


async def test_what_is_gone_from_an_empty_stream_need_not_be_delivered() -> None:
    leader = Leader()
    emptied = msgspec.structs.replace(IN_CLUSTER, first_sequence=10)
    assert await Completeness(leader).storage_fault(emptied, "n2", 3) == ""
    assert not leader.asked


async def test_what_the_stream_holds_and_did_not_deliver_leaves_a_doubt_until_it_is_delivered() -> None:
    completeness = Completeness(Leader(7, 8))
    assert [await completeness.storage_fault(IN_CLUSTER, "n2", delivered) for delivered in (7, 8)] == [INCOMPLETE, ""]


async def test_what_does_not_pass_the_filter_leaves_no_doubt_and_is_asked_for_once() -> None:
    leader = Leader(3)
    completeness = Completeness(leader)
    for _ in range(3):
        assert await completeness.storage_fault(IN_CLUSTER, "n2", 3) == ""
    assert leader.asked == 1
    stored_more = msgspec.structs.replace(IN_CLUSTER, last_sequence=10)
    assert await completeness.storage_fault(stored_more, "n2", 3) == ""
    assert leader.asked == 2


async def test_who_may_not_ask_says_so_and_asks_no_more() -> None:
    leader = Leader(3)
    completeness = leader.denies = Completeness(leader)
    for _ in range(3):
        storage_fault = await completeness.storage_fault(IN_CLUSTER, "n2", 3)
        assert storage_fault == f"may hold more than it delivers: not permitted: publish on {SUBJECT}"
    assert leader.asked == 1
    assert await completeness.storage_fault(IN_CLUSTER, "n2", 9) == ""


async def test_a_leader_that_does_not_answer_is_no_reason_to_believe() -> None:
    completeness = Completeness(Leader(3, is_silent=True))
    with pytest.raises(SourceUnavailable):
        await completeness.storage_fault(IN_CLUSTER, "n2", 3)
    assert not completeness.takes_denial(DENIED), "it was denied to somebody else, who asks for something else"
