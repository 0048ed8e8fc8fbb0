import pytest

from edge_agent.core.policy import Policy
from edge_agent.doctor.finding import Finding, Level
from edge_agent.doctor.registrations import Cadence, cadence_of, cadence_of_ages, judge, names_messages, quiet_share
from shared.instants import DAY, HOUR, MINUTE, SECOND

POLICY = Policy(sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=DAY, blind_after=3 * MINUTE)
INTERVAL = 5 * MINUTE


def fleet(senders: int, rounds: int, interval: int = INTERVAL) -> list[tuple[str, int]]:
    """Senders spread evenly over the interval."""
    step = interval // senders
    return [(f"node{n}", round_ * interval + n * step) for round_ in range(rounds) for n in range(senders)]


def levels(cadence: Cadence, policy: Policy = POLICY) -> list[Level]:
    return [finding.level for finding in judge("settings", cadence, policy)]


def test_the_interval_is_that_of_a_typical_sender_whatever_single_ones_do() -> None:
    sightings = fleet(10, 6)
    slow = [(sender_id, at) for sender_id, at in sightings if sender_id != "node3" or at < INTERVAL]
    hasty = [*slow, *(("node4", at) for at in range(0, 30 * MINUTE, SECOND))]
    assert cadence_of(sorted(hasty, key=lambda each: each[1]), "a sample").interval == INTERVAL


def test_a_sample_without_a_second_word_of_anybody_tells_no_interval() -> None:
    cadence = cadence_of(fleet(1_000, 1), "a sample")
    assert cadence.interval == 0
    (finding,) = judge("settings", cadence, POLICY)
    assert finding == Finding(
        Level.OK, "settings", "too few senders were heard twice to tell how often they register (a sample)"
    )


def test_ages_tell_an_interval_that_is_never_longer_than_the_real_one() -> None:
    through = 100 * HOUR
    spread = sorted(through - n * INTERVAL // 1_000 for n in range(1_000))
    together = [through - 2 * SECOND] * 1_000
    assert 0.9 * INTERVAL < cadence_of_ages(spread, through, "ages").interval <= INTERVAL
    assert cadence_of_ages(together, through, "ages").interval == 2 * SECOND


def test_ages_are_not_misled_by_a_few_who_are_about_to_fall_stale() -> None:
    through = 100 * HOUR
    spread = sorted([*(through - n * INTERVAL // 1_000 for n in range(1_000)), *([through - 11 * MINUTE] * 20)])
    assert cadence_of_ages(spread, through, "ages").interval <= INTERVAL


@pytest.mark.parametrize(
    ("interval", "level"),
    [
        (INTERVAL, Level.OK),
        (6 * MINUTE, Level.OK),
        (7 * MINUTE, Level.WARN),
        (12 * MINUTE, Level.FAIL),
        (HOUR, Level.FAIL),
    ],
)
def test_stale_after_must_be_longer_than_two_registrations_take(interval: int, level: Level) -> None:
    assert levels(cadence_of(fleet(100, 4, interval), "a sample")) == [level]


def test_the_remedy_names_a_threshold_that_fits() -> None:
    cadence = cadence_of(fleet(100, 4, 20 * MINUTE), "a sample")
    (finding,) = judge("settings", cadence, POLICY)
    assert finding.text == (
        "senders register about every 20m (a sample), but stale_after is 12m: the living will be called stale"
    )
    assert finding.remedy == "set stale_after to 50m or more, and retire_after and blind_after with it"
    fitting = Policy(sample_interval=HOUR, stale_after=50 * MINUTE, retire_after=DAY, blind_after=12 * MINUTE)
    assert levels(cadence, fitting) == [Level.OK]


def test_a_site_that_is_quiet_for_longer_than_blind_after_is_said() -> None:
    assert levels(cadence_of([("a", at * 4 * MINUTE) for at in range(10)] * 1, "a sample")) == [Level.OK, Level.WARN]
    assert levels(cadence_of(fleet(3, 10, 4 * MINUTE), "a sample")) == [Level.OK]


def test_one_outage_of_the_site_is_not_taken_for_its_habit() -> None:
    before = fleet(20, 24)
    after = [(sender_id, at + 2 * HOUR + HOUR // 2) for sender_id, at in before]
    instants = sorted(at for _, at in [*before, *after])
    assert 0 < quiet_share(instants, POLICY.blind_after) < 0.25
    assert levels(cadence_of([*before, *after], "a sample")) == [Level.OK]


@pytest.mark.parametrize(
    ("sightings", "is_so"),
    [
        ([(f"message-{at}", at * MINUTE) for at in range(120)], True),
        ([(f"message-{at}", at * SECOND) for at in range(120)], False),
        ([(f"message-{at}", at * MINUTE) for at in range(90)], False),
        ([(f"node-{at % 50}", at * MINUTE) for at in range(120)], False),
        ([(f"message-{at}" if at % 20 else "node", at * MINUTE) for at in range(120)], True),
    ],
    ids=["each another", "too short a time", "too few", "heard again", "nearly each another"],
)
def test_a_path_that_names_messages_is_told_by_that_hardly_anybody_is_heard_again(
    sightings: list[tuple[str, int]], is_so: bool
) -> None:
    assert names_messages(sightings, 12 * MINUTE) is is_so
