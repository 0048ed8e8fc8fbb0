"""Whatever a person types or has at hand, a command answers in clear lines, and a pipe that closes ends it quietly."""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from edge_agent.store import schema
from edge_agent.store.files import prepare
from tests.support.agent.agent_process import COMMAND

READERS = (
    ("status",),
    ("senders",),
    ("advisories",),
    ("explain", "web1"),
    ("outbox",),
    ("outbox", "drop", "--lane", "registrations", "--yes"),
)
EVERY_COMMAND = (*READERS, ("run",), ("check-config",), ("doctor",))
SETTINGS = """
site = "dub1"
region = "eu-west"
[upstream]
servers = ["nats://127.0.0.1:1"]
[store]
path = "agent.db"
[[stream]]
name = "nodes"
[stream.source]
servers = ["nats://127.0.0.1:1"]
stream = "REGISTRATION"
[stream.sender]
json_path = "sender"
"""


def named(command: tuple[str, ...]) -> str:
    return " ".join(command)


def told(*command: str | bytes, config: Path, debug: bool = False) -> tuple[int, str, str]:
    arguments = [COMMAND, *command, "--config", str(config), *(["--debug"] if debug else [])]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(SETTINGS)
    return path


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=named)
def test_settings_file_that_is_not_there_is_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = tmp_path / "nowhere.toml"
    code, output, errors = told(*command, config=missing)
    if command == ("doctor",):
        assert (code, errors) == (2, "")
        assert "there is no such file" in " ".join(output.split())
    else:
        assert (code, output, errors) == (1, "", f"muster-agent: {missing}: there is no such file\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("senders", "--limit", "9" * 20), "is not in the range"),
        (("explain", b"caf\xe9"), r"b'caf\xe9' is not UTF-8, as names and queries are"),
        (("senders", "--match", b"caf\xe9"), r"b'caf\xe9' is not UTF-8"),
        (("advisories", "--sender", b"\xff"), r"b'\xff' is not UTF-8"),
        (("outbox", "--to", ""), ".: is there already; name a new file"),
    ],
    ids=str,
)
def test_an_argument_that_can_be_none_is_one_clear_line(config: Path, command: tuple[str, ...], said: str) -> None:
    prepare(config.with_name("agent.db"))
    code, output, errors = told(*command, config=config)
    assert (code in (1, 2), output) == (True, "")
    assert said in " ".join(errors.split())
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", READERS, ids=named)
@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("nothing", r"there is no such file; has the agent run with these settings\?"),
        ("garbage", r"file is not a database; the agent sets it aside when it starts"),
        ("another version", rf"version 99, this muster-agent reads {schema.VERSION}; use a newer one"),
        (
            "an empty one",
            r"the agent has not (written a status yet; try again in some seconds|read from any stream yet)",
        ),
    ],
)
def test_store_that_cannot_be_shown_is_one_line(config: Path, command: tuple[str, ...], found: str, said: str) -> None:
    store = config.with_name("agent.db")
    if found == "garbage":
        store.write_bytes(b"nothing that SQLite can read" * 1_000)
    elif found != "nothing":
        prepare(store)
    if found == "another version":
        with store.open("r+b") as file:
            # SQLite's user_version: bytes 60 to 63 of the file.
            file.seek(60)
            file.write((99).to_bytes(4, "big"))
    code, output, errors = told(*command, config=config)
    assert (code, output) == (1, "")
    assert re.fullmatch(rf"muster-agent: (store {re.escape(str(store))}: )?{said}\n", errors), errors


def test_debug_gives_the_traceback_wherever_it_stands(config: Path) -> None:
    code, _, errors = told("status", config=config, debug=True)
    assert code == 1
    assert errors.startswith("Traceback")
    assert "StoreMissing" in errors


@pytest.mark.parametrize("command", [(), *EVERY_COMMAND], ids=named)
def test_help_says_what_it_does_and_shows_examples(command: tuple[str, ...]) -> None:
    words = [word for word in command if word not in ("web1", "--lane", "registrations", "--yes")]
    done = subprocess.run([COMMAND, *words, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    short = subprocess.run([COMMAND, *words, "-h"], capture_output=True, text=True, timeout=60, check=False)
    assert short.stdout == done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 90
    assert (
        not words
        or f"Examples:\n    {'muster-agent ' if words != ['doctor'] else 'sudo -u muster-agent '}" in done.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stauts"], "No such command 'stauts'"),
        (["status", "--jsn"], "No such option"),
        (["senders", "--state", "dead"], "'dead' is not one of 'heard', 'stale'"),
        (["senders", "--since", "yesterday"], "'yesterday' is neither a duration"),
        (["explain"], "Missing argument 'SENDER'"),
        (["run", "--log-format", "xml"], "'xml' is not one of 'text', 'json'"),
        (["outbox", "drop", "--lane", "advisories"], "'advisories' is not"),
    ],
)
def test_wrong_command_line_is_told_and_ends_with_two(arguments: list[str], said: str) -> None:
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "first"), [("check-config", "{config}: good"), ("doctor", "OK    settings ")])
async def test_reader_that_has_seen_enough_ends_a_command_quietly(config: Path, command: str, first: str) -> None:
    # More than a pipe holds, or while more is looked for, to a reader that takes one line.
    piped = f"{COMMAND} {command} --config {config} | head -n 1; exit ${{PIPESTATUS[0]}}"
    process = await asyncio.create_subprocess_exec("bash", "-c", piped, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert output.decode().startswith(first.format(config=config))
    assert (output.count(b"\n"), errors) == (1, b"")
    assert process.returncode in (0, 1, 2)
