"""One screen tells an operator what the agent does, what it has seen and what waits, also when it does nothing."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from textwrap import dedent

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Counters
from edge_agent.core.policy import Policy
from edge_agent.ingest.port import Progress
from edge_agent.observability import status_page, status_report
from edge_agent.observability.health import PartStatus
from edge_agent.observability.status_board import AgentStatus, now
from edge_agent.observability.status_page import render_status
from edge_agent.observability.status_report import BlockReport, LaneReport, ProcessState, StatusReport, read_report
from edge_agent.store import schema
from edge_agent.store.read_only import StoreUnreadable
from shared.identifiers import Incarnation, SourcePosition
from shared.instants import DAY, HOUR, MINUTE, SECOND, format_instant

NOW = now()
HALF = 30 * SECOND

STATE = BlockState(
    position=SourcePosition("REGISTRATION", Incarnation(1, 1), 4711),
    policy=Policy(sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=DAY, blind_after=3 * MINUTE),
    observed_since=1_769_817_600 * SECOND,
    observed_through=1_769_821_200 * SECOND,
    counters={"valid": {"registrations": 4000}, "rejected": {"no_sender": 3, "not_a_json_object": 1}},
)


@pytest.fixture(autouse=True)
def clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages do not grow between the collection of a long run's tests and their turn."""
    for module in (status_page, status_report):
        monkeypatch.setattr(module, "now", lambda: NOW)


def ago(hours: int, minutes: int) -> int:
    return NOW - hours * HOUR - minutes * MINUTE - HALF


def agent_status(*, written_at: int = 0, pid: int = 4242, stopped_at: int = 0, failure: str = "") -> AgentStatus:
    return AgentStatus(
        agent="dub1-a",
        region="eu-west",
        site="dub1",
        version="0.1.0",
        boot_id="6f1c0f0e",
        pid=pid,
        started_at=ago(26, 5),
        written_at=written_at or NOW,
        max_outbox=2 << 30,
        stopped_at=stopped_at,
        failure=failure,
    )


WORKING = {
    "source of nodes": PartStatus("connected", "", ago(3, 11)),
    "stream nodes": PartStatus("reading", "", ago(3, 10)),
    "upstream": PartStatus("connected", "", ago(2, 4)),
}


def progress(pending: int = 0, behind: int = 5 * SECOND) -> Progress:
    server_at = STATE.observed_through + behind
    return Progress(pending, server_at, 0, STATE.observed_through, {"heard": 598, "stale": 2}, "sample", 3 * MINUTE)


def block_report(
    name: str = "nodes", state: BlockState = STATE, reached: Progress | None = None, outbox: Counters | None = None
) -> BlockReport:
    counters = {**state.counters, **(outbox or {})}
    return BlockReport(name, state, {"heard": 598, "stale": 2}, counters, reached or progress())


def report(
    *,
    life: ProcessState = ProcessState.RUNNING,
    agent: AgentStatus | None = None,
    parts: dict[str, PartStatus] | None = None,
    last_problem: PartStatus | None = None,
    blocks: list[BlockReport] | None = None,
    waiting: tuple[int, int] = (0, 0),
) -> StatusReport:
    taken = 2048 * (waiting[0] > 0) + (3 << 20) * (waiting[1] > 0)
    return StatusReport(
        agent=agent or agent_status(),
        life=life,
        parts=WORKING if parts is None else parts,
        last_problem=last_problem,
        blocks=[block_report()] if blocks is None else blocks,
        outbox={
            "advisories": LaneReport(waiting[0], 2048, ago(0, 9)),
            "registrations": LaneReport(waiting[1], 3 << 20, ago(5, 1)),
        },
        outbox_counters={},
        room=(2 << 30) - taken,
    )


# What is shown


def test_running_agent_is_shown_on_one_screen() -> None:
    state = msgspec.structs.replace(STATE, observed_through=ago(1, 2))
    seen = f"{format_instant(state.observed_through // SECOND * SECOND)} (1h 2m ago)"
    agent = agent_status()
    started = format_instant(agent.started_at // SECOND * SECOND)
    assert render_status(report(agent=agent, blocks=[block_report(state=state)])) == dedent(f"""\
        dub1-a, site dub1, region eu-west: running for 1d 2h, pid 4242
        muster-agent      0.1.0, started {started}

        upstream          connected for 2h 4m
        outbox            empty: the region has acknowledged everything

        stream nodes      reading for 3h 10m
          source          connected for 3h 11m
          lag             0 messages to read, 5s behind the stream's clock
          position        REGISTRATION sequence 4,711
          watched         through {seen}, without a gap since 2026-01-31T00:00:00Z
          senders         598 heard, 2 stale
          valid           registrations 4,000
          rejected        no_sender 3, not_a_json_object 1""")


def test_cut_link_is_named_with_what_waits_for_it_and_the_room_that_is_left() -> None:
    counters = {"dropped": {"outbox_full": 4}, "compacted": {"newer_sample": 120}}
    cut = PartStatus("not connected", "nats://10.0.0.1:4222: connection refused", ago(3, 10))
    page = render_status(
        report(
            parts={**WORKING, "upstream": cut},
            last_problem=PartStatus("upstream", cut.reason, cut.since),
            blocks=[block_report(outbox=counters)],
            waiting=(7, 300),
        )
    )
    lines = page.splitlines()
    assert lines[3:5] == [
        "upstream          not connected for 3h 10m: nats://10.0.0.1:4222: connection refused",
        (
            "outbox            7 advisories and watermarks (2 KiB, the oldest 9m 30s ago) and 300 registrations "
            "(3 MiB, the oldest 5h 1m ago) wait for the region's acknowledgement; room for 2 GiB more"
        ),
    ]
    assert lines[-4:] == [
        "  compacted       newer_sample 120",
        "  dropped         outbox_full 4",
        "",
        "last problem      3h 10m ago, upstream: nats://10.0.0.1:4222: connection refused",
    ]


def test_room_is_what_is_left_of_the_limit() -> None:
    nearly_full = msgspec.structs.replace(report(waiting=(0, 300)), room=40 << 10)
    assert "room for 40 KiB more" in render_status(nearly_full)


def test_lane_that_is_empty_is_not_shown_as_waiting() -> None:
    assert "outbox            300 registrations (3 MiB" in render_status(report(waiting=(0, 300)))


@pytest.mark.parametrize("width", [80, 120])
def test_lines_are_as_long_as_the_terminal_at_most(width: int) -> None:
    reason = "cannot connect within 10 s to 10.0.0.1:4222: connection refused; 10.0.0.2:4222: no answer, and no more"
    cut = PartStatus("not connected", reason, ago(0, 5))
    whole = report(parts={**WORKING, "upstream": cut}, last_problem=PartStatus("upstream", reason, 1), waiting=(7, 300))
    lines = render_status(whole, width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(render_status(whole).split())


def test_dead_agent_is_shown_by_its_last_sign_of_life_and_without_what_it_did() -> None:
    lines = render_status(report(life=ProcessState.DIED, agent=agent_status(written_at=ago(5, 1)))).splitlines()
    dead = "NOT RUNNING, last sign of life 5h 1m ago: killed or crashed"
    assert lines[0] == f"dub1-a, site dub1, region eu-west: {dead}"
    assert lines[3:7] == [
        "outbox            empty: the region has acknowledged everything",
        "",
        "stream nodes      not read now",
        ("  lag             not known now; 0 messages waited to be read when the stream was last looked at, 5h 1m ago"),
    ]


def test_agent_that_was_stopped_is_told_from_one_that_died() -> None:
    stopped = report(life=ProcessState.STOPPED, agent=agent_status(stopped_at=ago(2, 3)))
    assert ": NOT RUNNING, stopped 2h 3m ago as it was told\n" in render_status(stopped)


def test_agent_that_ended_by_an_error_is_told_from_one_that_was_stopped() -> None:
    failed = report(life=ProcessState.DIED, agent=agent_status(written_at=ago(2, 3), failure="OSError: no"))
    assert ": NOT RUNNING, last sign of life 2h 3m ago: ended by an error: OSError: no\n" in render_status(failed)


def test_agent_that_starts_is_shown_as_such_and_without_what_the_run_before_it_did() -> None:
    lines = render_status(report(life=ProcessState.STARTING, agent=agent_status(stopped_at=ago(2, 3)))).splitlines()
    starting = "starting: a process has the store and has not written yet"
    assert lines[0] == f"dub1-a, site dub1, region eu-west: {starting}"
    assert "stream nodes      not read now" in lines


def test_agent_that_hangs_is_shown_as_such() -> None:
    silent = report(life=ProcessState.SILENT, agent=agent_status(written_at=ago(0, 12)))
    assert ": SILENT for 12m 30s: process 4242 is there, but it hangs, is suspended, or cannot " in render_status(
        silent
    )


def test_agent_that_has_seen_nothing_yet_says_so() -> None:
    state = msgspec.structs.replace(STATE, observed_since=0, observed_through=0, counters={})
    fresh = BlockReport("nodes", state, {"heard": 0, "stale": 0})
    assert render_status(report(blocks=[fresh])).splitlines()[6:] == [
        "stream nodes      reading for 3h 10m",
        "  source          connected for 3h 11m",
        "  lag             not known: the stream has not been looked at yet",
        "  position        REGISTRATION sequence 4,711",
        "  watched         not yet",
        "  senders         0 heard, 0 stale",
    ]


def test_stream_that_was_never_reached_is_shown_by_its_parts() -> None:
    parts = {
        "source of nodes": PartStatus("not connected", "no answer", ago(0, 5)),
        "upstream": PartStatus("connected", "", ago(2, 4)),
    }
    assert render_status(report(parts=parts, blocks=[])).splitlines()[5:] == [
        "source of nodes   not connected for 5m 30s: no answer"
    ]


def test_every_stream_has_a_paragraph_and_a_copy_says_nothing_about_senders() -> None:
    copied = msgspec.structs.replace(
        STATE, mode="copy", counters={"forwarded": {"copy": 9}}, observed_through=ago(0, 5)
    )
    through = format_instant(copied.observed_through // SECOND * SECOND)
    parts = {**WORKING, "stream events": PartStatus("reading", "", ago(1, 1))}
    page = render_status(report(parts=parts, blocks=[block_report(), block_report("events", copied, progress(7))]))
    assert page.split("\n\n")[-1].splitlines() == [
        "stream events (copy) reading for 1h 1m",
        "  lag             7 messages to read, 5s behind the stream's clock",
        "  position        REGISTRATION sequence 4,711",
        f"  read            through {through} (5m 30s ago)",
        "  forwarded       copy 9",
    ]


def test_stream_whose_time_proves_nothing_is_called_so_while_it_is_read() -> None:
    page = render_status(report(blocks=[block_report(reached=progress(0, minutes * MINUTE)) for minutes in (9, -9)]))
    assert "  lag             nothing waits, but BLIND for 9m: nothing proves that the stream can store\n" in page
    assert "STANDING STILL: its server's clock is 9m behind what it had shown before\n" in page


def test_instant_that_lies_ahead_of_the_agents_clock_was_no_time_ago() -> None:
    state = msgspec.structs.replace(STATE, observed_through=NOW + HOUR)
    assert "(0s ago)" in render_status(report(blocks=[block_report(state=state)]))


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
    put_status(database, "progress:nodes", progress(3))
    compacted = {"compacted": {"newer_sample": 4}}
    assert read_report(database) == StatusReport(
        agent=written,
        life=ProcessState.RUNNING,
        parts={"stream nodes": PartStatus("reading", "", 4), "upstream": PartStatus("connected", "", 3)},
        last_problem=problem,
        blocks=[BlockReport("nodes", STATE, {"heard": 2, "stale": 1}, {**STATE.counters, **compacted}, progress(3))],
        outbox={name: LaneReport(0, 0) for name in ("advisories", "registrations", "copies")},
        outbox_counters={"compacted": {"newer_sample": 7}},
        room=2 << 30,
    )


def test_store_without_a_problem_has_none(database: sqlite3.Connection) -> None:
    put_status(database, "agent", agent_status())
    put_status(database, "last_problem", None)
    assert read_report(database).last_problem is None


def test_store_in_which_no_status_was_written_yet_says_so(database: sqlite3.Connection) -> None:
    with pytest.raises(StoreUnreadable, match="^the agent has not written a status yet; try again in some seconds$"):
        read_report(database)
