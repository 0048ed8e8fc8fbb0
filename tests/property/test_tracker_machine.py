"""Whatever an agent goes through, the hub's advisories are those of a straight run with the same recorded inputs.

The real ingest, tracker, records and SQLite file run over a stream in memory to which anything may happen, in batches
of any size, killed before or after any commit, restarted, with lost acknowledgements and lost stores.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_agent.core.policy import Policy
from edge_agent.core.records import Lane
from edge_agent.core.stream_past import StreamTakes
from edge_agent.source.port import SourceUnavailable
from shared.instants import DAY, SECOND
from shared.wire import REASON_HEADER
from tests.support.agent.mortal_agent import BLOCK_ID, FOREVER, MAX_AHEAD, Killed, MortalAgent
from tests.support.agent.promises import check_promises
from tests.support.core.scripted_stream import ScriptedStream
from tests.support.store.quick_files import quick_directory
from tests.support.topology.fleet_hub import Hub, StraightRun

STARTED_AT = 1_700_000_000 * SECOND
POLICIES = [
    Policy(sample_interval=30 * SECOND, stale_after=20 * SECOND, retire_after=50 * SECOND, blind_after=8 * SECOND),
    Policy(sample_interval=30 * SECOND, stale_after=12 * SECOND, retire_after=90 * SECOND, blind_after=5 * SECOND),
    Policy(sample_interval=10 * SECOND, stale_after=40 * SECOND, retire_after=41 * SECOND, blind_after=10 * SECOND),
    Policy(
        sample_interval=30 * SECOND,
        stale_after=12 * SECOND,
        retire_after=40 * SECOND,
        blind_after=5 * SECOND,
        max_senders=2,
    ),
]

# Many equal instants; steps are within blind_after, silences are within and beyond everything.
steps = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5])
silences = st.sampled_from([4, 6, 9, 12, 20, 21, 40, 100])
registration = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "e", None]),
    steps,
    st.sampled_from([0, 0, 0, 0, 1, 3]).map(lambda seconds: seconds * SECOND),
    st.integers(0, 3),
)
reading = st.sampled_from([1, 2, 5, 100])
faults = st.sampled_from(["retention", "recreated", "restored", "put back", "stepped back", "store"])
takes = st.sampled_from([("nodes.>",), ("nodes.>",), ("nodes.c.>",), ("others.>",)])


class TrackerMachine(RuleBasedStateMachine):
    """One site, one agent at a time, one hub."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = quick_directory()
        self.runner = asyncio.Runner()
        self.stream = ScriptedStream(STARTED_AT)
        self.latest = STARTED_AT
        self.hub = Hub()
        self.agent: MortalAgent

    @initialize(policy=st.sampled_from(POLICIES), decision_limit=st.sampled_from([1, 2, 3, 1000]))
    def begin(self, policy: Policy, decision_limit: int) -> None:
        path = Path(self.directory.name) / "agent.db"
        self.agent = MortalAgent(path, self.stream, policy, decision_limit)
        self.do(self.agent.start())

    # Life

    @rule(crowd=st.lists(registration, min_size=4, max_size=20))
    def senders_register(self, crowd: list[tuple[str | None, int, int, int]]) -> None:
        for sender, seconds, stored_before, size in crowd:
            self.stream.clock += seconds * SECOND
            body: dict[str, object] = {"sender": sender, "pad": "x" * 600 * size, "urgent": size == 3}
            self.stream.publish(body, stored_before=stored_before)

    @rule(crowd=st.lists(registration, min_size=4, max_size=20), count=reading)
    def senders_register_while_the_agent_reads(self, crowd: list[tuple[str | None, int, int, int]], count: int) -> None:
        for each in crowd:
            self.senders_register([each])
            self.do(self.agent.read(count))
            self.do(self.agent.check())

    @rule(count=reading)
    def agent_reads(self, count: int) -> None:
        self.do(self.agent.read(count))

    @rule(seconds=silences)
    def agent_sees_a_silence(self, seconds: int) -> None:
        self.do(self.agent.read(1000))
        for _ in range(seconds // 2):
            self.stream.clock += 2 * SECOND
            self.do(self.agent.check())

    @rule(seconds=steps | silences)
    def nobody_looks_for_a_while(self, seconds: int) -> None:
        self.stream.clock += seconds * SECOND

    @rule(sender=st.sampled_from(["a", "b", "c"]))
    def operator_retires(self, sender: str) -> None:
        self.do(self.agent.retire(sender))

    @rule(lane=st.sampled_from(Lane), count=st.integers(1, 40), acknowledged=st.integers(0, 40))
    def agent_uploads(self, lane: Lane, count: int, acknowledged: int) -> None:
        """Vouch, publish from the head of a lane; the last acknowledgements may get lost, and all is sent again."""
        self.do(self.agent.vouch())
        store = self.agent.store
        rows = self.run(store.pending(lane, 0, count))
        self.hub.receive(rows)
        if rows[:acknowledged]:
            store.delete_through(lane, rows[:acknowledged][-1].row_id)
        store.release(lane)

    # Faults

    @rule(commits=st.integers(0, 6), after_commit=st.booleans())
    def agent_is_doomed(self, commits: int, after_commit: bool) -> None:
        self.agent.store.commits_to_live, self.agent.store.dies_after_commit = commits, after_commit

    @rule(policy=st.none() | st.sampled_from(POLICIES), commits=st.integers(0, 3) | st.just(FOREVER))
    def agent_is_restarted(self, policy: Policy | None, commits: int) -> None:
        self.agent.policy = policy or self.agent.policy
        self.run(self.agent.store.close())
        self.do(self.agent.start(commits_to_live=commits))

    @rule(fault=faults, data=st.data())
    def fault(self, fault: str, data: st.DataObject) -> None:
        self.stream.clock += SECOND
        match fault:
            case "retention":
                self.stream.let_go(data.draw(st.integers(1, self.stream.held + 1)))
            case "recreated":
                self.stream.recreate()
            case "restored":
                self.stream.restore(data.draw(st.integers(0, self.stream.held)))
            case "put back":
                self.stream.restore_backup(data.draw(st.integers(0, 20)))
            case "stepped back":
                self.stream.clock -= data.draw(st.sampled_from([2, 5, 30, 200])) * SECOND
            case "store":
                if data.draw(st.booleans()):
                    self.hub_gets_everything()
                self.run(self.agent.lose_store())
                self.do(self.agent.start())
        self.senders_register(data.draw(st.lists(registration, max_size=4)))
        if data.draw(st.booleans()):
            self.do(self.agent.reopen())

    @rule(
        publish_error=st.sampled_from(["", "", "is full"]),
        by_subject=st.sampled_from([False, False, True]),
        takes=takes,
    )
    def stream_takes_less_or_more(self, publish_error: str, by_subject: bool, takes: tuple[str, ...]) -> None:
        self.stream.publish_error, self.stream.refuses_by_subject = publish_error, by_subject
        self.stream.takes = StreamTakes(takes)

    @rule(ahead=st.sampled_from([0, 0, 400 * DAY, 30 * DAY]), amid_check=st.booleans())
    def server_clock_is_set(self, ahead: int, *, amid_check: bool = False) -> None:
        def set_clock() -> None:
            self.stream.ahead = ahead

        if amid_check:
            self.stream.amid_check = set_clock
        else:
            set_clock()

    # What must hold

    @precondition(lambda self: hasattr(self, "agent"))
    @invariant()
    def tracker_is_sound(self) -> None:
        self.agent.tracker.check_invariants()
        self.latest = max(self.latest, self.stream.clock)
        # Nobody's clock has shown the rest.
        assert self.agent.tracker.state.observed_through <= self.latest + MAX_AHEAD, "a wrong clock was followed"

    def teardown(self) -> None:
        try:
            if hasattr(self, "agent"):
                self.agent_is_restarted(None, FOREVER)
                self.agent_sees_a_silence(4)
                self.hub_gets_everything()
                self.agent.life.recorded = self.agent.recorded_inputs()
                self.compare()
        finally:
            if hasattr(self, "agent"):
                self.run(self.agent.store.die())
            self.runner.close()
            self.directory.cleanup()

    def compare(self) -> None:
        found = self.hub.advisories_in_order()
        state = self.agent.tracker.state
        self.agent.life.observed_through = state.observed_through
        for life in self.agent.lives:
            straight = StraightRun(life, self.agent.emitter())
            for incarnation, payloads in straight.payloads.items():
                arrived = found.pop(incarnation, [])
                # What a lost store had not uploaded is lost with it.
                assert arrived == (payloads[: len(arrived)] if life.is_lost else payloads)
            check_promises(straight, self.hub)
            self.compare_registrations(straight)
        assert not found, "advisories that no straight run explains"
        received = sum(sum(state.counters.get(what, {}).values()) for what in ("valid", "rejected"))
        assert received == len(self.agent.life.read), "valid + rejected is not what was received"

    def compare_registrations(self, straight: StraightRun) -> None:
        """A registration chosen for forwarding is delivered as it was, or counted as compacted."""
        chosen, arrived = straight.forwarded, self.hub.registrations
        delivered = chosen.keys() & arrived.keys()
        for origin in delivered:
            assert (arrived[origin].payload, arrived[origin].headers[REASON_HEADER]) == chosen[origin]
        if not straight.life.is_lost:
            compacted = self.agent.store.outbox_counters(BLOCK_ID.block).get("compacted", {}).get("newer_sample", 0)
            assert len(chosen) - len(delivered) <= compacted, "a registration is neither delivered nor counted"

    # Helpers

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let the agent work; open the stream anew where it asks for that, start it again where it was killed."""
        while True:
            try:
                self.run(work)
            except SourceUnavailable:
                work = self.agent.reopen()
            except Killed:
                self.run(self.agent.store.die())
                work = self.agent.start()
            else:
                return

    def hub_gets_everything(self) -> None:
        for lane in Lane:
            self.hub.receive(self.run(self.agent.store.pending(lane, 0, FOREVER)))
            self.agent.store.release(lane)


TestTrackerMachine = TrackerMachine.TestCase
TestTrackerMachine.settings = settings(max_examples=150, stateful_step_count=30)


@pytest.fixture
def machine() -> Iterator[TrackerMachine]:
    """Give a machine to be told what happens; in the end all of it is compared."""
    machine = TrackerMachine()
    yield machine
    machine.teardown()


def test_an_instant_that_a_blind_span_has_passed_is_established_by_who_follows_as_well(machine: TrackerMachine) -> None:
    """Found by the machine: a sender retires by thresholds that are new, at an instant within a blind span."""
    machine.begin(POLICIES[0], 1)
    machine.stream.clock += SECOND
    machine.senders_register([("a", 0, 0, 0)])
    machine.agent_sees_a_silence(40)
    # That nothing happened was not committed: after the start it is a blind span.
    machine.agent_is_restarted(POLICIES[2], FOREVER)
    machine.agent_sees_a_silence(4)
    assert machine.agent.tracker.state.advisory_ordinal == 3


def test_what_falls_due_within_a_blind_span_is_established_at_its_end_by_who_follows_as_well(
    machine: TrackerMachine,
) -> None:
    """Found by the machine: a shorter way to retirement holds from the instant at which a blind span begins."""
    machine.begin(POLICIES[1], 3)
    machine.senders_register_while_the_agent_reads([("a", 0, 0, 0), *[("b", 2, 0, 0)] * 7], 1)
    # One is stale since two seconds, which by the thresholds to come is long enough.
    machine.nobody_looks_for_a_while(13)
    machine.agent_is_restarted(POLICIES[2], FOREVER)
    assert machine.agent.tracker.state.advisory_ordinal == 3
    machine.agent_sees_a_silence(4)
    assert machine.agent.tracker.state.advisory_ordinal == 4


def test_unproven_time_behind_an_instant_that_is_half_settled_is_recorded_behind_all_of_it(
    machine: TrackerMachine,
) -> None:
    """Found by the machine: two senders fall stale at one instant, and the agent dies between their commits."""
    machine.begin(POLICIES[0], 1)
    machine.senders_register([*[("a", 0, 0, 0)] * 3, ("b", 0, 0, 0)])
    machine.agent_reads(1)
    machine.agent_is_restarted(None, 2)
    machine.agent_sees_a_silence(40)
    assert machine.agent.tracker.state.counters["blind"]["unproven"] == 1


def test_operators_word_on_a_narrowed_stream_lets_nothing_else_fall_due(machine: TrackerMachine) -> None:
    """Found by the machine: one sender is stale, the other, heard just now, is retired while nobody is covered."""
    machine.begin(POLICIES[1], 1)
    machine.senders_register_while_the_agent_reads([("b", 0, 0, 0), *[("a", 1, 0, 0)] * 13], 1)
    machine.stream_takes_less_or_more("", by_subject=False, takes=("others.>",))
    machine.do(machine.agent.reopen())
    machine.operator_retires("a")
    assert machine.agent.tracker.sender_counts() == {"heard": 0, "stale": 1}


def test_operators_word_behind_a_change_of_the_past_is_followed_to_the_instant(machine: TrackerMachine) -> None:
    """Found by the machine: coverage, which has ended, begins at the same instant for the other of a pair."""
    machine.begin(POLICIES[0], 1)
    machine.senders_register_while_the_agent_reads([("a", 0, 0, 0)] * 4, 1)
    machine.stream.clock += SECOND
    machine.stream.restore(0)
    machine.agent_reads(1)
    machine.operator_retires("a")


@pytest.mark.parametrize("change", ["restored twice", "restored after a step back", "put back"])
def test_a_second_change_of_the_past_brings_nobody_back_who_retired(machine: TrackerMachine, change: str) -> None:
    machine.begin(POLICIES[0], 1000)
    machine.senders_register([("a", 0, 0, 0), ("b", 2, 0, 0)])
    machine.agent_sees_a_silence(100)
    machine.senders_register_while_the_agent_reads([("c", 0, 0, 0)] * 4, 1)
    match change:
        case "restored twice":
            machine.stream.restore(4)
            machine.do(machine.agent.reopen())
        case "restored after a step back":
            machine.stream.clock -= 30 * SECOND
            machine.do(machine.agent.check())
            assert machine.agent.tracker.state.position.stored_at, "the message there is no other"
        case "put back":
            machine.stream.recreate()
            machine.do(machine.agent.reopen())
    machine.stream.restore_backup(3) if change == "put back" else machine.stream.restore(3)
    machine.do(machine.agent.reopen())
    machine.senders_register_while_the_agent_reads([("c", 40, 0, 0)], 100)
    assert list(machine.agent.tracker.senders.slots) == ["c"]


def test_a_clock_that_was_set_right_is_followed_within_the_batch_that_holds_both(machine: TrackerMachine) -> None:
    machine.begin(POLICIES[0], 1000)
    machine.senders_register([("a", 0, 0, 0)])
    machine.agent_sees_a_silence(4)
    machine.server_clock_is_set(400 * DAY)
    machine.senders_register([("a", 1, 0, 0)])
    machine.server_clock_is_set(0)
    machine.senders_register([("b", 1, 0, 0)])
    machine.agent_reads(100)
    state = machine.agent.tracker.state
    assert (state.clock_ahead, state.observed_through) == (False, machine.stream.clock)


def test_a_clock_that_is_set_between_the_two_questions_of_a_check_is_not_followed(machine: TrackerMachine) -> None:
    machine.begin(POLICIES[0], 1000)
    machine.senders_register([("a", 0, 0, 0)])
    machine.agent_sees_a_silence(4)
    machine.server_clock_is_set(400 * DAY, amid_check=True)
    machine.do(machine.agent.check())
    machine.server_clock_is_set(0)
    machine.agent_sees_a_silence(24)
    assert machine.agent.tracker.sender_counts() == {"heard": 0, "stale": 1}


def test_nobody_is_accused_of_silence_that_began_between_the_two_questions_of_a_check(machine: TrackerMachine) -> None:
    machine.begin(POLICIES[0], 1000)
    machine.senders_register([("a", 0, 0, 0)])
    machine.agent_sees_a_silence(16)

    def deafen() -> None:
        machine.stream_takes_less_or_more("", False, ("others.>",))
        machine.senders_register([("a", 1, 0, 0)])
        machine.nobody_looks_for_a_while(5)

    machine.stream.amid_check = deafen
    machine.agent_sees_a_silence(2)
    assert machine.stream.refused == [("a", STARTED_AT + 19 * SECOND)]
    assert machine.stream.shown_clock == STARTED_AT + 24 * SECOND
    assert machine.agent.tracker.sender_counts() == {"heard": 1, "stale": 0}


@pytest.mark.parametrize(
    ("publish_error", "by_subject", "takes"),
    [("", False, ("nodes.c.>",)), ("is full", False, ("nodes.>",)), ("", True, ("nodes.>",))],
    ids=["takes less", "refuses", "refuses by subject"],
)
def test_nobody_is_accused_by_a_backlog_of_whom_the_stream_took_nothing_meanwhile(
    machine: TrackerMachine, publish_error: str, *, by_subject: bool, takes: tuple[str, ...]
) -> None:
    machine.begin(POLICIES[0], 1000)
    machine.senders_register([("a", 0, 0, 0), ("c", 0, 0, 0)])
    machine.agent_reads(100)
    machine.senders_register([("a", 2, 0, 0), ("c", 2, 0, 0)] * 4)
    # While the agent is behind by that, the stream takes nothing of a for a while, and then everything again.
    machine.stream_takes_less_or_more("", False, ("nodes.c.>",))
    machine.senders_register([("a", 2, 0, 0), ("c", 2, 0, 0)] * 5)
    machine.stream_takes_less_or_more(publish_error, by_subject, takes)
    machine.do(machine.agent.check())
    machine.stream_takes_less_or_more("", False, ("nodes.>",))
    machine.do(machine.agent.check())
    machine.senders_register([("a", 2, 0, 0), ("c", 2, 0, 0)] * 4)
    machine.agent_reads(100)
    machine.do(machine.agent.check())
    machine.agent_sees_a_silence(2)
    assert machine.agent.tracker.sender_counts() == {"heard": 2, "stale": 0}
    machine.hub_gets_everything()
    assert not [payload for payload in machine.hub.advisories.values() if b'"kind":"stale"' in payload]
