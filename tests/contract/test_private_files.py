"""What senders register is for the agent, its group and root: nobody else on the host can read a store."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.private_files import keep_private, open_to_others
from edge_agent.store.files import prepare
from tests.support.store_batches import advisory, batch, opened

GROUP, NOBODY = 4242, 65534
READERS = "root, the agent's user and its group may read it"
COUNT = """
import sys
from pathlib import Path
from edge_agent.store.reading import StoreUnreadable, reading
try:
    with reading(Path(sys.argv[1])) as database:
        print(len(database.execute("SELECT * FROM advisory_outbox").fetchall()))
except StoreUnreadable as error:
    print(error)
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


async def test_the_group_may_look_into_a_store_and_others_are_told_who_may(place: Path) -> None:
    path = place / "agent.db"
    keep_private(path)
    async with opened(path) as store:
        await store.commit(batch(1, [advisory("a")]))
        for each in (place, *place.iterdir()):
            os.chown(each, 0, GROUP)
        assert asked_by(GROUP, path) == "1"
        assert asked_by(NOBODY, path) == f"store {path}: permission denied; {READERS}"
        left = place / "left"
        left.mkdir()
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{path}{suffix}", left)
    assert asked_by(GROUP, path) == "1", "the agent has ended"
    for each in (left, *left.iterdir()):
        os.chown(each, 0, GROUP)
    assert asked_by(GROUP, left / "agent.db") == "1", "the agent was killed"


def asked_by(group: int, path: Path) -> str:
    """Read a store as a user of one group who owns nothing here."""
    somebody = ("setpriv", f"--reuid={NOBODY}", f"--regid={group}", "--clear-groups")
    answer = subprocess.run(
        [*somebody, sys.executable, "-c", COUNT, str(path)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() + answer.stderr


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory that other users can get at, unlike pytest's."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can be somebody else, by setpriv")
    here = Path(tempfile.mkdtemp(prefix="muster-"))
    here.chmod(0o755)
    try:
        if "there is no such file" not in asked_by(NOBODY, here / "none"):
            pytest.skip("other users cannot run this Python")
        made = here / "store"
        made.mkdir(mode=0o750)
        yield made
    finally:
        shutil.rmtree(here)
