"""One screen tells an operator what the agent does, what it has seen and what waits, also when it does nothing."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from textwrap import dedent

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy
from edge_agent.status_board import AgentStatus, PartStatus, now
from edge_agent.status_report import BlockReport, LaneReport, StatusReport, read_report, render_status
from edge_agent.store import schema
from edge_agent.store.reading import StoreUnreadable
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import DAY, HOUR, MINUTE, SECOND, format_instant

# Ages are given in hours and minutes, half a minute beyond: what is shown does not change while a test runs.
HALF = 30 * SECOND
# No machine counts its processes this far.
NOBODY = (1 << 22) + 1

STATE = BlockState(
    position=SourcePosition("REGISTRATION", Incarnation(1, 1), 4711),
    policy=Policy(sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=DAY, blind_after=3 * MINUTE),
    observed_since=1_769_817_600 * SECOND,
    observed_through=1_769_821_200 * SECOND,
    counters={"valid": {"registrations": 4000}, "rejected": {"no_sender": 3, "not_a_json_object": 1}},
)


def ago(hours: int, minutes: int) -> int:
    return now() - hours * HOUR - minutes * MINUTE - HALF


def agent_status(*, written_at: int = 0, pid: int = 4242) -> AgentStatus:
    return AgentStatus(
        agent="dub1-a",
        region="eu-west",
        site="dub1",
        version="0.1.0",
        boot_id="6f1c0f0e",
        pid=pid,
        started_at=ago(26, 5),
        written_at=written_at or now(),
        max_outbox=2 << 30,
    )


def report(
    *,
    is_running: bool = True,
    written_at: int = 0,
    parts: dict[str, PartStatus] | None = None,
    last_problem: PartStatus | None = None,
    state: BlockState = STATE,
    waiting: tuple[int, int] = (0, 0),
    outbox_counters: dict[str, dict[str, int]] | None = None,
) -> StatusReport:
    return StatusReport(
        agent=agent_status(written_at=written_at),
        is_running=is_running,
        parts=parts if parts is not None else {"stream nodes": PartStatus("reading", "", ago(3, 10))},
        last_problem=last_problem,
        blocks=[BlockReport("nodes", state, {"heard": 598, "stale": 2})],
        outbox={"advisories": LaneReport(waiting[0], 2048), "registrations": LaneReport(waiting[1], 3 << 20)},
        outbox_counters=outbox_counters or {},
    )


# What is shown


def test_running_agent_is_shown_on_one_screen() -> None:
    state = msgspec.structs.replace(STATE, observed_through=ago(1, 2))
    seen = f"{format_instant(state.observed_through)} (1h 2m ago)"
    parts = {"stream nodes": PartStatus("reading", "", ago(3, 10)), "upstream": PartStatus("connected", "", ago(2, 4))}
    assert render_status(report(parts=parts, state=state)) == dedent(f"""\
        dub1-a, site dub1, region eu-west: running for 1d 2h, pid 4242, muster-agent 0.1.0

        stream nodes      reading for 3h 10m
        upstream          connected for 2h 4m
        observed through  {seen}, without a gap since 2026-01-31T00:00:00Z
        position          REGISTRATION sequence 4711
        senders           598 heard, 2 stale
        rejected          no_sender 3, not_a_json_object 1
        valid             registrations 4000
        outbox            empty: the region has acknowledged everything""")


def test_cut_link_is_named_with_what_waits_for_it() -> None:
    lines = render_status(
        report(
            parts={"upstream": PartStatus("disconnected", "nats://10.0.0.1:4222: connection refused", ago(3, 10))},
            last_problem=PartStatus("upstream", "nats://10.0.0.1:4222: connection refused", ago(3, 10)),
            waiting=(7, 300),
            outbox_counters={"dropped": {"outbox_full": 4}, "compacted": {"newer_sample": 120}},
        )
    ).splitlines()
    assert lines[2] == "upstream          disconnected for 3h 10m: nats://10.0.0.1:4222: connection refused"
    assert lines[-4:] == [
        (
            "outbox            7 advisories (2 KiB) and 300 registrations (3 MiB)"
            " wait for the region's acknowledgement; room for 2 GiB"
        ),
        "compacted         newer_sample 120",
        "dropped           outbox_full 4",
        "last problem      3h 10m ago, upstream: nats://10.0.0.1:4222: connection refused",
    ]


def test_lane_that_is_empty_is_not_shown_as_waiting() -> None:
    last = render_status(report(waiting=(0, 300))).splitlines()[-1]
    assert last.startswith("outbox            300 registrations (3 MiB) wait")


def test_dead_agent_is_shown_by_its_last_sign_of_life_and_without_what_it_did() -> None:
    dead = report(is_running=False, written_at=ago(5, 1))
    lines = render_status(dead).splitlines()
    assert lines[0] == (
        "dub1-a, site dub1, region eu-west: NOT RUNNING, last sign of life 5h 1m ago, muster-agent 0.1.0"
    )
    assert lines[2].startswith("observed through  2026-01-31T01:00:00Z (")


def test_agent_that_has_seen_nothing_yet_says_so() -> None:
    state = msgspec.structs.replace(STATE, observed_since=0, observed_through=0, counters={})
    assert render_status(report(parts={}, state=state)).splitlines()[2:] == [
        "observed through  -",
        "position          REGISTRATION sequence 4711",
        "senders           598 heard, 2 stale",
        "outbox            empty: the region has acknowledged everything",
    ]


def test_instant_that_lies_ahead_of_the_agents_clock_was_no_time_ago() -> None:
    state = msgspec.structs.replace(STATE, observed_through=now() + HOUR)
    assert "(0s ago)" in render_status(report(state=state))


def test_report_has_a_json_form_that_reads_back() -> None:
    whole = report(last_problem=PartStatus("upstream", "no answer", 1), waiting=(7, 300))
    assert msgspec.json.decode(msgspec.json.encode(whole), type=StatusReport) == whole


# What is read


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(schema.CREATE)
        yield connection


def put_status(database: sqlite3.Connection, name: str, body: object) -> None:
    database.execute(schema.PUT_STATUS, (name, msgspec.json.encode(body).decode()))


def test_report_is_what_the_agent_wrote(database: sqlite3.Connection) -> None:
    written = agent_status(pid=os.getpid())
    problem = PartStatus("upstream", "no answer", 5)
    put_status(database, "agent", written)
    put_status(database, "part:upstream", PartStatus("connected", "", 3))
    put_status(database, "part:stream nodes", PartStatus("reading", "", 4))
    put_status(database, "last_problem", problem)
    database.execute(schema.PUT_BLOCK, ("nodes", "eu-west", "dub1", msgspec.json.encode(STATE).decode()))
    for row_id, phase in [(1 << 32, 0), ((1 << 32) + 1, 1), ((1 << 32) + 2, 0), (2 << 32, 1)]:
        database.execute(schema.PUT_SENDER, (row_id, f"n{row_id}", phase, *(1,) * 9))
    for block, cause, count in [("nodes", "newer_sample", 4), ("others", "newer_sample", 3)]:
        database.execute(schema.ADD_COUNT, (block, "compacted", cause, count))
    assert read_report(database) == StatusReport(
        agent=written,
        is_running=True,
        parts={"stream nodes": PartStatus("reading", "", 4), "upstream": PartStatus("connected", "", 3)},
        last_problem=problem,
        blocks=[BlockReport("nodes", STATE, {"heard": 2, "stale": 1})],
        outbox={"advisories": LaneReport(0, 0), "registrations": LaneReport(0, 0)},
        outbox_counters={"compacted": {"newer_sample": 7}},
    )


@pytest.mark.parametrize(
    ("seconds", "pid", "answer"),
    [(0, os.getpid(), True), (5, os.getpid(), True), (11, os.getpid(), False), (0, NOBODY, False), (0, 1, True)],
)
def test_agent_runs_where_its_process_lives_and_wrote_within_ten_seconds(
    database: sqlite3.Connection, seconds: int, pid: int, answer: bool
) -> None:
    put_status(database, "agent", agent_status(written_at=now() - seconds * SECOND, pid=pid))
    assert read_report(database).is_running is answer


def test_store_without_a_problem_has_none(database: sqlite3.Connection) -> None:
    put_status(database, "agent", agent_status())
    put_status(database, "last_problem", None)
    assert read_report(database).last_problem is None


def test_store_in_which_no_status_was_written_yet_says_so(database: sqlite3.Connection) -> None:
    with pytest.raises(StoreUnreadable, match="^the agent has not written a status yet; try again in some seconds$"):
        read_report(database)
