"""The demo's judge lets pass what is promised, and nothing else: each lie that the tables could tell is found."""

from collections.abc import Sequence

import pytest

from aggregator.demo.comparison import LATENESS, Figures, Interval, Rules, Verdict, judge
from aggregator.demo.spans import Span, common, longest, merged, total, without
from shared.instants import SECOND
from shared.truth import Truth, TruthHeader, UpInterval

INTERVAL = 3 * SECOND
STALE_AFTER = 10 * SECOND
END = 100 * SECOND


def seconds(*spans: tuple[float, float]) -> tuple[Span, ...]:
    return tuple((round(begin * SECOND), round(end * SECOND)) for begin, end in spans)


def truth_of(*up: tuple[float, float | None]) -> Truth:
    header = TruthHeader(
        seed=0, registration_interval=INTERVAL, jitter=0, started_at_us=0, ended_at_us=END, script=""
    )  # fmt: skip
    return Truth(
        header,
        END,
        [
            UpInterval(
                site="dub1",
                sender="n1",
                up_from_us=round(begin * SECOND),
                up_to_us=None if end is None else round(end * SECOND),
            )
            for begin, end in up
        ],
    )


def up(begin: float, end: float) -> Interval:
    return Interval("up", round(begin * SECOND), round(end * SECOND), round(begin * SECOND))


def down(begin: float, end: float) -> Interval:
    return Interval("down", round(begin * SECOND), round(end * SECOND), round(begin * SECOND) + STALE_AFTER)


def judged(
    truth: Truth,
    intervals: Sequence[Interval],
    *,
    known: Sequence[tuple[float, float]] = ((0, 100),),
    up_time: float | None = None,
    maintenance: Sequence[tuple[float, float]] = (),
) -> Verdict:
    """Judge figures that follow from the intervals, or say another up time."""
    seen = seconds(*known)

    def time_in(state: str) -> int:
        spans = common([each.span for each in intervals if each.state == state], seen)
        return total(without(spans, seconds(*maintenance)))

    said_up = time_in("up") if up_time is None else round(up_time * SECOND)
    figures = Figures(tuple(intervals), up=said_up, down=time_in("down"), maintenance=seconds(*maintenance))
    return judge(truth, "dub1", "n1", figures, Rules(seen, STALE_AFTER, END))


def test_a_sender_that_was_always_up_is_found_up() -> None:
    verdict = judged(truth_of((0, None)), [up(2, 100)])
    assert (verdict.error, verdict.bound, verdict.beyond, verdict.accused, verdict.unmet) == (0, 0, (), (), ())


def test_an_outage_that_was_noticed_may_be_off_by_two_intervals_and_no_more() -> None:
    truth = truth_of((0, 20), (40, None))
    within = judged(truth, [up(1, 17.5), down(17.5, 42.5), up(42.5, 100)])
    assert (within.error, within.bound, within.noticed, within.beyond) == (5 * SECOND, 6 * SECOND, 1, ())
    beyond = judged(truth, [up(1, 16.5), down(16.5, 43.5), up(43.5, 100)])
    assert beyond.beyond == ("Muster says down for 27.00 s, the truth is 20.00 s: more than 6.00 s apart",)


def test_an_outage_too_short_to_be_noticed_is_allowed_for() -> None:
    verdict = judged(truth_of((0, 20), (28, None)), [up(1, 100)])
    assert (verdict.error, verdict.bound, verdict.missed, verdict.beyond) == (-8 * SECOND, 8 * SECOND, 1, ())


def test_an_outage_that_should_have_been_noticed_is_not_allowed_for() -> None:
    verdict = judged(truth_of((0, 20), (35, None)), [up(1, 100)])
    assert verdict.bound == 0
    assert verdict.beyond == ("Muster says down for 0.00 s, the truth is 15.00 s: more than 0.00 s apart",)


def test_an_outage_that_nobody_could_see_counts_for_nothing() -> None:
    verdict = judged(truth_of((0, 20), (35, None)), [up(1, 100)], known=[(0, 20), (36, 100)])
    assert (verdict.error, verdict.bound, verdict.hidden, verdict.beyond) == (0, 0, 1, ())


@pytest.mark.parametrize(
    ("maintenance", "noticed", "error"),
    [
        ([(15, 45)], 0, 0),
        ([(20, 40)], 1, 5),
        ([(10, 30)], 1, 2.5),
        ([(10, 25), (22, 41)], 1, 1.5),
        ([(50, 60)], 1, 5),
    ],
)
def test_time_in_declared_maintenance_counts_neither_as_up_nor_as_down(
    maintenance: list[tuple[float, float]], noticed: int, error: float
) -> None:
    verdict = judged(
        truth_of((0, 20), (40, None)), [up(1, 17.5), down(17.5, 42.5), up(42.5, 100)], maintenance=maintenance
    )
    assert (verdict.wrong, verdict.noticed, verdict.error) == ((), noticed, round(error * SECOND))


def test_days_that_count_declared_maintenance_are_found() -> None:
    verdict = judged(truth_of((0, None)), [up(2, 100)], maintenance=[(10, 20)], up_time=98)
    assert verdict.beyond[0] == "its days account for 98.00 s of known time, its intervals for 88.00 s"


def test_an_outage_cut_in_two_by_blindness_is_allowed_for_where_both_parts_are_short() -> None:
    verdict = judged(truth_of((0, 20), (44, None)), [up(1, 100)], known=[(0, 28), (36, 100)])
    assert (verdict.error, verdict.bound, verdict.beyond) == (-16 * SECOND, 16 * SECOND, ())


def test_days_that_disagree_with_intervals_are_found() -> None:
    verdict = judged(truth_of((0, None)), [up(2, 100)], up_time=90)
    assert verdict.beyond == ("its days account for 90.00 s of known time, its intervals for 98.00 s",)


def test_who_registered_must_not_be_called_stale() -> None:
    verdict = judged(truth_of((0, None)), [up(1, 40), down(40, 60), up(60, 100)])
    assert verdict.accused == ("called stale 50.00 s after the start while it was registering",)


def test_who_came_back_a_moment_before_may_be_called_stale() -> None:
    assert judged(truth_of((0, 20), (29.9, None)), [up(1, 19), down(19, 31), up(31, 100)]).accused == ()


def test_a_blind_observer_must_not_accuse() -> None:
    silent = [up(1, 40), down(40, 70), up(70, 100)]
    verdict = judged(truth_of((0, 41), (69, None)), silent, known=[(0, 45), (48, 100)])
    assert verdict.accused == ("called stale 50.00 s after the start by an observer that had been blind",)


@pytest.mark.parametrize(
    ("intervals", "words"),
    [
        ([], ("up for 100.00 s of known time and never met",)),
        ([up(1, 60)], ("up for 40.00 s of known time and given up",)),
        ([up(9, 100)], ("up for 9.00 s of known time and given up",)),
        ([up(2.5, 100)], ()),
    ],
)
def test_who_is_there_must_be_met(intervals: list[Interval], words: tuple[str, ...]) -> None:
    assert judged(truth_of((0, None)), intervals).unmet == words


def test_who_came_while_nobody_looked_is_met_later() -> None:
    assert judged(truth_of((5, None)), [up(31, 100)], known=[(30, 100)]).unmet == ()


def test_what_follows_the_truth_counts_for_nothing() -> None:
    fell_silent_at_the_end = [up(1, 98.5), down(98.5, 130)]
    verdict = judged(truth_of((0, None)), fell_silent_at_the_end, known=[(0, 130)])
    assert (verdict.up, verdict.down, verdict.error, verdict.bound) == (
        97_500_000, 1_500_000, 1_500_000, INTERVAL + LATENESS,
    )  # fmt: skip
    assert verdict.wrong == ()
    silent_before = [up(1, 95), down(95, 130)]
    assert judged(truth_of((0, 97)), silent_before, known=[(0, 130)]).wrong == ()


def test_what_comes_before_the_truth_counts_for_nothing() -> None:
    verdict = judged(truth_of((0, None)), [up(-90, -50), down(-50, 2.5), up(2.5, 100)], known=[(-95, 100)])
    assert (verdict.up, verdict.down, verdict.bound) == (97_500_000, 2_500_000, INTERVAL + LATENESS)
    assert verdict.wrong == ()


def test_an_outage_before_the_truths_end_is_held_against_it_also_where_it_is_noticed_later() -> None:
    verdict = judged(truth_of((0, None)), [up(1, 94), down(94, 130)], known=[(0, 130)])
    assert verdict.wrong == (
        "Muster says down for 6.00 s, the truth is 0.00 s: more than 4.00 s apart",
        "called stale 104.00 s after the start while it was registering",
    )


def test_days_are_held_against_intervals_beyond_the_truth_too() -> None:
    verdict = judged(truth_of((0, None)), [up(2, 120)], known=[(0, 120)], up_time=117)
    assert verdict.beyond[0] == "its days account for 117.00 s of known time, its intervals for 118.00 s"


def test_a_retired_sender_is_absent_afterwards() -> None:
    verdict = judged(truth_of((0, 30)), [up(1, 28.5), down(28.5, 53.5)])
    assert (verdict.error, verdict.bound, verdict.beyond, verdict.unmet) == (1_500_000, 6 * SECOND, (), ())


def test_spans_are_cut_and_added_up() -> None:
    assert merged([(5, 6), (0, 3), (3, 4), (8, 8), (1, 2)]) == [(0, 4), (5, 6)]
    assert common([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert without([(0, 10), (20, 30)], [(0, 2), (5, 25)]) == [(2, 5), (25, 30)]
    assert (total([(0, 3), (5, 6)]), longest([(0, 3), (5, 6)]), longest([])) == (4, 3, 0)
