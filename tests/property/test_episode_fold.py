"""The fold of senders' advisories into intervals, against random histories painted by a reference of its own."""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise

import pyarrow as pa
import pytest

from aggregator.lakehouse.derive.intervals.interval_batches import NAMES, intervals
from aggregator.records.episode import Advised, EpisodeFold, Interval, Report, State
from shared.identifiers import AdvisoryKind
from shared.instants import DAY, LATEST
from tests.support.lakehouse.random_fleet import (
    BlockHistory,
    ScopedRevision,
    Stores,
    _counting,
    _rank,
    _strokes,
    believed,
    draw_block,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 1_780_000_000_000_000
_REPORTS = {AdvisoryKind.STALE: Report.STALE, AdvisoryKind.RECOVERED: Report.RECOVERED}


def report_of(said: ScopedRevision) -> Report:
    if said.kind is AdvisoryKind.NEW:
        return Report.REBUILT if said.rebuilt else Report.NEW
    if said.kind is AdvisoryKind.RETIRED:
        unheard = Report.UNHEARD if said.unheard_until is not None else Report.RETIRED
        return Report.REMOVED if said.by_operator else unheard
    return _REPORTS[said.kind]


def in_order(history: BlockHistory) -> tuple[list[ScopedRevision], Stores]:
    counting, stores = _counting(believed(history))
    return sorted(
        counting, key=lambda each: (each.sender_id, each.at, each.claimed_at, _rank(each), each.event_id)
    ), stores


def advised(rows: Sequence[ScopedRevision], stores: Stores) -> list[Advised]:
    found = []
    for place, each in enumerate(rows):
        number = 0 if each.ordinal is None else stores.places.get(each.incarnation, len(stores.ends))
        end = stores.ends[number] if number < len(stores.ends) else LATEST
        is_first = place == 0 or rows[place - 1].sender_id != each.sender_id
        until = each.unheard_until or 0
        found.append(Advised(place, is_first, report_of(each), each.at, each.last_seen_at, until, 0, end))
    return found


def folded(rows: Sequence[Advised], cuts: Sequence[int] = ()) -> list[Interval]:
    fold = EpisodeFold()
    parts = (rows[begin:end] for begin, end in pairwise([0, *cuts, len(rows)]))
    return [Interval(*each) for part in parts for each in fold.fold(part)] + [Interval(*each) for each in fold.end()]


def painted(rows: list[ScopedRevision], stores: Stores) -> list[tuple[int, str]]:
    """Return the instants at which the reference's state of a sender changes, with the state from there on."""
    strokes = list(_strokes(rows, stores))
    points = sorted({at for at, _ in strokes})
    states = [next(state for at, state in reversed(strokes) if at <= point) for point in points]
    return changes(zip(points, states, strict=True))


def changes(points: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    found = [next(iter(of_state)) for _, of_state in groupby(points, key=lambda each: each[1])]
    return found[1:] if found and found[0][1] == "absent" else found


def drawn(intervals: Sequence[Interval]) -> Iterator[tuple[int, str]]:
    for each, following in zip(intervals, [*intervals[1:], None], strict=True):
        yield each.started_at, State(each.state).name.lower()
        if each.ended_at is not None and (following is None or following.started_at > each.ended_at):
            yield each.ended_at, "absent"


@pytest.mark.parametrize("seed", range(3))
def test_states_of_random_senders_are_those_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    for number in range(100):
        history = draw_block(draw, "site", f"b{number}", START, START + 5 * DAY)
        rows, stores = in_order(history)
        given = advised(rows, stores)
        found = folded(given)
        assert found == folded(given, sorted(draw.randrange(len(given) + 1) for _ in range(4)))
        for sender_id, own in groupby(rows, key=lambda each: each.sender_id):
            of_sender = [each for each in found if rows[each.place].sender_id == sender_id]
            assert changes(drawn(of_sender)) == painted([*own], stores), (seed, number, sender_id)
            check_invariants(of_sender)


def test_sender_that_was_unheard_until_before_it_was_seen_is_absent_from_then_on() -> None:
    new, unheard = Advised(0, True, Report.NEW, START, START), Advised(1, False, Report.UNHEARD, START + DAY, START + 5)
    assert folded([new, unheard]) == [Interval(0, 0, START, State.UP, START, START + 5, Report.UNHEARD)]


def check_invariants(intervals: Sequence[Interval]) -> None:
    for each, following in pairwise(intervals):
        assert each.ended_at is not None
        assert each.started_at < each.ended_at <= following.started_at
        assert each.ended_at == following.started_at or each.opened != following.opened
    assert all(each.ended_by is not None for each in intervals[:-1])


def test_batches_of_rows_give_the_same_intervals_wherever_they_are_cut() -> None:
    draw = random.Random(4)
    for number in range(50):
        rows, stores = in_order(draw_block(draw, "site", f"b{number}", START, START + 5 * DAY))
        given = advised(rows, stores)
        table = arrow_rows(rows, given)
        cuts = [0, *sorted(draw.randrange(len(rows) + 1) for _ in range(6)), len(rows)]
        parts = [table.slice(begin, end - begin) for begin, end in pairwise(cuts)]
        found = [row for batch in intervals(parts) for row in batch.to_pylist()]
        for row, wanted in zip(found, folded(given), strict=True):
            opening, resting = rows[wanted.opened], rows[wanted.place]
            assert row["sender_id"] == opening.sender_id == resting.sender_id
            assert (row["episode"], row["advisory_id"]) == (opening.event_id, resting.event_id)
            assert (row["advisory_kind"], row["state"]) == (str(resting.kind), State(wanted.state).name.lower())
            assert micros(row["started_at"]) == wanted.started_at
            assert (row["ended_at"] and micros(row["ended_at"])) == wanted.ended_at
            assert micros(row["episode_started_at"]) == wanted.opened_at
            assert row["basis"] == ("inferred" if wanted.is_inferred else None)


def arrow_rows(rows: Sequence[ScopedRevision], given: Sequence[Advised]) -> pa.RecordBatch:
    instants = pa.timestamp("us", "UTC")
    nothing = [None] * len(rows)
    columns = {
        **{name: pa.array([name] * len(rows)) for name in NAMES[:-1]},
        "sender_id": pa.array([each.sender_id for each in rows], pa.string()),
        "event_id": pa.array([each.event_id for each in rows], pa.string()),
        "opened_by": pa.array(nothing, pa.string()),
        "basis": pa.array(nothing, pa.string()),
        "report": pa.array([int(each.report) for each in given], pa.int32()),
        "occurred_at": pa.array([each.at for each in given], instants),
        "last_seen_at": pa.array([each.last_seen_at for each in given], instants),
        "unheard_until": pa.array([each.unheard_until or None for each in given], instants),
        "opened_at": pa.array(nothing, instants),
        "store_end": pa.array([each.store_end for each in given], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)
