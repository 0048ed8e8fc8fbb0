"""Plan and compile less where there is little to compute: for a few rows, planning is nearly all that a run does."""

from collections.abc import Iterable, Mapping

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.schemas import SENDER_INTERVALS
from aggregator.lakehouse.warehouse.iceberg import Iceberg

FEW_ROWS = 200_000
"""Rows that are computed faster one by one than it takes to compile code for them: all, or those of an update."""
NEW_ROWS = 1_000_000
"""New rows that a few pieces sort in memory: each piece takes a while, however small it is."""
MOST_HANDED_OUT = 100_000
"""Rows of windows, and spans in them, that every core may hold a copy of: some 50 MB."""

_SHUFFLED = "spark.sql.shuffle.partitions"
_FOR_FEW = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    _SHUFFLED: "1",
    # Rows of many days lie in many files of a few rows each: four for a task are too few.
    "spark.sql.iceberg.read.adaptive-split-size.enabled": "false",
}
_ONE_BY_ONE = ("spark.sql.codegen.factoryMode", "spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled")
_PIECES = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_ROW_COUNT = "muster.row-count"
"""Of the tables that the session was set up for: how many rows there may be to go back to."""


def fit(spark: SparkSession, tables: Iterable[Table], new_count: int, chosen: Mapping[str, str]) -> None:
    """Set up the session for ``tables`` and as many new rows. What an operator has ``chosen`` stays."""
    iceberg = Iceberg(spark)
    rows = new_count + sum(iceberg.row_count(table) for table in tables)
    spark.conf.set(_ROW_COUNT, rows)
    for name in (*_FOR_FEW, _PIECES):
        if name not in chosen:
            _set(spark, name, _FOR_FEW.get(name) if rows <= FEW_ROWS else None)


def fit_windows(spark: SparkSession, count: int) -> None:
    """Set up the session for ``count`` windows: a long history has many, however few its records are."""
    if count > FEW_ROWS:
        for name, of_few in _FOR_FEW.items():
            if spark.conf.get(name, None) == of_few:
                _set(spark, name, None)


def fit_history(spark: SparkSession) -> None:
    """Set up the session for all rows that there are, where it was for those that are new."""
    fit_windows(spark, int(spark.conf.get(_ROW_COUNT, None) or 0))


def fit_sender_days(spark: SparkSession, days: int) -> None:
    """Set up the session for as many days of all senders that are there: who is gone has a row for each."""
    if days * _going_on_count(spark) > FEW_ROWS:
        fit_history(spark)


def cut(
    spark: SparkSession, tables: Iterable[Table], before: Mapping[str, int] | None, chosen: Mapping[str, str]
) -> None:
    """Set up the session, and into how many pieces it shuffles, for what came to ``tables`` since ``before``.

    These are snapshots; None: all rows are computed. Few rows of a long time are many files, which all cores write;
    those since a while ago are not. Where the session began without a number of pieces, as on a cluster, none is chosen
    for more rows.
    """
    if _are_few(spark):
        if _SHUFFLED not in chosen:
            spark.conf.set(_SHUFFLED, spark.sparkContext.defaultParallelism if before is None else _FOR_FEW[_SHUFFLED])
        return
    new_count = None if before is None else _new_count(Iceberg(spark), tables, before)
    many = spark.sparkContext.getConf().get(_PIECES)
    if many is not None and _PIECES not in chosen:
        few = spark.conf.get(_SHUFFLED) or many
        spark.conf.set(_PIECES, few if new_count is not None and new_count <= NEW_ROWS else many)
    if new_count is not None and new_count + _going_on_count(spark) <= FEW_ROWS:
        for name, of_few in _FOR_FEW.items():
            if name not in chosen:
                _set(spark, name, of_few)


def looked_at_again(rows: DataFrame) -> DataFrame:
    """Keep few rows that are used more than once: to find them again in files of many days takes far longer."""
    return rows.persist() if _are_few(rows.sparkSession) else rows


def computed_once(rows: DataFrame) -> DataFrame:
    """Compute ``rows`` once, and plan what follows without what made them.

    Only where no executor is a process of its own: what such a one has kept is gone with it, and a plan that begins
    there could not be computed again. Elsewhere rows are kept beside their plan.
    """
    spark = rows.sparkSession
    if (spark.sparkContext.master or "").partition("[")[0] != "local":
        return rows.persist()
    # Many are read from the disk: into memory Spark would unroll all that has room, and leave none to sum them up in.
    return rows.localCheckpoint(storageLevel=None if _are_few(spark) else StorageLevel.DISK_ONLY)


def joined_as(windows: DataFrame, count: int) -> DataFrame:
    """Have ``windows`` handed out whole where they are joined, or not if they are many: ``count`` rows and spans.

    Spark goes by the size of the files that they were cut out of, in which a year of hours is one row.
    """
    return windows.hint("broadcast" if count <= MOST_HANDED_OUT else "merge")


def _are_few(spark: SparkSession) -> bool:
    # All of them: an operator may have chosen one.
    return all(spark.conf.get(name, None) == _FOR_FEW[name] for name in _ONE_BY_ONE)


def _going_on_count(spark: SparkSession) -> int:
    """Say how many rows of ``sender_intervals`` go on: each update writes them anew."""
    return Iceberg(spark).null_count(SENDER_INTERVALS, "ended_at")


def _new_count(iceberg: Iceberg, tables: Iterable[Table], before: Mapping[str, int]) -> int:
    stood = {table: before.get(table.name) for table in tables}
    # Watermarks that were folded since have gone, and are no fewer new rows.
    return sum(
        max(0, iceberg.row_count(table) - (iceberg.row_count(table, at) if at else 0)) for table, at in stood.items()
    )


def _set(spark: SparkSession, name: str, wanted: str | None) -> None:
    """Set a property; None: to what the session began with."""
    value = wanted or dict(spark.sparkContext.getConf().getAll()).get(name)
    if value is None:
        # What nobody set has Spark's default again.
        spark.conf.unset(name)
    else:
        spark.conf.set(name, value)
