"""``compare`` passes tables that agree with a fleet's truth, and none that do not, or that know nothing of it."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aggregator.demo.compare_command import compare
from aggregator.demo.tables import Times, read
from aggregator.lakehouse.tables.policy import POLICY
from aggregator.lakehouse.tables.schemas import FLEET_AVAILABILITY_DAILY, SITE_AVAILABILITY_HOURLY
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.truth import TruthHeader, TruthLine, TruthThrough, UpInterval, encode_line
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import (
    IMPORTED_BLOCK,
    REGISTRATION_INTERVAL,
    STALE_AFTER,
    START,
    Coverage,
    Interval,
)

END = START + 2 * DAY
AFTERWARDS = END + 3 * HOUR
"""Until when the agent goes on after the fleet has ended."""
LAST_WORD = END - 2 * MINUTE
LIVES = [
    Interval("dub1", "n1", "up", START + MINUTE, START + 10 * HOUR, "stale"),
    Interval("dub1", "n1", "down", START + 10 * HOUR, START + 12 * HOUR, "recovered"),
    Interval("dub1", "n1", "up", START + 12 * HOUR, None, None),
    Interval("dub1", "n2", "up", START + MINUTE, None, None),
]
ENDED = [
    Interval("dub1", "n1", "up", START + MINUTE, START + 10 * HOUR, "stale"),
    Interval("dub1", "n1", "down", START + 10 * HOUR, START + 12 * HOUR, "recovered"),
    Interval("dub1", "n1", "up", START + 12 * HOUR, LAST_WORD, "stale"),
    Interval("dub1", "n1", "down", LAST_WORD, None, None),
    Interval("dub1", "n2", "up", START + MINUTE, LAST_WORD, "stale"),
    Interval("dub1", "n2", "down", LAST_WORD, None, None),
]


def up(sender: str, since: int = START, until: int | None = None, *, site: str = "dub1") -> UpInterval:
    return UpInterval(site=site, sender=sender, up_from_us=since, up_to_us=until)


TRUTH = [up("n1", START, START + 10 * HOUR + MINUTE), up("n1", START + 12 * HOUR - MINUTE), up("n2")]


class Compared:
    """A command run over tables of one's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lakehouse = SmallLakehouse(directory / "lake")

    def roll_up(self, lives: Sequence[Interval], known_through: int, block: str = "nodes") -> None:
        cause = "observed" if block == "nodes" else "imported"
        coverage = [Coverage("dub1", START, known_through, cause, block)]
        self.lakehouse.roll_up([each._replace(block=block) for each in lives], coverage, known_through)

    def with_truth(self, *told: UpInterval) -> Result:
        header = TruthHeader(
            seed=0, registration_interval=REGISTRATION_INTERVAL, jitter=0, started_at_us=START, ended_at_us=None,
            script="",
        )  # fmt: skip
        lines: list[TruthLine] = [header, *told, TruthThrough(at_us=END)]
        truth, config = self.directory / "truth.jsonl", self.directory / "aggregator.toml"
        truth.write_bytes(b"".join(map(encode_line, lines)))
        config.write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n')
        return CliRunner().invoke(compare, [str(truth), "--config", str(config)])


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    return Compared(tmp_path)


def test_tables_that_agree_with_the_truth_pass(compared: Compared) -> None:
    compared.roll_up(LIVES, END)
    answer = compared.with_truth(*TRUTH)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[-1] == "all 2 senders are within the bound"


DECLARED = (START + 9 * HOUR, START + 13 * HOUR)
BY_ALL_NAMES = ["n1", "n2", "n9"]


@pytest.mark.parametrize(
    ("scope", "is_cancelled", "exit_code"),
    [
        ({"site": "dub1"}, False, 0),
        ({}, False, 0),
        ({"site": "dub1", "sender_ids": BY_ALL_NAMES}, False, 0),
        ({"site": "dub1"}, True, 1),
        ({"site": "ams1"}, False, 1),
        ({"block": "others"}, False, 1),
        ({"sender_ids": ["n9"]}, False, 1),
    ],
)
def test_time_in_declared_maintenance_is_left_out_of_the_truth_as_of_the_tables(
    compared: Compared, scope: dict[str, object], is_cancelled: bool, exit_code: int
) -> None:
    outside = [Coverage("dub1", START, DECLARED[0], "observed"), Coverage("dub1", DECLARED[1], END, "observed")]
    compared.lakehouse.roll_up(LIVES, [Coverage("dub1", START, END, "observed")], END, accounted=outside)
    revision = {"stream_created_at": START, "given_at": START, "region": "eu-west"}
    declared = {"revision": 7, "kind": "maintenance", "started_at": DECLARED[0], "ended_at": DECLARED[1], **scope}
    cancelled = {"revision": 8, "kind": "cancel", "cancelled_revision": 7 if is_cancelled else 6}
    compared.lakehouse.append(POLICY, [revision | declared, revision | cancelled])
    answer = compared.with_truth(*TRUTH)
    assert (answer.exit_code, "its days account for" in answer.stderr) == (exit_code, exit_code == 1), answer.stderr


def test_an_agent_that_goes_on_after_the_fleet_ended_makes_nobody_wrong(compared: Compared) -> None:
    compared.roll_up(ENDED, AFTERWARDS)
    answer = compared.with_truth(*TRUTH)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[-1] == "all 2 senders are within the bound"


def test_a_sender_that_the_tables_never_met_is_named(compared: Compared) -> None:
    compared.roll_up(LIVES, END)
    answer = compared.with_truth(*TRUTH, up("n3"))
    assert answer.exit_code == 1
    assert answer.stderr.splitlines() == [
        "n3 at dub1: up for 172800.00 s of known time and never met",
        "Error: 1 in all: the tables are not what is promised",
    ]


def test_a_site_that_the_tables_do_not_know_is_named_beside_those_that_they_do(compared: Compared) -> None:
    compared.roll_up(LIVES, END)
    answer = compared.with_truth(*TRUTH, up("n9", site="nyc1"))
    assert answer.exit_code == 1
    assert "within the bound" not in answer.stdout
    assert answer.stderr.splitlines() == [
        "nyc1: the tables know nothing of it from 2026-03-02T00:00:00Z to 2026-03-04T00:00:00Z",
        "Error: 1 in all: the tables are not what is promised",
    ]


@pytest.mark.parametrize("block", ["nodes", IMPORTED_BLOCK])
def test_tables_that_know_nothing_of_the_fleet_are_refused(compared: Compared, block: str) -> None:
    site = "nyc1" if block == "nodes" else "dub1"
    compared.roll_up(LIVES, END, block)
    answer = compared.with_truth(up("n1", site=site), up("n2", site=site))
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.splitlines() == [
        f"{site}: the tables know nothing of it from 2026-03-02T00:00:00Z to 2026-03-04T00:00:00Z",
        f"Error: nothing to compare: the tables know no sender of {compared.directory}/truth.jsonl",
    ]


def test_a_truth_in_which_nobody_ever_was_proves_nothing(compared: Compared) -> None:
    compared.roll_up(LIVES, END)
    answer = compared.with_truth()
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert "Error: nothing to compare" in answer.stderr


def test_fleets_of_more_than_a_bigint_of_microseconds_are_read(compared: Compared) -> None:
    compared.roll_up(LIVES, END)
    before = read(compared.lakehouse.warehouse)
    age = 2**63 - 1
    sums = {"up_us": Decimal(age), "down_us": Decimal(age), "unknown_us": Decimal(0)}
    at = {"day": START // DAY, "region": "eu-west"}
    compared.lakehouse.append(SITE_AVAILABILITY_HOURLY, [{**at, **sums, "site": "dub1", "hour": START}])
    compared.lakehouse.append(FLEET_AVAILABILITY_DAILY, [{**at, **sums}])
    compared.lakehouse.record_positions(END)
    published = read(compared.lakehouse.warehouse)
    for found, was in ((published.sites["dub1"], before.sites["dub1"]), (published.fleet, before.fleet)):
        assert found == Times(was.up + age, was.down + age, was.unknown)
        assert isinstance(found.up, int)
        assert found.availability == pytest.approx(0.5, abs=1e-6)
    assert compared.with_truth(*TRUTH).exit_code == 0


def test_the_bound_has_room_for_one_silence_at_the_truths_end_and_no_more(compared: Compared) -> None:
    early = LAST_WORD - REGISTRATION_INTERVAL - SECOND
    lives = [each._replace(ended_at=early) if each.ended_at == LAST_WORD else each for each in ENDED]
    lives = [each._replace(started_at=early) if each.started_at == LAST_WORD else each for each in lives]
    assert early + STALE_AFTER > END
    compared.roll_up(lives, AFTERWARDS)
    answer = compared.with_truth(*TRUTH)
    assert answer.exit_code == 1
    assert "n2 at dub1: Muster says down for 421.00 s, the truth is 0.00 s: more than 301.00 s apart" in answer.stderr
