"""What the leader has delivered is told in entries of the log, whatever numbers the rows have in either store."""

from edge_agent.core.records import Lane
from edge_agent.pair.deliveries import Deliveries

NONE = dict.fromkeys(Lane, 0)


def rows(advisories: int = 0, registrations: int = 0) -> dict[Lane, int]:
    return NONE | {Lane.ADVISORIES: advisories, Lane.REGISTRATIONS: registrations}


def commit(deliveries: Deliveries, block: str, sequence: int, last_row_ids: dict[Lane, int]) -> None:
    deliveries.begin(block, sequence)
    deliveries.committed(block, last_row_ids)


def test_standby_lets_go_what_the_leader_has_delivered() -> None:
    leader, standby = Deliveries({"nodes": 5}, rows(20, 30)), Deliveries({"nodes": 5}, rows(100, 40))
    commit(leader, "nodes", 6, rows(22, 30))
    commit(leader, "nodes", 8, rows(23, 35))
    commit(standby, "nodes", 6, rows(101, 40))
    commit(standby, "nodes", 8, rows(102, 44))

    leader.acknowledged(rows(22, 29))
    assert leader.delivered == {"nodes": {"advisories": 6}}
    assert standby.row_ids_of(leader.delivered) == {Lane.ADVISORIES: 101}

    leader.acknowledged(rows(23, 35))
    assert leader.delivered == {"nodes": {"advisories": 8, "registrations": 8}}
    assert standby.row_ids_of(leader.delivered) == {Lane.ADVISORIES: 102, Lane.REGISTRATIONS: 44}
    assert standby.row_ids_of(leader.delivered) == {}


def test_a_row_waits_for_all_blocks_whose_rows_may_lie_before_it() -> None:
    standby = Deliveries({}, NONE)
    standby.begin("events", 3)
    commit(standby, "nodes", 2, rows(7))
    assert standby.row_ids_of({"nodes": {"advisories": 2}}) == {Lane.REGISTRATIONS: 0, Lane.ADVISORIES: 0}
    assert standby.row_ids_of({"events": {"advisories": 3}}) == {Lane.ADVISORIES: 7}


def test_what_another_block_is_still_committing_is_not_delivered() -> None:
    leader = Deliveries({}, NONE)
    leader.begin("events", 3)
    commit(leader, "nodes", 2, rows(7))
    leader.acknowledged(rows(7))
    assert leader.delivered == {"nodes": {"advisories": 2, "registrations": 2}}
    leader.committed("events", rows(9))
    leader.acknowledged(rows(8))
    assert "advisories" not in leader.delivered.get("events", {})
    leader.acknowledged(rows(9))
    assert leader.delivered["events"]["advisories"] == 3


def test_entries_without_rows_are_delivered_too() -> None:
    leader = Deliveries({}, NONE)
    commit(leader, "nodes", 4, NONE)
    leader.begin("nodes", 5)
    leader.acknowledged(NONE)
    assert leader.delivered == {"nodes": {"advisories": 4, "registrations": 4}}
