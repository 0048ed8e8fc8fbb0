"""Whether an agent runs, starts, hangs, was stopped or died is told from what it wrote, its process and its lock."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from edge_agent.observability import status_report
from edge_agent.observability.status_board import AgentStatus, now
from edge_agent.observability.status_report import ProcessState, read_report
from edge_agent.store import schema
from edge_agent.store.files import hold_of
from edge_agent.store.read_only import is_held
from shared.instants import HOUR, SECOND

NOW = now()
# No machine counts its processes this far.
NOBODY = (1 << 22) + 1


@pytest.mark.parametrize(
    ("seconds", "pid", "stopped_at", "is_held", "answer"),
    [
        (0, os.getpid(), 0, True, ProcessState.RUNNING),
        (5, os.getpid(), 0, None, ProcessState.RUNNING),
        (11, os.getpid(), 0, True, ProcessState.SILENT),
        (-11, os.getpid(), 0, True, ProcessState.SILENT),
        (11, os.getpid(), 0, None, ProcessState.DIED),
        (0, os.getpid(), 0, False, ProcessState.DIED),
        (0, NOBODY, 0, None, ProcessState.DIED),
        (0, 1, 0, None, ProcessState.RUNNING),
        (0, NOBODY, 0, True, ProcessState.STARTING),
        (0, NOBODY, 5, True, ProcessState.STARTING),
        (0, os.getpid(), 5, False, ProcessState.STOPPED),
        (0, NOBODY, 5, None, ProcessState.STOPPED),
    ],
    ids=[
        "held",
        "alive",
        "held-but-silent",
        "silent-since-its-clock-was-set-back",
        "silent",
        "store-let-go",
        "no-process",
        "anothers-process",
        "taken-after-a-death",
        "taken-after-a-stop",
        "stopped",
        "stopped-and-gone",
    ],
)
def test_agent_runs_where_its_process_lives_and_wrote_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, seconds: int, pid: int, stopped_at: int, is_held: bool | None, answer: ProcessState
) -> None:
    monkeypatch.setattr(status_report, "now", lambda: NOW)
    written = AgentStatus(
        agent="dub1-a",
        region="eu-west",
        site="dub1",
        version="0.1.0",
        boot_id="6f1c0f0e",
        pid=pid,
        started_at=NOW - HOUR,
        written_at=NOW - seconds * SECOND,
        max_outbox=2 << 30,
        stopped_at=stopped_at,
    )
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.executescript(schema.CREATE)
        database.execute(schema.PUT_STATUS, ("agent", msgspec.json.encode(written).decode()))
        assert read_report(database, is_held=is_held).life is answer


def test_store_is_held_while_an_agent_has_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    assert is_held(path) is False
    with hold_of(path):
        assert is_held(path) is True
    assert is_held(path) is False
