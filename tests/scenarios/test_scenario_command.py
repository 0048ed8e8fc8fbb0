"""A person can watch a scenario: a line for each step, and an exit code that says whether all of it held."""

from pathlib import Path

from aggregator.scenarios.telling import Telling
from tests.support.aggregator_command import muster, ran, refused


async def test_each_step_is_told_and_the_files_stay(tmp_path: Path) -> None:
    told = await ran("scenario", "data-replication", "--dir", tmp_path / "new")
    assert "\n100 messages into each of the two\n" in told
    assert "\n  + ARCHIVE has ORDERS whole and in order: yes\n" in told
    assert told.endswith(" steps, all as described\n")
    assert (tmp_path / "new" / "replication.dot").exists()


async def test_a_directory_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    answer = await refused("scenario", "data-replication", "--dir", tmp_path)
    assert answer.stderr == f"muster-aggregator: {tmp_path} is not empty: name another place with --dir\n"


async def test_an_unknown_scenario_is_told_the_known_ones() -> None:
    answer = await muster("scenario", "all")
    assert answer.returncode == 2
    assert "'data-replication'" in answer.stderr


def test_a_step_that_does_not_hold_is_marked_and_counted() -> None:
    lines: list[str] = []
    telling = Telling(lines.append)
    telling.show("two and two", 5, 4, note="four")
    assert lines == ["  ! two and two: 5, not 4\n      (the documentation: four)"]
    assert not telling.holds
