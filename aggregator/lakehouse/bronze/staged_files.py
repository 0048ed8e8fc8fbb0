"""Add data files that were staged while they were read to their table, in one commit with the position."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import NamedTuple

import numpy as np
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from aggregator.lakehouse.bronze.spark_source import SCHEMA
from aggregator.lakehouse.bronze.staging import StagedFile, StagedSlice, StagingPlace, have_any
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import Table
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.jvm import java_class
from aggregator.lakehouse.warehouse.local_paths import local_path, remove


def place_of(spark: SparkSession, table: Table, after: int) -> StagingPlace | None:
    """Say where files of a table may be staged, whose rows go through the sequence ``after``; None where nowhere."""
    loaded = Iceberg(spark).load(table)
    parser = java_class(spark, "org.apache.iceberg.SchemaParser")
    schema = Schema.model_validate_json(parser.toJson(loaded.schema()))
    return StagingPlace.of(str(loaded.location()), schema_to_pyarrow(schema), after)


class StagedFiles(NamedTuple):
    """Files of the table of advisories that no snapshot knows yet, and all other messages."""

    place: StagingPlace
    slices: Sequence[StagedSlice]

    @property
    def files(self) -> list[StagedFile]:
        """Give the data files."""
        return [file for each in self.slices for file in each.files]

    @property
    def row_count(self) -> int:
        """Count the rows of all files."""
        return sum(file.row_count for file in self.files)

    @property
    def days(self) -> set[date]:
        """Name the days that files are of."""
        return {day for file in self.files for day in file.days}

    @property
    def last_archived(self) -> int:
        """Give the hub's time (microseconds) of the last advisory; 0 where there is none."""
        return max((each.last_archived for each in self.slices), default=0)

    def others(self, spark: SparkSession) -> DataFrame | None:
        """Read all other messages, as the data source gives them; None where there are none."""
        names = [each.others for each in self.slices if each.others]
        return self._parquet(spark.read.schema(SCHEMA), names) if names else None

    def rows(self, spark: SparkSession, table: Table) -> DataFrame:
        """Read the files as rows of ``table``."""
        schema = spark.table(table.identifier).schema
        names = [file.name for file in self.files]
        return self._parquet(spark.read.schema(schema), names).select(*table.column_names)

    def are_all_new(self, spark: SparkSession, table: Table, seen: int | None) -> bool:
        """Tell whether no two rows are the same record, and ``table`` at the snapshot ``seen`` has none of them.

        Where the answer is True, that is so; it may be False because two records that differ look alike.
        """
        wanted = np.sort(np.frombuffer(b"".join(each.fingerprints for each in self.slices), np.uint64))
        if (wanted[1:] == wanted[:-1]).any():
            return False
        present = [] if seen is None else Iceberg(spark).files_on(table, seen, self.days)
        if not present:
            return True
        paths = [path for path in map(local_path, present) if path is not None]
        if len(paths) < len(present):
            return False
        context = spark.sparkContext
        sent = context.broadcast(wanted)
        try:
            tasks = context.parallelize(paths, min(len(paths), context.defaultParallelism))
            return not any(tasks.mapPartitions(lambda some: have_any(sent.value, some)).collect())
        finally:
            sent.destroy()

    def add(self, spark: SparkSession, table: Table, position: HubPosition, seen: int | None) -> int:
        """Add the files to ``table`` and advance it to ``position``, in one commit; give how many rows came to it.

        ``seen`` is the snapshot that they were compared with, None where there was none.
        """
        named = [(f"{self.place.location}/{file.name}", file.partition) for file in self.files]
        return commits.add_files(spark, table, named, position, seen)

    def remove(self) -> None:
        """Remove the data files, whose rows were written otherwise."""
        for file in self.files:
            remove(self.place.path(file.name))

    def remove_others(self) -> None:
        """Remove the files of all other messages."""
        for each in self.slices:
            if each.others:
                remove(self.place.path(each.others))

    def _parquet(self, reader: DataFrameReader, names: Sequence[str]) -> DataFrame:
        paths = [f"file://{self.place.path(name)}" for name in names]
        # Names are names, whatever characters they have.
        return reader.option("__globPaths__", "false").parquet(*paths)


@contextmanager
def removed_on_failure(staged: StagedFiles | None) -> Iterator[None]:
    """Remove what was staged where this fails, since nobody will ask for it. Not around a commit that may be there."""
    try:
        yield
    except BaseException:
        if staged is not None:
            staged.remove()
        raise
