"""A hole among a block's advisories darkens all that follows it, until it is filled or a store begins anew."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.archive import contests as contest_rules
from aggregator.lakehouse.derive import incremental
from aggregator.lakehouse.derive.coverage import contests, known_time, watermark_coverage
from aggregator.lakehouse.derive.coverage.believed_times import believed_advisories, believed_watermarks
from aggregator.lakehouse.derive.incremental import Before, IncrementalUpdate, Records, said_beside
from aggregator.lakehouse.spark import effort
from aggregator.lakehouse.tables.schemas import ADVISORIES, SENDER_INTERVALS, SITE_COVERAGE, WATERMARKS
from aggregator.lakehouse.warehouse import layout
from shared.instants import HOUR
from tests.lakehouse.derive.test_accounting import CONTINUATION_TYPES, frame
from tests.lakehouse.scripted_archive import START
from tests.support.lakehouse import random_fleet
from tests.support.lakehouse.random_fleet import (
    NEW,
    RECOVERED,
    STALE,
    BlockHistory,
    Mark,
    ScopedRevision,
    believed,
    is_known,
    known_spans,
)
from tests.support.lakehouse.random_rows import advisory_rows, watermark_rows

HOURS = 24
INTERVAL_TYPES = ", ".join(f"{column.name} {column.type}" for column in SENDER_INTERVALS.columns)
Told = ScopedRevision | Mark
Spans = list[tuple[int, int, str]]


class Story(NamedTuple):
    """What the hub comes to hold of one block, run by run."""

    block: str
    runs: Sequence[Sequence[Told]]

    def through(self, run: int) -> BlockHistory:
        """Give what it holds after a run."""
        told = [each for some in self.runs[: run + 1] for each in some]
        said = [each for each in told if isinstance(each, ScopedRevision)]
        return BlockHistory("site", self.block, said, [each for each in told if isinstance(each, Mark)])

    def rows(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Give its rows, and whether each is a watermark's; those of a run have the run's number as sequence."""
        for run, some in enumerate(self.runs, start=1):
            said = [each for each in some if isinstance(each, ScopedRevision)]
            history = BlockHistory("site", self.block, said, [each for each in some if isinstance(each, Mark)])
            yield from ((False, row | {"hub_sequence": run}) for row in advisory_rows(history))
            yield from ((True, row | {"hub_sequence": run}) for row in watermark_rows(history))


class Found(NamedTuple):
    """What a run leaves."""

    continuations: DataFrame
    coverage: DataFrame

    def rows(self) -> list[list[tuple[object, ...]]]:
        return [sorted(map(tuple, table.collect()), key=repr) for table in self]

    def spans(self) -> Mapping[str, Spans]:
        """Give each block's spans in hours from the start, with their causes."""
        found: dict[str, Spans] = {}
        rows = self.coverage.select("block", f.unix_micros("started_at"), f.unix_micros("ended_at"), "cause").collect()
        for block, begin, end, cause in sorted(rows):
            found.setdefault(block, []).append(((begin - START) // HOUR, (end - START) // HOUR, cause))
        return found


class Runs:
    """Runs over all stories at once, each computed in full, and gone on to from the one before."""

    def __init__(self, spark: SparkSession, stories: Iterable[Story], known: Sequence[int]) -> None:
        rows = [row for story in stories for row in story.rows()]
        self._spark, self._known = spark, [START + hour * HOUR for hour in known]
        self._records = Records(
            believed_advisories(frame(spark, ADVISORIES, [row for is_mark, row in rows if not is_mark])).persist(),
            believed_watermarks(frame(spark, WATERMARKS, [row for is_mark, row in rows if is_mark])).persist(),
        )

    def in_full(self, run: int) -> Found:
        records, known_through = self._through(run), self._known[run]
        nothing = self._spark.createDataFrame([], CONTINUATION_TYPES)
        pages = watermark_coverage.ledger(records.advisories)
        doubts = watermark_coverage.doubts(records.watermarks, records.advisories, pages, nothing)
        after = watermark_coverage.continuations(
            records.watermarks, pages, nothing, doubts, known_through
        ).localCheckpoint()
        said = watermark_coverage.vouched(records.watermarks, pages, nothing, doubts)
        said = said.unionByName(said_beside(after, contests.found_in(after)))
        return Found(after, known_time.site_coverage(said, [], known_through).localCheckpoint())

    def going_on(self, run: int, found: Found) -> Found:
        """Go on from what a run before ``run`` has ``found``."""
        lives = self._spark.createDataFrame([], INTERVAL_TYPES)
        before = Before(run, self._known[run - 1], lives, found.coverage, found.continuations)
        renewal = IncrementalUpdate(self._through(run), before, [], self._known[run - 1], self._known[run])
        after = renewal.continuations().localCheckpoint()
        changed = renewal.coverage(after, contests.found_in(after))
        kept = found.coverage.where(~layout.selected(layout.days_since(changed.begins), SITE_COVERAGE))
        return Found(after, kept.unionByName(changed.rows).localCheckpoint())

    def late(self, run: int, found: Found) -> set[str]:
        """Name the blocks of which a run has to begin anew, after what a run before it has ``found``."""
        new = Records(*(rows.where(f.col("hub_sequence") == run + 1) for rows in self._records))
        ahead = new.watermarks.limit(0)
        blocks = watermark_coverage.out_of_order(new.watermarks, ahead, new.advisories, found.continuations)
        return {row["block"] for row in blocks.collect()}

    def _through(self, run: int) -> Records:
        return Records(*(rows.where(f.col("hub_sequence") <= run + 1) for rows in self._records))


@pytest.fixture(autouse=True)
def lean(spark: SparkSession) -> None:
    """Compute as a rollup of little does."""
    effort.fit(spark, (), 0, {})


def said(ordinal: int, life: int = 1, hour: int | None = None, past: int = 1) -> ScopedRevision:
    """Give a life's advisory; it is said half an hour before the hour of its number, unless there is another one.

    ``past`` tells those of a store from those of an older copy of it.
    """
    kind = NEW if ordinal == 1 else (RECOVERED, STALE)[ordinal % 2]
    at = START + (ordinal if hour is None else hour) * HOUR - HOUR // 2
    return ScopedRevision("sender", kind, at, at, False, life, ordinal, f"{life}-{ordinal}-{past}", by_operator=False)


def mark(hour: int, issued: int, life: int = 1, lost_at: int = 0, since: int = 0) -> Mark:
    """Give a watermark of an hour; ``lost_at`` (0: never) and ``since`` are hours too."""
    since = START + max(since, lost_at) * HOUR
    return Mark(life, since, START + hour * HOUR, issued, lost_at and START + lost_at * HOUR)


def test_a_hole_darkens_every_later_hour_until_it_is_filled_or_a_store_begins_anew(spark: SparkSession) -> None:
    before: list[Told] = [said(1), mark(1, 1), said(2), mark(2, 2)]
    after: list[Told] = [said(4), mark(3, 3), mark(4, 4), *(mark(hour, 4) for hour in range(5, 9))]
    anew: list[Told] = [said(1, life=2, hour=9), mark(9, 1, 2, lost_at=8), mark(10, 1, 2, lost_at=8)]
    older: list[Told] = [*before, said(3), mark(3, 3)]
    put_back: list[Told] = [mark(4, 2), *(mark(hour, 3) for hour in (5, 6, 7, 8))]
    twice: list[Told] = [said(3, hour=5, past=2), *put_back[1:]]
    stories = [
        # An older copy of the store was put back, and what it says third is lost: the first life's third is there.
        Story("put-back", [older, put_back, [mark(9, 3), mark(10, 3)]]),
        Story("put-back-goes-on", [older, put_back, [said(4, hour=9, past=2), mark(9, 4)]]),
        Story("put-back-late", [older, put_back[1:], [put_back[0], mark(9, 3)]]),
        Story("said-twice", [older, twice, [mark(10, 3)]]),
        Story("said-twice-later", [[*older, said(4), said(4, hour=5, past=2)], [mark(7, 3)], [mark(8, 4), mark(9, 4)]]),
        Story("said-twice-in-runs", [[*older, said(4)], [said(4, hour=5, past=2), mark(7, 3)], [mark(9, 4)]]),
        Story("fallen-twice-said", [[said(1), mark(1, 1), mark(2, 0)], [said(1, hour=3, past=2)], [mark(9, 1)]]),
        Story("fallen-filled", [[said(1), mark(1, 3), mark(2, 1)], [said(2), said(3)], [mark(9, 1)]]),
        Story("put-back-anew", [older, put_back, anew]),
        Story("put-back-past", [older, put_back, [said(1, 2, 9), mark(9, 1, 2), mark(10, 1, 2)]]),
        # The archive begins with the fifth, which no watermark of its incarnation counts; the next one is whole.
        Story(
            "first-life", [[mark(1, 3), said(5)], [said(1, 2, 3), mark(3, 1, 2, since=2)], [mark(10, 1, 2, since=2)]]
        ),
        Story("first-life-late", [[mark(1, 3)], [said(1, 2, 3), mark(3, 1, 2, since=2)], [said(5), mark(9, 1, 2)]]),
        Story("dark", [before, after, [mark(9, 4), mark(10, 4)]]),
        Story("filled", [before, after, [said(3), mark(9, 4), mark(10, 4)]]),
        Story("filled-alone", [before, after, [said(3)]]),
        Story("another-filled", [before, [each for each in after if each != said(4)], [said(3)]]),
        Story("anew", [before, after, anew]),
        # The stream's past changed, and the agent still knows what it had said.
        Story("another-past", [before, after, [said(1, 2, 9), mark(9, 1, 2), mark(10, 1, 2)]]),
        Story("another-past-filled", [before, [*after, said(1, 2, 8), mark(8, 1, 2)], [said(3), mark(10, 1, 2)]]),
        Story("closed-late", [before, [mark(4, 0, 2), mark(8, 0, 2)], [mark(3, 3), mark(10, 0, 2)]]),
        # The archive begins later than the store; but what a later past of the stream lacks at its beginning is missed.
        Story("later", [[mark(1, 3), said(5), said(6), mark(2, 6)], [mark(3, 6)], [said(7), mark(4, 7)]]),
        Story("later-lacks", [before, [said(2, 2, 3), mark(3, 2, 2)], [mark(4, 2, 2)]]),
        Story("later-comes", [[mark(1, 3), said(5), mark(2, 5)], [said(3), mark(3, 5)], [said(4), mark(4, 5)]]),
        Story("whole", [before, [said(3), *after], [mark(9, 4), mark(10, 4)]]),
        Story("on-its-way", [before, [mark(3, 3)], [said(3)]]),
        # An older agent, which does not name the store, takes the place of the one that began it.
        Story("renamed", [[said(1), *(mark(hour, hour, lost_at=1) for hour in (1, 2))], [mark(8, 2)], [mark(10, 2)]]),
        # An agent says again what it said last, as one that was restarted does, and this one forgot its blind span.
        Story("repeated", [[said(1), mark(1, 1)], [said(2), mark(5, 2, since=3)], [mark(5, 2), mark(9, 2, since=3)]]),
        # A third agent is heard late and goes on for longer: the second, of one instant only, contradicts none.
        Story(
            "taken-back",
            [
                [mark(1, 0)],
                [mark(3, 0, 3, lost_at=1), mark(4, 0)],
                [mark(hour, 0, 2, lost_at=2)._replace(archived_at=START + 8 * HOUR) for hour in (3, 6)],
            ],
        ),
        # The next watermark of the first agent says the same, but at an instant at which another one counts more.
        Story("one-instant", [[mark(1, 0, 9)], [*(mark(hour, 0, 9) for hour in (2, 3, 4)), mark(4, 2)], [mark(9, 2)]]),
    ]
    runs = Runs(spark, stories, (2, 8, 10))
    found = runs.in_full(0)
    late = []
    for run in (1, 2):
        late.append(runs.late(run, found))
        found = runs.going_on(run, found)
        assert found.rows() == runs.in_full(run).rows()
    assert [name in late[1] for name in ("filled", "repeated", "put-back-goes-on")] == [True, False, False]
    put_back_cause = "put_back"
    spans = {
        block: [(begin, end, cause) for begin, end, cause in spans if end > 0] for block, spans in found.spans().items()
    }
    missing = "advisories_missing"
    assert spans == {
        "put-back": [(0, 3, "observed"), (3, 10, put_back_cause)],
        "put-back-goes-on": [(0, 3, "observed"), (3, 9, put_back_cause), (9, 10, "unobserved")],
        "put-back-late": [(0, 3, "observed"), (3, 9, put_back_cause), (9, 10, "unobserved")],
        "said-twice": [(0, 2, "observed"), (2, 10, put_back_cause)],
        "said-twice-later": [(0, 7, "observed"), (7, 9, put_back_cause), (9, 10, "unobserved")],
        "said-twice-in-runs": [(0, 7, "observed"), (7, 9, put_back_cause), (9, 10, "unobserved")],
        "fallen-twice-said": [(0, 9, put_back_cause), (9, 10, "unobserved")],
        "fallen-filled": [(0, 1, "observed"), (1, 9, put_back_cause), (9, 10, "unobserved")],
        "put-back-anew": [(0, 3, "observed"), (3, 8, put_back_cause), (8, 10, "observed")],
        "put-back-past": [(0, 3, "observed"), (3, 10, put_back_cause)],
        "first-life": [(0, 1, missing), (1, 2, "unobserved"), (2, 10, "observed")],
        "first-life-late": [(0, 1, missing), (1, 2, "unobserved"), (2, 9, "observed"), (9, 10, "unobserved")],
        "dark": [(0, 2, "observed"), (2, 10, missing)],
        "filled": [(0, 10, "observed")],
        "filled-alone": [(0, 8, "observed"), (8, 10, "unobserved")],
        "another-filled": [(0, 3, "observed"), (3, 8, missing), (8, 10, "unobserved")],
        "anew": [(0, 2, "observed"), (2, 8, missing), (8, 10, "observed")],
        "another-past": [(0, 2, "observed"), (2, 10, missing)],
        "another-past-filled": [(0, 10, "observed")],
        "closed-late": [(0, 2, "observed"), (2, 10, missing)],
        "later": [(0, 1, missing), (1, 4, "observed"), (4, 10, "unobserved")],
        "later-lacks": [(0, 2, "observed"), (2, 4, missing), (4, 10, "unobserved")],
        "later-comes": [(0, 4, "observed"), (4, 10, "unobserved")],
        "whole": [(0, 10, "observed")],
        "on-its-way": [(0, 3, "observed"), (3, 10, "unobserved")],
        "one-instant": [(0, 3, "observed"), (3, 9, missing), (9, 10, "unobserved")],
        "renamed": [(0, 1, "unobserved"), (1, 10, missing)],
        "repeated": [(0, 1, "observed"), (1, 3, "unobserved"), (3, 9, "observed"), (9, 10, "unobserved")],
        "taken-back": [(0, 6, "observed"), (6, 10, "unobserved")],
    }
    lacking = found.continuations.where("missing_count > 0").select("block", "incarnation", "missing_count").collect()
    assert sorted(map(tuple, lacking)) == [
        ("anew", "1-1", 1),
        ("another-filled", "1-1", 1),
        ("another-past", "1-1", 1),
        ("closed-late", "1-1", 1),
        ("dark", "1-1", 1),
        ("later-lacks", "1-2", 1),
        ("one-instant", "1-1", 2),
        ("renamed", "1-1", 1),
    ]


def test_in_whatever_order_records_come_each_run_knows_what_is_whole(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    draw = random.Random(random.getrandbits(32))
    monkeypatch.setattr(watermark_coverage, "PAGE_BITS", draw.randrange(7))
    # Spans are looked at by the hour, and derived anew since one.
    for module in (incremental, layout):
        monkeypatch.setattr(module, "DAY_US", HOUR)
    for module in (contest_rules, random_fleet):
        monkeypatch.setattr(module, "QUIET", HOUR)
    stories = [drawn_story(draw, f"b{number}") for number in range(150)]
    known = sorted(draw.sample(range(4, HOURS + 4), 4))
    runs = Runs(spark, stories, known)
    found = runs.in_full(0)
    for run in range(4):
        if run:
            found = runs.going_on(run, found)
            assert found.rows() == runs.in_full(run).rows()
        spans = found.spans()
        for story in stories:
            reference = known_spans(believed(story.through(run)), [])
            known_hours = {
                hour
                for begin, end, cause in spans.get(story.block, ())
                for hour in range(begin, end)
                if cause == "observed"
            }
            expected = {hour for hour in range(known[run]) if is_known(reference, START + hour * HOUR)}
            assert known_hours == expected, (story, run)


def drawn_story(draw: random.Random, block: str) -> Story:
    """Draw up to three lives of a block; some of what they tell never comes, some late, some again and again."""
    due: list[tuple[float, Told]] = []
    began, lateness, missing = 0, draw.choice((0, 1, 10)), draw.choice((0, 0.1, 0.3))
    lost_at = 0
    if draw.random() < 0.3:
        # Another agent, that knows nothing of this one.
        first, last = sorted((draw.randrange(1, HOURS), draw.randrange(1, HOURS)))
        due.extend((hour + draw.choice((0, lateness)), mark(hour, 0, 9)) for hour in range(first, last + 1))
    for life in range(1, draw.randrange(2, 5)):
        issued, until, past = 0, began + draw.randrange(1, HOURS // 3), 1
        if life > 1 and draw.random() < 0.5:
            lost_at = began
        for hour in range(began + 1, until + 1):
            if draw.random() < 0.03:
                # An older copy of the store is put back.
                issued, past = max(issued - draw.randrange(1, 4), 0), past + 1
            for _ in range(draw.choice((0, 0, 1, 1, 2, 5))):
                issued += 1
                if draw.random() >= missing:
                    due.append((hour + draw.choice((0, 0, lateness)), said(issued, life, hour, past)))
            if draw.random() < 0.8:
                due.append((hour + draw.choice((0, 0, 0, lateness)), mark(hour, issued, life, lost_at, began)))
        began = until
    due.sort(key=lambda each: each[0])
    told = [each for _, each in due]
    cuts = sorted(draw.randrange(len(told) + 1) for _ in range(3))
    return Story(block, [told[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(told)], strict=True)])
