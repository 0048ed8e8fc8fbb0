"""The table of senders: slots are used again, lists stay in the order of deadlines, and a restart changes nothing."""

from collections.abc import Iterable
from itertools import islice

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_agent.core import senders as senders_module
from edge_agent.core.senders import NO_SLOT, SenderList, SenderPage, SenderPhase, SenderState, SenderTable
from shared.identifiers import Incarnation

SENDERS = "abcdefgh"
PAST, OTHER_PAST = Incarnation(1, 1), Incarnation(1, 2)


def heard(sender_id: str, slot: int, *, seen: int = 1) -> SenderState:
    return SenderState(sender_id, slot, SenderPhase.HEARD, seen, seen, PAST, opening_sequence=1)


def stale(sender_id: str, slot: int, *, since: int = 1) -> SenderState:
    return SenderState(sender_id, slot, SenderPhase.STALE, 1, 1, PAST, opening_sequence=1, stale_observed_at=since)


def names(table: SenderTable, slots: Iterable[int]) -> list[str]:
    return [table.sender_ids[slot] for slot in slots]


def free_slots(table: SenderTable, count: int) -> list[int]:
    return list(islice(table.free_slots(), count))


def table_of(*states: SenderState, page_size: int = 2) -> SenderTable:
    """Read senders back as a store would: page by page, by slot."""
    table = SenderTable()
    for first in range(0, len(states), page_size):
        page = states[first : first + page_size]
        table.take_page(SenderPage.of(page, [state.slot for state in page]))
    table.put_in_order()
    return table


def restored(table: SenderTable) -> SenderTable:
    return table_of(*(table.load(slot) for slot in sorted(table.slots.values())))


@pytest.fixture
def abc() -> SenderTable:
    table = SenderTable()
    table.adopt([heard("a", 0), heard("b", 1), heard("c", 2)], [], [])
    return table


# Lists


def test_list_gives_its_slots_in_the_order_they_came(abc: SenderTable) -> None:
    assert names(abc, abc.heard) == ["a", "b", "c"]


@pytest.mark.parametrize(("gone", "left"), [("a", "bc"), ("b", "ac"), ("c", "ab")])
def test_list_closes_the_hole_that_a_sender_leaves(abc: SenderTable, gone: str, left: str) -> None:
    abc.adopt([], [stale(gone, abc.slots[gone])], [])
    assert (names(abc, abc.heard), abc.heard.count) == (list(left), 2)
    assert (names(abc, abc.stale), abc.stale.count) == ([gone], 1)


def test_list_that_lost_everybody_takes_new_ones(abc: SenderTable) -> None:
    abc.adopt([], [stale("a", 0), stale("b", 1), stale("c", 2)], [])
    assert (abc.heard.head, abc.heard.count, list(abc.heard)) == (NO_SLOT, 0, [])
    abc.adopt([heard("b", 1, seen=2)], [], [])
    assert (names(abc, abc.heard), names(abc, abc.stale)) == (["b"], ["a", "c"])


def test_sender_heard_again_goes_to_the_end(abc: SenderTable) -> None:
    abc.adopt([heard("a", 0, seen=2)], [], [])
    assert names(abc, abc.heard) == ["b", "c", "a"]


def test_slot_after_the_last_is_nobody(abc: SenderTable) -> None:
    assert [abc.heard.after(slot) for slot in (0, 1, 2)] == [1, 2, NO_SLOT]


def test_lists_are_separate_though_they_share_their_links() -> None:
    table = SenderTable()
    table.adopt([heard("a", 0), heard("b", 1)], [stale("x", 2), stale("y", 3)], [])
    table.adopt([heard("x", 2, seen=2)], [stale("a", 0, since=2)], [])
    assert (names(table, table.heard), names(table, table.stale)) == (["b", "x"], ["y", "a"])
    assert isinstance(table.heard, SenderList)


# Slots


def test_new_senders_get_the_slots_behind_the_last(abc: SenderTable) -> None:
    assert free_slots(abc, 3) == [3, 4, 5]


def test_slots_of_the_retired_come_first(abc: SenderTable) -> None:
    abc.adopt([], [], [abc.load(0), abc.load(2)])
    assert set(free_slots(abc, 2)) == {0, 2}
    assert free_slots(abc, 4)[2:] == [3, 4]


def test_slots_are_given_without_being_taken(abc: SenderTable) -> None:
    abc.adopt([], [], [abc.load(1)])
    assert free_slots(abc, 2) == free_slots(abc, 2) == [1, 3]


def test_slot_of_a_retired_sender_is_used_again(abc: SenderTable) -> None:
    abc.adopt([], [], [abc.load(1)])
    [slot] = free_slots(abc, 1)
    abc.adopt([heard("d", slot, seen=2)], [], [])
    assert (slot, abc.sender_ids, abc.slots) == (1, ["a", "d", "c"], {"a": 0, "c": 2, "d": 1})
    assert free_slots(abc, 1) == [3]


def test_slots_freed_by_a_commit_are_not_those_it_fills(abc: SenderTable) -> None:
    """The draft drew its slots before the retirement was committed: they must not be given out twice."""
    abc.adopt([], [], [abc.load(0)])
    [slot] = free_slots(abc, 1)
    abc.adopt([heard("d", slot, seen=2)], [], [abc.load(1)])
    assert (names(abc, abc.heard), free_slots(abc, 2)) == (["c", "d"], [1, 3])


def test_retired_sender_is_forgotten_whole(abc: SenderTable) -> None:
    abc.adopt([], [], [abc.load(1)])
    assert (len(abc), "b" in abc.slots, names(abc, abc.heard)) == (2, False, ["a", "c"])


def test_sender_that_retired_and_returned_in_one_commit_keeps_its_slot(abc: SenderTable) -> None:
    abc.adopt([heard("b", 1, seen=2)], [], [])
    assert (abc.slots["b"], names(abc, abc.heard), len(abc)) == (1, ["a", "c", "b"], 3)


# Columns


@pytest.mark.parametrize(
    "state",
    [
        SenderState(
            sender_id="ü😀",
            slot=0,
            phase=SenderPhase.STALE,
            last_seen_at=(1 << 63) - 1,
            last_sequence=(1 << 63) - 2,
            opening_incarnation=OTHER_PAST,
            opening_sequence=(1 << 63) - 3,
            last_forwarded_at=(1 << 63) - 4,
            forwarded_size=(1 << 31) - 1,
            forwarded_digest=(1 << 64) - 1,
            first_interval=False,
            stale_observed_at=-5,
        ),
        SenderState("a", 0, SenderPhase.HEARD, 1, 2, PAST, 3, 4, 5, 6, first_interval=True, stale_observed_at=7),
        SenderState("a", 0, SenderPhase.HEARD, 1, 2, PAST, 3, first_interval=False),
        SenderState("a", 0, SenderPhase.STALE, 1, 2, PAST, 3, first_interval=True),
    ],
)
def test_sender_is_read_back_as_it_was_written(state: SenderState) -> None:
    table = SenderTable()
    table.adopt(*(([state], []) if state.phase is SenderPhase.HEARD else ([], [state])), [])
    assert table.load(0) == state


def test_sender_that_is_loaded_is_a_copy(abc: SenderTable) -> None:
    abc.load(0).last_seen_at = 99
    assert abc.load(0) == heard("a", 0)


def test_senders_remember_the_past_that_each_was_opened_in() -> None:
    table = SenderTable()
    opened = [
        msgspec.structs.replace(heard(name, slot), opening_incarnation=past)
        for slot, (name, past) in enumerate([("a", OTHER_PAST), ("b", PAST), ("c", OTHER_PAST)])
    ]
    table.adopt(opened, [], [])
    assert [table.load(slot).opening_incarnation for slot in range(3)] == [OTHER_PAST, PAST, OTHER_PAST]


def test_incarnations_are_kept_once_however_many_senders_were_opened_in_them(abc: SenderTable) -> None:
    for now in range(2, 10):
        abc.adopt([heard(name, slot, seen=now) for slot, name in enumerate("abc")], [], [])
    assert abc._incarnations == [PAST]


# Restarts


def test_restored_senders_are_in_the_order_of_their_deadlines_whatever_the_order_of_rows() -> None:
    table = table_of(
        heard("late", 0, seen=9), stale("second", 1, since=5), heard("early", 2, seen=3), stale("first", 3, since=4)
    )
    assert (names(table, table.heard), names(table, table.stale)) == (["early", "late"], ["first", "second"])


def test_slots_that_no_row_has_are_free_after_a_restart() -> None:
    table = table_of(heard("a", 1), heard("c", 4))
    assert free_slots(table, 5) == [0, 2, 3, 5, 6]


def test_table_restored_from_nothing_is_empty() -> None:
    table = table_of()
    assert (len(table), list(table.heard), list(table.stale), free_slots(table, 1)) == (0, [], [], [0])


class SenderTableMachine(RuleBasedStateMachine):
    """Hold the table against a plain dict and two plain lists, and a table read back from a store against both."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SenderTable()
        self.states: dict[str, SenderState] = {}
        self.heard: list[str] = []
        self.stale: list[str] = []
        self.now = 0

    @rule(hears=st.lists(st.sampled_from(SENDERS), unique=True), falls=st.integers(0, 3), retires=st.integers(0, 2))
    def commit(self, hears: list[str], falls: int, retires: int) -> None:
        """Deadlines fall first, as in a draft; then senders are heard, in any order."""
        self.now += 1
        gone = [name for name in self.stale[:retires] if name not in hears]
        fallen = [name for name in self.heard[:falls] if name not in hears]
        self.heard = [name for name in self.heard if name not in (*fallen, *hears)] + hears
        self.stale = [name for name in self.stale if name not in (*gone, *hears)] + fallen
        retired = [self.states.pop(name) for name in gone]
        slots = self.table.free_slots()
        for name in (*hears, *fallen):
            slot = self.states[name].slot if name in self.states else next(slots)
            self.states[name] = (
                stale(name, slot, since=self.now) if name in fallen else heard(name, slot, seen=self.now)
            )
        self.table.adopt([self.states[name] for name in hears], [self.states[name] for name in fallen], retired)

    @rule()
    def restart(self) -> None:
        self.table = restored(self.table)

    @invariant()
    def holds_what_was_adopted(self) -> None:
        for table in (self.table, restored(self.table)):
            assert {name: table.load(slot) for name, slot in table.slots.items()} == self.states
            assert (table.heard.count, table.stale.count) == (len(self.heard), len(self.stale))
            assert sorted(names(table, table.heard)) == sorted(self.heard)
            assert sorted(names(table, table.stale)) == sorted(self.stale)
            instants = [table.last_seen_at[slot] for slot in table.heard]
            assert instants == sorted(instants)
            instants = [table.stale_observed_at[slot] for slot in table.stale]
            assert instants == sorted(instants)
            taken = set(table.slots.values())
            assert not taken & set(free_slots(table, 20))
            assert max(taken, default=0) < len(SENDERS), "a slot was lost"


TestSenderTableMachine = SenderTableMachine.TestCase


# Incarnations


def test_incarnations_that_no_sender_has_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders_module, "INCARNATIONS_KEPT", 8)
    table = SenderTable()
    for number in range(100):
        states = [msgspec.structs.replace(heard("a", 0), opening_incarnation=Incarnation(number, 1))]
        if not number:
            states.append(heard("b", 1))
        table.adopt(states, [], [])
        assert table.load(0).opening_incarnation == Incarnation(number, 1)
        assert table.load(1).opening_incarnation == PAST
        assert len(table._incarnations) <= 8 + len(states)
