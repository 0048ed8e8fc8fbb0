"""A file that replaces another is there whole or as it was, and is written through no link of another user."""

import os
import stat
import threading
from pathlib import Path

import pytest

from shared.whole_files import discard, replacing


def test_a_file_takes_the_place_of_another_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("of yesterday")
    with replacing(file) as unfinished:
        unfinished.write_text("of today")
        assert file.read_text() == "of yesterday"
        assert stat.S_IMODE(unfinished.parent.stat().st_mode) == 0o700
        assert unfinished.parent.parent == tmp_path
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"report.html": "of today"}


def test_a_file_stays_as_it_was_if_the_new_one_fails(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("of yesterday")
    with pytest.raises(FileNotFoundError), replacing(file) as unfinished:
        unfinished.with_name("never written").replace(unfinished)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"report.html": "of yesterday"}


def test_an_unfinished_file_is_removed_while_another_thread_removes_it(tmp_path: Path) -> None:
    directory = tmp_path / ".muster-unfinished"

    def remove_files() -> None:
        for each in directory.glob("*"):
            each.unlink(missing_ok=True)

    for _ in range(20):
        directory.mkdir()
        for number in range(200):
            (directory / str(number)).touch()
        other = threading.Thread(target=remove_files)
        other.start()
        discard(directory)
        is_there = directory.exists()
        other.join()
        assert not is_there


@pytest.mark.parametrize("name", [".{file}.{pid}", "{file}.{pid}", "{file}.part", ".{file}.new", "{file}"])
def test_a_planted_link_is_not_followed(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("somebody's")
    file = tmp_path / "report.html"
    link = tmp_path / name.format(file=file.name, pid=os.getpid())
    link.symlink_to(precious)
    with replacing(file) as unfinished:
        unfinished.write_text("of today")
    assert (file.read_text(), file.is_symlink()) == ("of today", False)
    assert precious.read_text() == "somebody's"
