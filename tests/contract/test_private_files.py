"""What senders register is for the agent, its group and root: nobody else on the host can read a store."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge_agent.runtime.process import keep_private, open_to_others
from edge_agent.store.files import prepare
from edge_agent.store.site_key import site_key
from tests.support.agent.operated_agent import COMMAND
from tests.support.other_user import OTHER, command_as, missing
from tests.support.store.store_batches import advisory, batch, opened

GROUP = 4242
READERS = "root, the agent's user and its group may read it"
COUNT = """
import sys
from pathlib import Path
from edge_agent.store.read_only import StoreUnreadable, store_reader
try:
    with store_reader(Path(sys.argv[1])) as database:
        print(len(database.execute("SELECT * FROM advisory_outbox").fetchall()))
except StoreUnreadable as error:
    print(error)
"""
SETTINGS = """
site = "dub1"
region = "eu-west"
name = "dub1-a"
{pair}
[upstream]
servers = ["nats://127.0.0.1:1"]
[store]
path = "{store}"
[[stream]]
name = "nodes"
sender = {{ json_path = "sender" }}
[stream.source]
servers = ["nats://127.0.0.1:1"]
stream = "REGISTRATION"
"""


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_what_is_made_and_what_was_there_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    (tmp_path / "agent.db.corrupt-1").touch()
    key = tmp_path / "agent.db.id-key"
    key.touch(mode=0o600)
    assert list(open_to_others(path)) == [tmp_path / "agent.db.corrupt-1"]
    keep_private(path)
    prepare(path)
    assert list(open_to_others(path)) == []
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {
        "agent.db": 0o640,
        "agent.db.corrupt-1": 0o640,
        "agent.db.marker": 0o640,
        "agent.db.id-key": 0o600,
    }


def test_what_is_linked_to_from_beside_a_store_keeps_its_mode(tmp_path: Path) -> None:
    path, theirs = tmp_path / "agent.db", tmp_path / "theirs"
    theirs.touch(mode=0o644)
    (tmp_path / "agent.db-wal").symlink_to(theirs)
    (tmp_path / "agent.db.corrupt-1").hardlink_to(theirs)
    os.mkfifo(tmp_path / "agent.db.corrupt-2", 0o644)
    (tmp_path / "agent.db.marker").symlink_to(tmp_path / "nothing")
    keep_private(path)
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o644


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", ".lock", ".marker", ".arrived"])
@pytest.mark.parametrize("exists", [True, False])
def test_an_agent_writes_through_no_link_and_says_which(tmp_path: Path, suffix: str, exists: bool) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / f"agent.db{suffix}"
    if exists:
        theirs.write_text("theirs")
    link.symlink_to(theirs)
    config = tmp_path / "agent.toml"
    config.write_text(SETTINGS.format(store=tmp_path / "agent.db", pair=""))
    done = subprocess.run(
        [COMMAND, "run", "--config", str(config)], capture_output=True, text=True, timeout=60, check=False
    )
    said = f"{link} is a symbolic link to {theirs}"
    assert (done.returncode != 0, done.stderr.count("\n"), said in done.stderr) == (True, 1, True), done.stderr
    assert theirs.read_text() == "theirs" if exists else not theirs.exists()
    done = subprocess.run(
        [COMMAND, "doctor", "--json", "--config", str(config)], capture_output=True, text=True, timeout=60, check=False
    )
    (found,) = [each for each in msgspec.json.decode(done.stdout)["findings"] if each["subject"] == "store"]
    assert (found["level"], found["text"]) == ("FAIL", said)


async def test_the_group_may_look_into_a_store_and_others_are_told_who_may(place: Path) -> None:
    path = place / "agent.db"
    keep_private(path)
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a")]))
        for each in (place, *place.iterdir()):
            os.chown(each, 0, GROUP)
        assert asked_by(GROUP, path) == "1"
        assert asked_by(OTHER, path) == f"store {path}: permission denied; {READERS}"
        left = place / "left"
        left.mkdir()
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{path}{suffix}", left)
    assert asked_by(GROUP, path) == "1", "the agent has ended"
    for each in (left, *left.iterdir()):
        os.chown(each, 0, GROUP)
    assert asked_by(GROUP, left / "agent.db") == "1", "the agent was killed"


@pytest.mark.parametrize(
    ("within", "pair"),
    [("", ""), ("deeper", '[pair]\nmembers = ["dub1-b", "dub1-a"]')],
    ids=["alone", "of a pair, in a directory of a closed one"],
)
def test_a_doctor_that_may_not_look_says_as_whom_to_run_it(place: Path, within: str, pair: str) -> None:
    path = place / within / "agent.db"
    path.parent.mkdir(exist_ok=True)
    keep_private(path)
    prepare(path)
    site_key(path.with_name("agent.db.id-key"))
    config = place.parent / "agent.toml"
    config.write_text(SETTINGS.format(store=path, pair=pair))
    config.chmod(0o644)
    done = run_by(OTHER, COMMAND, "doctor", "--json", "--config", str(config))
    assert (done.returncode, done.stderr) == (2, "")
    found = {each["subject"]: each for each in msgspec.json.decode(done.stdout)["findings"]}
    assert (found["store"]["level"], found["agent"]["level"]) == ("FAIL", "WARN")
    assert str(path.parent) in found["store"]["text"]
    assert found["agent"]["text"] == f"store {path}: permission denied; {READERS}"
    assert found["agent"]["remedy"] == "run the doctor as the agent's user"
    if pair:
        assert "permission denied" in found["pair"]["text"]


def asked_by(group: int, path: Path) -> str:
    """Read a store as a user of one group who owns nothing here."""
    answer = run_by(group, sys.executable, "-c", COUNT, str(path))
    return answer.stdout.strip() + answer.stderr


def run_by(group: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user of one group who owns nothing here."""
    return subprocess.run(
        command_as(OTHER, *command, group=group), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory that other users can get at, unlike pytest's."""
    if reason := missing():
        pytest.skip(reason)
    here = Path(tempfile.mkdtemp(prefix="muster-"))
    here.chmod(0o755)
    try:
        made = here / "store"
        made.mkdir(mode=0o750)
        yield made
    finally:
        shutil.rmtree(here)
