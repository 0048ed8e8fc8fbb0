"""Only the acknowledged prefix may be deleted, whatever order acknowledgements come in, and a barrier waits for it."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_agent.delivery.flow_control import UploadWindow

MESSAGES, BYTES = 4, 1000


def window_with(*row_ids: int, size: int = 100) -> UploadWindow:
    window = UploadWindow(MESSAGES, BYTES)
    for row_id in row_ids:
        window.add(row_id, size)
    return window


def test_acknowledgements_in_order_complete_the_prefix_one_by_one() -> None:
    window = window_with(3, 5, 9)
    assert [window.acknowledge(row_id) for row_id in (3, 5, 9)] == [3, 5, 9]
    assert len(window) == 0


def test_acknowledgement_behind_a_missing_one_completes_nothing_yet() -> None:
    window = window_with(3, 5, 9)
    assert [window.acknowledge(row_id) for row_id in (9, 5, 3)] == [0, 0, 9]


def test_prefix_ends_at_the_first_missing_acknowledgement() -> None:
    window = window_with(1, 2, 3, 4)
    assert [window.acknowledge(row_id) for row_id in (2, 4, 1)] == [0, 0, 2]
    assert len(window) == 2


def test_acknowledgement_of_what_is_not_in_flight_means_nothing() -> None:
    window = window_with(3)
    assert [window.acknowledge(2), window.acknowledge(3), window.acknowledge(3)] == [0, 3, 0]


def test_acknowledgement_that_comes_twice_counts_once() -> None:
    window = window_with(1, 2)
    assert [window.acknowledge(2), window.acknowledge(2), window.acknowledge(1)] == [0, 0, 2]


def test_messages_are_limited() -> None:
    assert window_with(1, 2, 3).admits(1)
    assert not window_with(1, 2, 3, 4).admits(1)


def test_bytes_are_limited() -> None:
    window = window_with(1, size=600)
    assert window.admits(400)
    assert not window.admits(401)


def test_one_row_is_admitted_however_large() -> None:
    assert UploadWindow(MESSAGES, BYTES).admits(BYTES * 10)
    assert not window_with(1, size=BYTES * 10).admits(1)


def test_acknowledged_row_behind_a_missing_one_still_takes_its_room() -> None:
    window = window_with(1, 2, size=500)
    window.acknowledge(2)
    assert not window.admits(1)
    window.acknowledge(1)
    assert window.admits(BYTES)


def test_barrier_leaves_only_when_everything_before_it_is_acknowledged() -> None:
    window = window_with(1, 2)
    window.acknowledge(2)
    assert not window.admits(1, is_barrier=True)
    window.acknowledge(1)
    assert window.admits(1, is_barrier=True)


def test_what_follows_a_barrier_does_not_wait_for_it() -> None:
    assert window_with(1).admits(1)


def test_after_a_rewind_everything_is_sent_again_and_late_acknowledgements_mean_nothing() -> None:
    window = window_with(1, 2, 3, 4, size=250)
    window.acknowledge(2)
    window.rewind()
    assert (len(window), window.acknowledge(1)) == (0, 0)
    assert window.admits(BYTES)
    window.add(1, 250)
    window.add(2, 250)
    assert [window.acknowledge(1), window.acknowledge(2)] == [1, 2]


class UploadWindowMachine(RuleBasedStateMachine):
    """Hold the window against plain lists of what was sent and acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.window = UploadWindow(MESSAGES, BYTES)
        self.in_flight: list[tuple[int, int]] = []
        self.acknowledged: set[int] = set()
        self.deleted_through = 0
        self.next_row_id = 1

    @rule(size=st.integers(1, 700) | st.just(BYTES * 2), is_barrier=st.booleans(), skipped=st.integers(0, 2))
    def send_if_admitted(self, size: int, is_barrier: bool, skipped: int) -> None:
        used = sum(taken for _, taken in self.in_flight)
        has_room = len(self.in_flight) < MESSAGES and used + size <= BYTES and not is_barrier
        assert self.window.admits(size, is_barrier=is_barrier) is (has_room or not self.in_flight)
        if self.window.admits(size, is_barrier=is_barrier):
            row_id = self.next_row_id + skipped
            self.next_row_id = row_id + 1
            self.window.add(row_id, size)
            self.in_flight.append((row_id, size))

    @rule(back=st.integers(0, 8))
    def acknowledge(self, back: int) -> None:
        """Anything that was ever sent, was skipped, or never was."""
        row_id = self.next_row_id - back
        if any(row_id == add for add, _ in self.in_flight):
            self.acknowledged.add(row_id)
        through = self.window.acknowledge(row_id)
        expected = 0
        while self.in_flight and self.in_flight[0][0] in self.acknowledged:
            expected, _ = self.in_flight.pop(0)
        assert through == expected
        self.deleted_through = max(self.deleted_through, through)

    @rule()
    def rewind(self) -> None:
        """Everything behind the deleted prefix is read and sent again."""
        self.window.rewind()
        self.in_flight.clear()
        self.acknowledged.clear()
        self.next_row_id = self.deleted_through + 1

    @invariant()
    def holds(self) -> None:
        self.window.check_invariants()
        assert len(self.window) == len(self.in_flight)
        assert all(row_id > self.deleted_through for row_id, _ in self.in_flight)


TestUploadWindowMachine = UploadWindowMachine.TestCase
