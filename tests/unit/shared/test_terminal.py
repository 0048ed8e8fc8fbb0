"""What is printed is as wide as where it is read, coloured only where that is wanted, and obeyed by no terminal."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from shared.command_line.tables import UNWRAPPED
from tests.support.pseudo_terminal import PLAIN, shown_at_terminal

WIDTH = "from shared.command_line.terminal import width; print(width())"
HOSTILE = "from shared.command_line.terminal import echo; echo('web\\x1b[2J1', lead='FAIL ', colour='red')"
COLOURED = (
    "import click; from shared.command_line.terminal import *; "
    f"click.command(lambda: exec({HOSTILE!r}))(color=colours())"
)
STEPS = (
    "from aggregator.terminal import progress\nwith progress() as tell: tell('starting \\x1b[2JSpark'); tell('reading')"
)


def at_terminal(program: str, environment: Mapping[str, str] = {}) -> str:
    return shown_at_terminal([sys.executable, "-c", program], environment, columns=93)


def in_a_pipe(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=PLAIN, check=True, timeout=60
    )
    return done.stdout + done.stderr


def test_a_terminal_has_its_own_width() -> None:
    assert int(at_terminal(WIDTH)) == 93


def test_a_pipe_takes_lines_whole() -> None:
    assert int(in_a_pipe(WIDTH)) == UNWRAPPED


def test_colours_come_at_a_terminal_and_orders_of_others_do_not() -> None:
    assert at_terminal(COLOURED) == "\x1b[31mFAIL \x1b[0mweb\\x1b[2J1\r\n"
    assert in_a_pipe(COLOURED) == "FAIL web\\x1b[2J1\n"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_nothing_is_coloured_where_nobody_wants_it(environment: dict[str, str]) -> None:
    assert at_terminal(COLOURED, environment) == "FAIL web\\x1b[2J1\r\n"


def test_progress_is_a_line_for_each_step_in_a_pipe_and_at_a_terminal_tells_the_time() -> None:
    assert in_a_pipe(STEPS) == "starting \\x1b[2JSpark\nreading\n"
    shown = at_terminal(STEPS)
    assert "starting \\x1b[2JSpark" in shown
    assert "reading" in shown
    assert "0:00:0" in shown


def test_sentences_are_broken_between_words_where_a_terminal_ends_and_nowhere_in_a_pipe() -> None:
    program = "from shared.command_line.terminal import echo; echo('  ' + 'word ' * 30 + 'x' * 100, prose=True)"
    lines = at_terminal(program).splitlines()
    assert [len(line) for line in lines] == [91, 63, 104]
    assert lines[-1] == "    " + "x" * 100
    assert len(in_a_pipe(program).splitlines()) == 1


@pytest.mark.parametrize(("environment", "level"), [({}, "\x1b[31mFAIL  \x1b[0m"), ({"NO_COLOR": "1"}, "FAIL  ")])
def test_doctor_colours_levels_where_that_is_wanted(environment: dict[str, str], level: str) -> None:
    agent = [sys.executable, "-c", "from edge_agent.cli import main; main()"]
    shown = shown_at_terminal([*agent, "doctor", "--config", "no-such.toml"], environment)
    assert shown.startswith(f"{level}settings")
    assert max(len(line) for line in shown.replace("\x1b[31m", "").replace("\x1b[0m", "").splitlines()) <= 80
