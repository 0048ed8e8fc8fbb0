"""What a run reads follows from where the tables stand and what the streams hold; what cannot be trusted is refused."""

import pytest

from aggregator.archive.reader import StreamContents
from aggregator.lakehouse.archive.reading_plan import ReadingPlan, Refused, Span, plan_reading
from aggregator.lakehouse.tables.position import NOWHERE, HubPosition
from aggregator.lakehouse.tables.schemas import BRONZE
from aggregator.lakehouse.unchanged import reached_by_all, tables_at

CREATED = 1_700_000_000_000_000


def stream(name: str, first: int, last: int, created_at: int = CREATED, first_at: int | None = None) -> StreamContents:
    count = max(0, last - first + 1)
    begins = created_at if first_at is None else first_at
    return StreamContents(name, created_at, first, last, count, byte_count=0, first_at=begins if count else 0)


def at(sequence: int, name: str = "ARCHIVE", created_at: int = CREATED) -> HubPosition:
    return HubPosition(name, created_at, sequence, known_through=1)


def test_the_first_run_begins_with_what_there_is() -> None:
    assert plan_reading([], stream("ARCHIVE", 5, 90), stream("REPORT", 40, 90)) == ReadingPlan(Span(5, 90))


def test_a_run_goes_on_where_the_table_that_is_furthest_behind_stands() -> None:
    plan = plan_reading([at(70), at(50)], stream("ARCHIVE", 1, 90), stream("REPORT", 40, 90))
    assert plan == ReadingPlan(Span(51, 90))


def test_nothing_new_and_nothing_at_all_are_nothing_to_read() -> None:
    assert plan_reading([at(90)], stream("ARCHIVE", 1, 90), stream("REPORT", 40, 90)).wanted.count == 0
    assert plan_reading([], stream("ARCHIVE", 0, 0), stream("REPORT", 0, 0)).wanted.count == 0
    # The last messages were removed, and the streams are empty: nothing is lost that was not read.
    assert plan_reading([at(90)], stream("ARCHIVE", 91, 90), stream("REPORT", 91, 90)).wanted.count == 0


def test_a_run_reads_as_far_as_the_report_does_unless_it_lags_behind_the_tables() -> None:
    assert plan_reading([at(50)], stream("ARCHIVE", 1, 90), stream("REPORT", 40, 80)).wanted == Span(51, 80)
    assert plan_reading([at(50)], stream("ARCHIVE", 1, 90), stream("REPORT", 1, 20)).wanted == Span(51, 90)


@pytest.mark.parametrize(
    ("stand", "archive", "said"),
    [
        (
            at(50),
            stream("ARCHIVE", 1, 90, CREATED + 1),
            "ARCHIVE is not the stream that was read through 50: it was created again, and its messages 1..90 are not",
        ),
        (at(50), stream("ARCHIVE", 1, 0, CREATED + 1), "created again, and its next messages are not in the tables"),
        (
            at(95),
            stream("ARCHIVE", 1, 90),
            r"ARCHIVE ends at 90, but was read through 95: .* will give 91\.\.95 to other",
        ),
        (at(50, "OLD"), stream("ARCHIVE", 1, 90), "the tables were made from OLD, the settings say ARCHIVE"),
    ],
)
def test_another_past_is_refused_with_the_remedy(stand: HubPosition, archive: StreamContents, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        plan_reading([stand], archive, stream("REPORT", 1, 90))
    assert "path to a new directory" in str(refused.value)


def test_a_mirror_of_what_the_archive_was_before_is_refused_with_the_remedy() -> None:
    was_made_anew, before = CREATED + 1, stream("REPORT", 1, 700)
    said = (
        "REPORT ends at 700, beyond ARCHIVE, which ends at 40: ARCHIVE was created again or restored .* restore that"
        " ARCHIVE, or delete REPORT and have muster-aggregator apply make it again"
    )
    for stands in ([], [at(30, created_at=was_made_anew)]):
        with pytest.raises(Refused, match=said):
            plan_reading(stands, stream("ARCHIVE", 1, 40, was_made_anew), before)
    # It has gone on where the new one passed its end: what only it holds is of the one before.
    archive, report = stream("ARCHIVE", 401, 900, was_made_anew), stream("REPORT", 1, 900)
    said = r"REPORT alone holds 101\.\.400, and begins at 2023-11-14T22:13:20Z, before ARCHIVE was made: ARCHIVE was"
    with pytest.raises(Refused, match=said):
        plan_reading([at(100, created_at=was_made_anew)], archive, report)
    assert plan_reading([at(400, created_at=was_made_anew)], archive, report).wanted == Span(401, 900)


def test_a_mirror_may_keep_what_the_archive_has_let_go() -> None:
    report = stream("REPORT", 1, 90, CREATED + 1)
    for archive in (stream("ARCHIVE", 61, 90), stream("ARCHIVE", 91, 90), stream("ARCHIVE", 96, 95)):
        assert plan_reading([at(50)], archive, report) == ReadingPlan(Span(51, 90))
    # Also where it was made by hand, before the archive. How old its messages are matters for what is still to be read.
    made_first = stream("REPORT", 1, 90, CREATED - 1, first_at=CREATED)
    assert plan_reading([at(50)], stream("ARCHIVE", 61, 90), made_first) == ReadingPlan(Span(51, 90))
    older = stream("REPORT", 1, 50, CREATED - 1)
    assert plan_reading([at(60)], stream("ARCHIVE", 61, 90), older) == ReadingPlan(Span(61, 90))
    assert plan_reading([], stream("ARCHIVE", 1, 90), stream("REPORT", 1, 90, CREATED - 1)).wanted == Span(1, 90)


def test_what_no_stream_holds_is_named_and_given_up_only_when_told_so() -> None:
    archive, report = stream("ARCHIVE", 61, 90), stream("REPORT", 80, 90)
    said = (
        r"no longer hold 51\.\.60, which the tables lack; if another mirror of ARCHIVE does, name it in \[lakehouse\]"
        r" report_stream for one rollup, else give them up for ever with --accept-loss 51\.\.60: the time"
    )
    with pytest.raises(Refused, match=said):
        plan_reading([at(50)], archive, report)
    # As told: that rollup reads what the other mirror has, and the next one goes on as before.
    assert plan_reading([at(50)], archive, stream("OLDER", 1, 80)) == ReadingPlan(Span(51, 80))
    assert plan_reading([at(80)], archive, report) == ReadingPlan(Span(81, 90))
    with pytest.raises(Refused, match=r"no longer hold 51\.\.60"):
        plan_reading([at(50)], archive, report, Span(52, 60))
    assert plan_reading([at(50)], archive, report, Span(51, 60)) == ReadingPlan(Span(61, 90), lost=Span(51, 60))
    with pytest.raises(Refused, match=r"nothing is lost \(the tables stand at 60\)"):
        plan_reading([at(60)], archive, report, Span(51, 60))


def test_tables_of_which_a_killed_run_began_some_stand_nowhere() -> None:
    """Whoever imports before the next rollup has no snapshot of the others to record."""
    stands = {table.name: at(number) for number, table in enumerate(BRONZE, start=7)}
    assert reached_by_all(stands) == at(7)
    stands.popitem()
    assert reached_by_all(stands) == reached_by_all({}) == NOWHERE
    assert not tables_at(NOWHERE, None).keys() & {table.name for table in BRONZE}


def test_a_range_of_sequences_is_read_as_it_is_printed() -> None:
    assert Span.parse("51..60") == Span(51, 60)
    assert str(Span.parse(" 7..7 ")) == "7..7"
    for wrong in ("", "51", "60..51", "a..b", "1...2", "-1..2"):
        with pytest.raises(ValueError, match="write LO..HI"):
            Span.parse(wrong)
