"""What is said of when a source watched is held of every sender: mistakes are refused, and it is said back."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.lakehouse.commands.imports import intervals
from aggregator.lakehouse.imports.mapping import ImportRefused
from aggregator.lakehouse.imports.times import parse_watch
from shared.instants import SECOND, parse_instant

NOW = parse_instant("2026-11-22T12:00:00Z")


@pytest.mark.parametrize(
    ("since", "until", "said"),
    [
        (
            "2005",
            None,
            "--since 2005: plain numbers are Unix seconds, with nine digits or more; write for example 2005-12-31T",
        ),
        (None, "20050101", "--until 20050101: plain numbers are Unix seconds"),
        (None, "1136073600000", "--until 1136073600000 is still to come: numbers are Unix seconds"),
        (None, "2026-12-01", "--until 2026-12-01 is still to come"),
        ("1969-12-31", None, "--since 1969-12-31 lies before 1970-01-02"),
        ("2005-02-01", "2005-01-31", "--since 2005-02-01 is 2005-02-01T00:00:00Z, and not before --until 2005-01-31,"),
        ("2005-02-01", "2005-02-01", "and not before"),
    ],
)
def test_a_watch_that_is_likely_a_mistake_is_refused(since: str | None, until: str | None, said: str) -> None:
    with pytest.raises(ImportRefused) as refused:
        parse_watch(since, until, "UTC", NOW)
    assert said in str(refused.value)


def test_a_watch_is_read_as_instants_are_and_may_reach_the_end_of_today() -> None:
    assert parse_watch("1115811139", "2026-11-23", "Europe/Dublin", NOW) == (
        1_115_811_139 * SECOND,
        parse_instant("2026-11-23T00:00:00Z"),
    )
    assert parse_watch(None, None, "UTC", NOW) == (None, None)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            "--always down --stop end --gaps up --since 1970-01-02 --until 1970-03-01",
            "between rows senders are up; watched from 1970-01-02T00:00:00Z to 1970-03-01T00:00:00Z\n",
        ),
        ("--always down --stop end", "between rows senders are unknown; watched from each sender's first row to its"),
        ("--state is", "a row holds until its sender's next; .* to its last, whose state then has no length: --until"),
        ("--always down --stop end --until 1970", "Error: --until 1970: plain numbers are Unix seconds"),
        ("--always down --stop end --epoch 1970", "Error: --epoch 1970: plain numbers are Unix seconds"),
        *(
            (f"--always down --stop small --epoch {epoch}", "down from 1970-01-02T00:00:00Z to 1970-01-03T00:00:01Z")
            for epoch in ("0", "1970-01-01")
        ),
    ],
)
def test_a_dry_run_says_what_is_held_between_and_around_rows(tmp_path: Path, told: str, said: str) -> None:
    (tmp_path / "file.csv").write_text("host,begin,end,is,small\nh,1970-01-02,1970-01-03,up,172801\n")
    (tmp_path / "aggregator.toml").write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n')
    given = f"--dry-run --sender host --start begin --config {tmp_path / 'aggregator.toml'} {told}"
    answer = CliRunner().invoke(intervals, [str(tmp_path / "file.csv"), *given.split()])
    assert re.search(said, answer.output), answer.output
