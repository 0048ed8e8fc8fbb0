"""Lists of failures and lists of changes become histories of senders, as other systems mean them."""

import time
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse import rollup
from aggregator.lakehouse.derive.availability.imported_availability import import_sender_availability
from aggregator.lakehouse.derive.intervals.imported_intervals import imported_coverage, imported_intervals, pieces
from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.staging import stage
from aggregator.lakehouse.imports.writer import ImportCounts, refuse_overlaps, staged_intervals, take
from aggregator.lakehouse.tables.imports import IMPORT_QUARANTINE, IMPORTS
from aggregator.lakehouse.warehouse import commits, provision
from shared.instants import DAY, HOUR, SECOND, format_instant
from tests.lakehouse.conftest import Lakehouse, say
from tests.support.lakehouse.hub import Hub

NOW = time.time_ns() // 1000
START = NOW // DAY * DAY - 3 * DAY
FAILURES: dict[str, Any] = {
    "source": "failures",
    "sender": ("host",),
    "start": "from",
    "stop": "to",
    "always": "down",
    "gaps": "up",
    "overlaps": "join",
}


def hour(at: datetime) -> float:
    return (at.timestamp() * SECOND - START) / HOUR


def told(hours: float) -> str:
    return format_instant(START + round(hours * HOUR))


@pytest.fixture(scope="module")
def tables(spark: SparkSession, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Give a session whose tables are there, and empty at first."""
    lakehouse = Lakehouse(hub, tmp_path_factory.mktemp("kinds") / "lake")
    session = rollup.start_session(lakehouse.settings, say)
    provision.prepare(session)
    return session


def taken(tables: SparkSession, directory: Path, text: str, mapping: Mapping, now: int = NOW) -> ImportCounts:
    directory.mkdir()
    (directory / "file.csv").write_text(text)
    staged = stage(directory / "file.csv", mapping, directory / "staged", now, say)
    return take(tables, [staged], mapping, commits.positions(tables, (IMPORTS,)).get(IMPORTS.name))


def rows_of(
    spark: SparkSession, directory: Path, rows: Sequence[tuple[str, float, float, str]], **mapped: Any
) -> DataFrame:
    directory.mkdir()
    lines = (f"{host},{told(begin)},{told(end)},{state}" for host, begin, end, state in rows)
    (directory / "file.csv").write_text("\n".join(["host,from,to,is", *lines, ""]))
    mapping = Mapping(**FAILURES | mapped)
    staged = stage(directory / "file.csv", mapping, directory / "staged", NOW, say)
    return staged_intervals(spark, staged, mapping).select(*IMPORTS.column_names)


def test_failures_that_overlap_are_one_and_what_nobody_lists_was_up_while_it_was_watched(
    spark: SparkSession, tmp_path: Path
) -> None:
    failures = [
        ("a", 12, 14, ""),
        ("a", 2, 6, ""),
        ("a", 3, 4, ""),
        ("a", 5, 8, ""),
        ("a", 7, 7, ""),
        ("a", 8, 9, ""),
        ("b", 20, 21, ""),
    ]
    watched = {"since": START, "until": START + 24 * HOUR}
    imports = rows_of(spark, tmp_path / "failures", failures, **watched).persist()
    found = pieces(imports).select("sender_id", "state", "started_at", "ended_at", "is_gap").collect()
    assert sorted((each[0], each[1], *((at - START) / HOUR for at in each[2:4]), each[4]) for each in found) == [
        ("a", "down", 2, 8, False),
        ("a", "down", 7, 7, False),
        ("a", "down", 8, 9, False),
        ("a", "down", 12, 14, False),
        ("a", "up", 0, 2, True),
        ("a", "up", 9, 12, True),
        ("a", "up", 14, 24, True),
        ("b", "down", 20, 21, False),
        ("b", "up", 0, 20, True),
        ("b", "up", 21, 24, True),
    ]
    assert [
        (row.sender_id, row.up_us / HOUR, row.down_us / HOUR, row.unknown_us, row.down_interval_count)
        for row in import_sender_availability(imports).orderBy("sender_id").collect()
    ] == [("a", 15, 9, 0, 4), ("b", 23, 1, 0, 1)]
    covered = imported_coverage(imports, START + 48 * HOUR).first()
    assert covered is not None
    assert [at.timestamp() * 1e6 for at in (covered.started_at, covered.ended_at)] == [START, START + 24 * HOUR]


def test_only_intervals_of_one_state_are_joined_and_what_is_there_is_not_held_against_a_new_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    mixed = {"always": None, "state": "is"}
    joined = rows_of(spark, tmp_path / "1", [("a", 0, 4, "down"), ("a", 2, 6, "down")], **mixed)
    later = rows_of(spark, tmp_path / "2", [("a", 6, 8, "up")], **mixed)
    contrary = rows_of(spark, tmp_path / "3", [("a", 3, 5, "up")], **mixed)
    refusing, joining = Mapping(**FAILURES | {"overlaps": "refuse"}), Mapping(**FAILURES)
    nothing = joined.limit(0)
    refuse_overlaps(joined, nothing, joining)
    refuse_overlaps(later, joined, refusing)
    with pytest.raises(
        ImportRefused, match=r"overlap, 1 times .* a is down .*line 2.* and down .*--overlaps join.* file$"
    ):
        refuse_overlaps(joined, nothing, refusing)
    with pytest.raises(
        ImportRefused,
        match=r"overlap, 1 times .* a is down .*line 3.* and up .*no two overlap, or mend.* where .* remove \w{16}`",
    ):
        refuse_overlaps(contrary, joined, joining)


def test_a_list_of_changes_says_what_a_sender_was_until_the_next_change(tables: SparkSession, tmp_path: Path) -> None:
    changes = [("b", 3, "up"), ("a", 4, "up"), ("a", 1, "up"), ("a", 6, "down"), ("b", 5, "up"), ("a", 7, "up")]
    changes += [("c", 2, "down"), ("c", 5, "retired"), ("c", 8, "Retired"), ("d", 0, "up"), ("d", 2, "retired")]
    changes += [("d", 9, "up")]
    lines = (f"{host},{told(at)},{state}" for host, at, state in changes)
    ends = START + 10 * HOUR
    mapping = Mapping(
        source="log", sender=("host",), start="at", state="is", since=START, until=ends, gone=("retired",)
    )
    text = "\n".join(["host,at,is", *lines, ""])
    assert taken(tables, tmp_path / "log", text, mapping) == ImportCounts(12, 9, 3, 0, 0)
    assert commits.positions(tables, (IMPORTS,))[IMPORTS.name].known_through == ends
    imports = tables.table(IMPORTS.identifier).where("block = 'import:log'").persist()
    found = imported_intervals(imports, ends + HOUR).collect()
    assert sorted((row.sender_id, hour(row.started_at), hour(row.ended_at), row.state) for row in found) == [
        ("a", 0, 1, "unknown"),
        ("a", 1, 6, "up"),
        ("a", 6, 7, "down"),
        ("a", 7, 10, "up"),
        ("b", 0, 3, "unknown"),
        ("b", 3, 10, "up"),
        ("c", 0, 2, "unknown"),
        ("c", 2, 5, "down"),
        ("d", 0, 2, "up"),
        ("d", 9, 10, "up"),
    ]
    assert len({row.episode for row in found}) == 5
    # Where the source says that it went on watching, who was retired stays so, and of the others nothing is known.
    longer = imports.withColumn("watched_to", f.timestamp_micros(f.lit(ends + 2 * HOUR)))
    added = imported_intervals(longer, ends + 3 * HOUR).where(f.col("started_at") >= f.timestamp_micros(f.lit(ends)))
    assert sorted((row.sender_id, row.state) for row in added.collect()) == [
        ("a", "unknown"), ("b", "unknown"), ("d", "unknown")
    ]  # fmt: skip


@pytest.mark.parametrize(("until", "down"), [(None, [(1, 2)]), (5, [(1, 2), (3, 5)])])
def test_an_end_that_is_still_to_come_takes_known_time_nowhere(
    tables: SparkSession, tmp_path: Path, until: int | None, down: list[tuple[float, float]]
) -> None:
    text = f"host,from,to\na,{told(1)},{told(2)}\na,{told(3)},2099-12-31 23:59:59\n"
    watched = {} if until is None else {"until": START + until * HOUR}
    mapping = Mapping(**FAILURES | {"source": f"open-{until}", **watched})
    quarantined = 2 - len(down)
    assert taken(tables, tmp_path / "open", text, mapping) == ImportCounts(2, len(down), 0, quarantined, 0)
    imports = tables.table(IMPORTS.identifier).where(f.col("block") == mapping.block).orderBy("started_at")
    assert [(hour(row.started_at), hour(row.ended_at)) for row in imports.collect()] == down
    assert commits.positions(tables, (IMPORTS,))[IMPORTS.name].known_through <= START + 10 * HOUR
    refused = tables.table(IMPORT_QUARANTINE.identifier).where(f.col("block") == mapping.block).collect()
    assert [(row.reason, row.line) for row in refused] == [("implausible_instant", 3)] * quarantined


@pytest.mark.parametrize("kind", ["ended", "changes", "watched"])
def test_the_same_file_adds_nothing_once_what_it_tells_of_has_come(
    tables: SparkSession, tmp_path: Path, kind: str
) -> None:
    given: dict[str, Any] = {"source": f"early-{kind}"}
    if kind == "watched":
        given["until"] = START - 97 * HOUR
    if kind == "changes":
        given |= {"stop": None, "state": "is", "always": None}
    mapping = Mapping(**FAILURES | given)
    text = f"host,from,to,is\na,{told(-99)},{told(-98)},down\na,{told(-97.5)},{told(-64)},up\n"
    text += f"a,{told(-60)},{told(-59)},down\n"
    early, late = START - 90 * HOUR, START - 50 * HOUR

    def found() -> list[tuple[object, ...]]:
        both = (tables.table(table.identifier) for table in (IMPORTS, IMPORT_QUARANTINE))
        return [tuple(row) for rows in both for row in rows.where(f.col("block") == mapping.block).collect()]

    written = 1 if kind == "ended" else 2
    zero_length = int(kind == "changes")
    assert taken(tables, tmp_path / "early", text, mapping, early) == ImportCounts(
        3, written, 0, 3 - written, zero_length
    )
    before = found()
    assert len(before) == 3
    assert taken(tables, tmp_path / "late", text, mapping, late) == ImportCounts(3, 0, 3, 0, 0)
    assert found() == before
    # In a list that has grown they are other rows.
    if kind == "ended":
        assert taken(tables, tmp_path / "grown", f"{text}b,{told(-99)},{told(-98)},down\n", mapping, late).written == 3


def test_files_of_one_source_hold_for_all_its_senders_only_while_it_watched(
    spark: SparkSession, tmp_path: Path
) -> None:
    early = rows_of(spark, tmp_path / "1", [("a", 1, 2, ""), ("b", 2, 3, "")], since=START, until=START + 4 * HOUR)
    later = rows_of(spark, tmp_path / "2", [("a", 9, 10, ""), ("c", 9, 10, "")], since=START + 8 * HOUR,
                    until=START + 12 * HOUR)  # fmt: skip
    imports = early.unionByName(later).persist()
    found = imported_intervals(imports, START + 48 * HOUR).collect()
    assert sorted(
        (row.sender_id, *(hour(at) for at in (row.episode_started_at, row.started_at, row.ended_at)), row.state,
         row.ended_by)
        for row in found
    ) == [
        ("a", 0, 0, 1, "up", "stale"),
        ("a", 0, 1, 2, "down", "recovered"),
        ("a", 0, 2, 4, "up", "import_end"),
        ("a", 8, 8, 9, "up", "stale"),
        ("a", 8, 9, 10, "down", "recovered"),
        ("a", 8, 10, 12, "up", "import_end"),
        ("b", 0, 0, 2, "up", "stale"),
        ("b", 0, 2, 3, "down", "recovered"),
        ("b", 0, 3, 4, "up", "import_end"),
        ("b", 8, 8, 12, "up", "import_end"),
        ("c", 0, 0, 4, "up", "import_end"),
        ("c", 8, 8, 9, "up", "stale"),
        ("c", 8, 9, 10, "down", "recovered"),
        ("c", 8, 10, 12, "up", "import_end"),
    ]  # fmt: skip
    assert len({row.episode for row in found}) == 6
    # What lies beyond is what its rows say, and nothing between them.
    beyond = rows_of(spark, tmp_path / "3", [("d", 5, 6, ""), ("d", 13, 14, "")], since=START + 8 * HOUR,
                     until=START + 12 * HOUR)  # fmt: skip
    together = imports.unionByName(beyond).persist()
    of_d = imported_intervals(together, START + 48 * HOUR).where("sender_id = 'd'").orderBy("started_at").collect()
    assert [(hour(row.started_at), hour(row.ended_at), row.state) for row in of_d] == [
        (0, 4, "up"), (5, 6, "down"), (8, 12, "up"), (13, 14, "down")
    ]  # fmt: skip
    covered = imported_coverage(together, round(START + 13.5 * HOUR)).orderBy("started_at").collect()
    assert [(hour(row.started_at), hour(row.ended_at), row.cause) for row in covered] == [
        (0, 4, "imported"), (4, 5, "unwatched"), (5, 6, "imported"), (6, 8, "unwatched"), (8, 12, "imported"),
        (12, 13, "unwatched"), (13, 13.5, "imported")
    ]  # fmt: skip
    assert all(row.known == (row.cause == "imported") for row in covered)
    # Where an import does not say that watching ended, or began, nothing lies between it and the next.
    open_ended = early.withColumn("watched_to", f.lit(None).cast("timestamp")).unionByName(later)
    of_a = pieces(open_ended).where("sender_id = 'a' AND is_gap").orderBy("started_at").collect()
    assert [((row.started_at - START) / HOUR, (row.ended_at - START) / HOUR) for row in of_a] == [
        (0, 1), (2, 9), (10, 12)
    ]  # fmt: skip


def test_who_is_gone_at_the_instant_of_another_word_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("a", 1, 2, "down"), ("a", 4, 4, "retired"), ("a", 4, 4, "down"), ("a", 4, 4, "up"), ("a", 9, 10, "down")]
    mapped = {"always": None, "state": "is", "gone": ("retired",), "until": START + 12 * HOUR}
    found = pieces(rows_of(spark, tmp_path / "rows", rows, **mapped)).where("started_at < ended_at").collect()
    assert sorted(((row.started_at - START) / HOUR, (row.ended_at - START) / HOUR, row.state) for row in found) == [
        (1, 2, "down"), (2, 4, "up"), (9, 10, "down"), (10, 12, "up")
    ]  # fmt: skip


def test_known_of_each_site_is_all_that_its_senders_lived_whichever_ends_of_watching_imports_leave_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    def watching(rows: DataFrame, watches: Sequence[tuple[str, int | None, int | None]]) -> DataFrame:
        told = spark.createDataFrame(watches, "block string, since long, until long")
        since, until = (f.timestamp_micros(START + f.col(name) * HOUR) for name in ("since", "until"))
        watched = rows.drop("block").crossJoin(told).withColumns({"watched_from": since, "watched_to": until})
        return watched.select(*IMPORTS.column_names)

    early = rows_of(spark, tmp_path / "1", [("x/a", 1, 2, ""), ("x/a", 4, 5, ""), ("z/b", 2, 3, "")], shape="{site}/{}")
    later = rows_of(spark, tmp_path / "2", [("y/c", 10, 11, ""), ("z/b", 9, 10, "")], shape="{site}/{}")
    said = {"-".join(map(str, each)): each for each in product((None, 0), (None, 4), (None, 8), (None, 12))}
    imports = watching(early, [(name, *each[:2]) for name, each in said.items()]).unionByName(
        watching(later, [(name, *each[2:]) for name, each in said.items()])
    )
    lives, known = (
        {(row.block, row.site): {(hour(begin), hour(end)) for begin, end in row.spans} for row in rows.collect()}
        for rows in (
            each.groupBy("block", "site").agg(f.collect_set(f.struct("started_at", "ended_at")).alias("spans"))
            for each in (
                imported_intervals(imports, START + 48 * HOUR),
                imported_coverage(imports, START + 48 * HOUR).where("known"),
            )
        )
    )
    assert len(lives) == 3 * len(said)
    assert not {
        (place, (begin, end))
        for place, spans in lives.items()
        for begin, end in spans
        if not any(first <= begin and end <= last for first, last in known[place])
    }
    assert known["None-None-8-12", "x"] == {(1, 12)}
    assert known["0-4-None-12", "y"] == {(0, 12)}
    assert known["0-4-8-12", "y"] == {(0, 4), (8, 12)}


def test_a_list_that_has_grown_brings_all_its_senders_further_and_is_refused_where_it_could_not(
    tables: SparkSession, tmp_path: Path
) -> None:
    def grown(until: int, *rows: tuple[str, int, int], **mapped: Any) -> ImportCounts:
        lines = (f"{host},{told(begin)},{told(end)}" for host, begin, end in rows)
        mapping = Mapping(**FAILURES | {"source": "grown", "since": START, "until": START + until * HOUR} | mapped)
        directory = tmp_path / f"{until}-{len(rows)}-{mapping.gaps}"
        return taken(tables, directory, "\n".join(["host,from,to", *lines, ""]), mapping)

    first = [("a", 1, 2), ("b", 1, 2)]
    assert grown(4, *first).written == 2
    assert grown(8, *first, ("b", 5, 6)) == ImportCounts(3, 1, 2, 0, 0)
    imports = tables.table(IMPORTS.identifier).where("block = 'import:grown'")
    assert [
        (row.sender_id, row.up_us // HOUR) for row in import_sender_availability(imports).orderBy("sender_id").collect()
    ] == [("a", 7), ("b", 6)]
    # What is there already says as much.
    assert grown(7, *first).written == 0
    (identifier,) = (row.import_id for row in imports.where("line = 2").collect())
    with pytest.raises(ImportRefused, match=rf"every row is there .* --until; `muster-aggregator .* {identifier}"):
        grown(9, *first)
    with pytest.raises(ImportRefused, match=rf"2 rows are there already, and came with --gaps up; .* {identifier}"):
        grown(9, *first, ("b", 8, 9), gaps="unknown")
    assert imports.count() == 3
