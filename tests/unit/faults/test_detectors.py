"""Detectors of others accuse when they should, and what they are worth comes out as worked out by hand."""

import pytest

from shared.instants import SECOND
from tests.bench.detectors import (
    BEGAN,
    LOOKED,
    Detector,
    FixedTimeout,
    Heard,
    Mistake,
    Outage,
    PhiAccrual,
    Span,
    StreamClock,
    Suspicion,
    Truth,
    ZoneRule,
    judge,
    phi,
    suspicions,
)


def seconds(*instants: float) -> list[int]:
    return [round(each * SECOND) for each in instants]


def log(*lines: tuple[float, str]) -> list[Heard]:
    return [Heard(round(at * SECOND), what) for at, what in lines]


def accused(detector: Detector, lines: list[Heard], ended_at: float = 100) -> dict[str, list[tuple[float, float]]]:
    found = suspicions(detector, lines, round(ended_at * SECOND))
    return {
        sender_id: [(begin / SECOND, end / SECOND) for each in of_sender for begin, end in each.spans]
        for sender_id, of_sender in found.items()
    }


# Detectors


def test_a_fixed_timeout_accuses_when_it_next_looks_and_until_the_sender_is_heard() -> None:
    lines = log((0, "a"), (5, LOOKED), (6, LOOKED), (6.5, LOOKED), (9, "a"), (12, LOOKED))
    assert accused(FixedTimeout(6 * SECOND), lines) == {"a": [(6.5, 9)]}


def test_a_fixed_timeout_remembers_through_a_restart_and_a_zone_gives_everybody_their_time_again() -> None:
    lines = log((0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (7, LOOKED), (8, BEGAN), (8.1, LOOKED), (15, LOOKED))
    assert accused(FixedTimeout(6 * SECOND), lines)["a"] == [(7, 100)]
    assert accused(ZoneRule(6 * SECOND), lines)["a"] == [(7, 8)], "in the end everybody is late, and nobody accused"


@pytest.mark.parametrize(("late", "is_accused"), [(10, True), (11, False)])
def test_a_zone_accuses_nobody_once_55_percent_of_it_are_late(late: int, is_accused: bool) -> None:
    names = [f"node-{number}" for number in range(20)]
    lines = log(*((0, name) for name in names), *((5, name) for name in names[late:]), (7, LOOKED))
    assert bool(accused(ZoneRule(6 * SECOND), lines)) is is_accused


def test_phi_is_8_at_some_5_6_deviations() -> None:
    assert phi(0.0) == pytest.approx(0.301, abs=0.001)
    assert phi(5.5) < 8 < phi(5.7)


def test_phi_accrual_waits_longer_for_whom_comes_irregularly_and_by_its_pause() -> None:
    regular = [(2.0 * number, "a") for number in range(200)]
    irregular = [(2.0 * number + number % 2, "b") for number in range(200)]
    looks = [(398 + number / 10, LOOKED) for number in range(10, 300)]
    found = accused(PhiAccrual(2 * SECOND), log(*sorted([*regular, *irregular]), *looks), 430)
    # a: mean 2, the least deviation 0.2. b, heard at 399 last: mean 2, deviation 1.
    assert found["a"][0][0] == pytest.approx(398 + 2 + 5.61 * 0.2, abs=0.15)
    assert found["b"][0][0] == pytest.approx(399 + 2 + 5.61 * 1, abs=0.15)
    paused = accused(PhiAccrual(2 * SECOND, 6 * SECOND), log(*regular, *looks), 430)
    assert paused["a"][0][0] == pytest.approx(found["a"][0][0] + 6, abs=0.15)


def test_what_comes_back_from_being_down_teaches_phi_nothing() -> None:
    regular = [(2.0 * number, "a") for number in range(20)]
    back = [(138 + 2.0 * number, "a") for number in range(3)]
    looks = [(142 + number / 10, LOOKED) for number in range(10, 80)]
    _, again = accused(PhiAccrual(2 * SECOND), log(*regular, (100, LOOKED), *back, *looks), 150)["a"]
    assert again[0] == pytest.approx(142 + 2 + 5.61 * 0.21, abs=0.2)


# Truth and figures

REGISTERED = {"a": seconds(*range(0, 20, 2), *range(40, 60, 2))}
"""Down from 20.2 to 40: the last registration before is at 18."""


def truth() -> Truth:
    return Truth(REGISTERED, seconds(2.2)[0], seconds(60)[0])


def said(*spans: tuple[float, float], late: float = 0) -> dict[str, list[Suspicion]]:
    found: list[Suspicion] = []
    for begin, end in spans:
        span: Span = (round(begin * SECOND), round(end * SECOND))
        found.append(Suspicion(span[0], span[0] + round(late * SECOND), [span]))
    return {"a": found}


def test_a_sender_is_up_for_its_longest_silence_behind_each_registration() -> None:
    assert truth().up == {"a": [tuple(seconds(0, 20.2)), tuple(seconds(40, 60))]}
    assert truth().outages == [Outage("a", *seconds(18, 40))]


def test_an_outage_is_noticed_from_its_last_registration_on_by_when_it_was_said() -> None:
    figures = judge(truth(), said((24, 40), late=1), 6 * SECOND)
    assert (figures.mistakes, figures.query_accuracy) == ([], 1.0)
    assert figures.delays == {Outage("a", *seconds(18, 40)): 7 * SECOND}
    assert judge(truth(), said((24, 40)), 30 * SECOND).delays == {}, "too short to be asked for"
    assert judge(truth(), {}, 6 * SECOND).delays == {}


def test_an_accusation_of_who_is_up_is_a_mistake_that_lasts_as_long_as_it_is_wrong() -> None:
    figures = judge(truth(), said((10, 12), (14, 30)), 6 * SECOND)
    assert figures.mistakes == [Mistake("a", *seconds(10, 12)), Mistake("a", *seconds(14, 20.2))]
    assert figures.mistake_duration == pytest.approx((2 + 6.2) / 2 * SECOND)
    assert figures.mistake_recurrence == pytest.approx(40.2 / 2 * SECOND)
    assert figures.query_accuracy == pytest.approx(1 - 8.2 / 40.2)
    assert figures.delays == {Outage("a", *seconds(18, 40)): 0}, "it stood accused when it fell silent"


def test_who_is_still_held_to_be_down_costs_accuracy_and_is_no_new_mistake() -> None:
    figures = judge(truth(), said((24, 43)), 6 * SECOND)
    assert figures.mistakes == []
    assert figures.query_accuracy == pytest.approx(1 - 3 / 40.2)


def test_who_has_just_registered_is_not_accused_wrongly_while_that_is_under_way() -> None:
    assert judge(truth(), said((40.05, 40.1)), 6 * SECOND).mistakes == []
    assert judge(truth(), said((40.2, 40.3)), 6 * SECOND).mistakes == [Mistake("a", *seconds(40.2, 40.3))]


def test_a_clock_that_was_set_ahead_and_back_showed_each_instant_when_it_did() -> None:
    clock = StreamClock(0)
    clock.step(*seconds(10, 8))
    clock.step(*seconds(20, 0))

    def latest(shown: float, known_at: float) -> float:
        return clock.latest(*seconds(shown, known_at)) / SECOND

    def earliest(shown: float, since: float) -> float:
        return clock.earliest(*seconds(shown, since)) / SECOND

    assert latest(9, 9) == 9
    assert (latest(19, 12), latest(19, 19)) == (11, 11), "it was ahead"
    assert latest(21, 22) == 21, "it was set back"
    assert (latest(26, 19), latest(26, 30)) == (18, 26), "of two times that fit, the last one"
    assert (earliest(26, 17), earliest(26, 19)) == (18, 26), "or the first one since"
    assert (latest(12, 30), earliest(12, 0)) == (10, 10), "it never showed that"
