"""What really happened to a fleet is played again as it stands in a file."""

from pathlib import Path

import pytest

from edge_agent.simulator.fleet import FOREVER
from edge_agent.simulator.intervals_file import IntervalsUnreadable, first_instant, lifetimes, read_intervals
from shared.instants import DAY, HOUR, parse_instant

START = parse_instant("2026-03-01T00:00:00Z")
HISTORY = """\
site,sender,up_from,up_to
dub1,a,2026-02-27T00:00:00Z,2026-03-01T06:00:00Z
dub1,a,2026-03-01T08:00:00Z,2026-03-01T09:00:00Z
dub1,a,2026-03-01T09:00:00Z,
dub1,b,2026-03-01T12:00:00Z,2026-03-01T18:00:00Z
dub1,b,2026-03-02T01:00:00Z,2026-03-02T02:00:00Z
dub1,c,2026-02-27T00:00:00Z,2026-03-01T00:00:00Z
ams1,d,2026-03-01T00:00:00Z,2026-03-03T00:00:00Z
"""


def test_senders_are_up_as_the_file_says_within_the_time_that_is_played(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text(HISTORY)
    intervals = read_intervals(path)
    assert list(intervals) == ["dub1", "ams1"]
    assert first_instant(intervals) == parse_instant("2026-02-27T00:00:00Z")
    played = {lifetime.sender_id: lifetime.up_spans() for lifetime in lifetimes(intervals["dub1"], START, DAY)}
    assert played == {"a": ((0, 6 * HOUR), (8 * HOUR, FOREVER)), "b": ((12 * HOUR, 18 * HOUR),)}
    assert [lifetime.up_spans() for lifetime in lifetimes(intervals["ams1"], START, DAY)] == [((0, FOREVER),)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("site,sender\n", "the first line must be site,sender,up_from,up_to"),
        ("site,sender,up_from,up_to\n", "nobody was ever up"),
        ("site,sender,up_from,up_to\na.b,s,2026-03-01T00:00:00Z,\n", "line 2: "),
        ("site,sender,up_from,up_to\na,s,yesterday,\n", "line 2: not an instant: 'yesterday'"),
        ("site,sender,up_from,up_to\na,s,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z\n", "must end after it starts"),
        ("site,sender,up_from,up_to\na,s\n", "line 2: not an instant: ''"),
    ],
)
def test_a_file_that_does_not_say_who_was_up_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "history.csv"
    path.write_text(text)
    with pytest.raises(IntervalsUnreadable, match=r"^[^\n]+$") as refused:
        read_intervals(path)
    assert reason in str(refused.value)
