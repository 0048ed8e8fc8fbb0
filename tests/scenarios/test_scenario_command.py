"""A person can watch a scenario: a line for each step, and an exit code that says whether all of it held."""

import asyncio
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from aggregator.scenarios.commands import SCENARIOS
from aggregator.scenarios.narrator import Narrator
from tests.support.topology.aggregator_command import muster, ran, refused

DEADLINE = 420.0


async def test_each_step_is_told_and_whoever_stays_may_look_around_until_ctrl_c(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    command = ("-c", "from aggregator.cli import main; main()", "scenario", "sources-and-mirrors", "--stay")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--dir", str(directory), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(DEADLINE):
            told = await _told_until(process, b"--js-domain edge stream report\n")
            report = await ran("report", "--config", directory / "topology.toml")
            assert re.search(r"^AT_EDGE +mirror +edge +file", report, re.MULTILINE)
            if shutil.which("nats") is not None:
                for line, copy in zip(
                    re.findall(r"    (nats --server .*)", told), ("EDGE_COPY", "AT_EDGE"), strict=True
                ):
                    said = await _said_by(tmp_path, *line.split())
                    assert "Replication Report" in said
                    assert copy in said
            process.send_signal(signal.SIGINT)
            told += (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, told
    assert "\nThe link is back\n" in told
    assert "\n  + the hub catches up, without what was deleted meanwhile: 1, 2, 3, 4, 6\n" in told
    assert told.endswith(f" steps, all as described\n{directory} keeps settings, stores and maps\n")
    assert (directory / "topology.toml").exists()


async def _told_until(process: asyncio.subprocess.Process, end: bytes) -> str:
    assert process.stdout is not None
    told = b""
    while not told.endswith(end):
        line = await process.stdout.readline()
        assert line, told.decode()
        told += line
    return told.decode()


async def _said_by(home: Path, *command: str) -> str:
    environment = os.environ | {"XDG_CONFIG_HOME": str(home / "config"), "HOME": str(home)}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


async def test_a_directory_that_holds_something_is_not_touched_and_one_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    answer = await refused("scenario", "data-replication", "--dir", tmp_path / "mine" / "below")
    assert answer.stderr == f"muster-aggregator: {tmp_path}/mine/below: cannot be made: Not a directory\n"
    answer = await refused("scenario", "data-replication", "--dir", tmp_path)
    assert answer.stderr == f"muster-aggregator: {tmp_path} is not empty: name another place with --dir\n"


async def test_an_unknown_scenario_is_told_the_known_ones_and_help_says_what_they_show() -> None:
    answer = await muster("scenario", "all")
    assert answer.returncode == 2
    assert "'data-replication'" in answer.stderr
    shown = await ran("scenario", "--help")
    assert all(f"    {name}\n      {each.shows}\n" in shown for name, each in SCENARIOS.items())


def test_a_step_that_does_not_hold_is_marked_and_counted() -> None:
    lines: list[str] = []
    narrator = Narrator(lines.append)
    narrator.show("two and two", 5, 4, note="four")
    assert lines == ["  ! two and two: 5, not 4", "      (the documentation: four)"]
    assert not all(step.holds for step in narrator.steps)


def test_a_table_has_the_room_that_is_left_beside_its_indent() -> None:
    lines: list[str] = []
    narrator = Narrator(lines.append, width=20)
    narrator.output("x" * narrator.room)
    assert [len(line) for line in lines] == [20]


def test_sentences_are_broken_where_the_terminal_ends_and_tables_are_not() -> None:
    lines: list[str] = []
    narrator = Narrator(lines.append, width=20)
    narrator.show("ten and ten are", {"in one word": "twenty"}, {"in one word": "twenty"})
    narrator.output("a table may be wider than that")
    narrator.sentence("a sentence may not be")
    assert lines == [
        "  + ten and ten are:",
        "      in one word:",
        "        twenty",
        "    a table may be wider than that",
        "    a sentence may",
        "      not be",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_directory_that_nobody_named_goes_with_who_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    command = ("-c", "from aggregator.cli import main; main()", "scenario", "data-replication")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        async with asyncio.timeout(DEADLINE):
            await _told_until(process, b"A cluster of three servers\n")
            process.send_signal(number)
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
