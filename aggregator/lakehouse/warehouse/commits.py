"""Commit rows together with the position they stand for, and read positions back.

A commit is one Iceberg snapshot: rows and position become visible together or not at all, also when there are no rows.
A snapshot's property goes with its snapshot when old ones are expired, so every whole run writes the positions as rows
too. What a table stands for is the further of the two: a row is only ever written after its snapshot.

Two jobs at once. Locks keep them apart (``lock.py``), but not where machines share a catalog that has none, or lose
the way to it. So a commit goes through only on what its job has seen: rows are added to a table to which nobody has
added any since they were compared with it, and a run is recorded on the run that it went on from, with derived tables
that nobody else has written since, or taken back. Of two jobs one is refused, and what it had added counts for the next
run.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import DERIVED, POSITIONS, TABLES
from aggregator.lakehouse.warehouse.errors import AlreadyRunning
from aggregator.lakehouse.warehouse.iceberg import Iceberg, quoted
from aggregator.lakehouse.warehouse.layout import laid_out
from aggregator.lakehouse.warehouse.lock import GAVE_UP

_PREFIX = "muster."
_RECIPE, _JOB = "muster.recipe", "muster.job"
_RUNS, _SWEPT = "muster.runs-since-upkeep", "muster.swept-at"

JUST_NOW: Final = -1
"""In the place of a snapshot: the one that there is when rows are added, with which nothing had to be compared."""


class WholeRun(msgspec.Struct, frozen=True):
    """What the last whole run left: position and snapshot of each table by its name, and its recipe.

    The recipe names all that derived tables depend on beside the bronze tables: with another one they are others.
    ``recorded_as`` is the snapshot that says so, None before the first run.
    """

    positions: Mapping[str, HubPosition] = {}
    snapshots: Mapping[str, int] = {}
    recipe: str = ""
    recorded_as: int | None = None


class Interfered(AlreadyRunning):
    """Another job has written the tables meanwhile. Nothing was recorded."""


class LastUpkeep(msgspec.Struct, frozen=True):
    """How many whole runs there were since the tables were kept up, and when (microseconds) orphans were removed."""

    runs_since: int = 0
    swept_at: int = 0


def append(
    rows: DataFrame, table: Table, position: HubPosition, seen: int | None = JUST_NOW, *, by_day: bool = False
) -> int:
    """Add ``rows`` and advance the table to ``position`` in one commit; return how many rows were added.

    ``seen`` is the snapshot that the rows were compared with, None where there was none: where rows came to the table
    since, Iceberg refuses. Each task writes the months that it meets, or ``by_day`` the days: to bring those of one
    together first would mean to shuffle every payload.
    """
    if seen == JUST_NOW:
        seen = snapshots(rows.sparkSession, (table,)).get(table.name)
    writer = _with_position(rows.select(*table.column_names), table, position)
    writer.option("distribution-mode", "none").option("fanout-enabled", "true")
    if by_day:
        writer.option("output-spec-id", Iceberg(rows.sparkSession).days_spec(table).specId())
    # Takes the place of nothing, so it adds; but unlike an append it is checked for what was added meanwhile.
    _unless_changed_since(writer, seen).overwrite(f.lit(False))
    return int(_summary(Iceberg(rows.sparkSession).load(table).currentSnapshot()).get("added-records", 0))


def add_files(
    spark: SparkSession, table: Table, files: Sequence[tuple[str, str]], position: HubPosition, seen: int | None
) -> int:
    """Add data files, each with its day or month, and advance the table to ``position`` in one commit.

    Give how many rows came. ``seen`` is the snapshot that they were compared with: where rows came to the table since,
    Iceberg refuses.
    """
    return Iceberg(spark).add_files(table, files, properties(spark, position), seen)


def advance(spark: SparkSession, table: Table, position: HubPosition) -> None:
    """Advance the table to ``position`` where there are no rows: a commit without a Spark job."""
    commit = Iceberg(spark).load(table).newFastAppend()
    for name, value in properties(spark, position).items():
        commit.set(name, value)
    commit.commit()


def replace(
    rows: DataFrame,
    table: Table,
    where: Column,
    position: HubPosition,
    times: tuple[int, int] | None = None,
    *,
    seen: int | None = None,
) -> None:
    """Put ``rows`` in the place of those that match ``where`` and advance the table to ``position``, in one commit.

    ``where`` must select whole files (``layout.whole_files``). Rows may lie outside of it too: those are added.
    ``times`` says on which days they lie, as ``laid_out`` takes it. ``seen`` is the snapshot that they were made of:
    where rows came since to what is replaced, Iceberg refuses. None: no other job writes the table.
    """
    writer = _with_position(laid_out(rows.select(*table.column_names), table, times), table, position)
    writer = writer.option("use-table-distribution-and-ordering", "false").option("fanout-enabled", "false")
    (writer if seen is None else _unless_changed_since(writer, seen)).overwrite(where)


def read_at(spark: SparkSession, table: Table, snapshot_id: int) -> DataFrame:
    """Read a table as a snapshot has it, whatever is committed meanwhile."""
    return spark.read.option("versionAsOf", snapshot_id).table(table.identifier)


def positions(
    spark: SparkSession, tables: Iterable[Table], whole_run: WholeRun | None = None
) -> dict[str, HubPosition]:
    """Tell by table name how far each has come; what was never written is left out.

    ``whole_run`` is the last one, None to look it up.
    """
    iceberg, kept = Iceberg(spark), (last_whole_run(spark) if whole_run is None else whole_run).positions
    found = {}
    for table in tables:
        both = [each for each in (_snapshot_position(iceberg.load(table)), kept.get(table.name)) if each is not None]
        if both:
            found[table.name] = max(both, key=lambda each: (each.created_at, each.sequence))
    return found


def snapshots(spark: SparkSession, tables: Iterable[Table]) -> dict[str, int]:
    """Give by table name the snapshot that each stands at; what was never written is left out."""
    iceberg = Iceberg(spark)
    found = {table.name: iceberg.load(table).currentSnapshot() for table in tables}
    return {name: int(snapshot.snapshotId()) for name, snapshot in found.items() if snapshot is not None}


def go_back(spark: SparkSession, tables: Iterable[Table], wanted: Mapping[str, int]) -> bool:
    """Have ``tables`` stand at the snapshots ``wanted`` again, by their names; False where any of those is gone."""
    iceberg = Iceberg(spark)
    loaded = {table.name: iceberg.load(table) for table in tables}
    if any(table.snapshot(wanted[name]) is None for name, table in loaded.items()):
        return False
    for name, table in loaded.items():
        if table.currentSnapshot().snapshotId() != wanted[name]:
            table.manageSnapshots().setCurrentSnapshot(wanted[name]).commit()
    return True


def last_whole_run(spark: SparkSession) -> WholeRun:
    """Tell what the last whole run recorded; nothing before the first."""
    iceberg = Iceberg(spark)
    loaded = iceberg.load(POSITIONS)
    snapshot = loaded.currentSnapshot()
    if snapshot is None:
        return WholeRun()
    rows = iceberg.rows(loaded, POSITIONS.column_names)
    return WholeRun(
        {
            name: HubPosition(stream, created_at, sequence, known_through, hub_time or 0)
            for name, stream, created_at, sequence, known_through, hub_time, _ in rows
        },
        {name: snapshot_id for name, *_, snapshot_id in rows},
        _summary(snapshot).get(_RECIPE, ""),
        int(snapshot.snapshotId()),
    )


def recorded_at(spark: SparkSession, instant: int) -> dict[str, int]:
    """Give the snapshots by which readers went at an instant (milliseconds), by their tables' names.

    Where what was recorded by then is not known any more, those of the first run that is known.
    """
    iceberg = Iceberg(spark)
    loaded = iceberg.load(POSITIONS)
    runs = [(int(entry.timestampMillis()), int(entry.snapshotId())) for entry in loaded.history()]
    if not runs:
        return {}
    last = max((run for run in runs if run[0] <= instant), default=runs[0])
    return dict(iceberg.rows(loaded, ("table_name", "snapshot_id"), last[1]))


def last_upkeep(spark: SparkSession) -> LastUpkeep:
    """Tell when the tables were last kept up; nothing before the first time."""
    snapshot = Iceberg(spark).load(POSITIONS).currentSnapshot()
    return kept_in({} if snapshot is None else _summary(snapshot))[1]


def kept_in(summary: Mapping[str, str]) -> tuple[str, LastUpkeep]:
    """Read the recipe, and when the tables were last kept up, out of the properties of a whole run's snapshot."""
    return summary.get(_RECIPE, ""), LastUpkeep(int(summary.get(_RUNS, 0)), int(summary.get(_SWEPT, 0)))


def record(
    spark: SparkSession,
    reached: Mapping[str, HubPosition],
    recipe: str,
    began: WholeRun,
    written: Collection[Table] = (),
    upkeep: LastUpkeep | None = None,
) -> None:
    """End a whole run: write where its tables stand as rows, with the snapshots that belong together.

    ``began`` is the last whole run, with the snapshots on which this one wrote, ``written`` the derived tables that it
    did write; raise Interfered as ``check_own``. ``upkeep``: what to remember of it, None for one run more than before.
    """
    # First: what is committed after this look is found by the check.
    at = snapshots(spark, (table for table in TABLES if table.name in reached))
    check_own(spark, began.snapshots, written)
    if upkeep is None:
        last = last_upkeep(spark)
        upkeep = msgspec.structs.replace(last, runs_since=last.runs_since + 1)
    rows = ", ".join(
        f"('{name}', {quoted(each.stream)}, timestamp_micros({each.created_at}), {each.sequence}L,"
        f" timestamp_micros({each.known_through}), timestamp_micros({each.hub_time}), {at[name]}L)"
        for name, each in sorted(reached.items())
    )
    values = spark.sql(f"SELECT * FROM VALUES {rows} AS ({', '.join(POSITIONS.column_names)})")  # noqa: S608 - our own
    writer = values.coalesce(1).writeTo(POSITIONS.identifier).option(f"snapshot-property.{_RECIPE}", recipe)
    writer = writer.option(f"snapshot-property.{_RUNS}", upkeep.runs_since)
    writer = writer.option(f"snapshot-property.{_SWEPT}", upkeep.swept_at)
    _unless_changed_since(writer, began.recorded_as).overwrite(f.lit(True))


def check_own(spark: SparkSession, began: Mapping[str, int], written: Collection[Table] = ()) -> None:
    """Raise Interfered unless each derived table has come from the snapshot where it began by this job's commits alone.

    Those of ``written`` have to have come further: another job that goes on from ``began`` takes back what it finds.
    """
    iceberg, own = Iceberg(spark), _own_name(spark)
    for table in (*DERIVED, *DERIVED_FROM_IMPORTS):
        loaded = iceberg.load(table)
        snapshot, reached = loaded.currentSnapshot(), None
        stands = None if snapshot is None else int(snapshot.snapshotId())
        while snapshot is not None:
            reached = int(snapshot.snapshotId())
            if _summary(snapshot).get(_JOB) != own or reached == began.get(table.name):
                break
            reached = snapshot.parentId()
            snapshot = None if reached is None else loaded.snapshot(reached)
        if reached != began.get(table.name) or (table in written and stands == reached):
            raise Interfered(f"another job has written {table.identifier} meanwhile: {GAVE_UP}")


def properties(spark: SparkSession, position: HubPosition | None) -> dict[str, str]:
    """Give the properties of a snapshot that this job makes and that stands for ``position``, None for none."""
    stands = {} if position is None else msgspec.structs.asdict(position)
    return {_JOB: _own_name(spark)} | {_PREFIX + name: str(value) for name, value in stands.items()}


def _with_position(rows: DataFrame, table: Table, position: HubPosition) -> Any:
    writer = rows.writeTo(table.identifier)
    for name, value in properties(rows.sparkSession, position).items():
        writer = writer.option(f"snapshot-property.{name}", value)
    return writer


def _unless_changed_since(writer: Any, seen: int | None) -> Any:
    """Have Iceberg refuse a commit where rows came to its table after the snapshot ``seen``, None: ever."""
    writer = writer.option("isolation-level", "serializable")
    return writer if seen is None else writer.option("validate-from-snapshot-id", seen)


def _own_name(spark: SparkSession) -> str:
    """Name the job: a session writes one after the other."""
    return str(spark._jsparkSession.sessionUUID())  # noqa: SLF001 - Python has no name for it


def _snapshot_position(loaded: Any) -> HubPosition | None:
    """Find the newest snapshot that carries a position: maintenance commits snapshots without one."""
    snapshot = loaded.currentSnapshot()
    while snapshot is not None:
        summary = _summary(snapshot)
        if _PREFIX + "sequence" in summary:
            return msgspec.convert(
                {name: summary.get(_PREFIX + name, 0) for name in HubPosition.__struct_fields__},
                HubPosition,
                strict=False,
            )
        parent = snapshot.parentId()
        snapshot = None if parent is None else loaded.snapshot(parent)
    return None


def _summary(snapshot: Any) -> dict[str, str]:
    return dict(snapshot.summary())
