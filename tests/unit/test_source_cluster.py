"""Of a stream in a cluster, its leader is asked whether all was delivered, where its last sequence does not show it."""

import msgspec

from edge_agent.core.resume import StreamFacts
from edge_agent.ports import SourceUnavailable
from edge_agent.source_cluster import Completeness

ALONE = StreamFacts(created_at=1, first_sequence=1, last_sequence=9, server_at=2)
IN_CLUSTER = msgspec.structs.replace(ALONE, leader="n1")
INCOMPLETE = "is not complete on n2, which delivers it"


class Leader:
    """Answers what the last message is that passes the filter, and counts how often it is asked."""

    def __init__(self, last_sequence: int | None) -> None:
        self.last_sequence = last_sequence
        self.asked = 0

    async def answer(self) -> int:
        self.asked += 1
        if self.last_sequence is None:
            raise SourceUnavailable("no answer within 5 s")
        return self.last_sequence


async def test_a_server_alone_delivers_all_that_it_stores() -> None:
    leader = Leader(9)
    assert await Completeness(leader.answer).doubt(ALONE, "n2", 3) == ""
    assert not leader.asked


async def test_what_was_delivered_up_to_the_last_sequence_is_all() -> None:
    leader = Leader(9)
    assert await Completeness(leader.answer).doubt(IN_CLUSTER, "n2", 9) == ""
    assert not leader.asked


async def test_what_is_gone_from_an_empty_stream_need_not_be_delivered() -> None:
    leader = Leader(0)
    emptied = msgspec.structs.replace(IN_CLUSTER, first_sequence=10)
    assert await Completeness(leader.answer).doubt(emptied, "n2", 3) == ""
    assert not leader.asked


async def test_what_the_stream_holds_and_did_not_deliver_leaves_a_doubt_until_it_is_delivered() -> None:
    completeness = Completeness(Leader(8).answer)
    assert [await completeness.doubt(IN_CLUSTER, "n2", delivered) for delivered in (7, 8)] == [INCOMPLETE, ""]


async def test_what_does_not_pass_the_filter_leaves_no_doubt_and_is_asked_for_once() -> None:
    leader = Leader(0)
    completeness = Completeness(leader.answer)
    for _ in range(3):
        assert await completeness.doubt(IN_CLUSTER, "n2", 3) == ""
    assert leader.asked == 1
    stored_more = msgspec.structs.replace(IN_CLUSTER, last_sequence=10)
    assert await completeness.doubt(stored_more, "n2", 3) == ""
    assert leader.asked == 2


async def test_who_may_not_ask_says_so_and_does_not_ask_at_every_check() -> None:
    leader = Leader(None)
    completeness = Completeness(leader.answer)
    for _ in range(3):
        assert await completeness.doubt(IN_CLUSTER, "n2", 3) == "does not tell what it holds: no answer within 5 s"
    assert leader.asked == 1
    assert await completeness.doubt(IN_CLUSTER, "n2", 9) == ""
